"""What the control plane tells of answers by meaning, what clients may say of them, and what a reload changes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import openai

from gateway.app import running
from gateway.config import Config
from tests.caching_fixtures import setting
from tests.data_plane_fixtures import Inside, RawWorker, plane
from tests.gateway_fixtures import eventually
from tests.ports import free_port
from tests.semantic_fixtures import EASY, SemanticSetting, Wise, Words, semantic_section, semantic_setting
from tests.tenant_fixtures import KEYS, tenants

PASSWORD = "How do I reset my password?"
SAME = "How can I reset my password?"
TOKEN = "a token for tests"


class Admin:
    """The control plane, as an operator's client."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def get(self, path: str) -> tuple[int, str]:
        async with self._session.get(path) as response:
            return response.status, await response.text()

    async def post(self, path: str, body: object) -> tuple[int, dict[str, Any]]:
        async with self._session.post(path, data=body if isinstance(body, bytes) else json.dumps(body)) as response:
            return response.status, await response.json()


@asynccontextmanager
async def administered(extra: str = "") -> AsyncIterator[tuple[SemanticSetting, Admin]]:
    port = free_port()
    admin = f"admin: {{port: {port}, token: '{TOKEN}'}}\n"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        semantic_setting(extra=admin + extra) as it,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as session,
    ):
        yield it, Admin(session)


async def test_an_answer_that_is_reported_wrong_is_served_no_longer() -> None:
    async with administered(tenants("acme", "beta")) as (it, admin):
        await it.learn(PASSWORD, 12, key=KEYS["acme"])
        _, told = await it.told(it.again(PASSWORD), key=KEYS["acme"])
        assert told["x-prefixgate-cache"] == "semantic"
        answer_id = told["x-prefixgate-cache-id"]
        wrong = {"id": answer_id, "wrong": True}
        assert (await admin.post("/admin/tenants/beta/feedback", wrong))[0] == 404
        right = await admin.post("/admin/tenants/acme/feedback", {**wrong, "wrong": False})
        assert right == (200, {"id": answer_id, "quarantined": False})
        assert (await it.ask(it.again(PASSWORD), key=KEYS["acme"]))[1] == "semantic"
        reported = await admin.post("/admin/tenants/acme/feedback", {**wrong, "client": "user 7"})
        assert reported == (200, {"id": answer_id, "quarantined": True})
        assert (await it.ask(it.again(PASSWORD), key=KEYS["acme"]))[1] == "miss"
        await it.quiet()
        for _ in range(2):  # the third time it is dropped
            await admin.post("/admin/tenants/acme/feedback", wrong)
        await it.quiet()
        assert it.semantic.labels["feedback", "wrong"] == 3
        await eventually(lambda: it.semantic.questions.stats().entries == 0)


async def test_feedback_of_another_shape_is_refused_by_the_name_of_its_field() -> None:
    async with administered() as (_, admin):
        path = "/admin/tenants/default/feedback"
        assert (await admin.post(path, b"["))[0] == 400
        for body, param in (
            ({"wrong": True}, "id"),
            ({"id": 1, "wrong": True}, "id"),
            ({"id": "x"}, "wrong"),
            ({"id": "x", "wrong": "yes"}, "wrong"),
            ({"id": "x", "wrong": True, "client": 1}, "client"),
        ):
            status, refused = await admin.post(path, body)
            assert (status, refused["error"]["param"]) == (422, param)
        assert (await admin.post(path, {"id": "x", "wrong": True, "why": "?"}))[0] == 422
        status, unknown = await admin.post(path, {"id": "x", "wrong": True})
        assert (status, unknown["error"]["code"]) == (404, "unknown_answer")


async def test_the_report_and_the_metrics_tell_what_is_served_and_no_text() -> None:
    async with administered() as (it, admin):
        await it.learn(PASSWORD, 13)
        shown = (await admin.get("/admin/semantic"))[1]
        report = json.loads(shown)
        assert report["mode"] == "on"
        category = report["tenants"]["default"]["categories"]["default/same_text"]
        assert category["served"] == report["lookups"]["served"] >= 1
        assert report["index"]["entries"] == 1
        assert report["embedding"]["texts"] == 13
        metrics = (await admin.get("/metrics"))[1]
        assert 'prefixgate_semantic_lookups_total{result="served"}' in metrics
        assert 'prefixgate_semantic_labels_total{label="right",source="agreement"}' in metrics
        assert 'prefixgate_response_cache_requests_total{result="semantic",route="chat"}' in metrics
        recent = (await admin.get("/admin/requests"))[1]
        assert json.loads(recent)["data"][0]["response_cache"] == "semantic"
        assert "password" not in shown + metrics + recent


async def test_where_it_is_off_that_is_what_is_told() -> None:
    port = free_port()
    admin = f"admin: {{port: {port}, token: '{TOKEN}'}}\n"
    async with (
        setting(extra=admin),
        aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {TOKEN}"}) as session,
    ):
        assert await Admin(session).get("/admin/semantic") == (200, '{"mode":"off"}\n')
        told = await Admin(session).post("/admin/tenants/default/feedback", {"id": "x", "wrong": True})
        assert told[0] == 404


async def test_a_reload_changes_what_is_served_and_keeps_what_was_learnt() -> None:
    async with Words().running() as words, RawWorker(Wise()).running() as raw:

        def configured(mode: str, more: str = EASY) -> Config:
            section = "response_cache: {mode: on}\n" + semantic_section(words.url, more, mode)
            return plane([raw.url], extra=section if mode else "response_cache: {mode: on}\n")

        async with running(configured("")) as (program, port):
            client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
            async with client:
                it = SemanticSetting(Inside(f"http://127.0.0.1:{port}", program.server), Wise(), words, client)
                assert (await it.ask(it.again(PASSWORD)))[1] == "miss"
                assert program.semantic_in_force() is None
                assert await program.apply(configured("shadow")) == []
                assert await it.learn(PASSWORD, 12) == ["miss"] * 12
                assert await program.apply(configured("on")) == []
                assert (await it.ask(it.again(PASSWORD)))[1] == "semantic"
                assert await program.apply(configured("on", EASY + ", floor: 1")) == []
                assert (await it.ask(SAME))[1] == "miss"
                assert await program.apply(configured("on", EASY + ", entries: 5")) == ["semantic_cache.entries"]
                assert await program.apply(configured("off")) == [], "again what is open"
                assert program.semantic_in_force() is None
                assert (await it.ask(it.again(PASSWORD)))[1] == "miss"
                assert await program.apply(configured("on")) == []
                assert (await it.ask(it.again(PASSWORD)))[1] == "semantic"
