"""What a tenant may use and how much of it, as the official clients are told; and that every slot comes back."""

from __future__ import annotations

import asyncio
import json
import random
from math import ceil
from typing import Any

import anthropic
import openai
import pytest

from gateway.pipeline import RequestPipeline
from gateway.request_record import RequestRecord
from gateway.tenancy import Tenant
from tests.data_plane_fixtures import (
    Inside,
    RawWorker,
    Turn,
    ask,
    client_of,
    hold,
    inside,
    plane,
    post,
    refusing_url,
    says,
)
from tests.gateway_fixtures import config_for, eventually
from tests.tenant_fixtures import KEYS, bearer, tenants
from tests.test_tenants import ANSWER, ANSWERS, CHAT, HEAD, client

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(text: str) -> bytes:
    data = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % text.encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def tenant_of(gateway: Inside, name: str) -> Tenant:
    pipeline = gateway.server.pipeline
    assert isinstance(pipeline, RequestPipeline)
    assert pipeline.tenancy is not None
    return pipeline.tenancy.tenants[name]


class Records:
    """Of requests that are over."""

    def __init__(self, gateway: Inside) -> None:
        self.all: list[RequestRecord] = []
        pipeline = gateway.server.pipeline
        assert isinstance(pipeline, RequestPipeline)
        pipeline.observers = (*pipeline.observers, self)

    def finished(self, record: RequestRecord) -> None:
        self.all.append(record)


# --- models and paths


async def test_a_model_that_a_tenant_may_not_use_is_refused_and_not_listed() -> None:
    extra = (
        tenants("acme, models: [small, big-alias]", "beta")
        + "routing: {aliases: {big-alias: big, secret-alias: secret}}\nlimits: {drain_timeout: 0}\n"
    )
    async with RawWorker(ANSWERS).running() as worker:
        config = config_for([worker.url], extra, workers_extra=[", models: [small, big, secret]"])
        async with inside(config) as gateway, client(gateway, KEYS["acme"]) as acme:
            assert [model.id async for model in acme.models.list()] == ["small", "big-alias"]
            for name in ("small", "big-alias"):
                await acme.chat.completions.create(**{**CHAT, "model": name})
                assert (await acme.models.retrieve(name)).id == name
            for name in ("big", "secret", "secret-alias", "unheard-of"):
                with pytest.raises(openai.PermissionDeniedError) as told:
                    await acme.chat.completions.create(**{**CHAT, "model": name})
                assert (told.value.code, told.value.param) == ("model_not_allowed", "model")
                assert told.value.body["message"] == f"This key may not use the model `{name}`."  # type: ignore[index]  # a dict
                with pytest.raises(openai.NotFoundError) as gone:
                    await acme.models.retrieve(name)
                assert "serves `small`." in gone.value.message
            async with client(gateway, KEYS["beta"]) as beta:
                listed = [model.id async for model in beta.models.list()]
            assert listed == ["small", "big", "secret", "big-alias", "secret-alias"]
            async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key=KEYS["acme"], max_retries=0) as one:
                assert [model.id async for model in one.models.list()] == ["small", "big-alias"]
                with pytest.raises(anthropic.PermissionDeniedError) as refused:
                    await one.messages.create(model="big", max_tokens=5, messages=[{"role": "user", "content": "Hi"}])
                assert refused.value.body["error"]["type"] == "permission_error"  # type: ignore[index]  # a dict
            unnamed = await ask(gateway, post(b'{"messages": []}', bearer("acme")))
            assert unnamed.status == 200, "of the models it may use there is only one by its own name"
            assert len(worker.requests) == 3


async def test_what_is_passed_through_without_a_model_is_not_for_who_may_use_some_only() -> None:
    extra = tenants("acme, models: [m]", "beta")
    async with RawWorker(ANSWERS).running() as worker, inside(plane([worker.url], extra=extra)) as gateway:
        for name, status in (("acme", 403), ("beta", 200)):
            response = await ask(gateway, post(b"{}", bearer(name), path=b"/v1/rerank"))
            assert response.status == status
        assert (await ask(gateway, post(b'{"model":"m"}', bearer("acme"), path=b"/v1/rerank"))).status == 200
        assert (await ask(gateway, post(b'{"model":"x"}', bearer("acme"), path=b"/v1/rerank"))).status == 403


async def test_a_path_that_a_tenant_may_not_use_is_refused() -> None:
    async with RawWorker(ANSWERS).running() as worker:
        extra = tenants("acme, paths: [/v1/chat/completions, '/v1/models*']")
        async with inside(plane([worker.url], extra=extra)) as gateway, client(gateway, KEYS["acme"]) as acme:
            await acme.chat.completions.create(**CHAT)
            assert (await acme.models.retrieve("m")).id == "m"
            with pytest.raises(openai.PermissionDeniedError) as told:
                await acme.embeddings.create(model="m", input="text")
            assert told.value.code == "path_not_allowed"
            assert len(worker.requests) == 1


async def test_where_a_model_cannot_be_served_another_one_is_that_the_tenant_may_use() -> None:
    """The first request finds out that the worker is gone; those behind it go elsewhere."""
    extra = (
        tenants("acme", "beta, models: [big, small]", "crew, models: [big]")
        + "routing: {aliases: {best: big}, fallbacks: {big: [gone, medium, small]}}\n"
        + "upstream: {cooldown: 60s, cooldown_max: 60s}\nlimits: {drain_timeout: 0}\n"
    )
    async with RawWorker(ANSWERS).running() as worker:
        models = (", models: [big]", ", models: [medium, small]")
        config = config_for([refusing_url(), worker.url], extra, workers_extra=models)
        async with inside(config) as gateway:
            async with client(gateway, KEYS["acme"]) as one:
                with pytest.raises(openai.APIStatusError):
                    await one.chat.completions.create(**{**CHAT, "model": "big"})
            for name, model in (("acme", "big"), ("acme", "best"), ("acme", "small"), ("beta", "big")):
                async with client(gateway, KEYS[name]) as one:
                    await one.chat.completions.create(**{**CHAT, "model": model})
            sent = [json.loads(body)["model"] for _, body in worker.requests]
            assert sent == ["medium", "medium", "small", "small"]
            async with client(gateway, KEYS["crew"]) as one:
                with pytest.raises(openai.APIStatusError) as told:
                    await one.chat.completions.create(**{**CHAT, "model": "big"})
                assert told.value.status_code in (502, 503), "it may use no other"


# --- caps


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", {"max_tokens": 11}, "max_tokens"),
        ("/v1/chat/completions", {"max_completion_tokens": 11, "max_tokens": 3}, "max_completion_tokens"),
        ("/v1/chat/completions", {"n": 3}, "n"),
        ("/v1/chat/completions", {"max_tokens": "5"}, "max_tokens"),
        ("/v1/chat/completions", {"max_tokens": 5.0}, "max_tokens"),
        ("/v1/chat/completions", {"max_tokens": -1}, "max_tokens"),
        ("/v1/completions", {"max_tokens": 11}, "max_tokens"),
        ("/v1/completions", {"best_of": 3}, "best_of"),
        ("/v1/responses", {"max_output_tokens": 11}, "max_output_tokens"),
        ("/v1/messages", {"max_tokens": 11}, "max_tokens"),
    ],
)
async def test_who_asks_for_more_than_a_cap_is_told_which_field(path: str, fields: dict[str, Any], param: str) -> None:
    async with RawWorker(ANSWERS).running() as worker:
        extra = tenants("acme, caps: {max_tokens: 10, n: 2}", "beta")
        async with inside(plane([worker.url], extra=extra)) as gateway:
            body = json.dumps({"model": "m", **fields}).encode()
            response = await ask(gateway, post(body, bearer("acme"), path=path.encode()))
            assert response.status == 400
            told = json.loads(response.body)["error"]
            assert f"`{param}`" in told["message"]
            assert told.get("param", param) == param
            assert worker.requests == []
            assert (await ask(gateway, post(body, bearer("beta"), path=path.encode()))).status == 200


async def test_a_cap_is_what_a_request_gets_that_names_none_and_a_models_own_cap_comes_first() -> None:
    extra = tenants("acme, caps: {max_tokens: 10}, per_model: [{name: m, caps: {max_tokens: 20}}]", "beta")
    async with RawWorker(ANSWERS).running() as worker, inside(plane([worker.url], extra=extra)) as gateway:
        async with client(gateway, KEYS["acme"]) as acme:
            await acme.chat.completions.create(**CHAT)
            await acme.chat.completions.create(**CHAT, max_tokens=None)
            await acme.chat.completions.create(**CHAT, max_completion_tokens=20)
            await acme.completions.create(model="m", prompt="text")
            await acme.completions.create(model="m", prompt="text", max_tokens=None)
            with pytest.raises(openai.BadRequestError) as told:
                await acme.chat.completions.create(**CHAT, max_tokens=21)
        assert told.value.code == "limit_exceeded"
        sent = [json.loads(body) for _, body in worker.requests]
        assert [body.get("max_tokens") for body in sent] == [20, 20, None, None, 20]
        assert all(body["cache_salt"] for body in sent)


# --- rates


async def test_a_rate_of_requests_refuses_what_is_too_much_and_says_when_to_come_again() -> None:
    async with RawWorker(ANSWERS).running() as worker:
        extra = tenants("acme, rates: {requests_per_minute: 2}", "beta")
        async with inside(plane([worker.url], extra=extra)) as gateway, client(gateway, KEYS["acme"]) as acme:
            raw = await acme.chat.completions.with_raw_response.create(**CHAT)
            assert raw.headers["x-ratelimit-limit-requests"] == "2"
            assert raw.headers["x-ratelimit-remaining-requests"] == "1"
            assert raw.headers["x-ratelimit-reset-requests"] == "30s"
            assert "x-ratelimit-limit-tokens" not in raw.headers
            await acme.chat.completions.create(**CHAT)
            with pytest.raises(openai.RateLimitError) as told:
                await acme.chat.completions.create(**CHAT)
            headers = told.value.response.headers
            assert 1 <= int(headers["retry-after"]) <= 30
            assert int(headers["retry-after-ms"]) <= 30_000
            assert int(headers["retry-after"]) == ceil(int(headers["retry-after-ms"]) / 1000)
            assert headers["x-ratelimit-remaining-requests"] == "0"
            assert (told.value.code, told.value.type) == ("rate_limit_exceeded", "requests")
            assert "This key may use 2 requests a minute; try again in " in told.value.message
            async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key=KEYS["acme"], max_retries=0) as one:
                with pytest.raises(anthropic.RateLimitError) as also:
                    await one.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "Hi"}])
                assert also.value.body["error"]["type"] == "rate_limit_error"  # type: ignore[index]  # a dict
                assert int(also.value.response.headers["retry-after"]) <= 30
            assert len([model.id async for model in acme.models.list()]) == 1, "what needs no worker is not counted"
            async with client(gateway, KEYS["beta"]) as beta:
                free = await beta.chat.completions.with_raw_response.create(**CHAT)
                assert not [name for name in free.headers if name.startswith("x-ratelimit")]


async def test_the_official_client_comes_again_when_it_was_told_to() -> None:
    async with RawWorker(ANSWERS).running() as worker:
        extra = tenants("acme, rates: {requests_per_minute: 600}")
        async with inside(plane([worker.url], extra=extra)) as gateway:
            limiter = tenant_of(gateway, "acme").limiter
            async with client(gateway, KEYS["acme"]) as acme:
                await acme.chat.completions.create(**CHAT)
                assert limiter.requests is not None
                limiter.requests.charge(602, gateway.server.loop.time())
                assert (await acme.with_options(max_retries=2).chat.completions.create(**CHAT)).id == "c"
                assert len(worker.requests) == 2


async def test_tokens_are_charged_as_the_worker_counted_them() -> None:
    async with RawWorker(ANSWERS).running() as worker:
        extra = tenants("acme, rates: {tokens_per_minute: 20}")
        async with inside(plane([worker.url], extra=extra)) as gateway, client(gateway, KEYS["acme"]) as acme:
            raw = await acme.chat.completions.with_raw_response.create(**CHAT)
            assert raw.headers["x-ratelimit-limit-tokens"] == "20"
            assert raw.headers["x-ratelimit-remaining-tokens"] == "17", "12 characters are about 3 tokens"
            records = Records(gateway)
            await acme.chat.completions.create(**CHAT)
            await eventually(lambda: records.all)
            assert records.all[0].charged_tokens == 12, "5 of the prompt and 7 of the answer"
            with pytest.raises(openai.RateLimitError) as told:
                await acme.chat.completions.create(**CHAT)
            assert told.value.type == "tokens"
            assert int(told.value.response.headers["retry-after"]) <= 21


@pytest.mark.parametrize("leave_early", [False, True])
async def test_of_a_stream_without_usage_the_events_are_counted(leave_early: bool) -> None:
    pieces = [STREAM_HEAD, *(event(str(number)) for number in range(6))]
    answer = says(*pieces, *([] if leave_early else [DONE]))
    async with RawWorker(answer).running() as worker:
        extra = tenants("acme, rates: {tokens_per_minute: 1000000}")
        async with inside(plane([worker.url], extra=extra)) as gateway:
            tenant, records = tenant_of(gateway, "acme"), Records(gateway)
            body = b'{"model":"m","stream":true,"messages":[{"content":"%b"}]}' % (b"x" * 400)
            async with client_of(gateway) as one:
                one.write(post(body, bearer("acme")))
                seen = b""
                while (b'"5"' if leave_early else b"[DONE]") not in seen:
                    seen += await one.reader.read(65_536)
            await eventually(lambda: records.all)
            (record,) = records.all
            assert record.prompt_tokens > 50
            assert record.charged_tokens == record.prompt_tokens + (6 if leave_early else 7), "one for each event"
            assert tenant.limiter.running == 0


async def test_what_was_refused_or_failed_is_not_charged() -> None:
    refusal = b'{"error":{"message":"no"}}'
    async with RawWorker(says(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 26\r\n\r\n" + refusal)).running() as worker:
        extra = tenants("acme, rates: {tokens_per_minute: 1000, concurrent: 3}")
        async with inside(plane([worker.url], extra=extra)) as gateway:
            records = Records(gateway)
            body = b'{"model":"m","messages":[{"content":"%b"}]}' % (b"x" * 2000)
            for _ in range(20):
                assert (await ask(gateway, post(body, bearer("acme")))).status == 400
            assert len(worker.requests) == 20
            await eventually(lambda: len(records.all) == 20)
            assert {record.charged_tokens for record in records.all} == {0}
            assert tenant_of(gateway, "acme").limiter.running == 0


async def test_rates_of_one_model_hold_beside_those_of_the_tenant() -> None:
    rates = "rates: {requests_per_minute: 3}, per_model: [{name: big, rates: {requests_per_minute: 1}}]"
    async with RawWorker(ANSWERS).running() as worker:
        config = config_for([worker.url], tenants(f"acme, {rates}"), workers_extra=[", models: [small, big]"])
        async with inside(config) as gateway, client(gateway, KEYS["acme"]) as acme:
            raw = await acme.chat.completions.with_raw_response.create(**{**CHAT, "model": "big"})
            assert raw.headers["x-ratelimit-limit-requests"] == "1"
            with pytest.raises(openai.RateLimitError):
                await acme.chat.completions.create(**{**CHAT, "model": "big"})
            for _ in range(2):
                await acme.chat.completions.create(**{**CHAT, "model": "small"})
            with pytest.raises(openai.RateLimitError) as told:
                await acme.chat.completions.create(**{**CHAT, "model": "small"})
            assert "may use 3 requests a minute" in told.value.message


async def test_only_so_many_run_at_a_time() -> None:
    started = asyncio.Event()
    release = asyncio.Event()

    async def answer(turn: Turn) -> None:
        started.set()
        await release.wait()
        turn.write(HEAD % len(ANSWER) + ANSWER)

    async with RawWorker(answer).running() as worker:
        extra = tenants("acme, rates: {concurrent: 1}")
        async with inside(plane([worker.url], extra=extra)) as gateway, client(gateway, KEYS["acme"]) as acme:
            first = asyncio.create_task(acme.chat.completions.create(**CHAT))
            await started.wait()
            with pytest.raises(openai.RateLimitError) as told:
                await acme.chat.completions.create(**CHAT)
            assert told.value.response.headers["retry-after"] == "1"
            assert "may have 1 requests at a time" in told.value.message
            release.set()
            await first
            await acme.chat.completions.create(**CHAT)
            assert tenant_of(gateway, "acme").limiter.running == 0


@pytest.mark.parametrize("seed", range(3))
async def test_every_slot_comes_back_whatever_happens_to_the_request(seed: int) -> None:
    """Clients leave at any moment, workers refuse, break off, fall silent or are not there."""
    chance = random.Random(seed)
    turns = iter(lambda: chance.choice("okrsbh"), "")

    async def answer(turn: Turn) -> None:
        kind = next(turns)
        await asyncio.sleep(chance.random() * 0.01)
        if kind == "o":
            turn.write(HEAD % len(ANSWER) + ANSWER)
        elif kind == "k":
            turn.write(b"HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\nno")
        elif kind == "r":
            turn.reset()
        elif kind == "s":
            turn.write(STREAM_HEAD + event("a") + event("b") + DONE)
        elif kind == "b":
            turn.write(STREAM_HEAD + event("a"))
            turn.reset()
        else:
            await hold(turn)

    async def request(gateway: Inside) -> None:
        name = chance.choice(("acme", "beta"))
        body = b'{"model":"m","stream":%b,"messages":[]}' % chance.choice((b"true", b"false"))
        raw = post(body, bearer(name))
        async with client_of(gateway) as one:
            one.write(raw[: chance.randrange(len(raw))] if chance.random() < 0.1 else raw)
            try:
                async with asyncio.timeout(chance.random() * 0.05):
                    while await one.reader.read(65_536):
                        pass
            except (TimeoutError, ConnectionError):
                pass

    rates = "rates: {concurrent: 5, tokens_per_minute: 100000}, per_model: [{name: m, rates: {concurrent: 4}}]"
    async with RawWorker(answer).running() as first, RawWorker(answer).running() as second:
        extra = tenants(f"acme, {rates}", f"beta, {rates}") + "health: {ejection: {consecutive_failures: 1000}}\n"
        async with inside(plane([first.url, second.url], extra=extra)) as gateway:
            for _ in range(15):
                await asyncio.gather(*(request(gateway) for _ in range(12)))
            for name in ("acme", "beta"):
                tenant = tenant_of(gateway, name)
                await eventually(lambda tenant=tenant: tenant.limiter.running == 0)  # type: ignore[misc]  # bound now
                assert [limiter.running for limiter in tenant.by_model.values()] == [0]
            assert len(first.requests) + len(second.requests) > 20
