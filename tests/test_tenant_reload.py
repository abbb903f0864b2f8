"""Tenants while the gateway runs: keys that come and go, rates that change, and what is told of whom."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.api_keys import digest_of, written
from gateway.keys_file import add_key, remove_key
from gateway.salt_key import NAME
from tests.gateway_fixtures import eventually
from tests.reload_fixtures import CHAT, Running, from_file, lines
from tests.tenant_fixtures import KEYS, SALT_KEY, digest
from tests.test_telemetry import collecting, values

__all__ = ["lines"]

BOTH = f"{{name: acme, keys: ['{digest('acme')}']}}, {{name: beta, rates: {{requests_per_minute: 600}}}}"
TENANTS = f"{{salt_key: '{SALT_KEY}', keys_file: keys.json, members: [{BOTH}]}}"


def shown(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name]}"}


async def status(gateway: Running, name: str, **changes: object) -> int:
    url = f"{gateway.url}/v1/chat/completions"
    async with gateway.http.post(url, json={**CHAT, **changes}, headers=shown(name)) as response:
        await response.read()
        return response.status


async def test_a_key_is_added_and_revoked_and_no_request_is_dropped(tmp_path: Path, lines: list[str]) -> None:
    file = tmp_path / "keys.json"
    beta = digest_of(KEYS["beta"].encode())
    async with from_file(tmp_path, lines, tenants=TENANTS) as gateway:
        failed: list[int] = []
        done = asyncio.Event()

        async def keep_asking() -> None:
            while not done.is_set():
                if (answered := await status(gateway, "acme")) != 200:
                    failed.append(answered)

        asking = asyncio.create_task(keep_asking())
        assert await status(gateway, "beta") == 401
        add_key(file, "beta", beta)
        await eventually(lambda: gateway.said("keys.json is in force") == 1)
        assert await status(gateway, "beta") == 200
        url = f"{gateway.url}/v1/chat/completions"
        async with gateway.http.post(
            url, json={**CHAT, "stream": True, "max_tokens": 200, "ignore_eos": True}, headers=shown("beta")
        ) as stream:
            first = await stream.content.readany()
            remove_key(file, written(beta))
            await eventually(lambda: gateway.said("keys.json is in force") == 2)
            assert (first + await stream.read()).endswith(b"data: [DONE]\n\n"), "what has begun goes on"
        assert await status(gateway, "beta") == 401
        file.write_text("broken")
        await eventually(lambda: gateway.said("keys: the old ones stay in force"))
        file.unlink()
        await eventually(lambda: gateway.said("there is no file"))
        assert await status(gateway, "acme") == 200
        done.set()
        await asking
        assert failed == []
        assert gateway.said("the old ones stay in force") == 1, "said once"


async def test_what_was_used_still_counts_under_another_configuration(tmp_path: Path, lines: list[str]) -> None:
    member = f"{{name: acme, keys: ['{digest('acme')}'], rates: {{requests_per_minute: %d}}}}"
    section = f"{{salt_key: '{SALT_KEY}', members: [{member}]}}"
    async with from_file(tmp_path, lines, tenants=section % 2) as gateway:
        assert [await status(gateway, "acme") for _ in range(3)] == [200, 200, 429]
        await gateway.change(tenants=section % 3)
        assert [await status(gateway, "acme") for _ in range(2)] == [200, 429]
        await gateway.change(tenants="{}")
        async with gateway.http.post(f"{gateway.url}/v1/chat/completions", json=CHAT) as response:
            assert response.status == 200, "without tenants nobody is asked"
        await gateway.change(tenants=section % 1)
        assert [await status(gateway, "acme") for _ in range(2)] == [200, 429]


async def test_a_bad_file_of_keys_keeps_a_configuration_out_of_force(tmp_path: Path, lines: list[str]) -> None:
    async with from_file(tmp_path, lines, tenants=TENANTS) as gateway:
        (tmp_path / "other.json").write_text("{}")
        gateway.write(tenants=TENANTS.replace("keys.json", "other.json"))
        await eventually(lambda: gateway.said("the old one stays in force"))
        assert await status(gateway, "acme") == 200
        assert (await gateway.admin("POST", "/admin/reload"))[0] == 422


async def test_a_salt_key_is_made_where_state_is_kept_and_only_for_tenants(tmp_path: Path, lines: list[str]) -> None:
    state = tmp_path / "state"
    section = f"{{state_dir: state, members: [{BOTH}]}}"
    async with from_file(tmp_path, lines, tenants=section) as gateway:
        assert [path.name for path in state.iterdir()] == [NAME]
        key = (state / NAME).read_text().strip()
        await status(gateway, "acme")
        (body,) = [request.body for worker in gateway.fleet.workers for request in worker.received if request.body]
        _, shown_config = await gateway.admin("GET", "/admin/config")
        for text in (*lines, body.decode(), json.dumps(shown_config)):
            assert key not in text
        gateway.write(tenants=section.replace("state_dir: state", "state_dir: gateway.yaml"))
        await eventually(lambda: gateway.said("or set tenants.salt_key"))


async def test_without_tenants_nothing_is_written_anywhere(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "STATE_DIRECTORY", str(tmp_path / "state"))
    async with from_file(tmp_path, lines) as gateway:
        await gateway.chat()
    assert not (tmp_path / "state").exists()


async def test_every_place_names_the_tenant_and_none_a_key(tmp_path: Path, lines: list[str]) -> None:
    async with collecting() as collector:
        telemetry = f"{{endpoint: '{collector.url}'}}"
        async with from_file(tmp_path, lines, tenants=TENANTS, log="{access: true}", telemetry=telemetry) as gateway:
            add_key(tmp_path / "keys.json", "beta", digest_of(KEYS["beta"].encode()))
            await eventually(lambda: gateway.said("keys.json is in force"))
            assert await status(gateway, "acme") == 200
            assert await status(gateway, "beta") == 200
            assert await status(gateway, "crew") == 401
            assert await status(gateway, "beta", model="unheard-of") == 404
            _, requests = await gateway.admin("GET", "/admin/requests")
            assert [(row["tenant"], row["status"]) for row in requests["data"]] == [
                ("beta", 404), (None, 401), ("beta", 200), ("acme", 200),
            ]  # fmt: skip
            _, only = await gateway.admin("GET", "/admin/requests?tenant=beta")
            assert len(only["data"]) == 2
            _, one = await gateway.admin("GET", f"/admin/requests/{requests['data'][-1]['id']}")
            assert one["charged_tokens"] == one["reported_prompt_tokens"] + one["completion_tokens"] > 0
            assert gateway.said("tenant=acme") == 1
            url = f"http://127.0.0.1:{gateway.program.admin_port}/metrics"
            async with gateway.http.get(url) as response:
                page = await response.text()
            counted = {
                (sample.name, sample.labels["tenant"], sample.labels.get("outcome")): sample.value
                for family in text_string_to_metric_families(page)
                for sample in family.samples
                if "tenant" in sample.labels
            }
            assert counted["prefixgate_tenant_requests_total", "acme", "ok"] == 1
            assert counted["prefixgate_tenant_requests_total", "beta", "client_error"] == 1
            assert counted["prefixgate_tenant_charged_tokens_total", "acme", None] == one["charged_tokens"]
            assert counted["prefixgate_tenant_requests_in_flight", "acme", None] == 0
            assert {name[1] for name in counted} == {"acme", "beta"}
            _, config = await gateway.admin("GET", "/admin/config")
        spans = list(collector.spans)
        tenants = [values(span.attributes).get("prefixgate.tenant") for span in spans]
        assert sorted(str(name) for name in tenants) == ["None", "acme", "beta", "beta"]
        told = (page, json.dumps(requests), json.dumps(one), json.dumps(config), *lines, *map(str, spans))
        for text in told:
            assert SALT_KEY not in text
            for name in KEYS:
                assert KEYS[name] not in text
                assert digest(name) not in text
