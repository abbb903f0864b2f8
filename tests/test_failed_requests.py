"""What a failed request leaves behind: nothing that would draw the next one to the same place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
import pytest

from tests.gateway_fixtures import Script, ScriptedWorker, config_for, gateway, read_request

MODELS = "models: [{name: m, tokenizer: embedded}]\nresponse_headers: {worker: x-worker}\n"
LONG = "A sentence that many conversations begin with, long enough for some blocks of sixteen tokens. " * 8
OK = b'{"ok": true}'


def scripted(answer: Callable[[asyncio.StreamWriter], object]) -> Script:
    """Each POST is answered by `answer`, each GET with 404."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _ = await read_request(reader)
            if head.startswith(b"GET"):
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            else:
                answer(writer)

    return serve


def say(status: bytes, body: bytes = OK) -> Callable[[asyncio.StreamWriter], object]:
    return lambda writer: writer.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))


def silence(writer: asyncio.StreamWriter) -> None:
    """Accept the request and never answer."""


async def turns(session: aiohttp.ClientSession, url: str, chat: int, n: int, timeout: float) -> list[str]:
    """The worker, or what went wrong, of each turn of one growing conversation."""
    messages = [{"role": "user", "content": f"Chat {chat}. {LONG}"}]
    seen: list[str] = []
    for turn in range(n):
        body = {"model": "m", "messages": messages, "stream": True}
        try:
            limit = aiohttp.ClientTimeout(total=timeout)
            async with session.post(url + "/v1/chat/completions", json=body, timeout=limit) as response:
                await response.read()
                seen.append(f"{response.headers['x-worker']} {response.status}")
        except TimeoutError:
            seen.append("timeout")
        messages.append({"role": "user", "content": f"turn {turn}"})
    return seen


@pytest.mark.parametrize("status", [b"503 Service Unavailable", b"429 Too Many Requests", b"500 Internal Server Error"])
async def test_a_worker_that_answers_with_errors_keeps_no_conversation(status: bytes) -> None:
    async with (
        ScriptedWorker(scripted(say(status))).running() as bad,
        ScriptedWorker(scripted(say(b"200 OK"))).running() as good,
        gateway(config_for([bad.url, good.url], MODELS, workers_extra=[", models: [m]"] * 2)) as url,
        aiohttp.ClientSession() as session,
    ):
        for chat in range(8):
            seen = await turns(session, url, chat, 12, 10)
            last_good = next(i for i, outcome in enumerate(seen) if outcome == "w1 200")
            assert seen[last_good:] == ["w1 200"] * (12 - last_good), "once it has an answer it stays with who gave it"


async def test_a_worker_whose_clients_give_up_keeps_no_conversation() -> None:
    async with (
        ScriptedWorker(scripted(silence)).running() as bad,
        ScriptedWorker(scripted(say(b"200 OK"))).running() as good,
        gateway(config_for([bad.url, good.url], MODELS, workers_extra=[", models: [m]"] * 2)) as url,
        aiohttp.ClientSession() as session,
    ):
        for chat in range(4):
            seen = await turns(session, url, chat, 12, 0.2)
            assert "w1 200" in seen
            last_good = seen.index("w1 200")
            assert seen[last_good:] == ["w1 200"] * (12 - last_good)


async def test_no_pooling_is_a_valid_choice() -> None:
    async with (
        ScriptedWorker(scripted(say(b"200 OK"))).running() as worker,
        gateway(
            config_for([worker.url], "upstream: {max_idle_connections: 0}", workers_extra=[", models: [m]"])
        ) as url,
        aiohttp.ClientSession() as session,
    ):
        for _ in range(5):
            async with session.post(url + "/v1/completions", json={"model": "m", "prompt": "x"}) as response:
                assert await response.read() == OK
        assert worker.connections >= 5


async def test_a_stale_connection_is_no_attempt() -> None:
    """A worker that has closed its idle connection and is gone: the other one is still within two attempts."""
    crash = asyncio.Event()

    async def dying(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _ = await read_request(reader)
            if crash.is_set():
                writer.transport.abort()
                return
            good = not head.startswith(b"GET")
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n" + OK
                if good
                else b"HTTP/1.1 404 x\r\ncontent-length: 0\r\n\r\n"
            )

    async with (
        ScriptedWorker(dying).running() as worker,
        ScriptedWorker(scripted(say(b"200 OK"))).running() as other,
    ):
        extra = "upstream: {max_attempts: 2}\nrouting: {policy: round_robin}"
        config = config_for([worker.url, other.url], extra, workers_extra=[", models: [m]"] * 2)
        async with gateway(config) as url, aiohttp.ClientSession() as session:
            for _ in range(2):
                async with session.post(url + "/v1/completions", json={"model": "m", "prompt": "x"}) as response:
                    assert response.status == 200
            crash.set()
            for _ in range(2):
                async with session.post(url + "/v1/completions", json={"model": "m", "prompt": "x"}) as response:
                    assert response.status == 200


async def test_request_bodies_are_bounded_in_all() -> None:
    go = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _ = await read_request(reader)
            if not head.startswith(b"GET"):
                await go.wait()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n" + OK)

    async with ScriptedWorker(slow).running() as worker:
        limits = "limits: {body_bytes: 600KB, total_body_bytes: 1MB, drain_timeout: 0.2}"
        async with (
            gateway(config_for([worker.url], limits, workers_extra=[", models: [m]"])) as url,
            aiohttp.ClientSession() as session,
        ):
            body = {"model": "m", "prompt": "x" * 400_000}

            async def ask() -> int:
                async with session.post(url + "/v1/completions", json=body) as response:
                    await response.read()
                    return response.status

            first = [asyncio.create_task(ask()) for _ in range(2)]
            await asyncio.sleep(0.1)
            assert await ask() == 503
            go.set()
            assert await asyncio.gather(*first) == [200, 200]
            assert await ask() == 200, "what is answered counts no longer"


async def test_a_feed_that_never_speaks_does_not_shorten_predictions() -> None:
    """KV events are configured and none come: what was sent where is remembered as without them."""
    async with (
        ScriptedWorker(scripted(say(b"200 OK"))).running() as one,
        ScriptedWorker(scripted(say(b"200 OK"))).running() as other,
    ):
        feeds = [f", models: [m], kv_events: {{endpoint: 'tcp://127.0.0.1:{port}'}}" for port in (9, 10)]
        config = config_for([one.url, other.url], MODELS + "index: {prediction_ttl: 0.05}", workers_extra=feeds)
        async with gateway(config) as url, aiohttp.ClientSession() as session:
            first = await turns(session, url, 1, 1, 10)
            await asyncio.sleep(0.6)
            assert await turns(session, url, 1, 1, 10) == first
