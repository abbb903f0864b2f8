"""Tenants end to end: whose key opens what, and how the official clients are told."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import openai
import pytest

from cache.tenant_salt import tenant_salt
from tests.data_plane_fixtures import (
    Answer,
    Inside,
    RawWorker,
    ask,
    client_of,
    fields_of,
    inside,
    plane,
    post,
    says,
)
from tests.tenant_fixtures import KEYS, SALT_KEY, bearer, tenants

ANSWER = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant",'
    b'"content":"Hi."},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}}'
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
ANSWERS: Answer = says(HEAD % len(ANSWER) + ANSWER)
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello there."}]}


def client(gateway: Inside, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)


async def test_without_tenants_nobody_is_asked_for_a_key() -> None:
    async with RawWorker(ANSWERS).running() as worker, inside(plane([worker.url])) as gateway:
        assert (await ask(gateway)).status == 200
        body = worker.requests[0][1]
        assert b"cache_salt" not in body


async def test_a_key_of_a_tenant_opens_and_does_not_reach_the_worker() -> None:
    async with RawWorker(ANSWERS).running() as worker, inside(plane([worker.url], extra=tenants("acme"))) as gateway:
        async with client(gateway, KEYS["acme"]) as one:
            answer = await one.chat.completions.create(**CHAT)
            assert answer.choices[0].message.content == "Hi."
        head, _ = worker.requests[0]
        assert b"authorization" not in head.lower()
        assert KEYS["acme"].encode() not in head


@pytest.mark.parametrize(
    "key", [KEYS["beta"], KEYS["acme"][:-1], KEYS["acme"] + "0", KEYS["acme"][:20], "x", "sha256:" + "0" * 64]
)
async def test_no_other_key_opens_not_even_one_that_begins_alike(key: str) -> None:
    async with RawWorker(ANSWERS).running() as worker, inside(plane([worker.url], extra=tenants("acme"))) as gateway:
        async with client(gateway, key) as one:
            with pytest.raises(openai.AuthenticationError) as told:
                await one.chat.completions.create(**CHAT)
            assert told.value.code == "invalid_api_key"
            assert told.value.type == "invalid_request_error"
            assert told.value.response.headers["www-authenticate"] == "Bearer"
            assert key not in told.value.response.text or key == "x"
            with pytest.raises(openai.AuthenticationError):
                await one.models.list()
        assert worker.requests == []


async def test_anthropics_client_shows_its_key_in_its_own_way() -> None:
    async with RawWorker().running() as worker, inside(plane([worker.url], extra=tenants("acme"))) as gateway:
        async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="wrong", max_retries=0) as one:
            with pytest.raises(anthropic.AuthenticationError) as told:
                await one.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "Hi"}])
            assert told.value.body == {
                "type": "error",
                "error": {"type": "authentication_error", "message": "Incorrect API key provided."},
            }
        async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key=KEYS["acme"], max_retries=0) as one:
            assert [model.id async for model in one.models.list()] == ["m"]
        response = await ask(gateway, post(b"{}", b"X-API-Key: " + KEYS["acme"].encode()))
        assert response.status == 401, "in OpenAI's dialect a key is a bearer token"
        assert worker.requests == []


async def test_a_missing_key_and_two_keys_are_told() -> None:
    async with RawWorker().running() as worker, inside(plane([worker.url], extra=tenants("acme", "beta"))) as gateway:
        for fields in ((), (bearer("acme"), bearer("beta")), (b"Authorization: Basic " + KEYS["acme"].encode(),)):
            response = await ask(gateway, post(b"{}", *fields))
            assert response.status == 401
            assert b"needs an API key" in response.body
        unknown = await ask(gateway, post(b"{}", path=b"/v1/nothing"))
        assert unknown.status == 401, "who shows no key learns nothing of the paths there are"
        known = await ask(gateway, post(b"{}", bearer("beta"), path=b"/v1/nothing"))
        assert known.status == 404
        health = await ask(gateway, b"GET /health HTTP/1.1\r\nhost: g\r\n\r\n")
        assert health.status == 200


async def test_the_salt_goes_into_the_body_and_every_other_byte_stays() -> None:
    body = b' {"model": "m",  "messages": [] }'
    async with RawWorker(ANSWERS).running() as worker, inside(plane([worker.url], extra=tenants("acme"))) as gateway:
        await ask(gateway, post(body, bearer("acme")))
        await ask(gateway, post(body, bearer("acme")))
        sent = [body for _, body in worker.requests]
        assert sent[0] == sent[1]
        assert sent[0][:16] == b' {"cache_salt":"'
        assert sent[0][48:] == b'","model": "m",  "messages": [] }'
        assert int(fields_of(worker.requests[0][0])["content-length"]) == len(sent[0])


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_who_has_no_key_is_told_before_its_body_is_held(is_chunked: bool) -> None:
    framing = b"transfer-encoding: chunked" if is_chunked else b"content-length: 1000000"
    async with RawWorker(ANSWERS).running() as worker, inside(plane([worker.url], extra=tenants("acme"))) as gateway:
        for path, kind in ((b"/v1/messages", b"authentication_error"), (b"/v1/completions", b"invalid_api_key")):
            async with client_of(gateway) as one:
                one.write(b"POST %b HTTP/1.1\r\nhost: g\r\nexpect: 100-continue\r\n%b\r\n\r\n" % (path, framing))
                response = await one.response()
                assert response.status == 401
                assert kind in response.body
                assert response.fields["www-authenticate"] == "Bearer"
                assert response.fields["connection"] == "close"
                assert gateway.server.held_bytes == 0
        async with client_of(gateway) as one:
            one.write(b"POST /v1/completions HTTP/1.1\r\nhost: g\r\nexpect: 100-continue\r\n")
            one.write(b"%b\r\n%b\r\n\r\n" % (bearer("acme"), framing))
            assert (await one.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")


async def test_a_request_of_a_tenant_one_byte_at_a_time() -> None:
    async with RawWorker(ANSWERS).running() as worker, inside(plane([worker.url], extra=tenants("acme"))) as gateway:
        for name, status in (("acme", 200), ("beta", 401)):
            async with client_of(gateway) as one:
                for byte in post(b'{"model": "m", "messages": []}', bearer(name)):
                    one.write(bytes([byte]))
                    await asyncio.sleep(0)
                assert (await one.response()).status == status
        assert len(worker.requests) == 1


@pytest.mark.parametrize("salt", ["5", "true", "[]", '{"a": 1}'])
async def test_a_salt_that_is_no_text_is_refused_and_not_read_as_one(salt: str) -> None:
    body = f'{{"model": "m", "messages": [], "cache_salt": {salt}}}'.encode()
    async with RawWorker(ANSWERS).running() as worker, inside(plane([worker.url], extra=tenants("acme"))) as gateway:
        response = await ask(gateway, post(body, bearer("acme")))
        assert (response.status, response.error["param"]) == (400, "cache_salt")
        assert worker.requests == []


async def test_a_salt_that_is_empty_or_null_is_none() -> None:
    async with RawWorker(ANSWERS).running() as worker, inside(plane([worker.url], extra=tenants("acme"))) as gateway:
        for more in (b"", b', "cache_salt": null', b', "cache_salt": ""'):
            assert (await ask(gateway, post(b'{"model": "m"%b}' % more, bearer("acme")))).status == 200
        salts = {json.loads(body)["cache_salt"] for _, body in worker.requests}
        assert salts == {tenant_salt(SALT_KEY.encode(), "acme")}


@pytest.mark.parametrize(
    "path", [b"/v1/chat/completions", b"/v1/completions", b"/v1/responses", b"/v1/messages", b"/v1/embeddings"]
)
async def test_every_kind_of_prompt_has_the_salt_and_nothing_else_has(path: bytes) -> None:
    async with RawWorker(ANSWERS).running() as worker, inside(plane([worker.url], extra=tenants("acme"))) as gateway:
        for each in (path, b"/tokenize", b"/v1/rerank"):
            assert (await ask(gateway, post(b'{"model": "m"}', bearer("acme"), path=each))).status == 200
        assert [b"cache_salt" in body for _, body in worker.requests] == [True, False, False]


async def test_another_worker_gets_the_same_salted_body() -> None:
    async with RawWorker(says(b"HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\nno")).running() as bad:
        async with RawWorker(ANSWERS).running() as good:
            config = plane([bad.url, good.url], extra=tenants("acme") + "routing: {policy: round_robin}\n")
            async with inside(config) as gateway:
                for _ in range(4):
                    assert (await ask(gateway, post(b'{"model": "m"}', bearer("acme")))).status == 200
        assert bad.requests
        assert len({body for _, body in (*bad.requests, *good.requests)}) == 1
