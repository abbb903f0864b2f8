"""A client leaves: in every phase its upstream is closed within a second, and what it had booked is free again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest

from tests.data_plane_fixtures import (
    BODY,
    WITHIN,
    Client,
    Inside,
    RawWorker,
    Turn,
    ask,
    blackhole,
    client_of,
    hold,
    inside,
    plane,
    post,
    say_ok,
)
from tests.gateway_fixtures import config_for, eventually
from tests.tls_fixtures import listen_tls

Leave = Callable[[Client], None]


def close(client: Client) -> None:
    client.writer.close()


def reset(client: Client) -> None:
    client.reset()


LEAVES = pytest.mark.parametrize("leave", [close, reset])


@pytest.fixture
async def worker() -> AsyncIterator[RawWorker]:
    async with RawWorker(hold).running() as worker:
        yield worker


@pytest.fixture(params=["http", "https"])
async def gateway(worker: RawWorker, request: pytest.FixtureRequest) -> AsyncIterator[Inside]:
    listen = listen_tls() if request.param == "https" else ""
    async with inside(plane([worker.url], limits="buffer_bytes: 16KiB", listen=listen)) as gateway:
        yield gateway


async def gone(gateway: Inside, worker: RawWorker | None = None) -> None:
    """The worker hears of it in time; nothing stays booked, connecting or open."""
    await eventually(lambda: gateway.upstreams == 0 and (worker is None or worker.open == 0), timeout=WITHIN)
    await eventually(lambda: not gateway.server.connections)
    assert gateway.active == 0
    assert all(not pool._connecting for pool in gateway.pools)
    assert all(worker.prefill.total == 0 for worker in gateway.fleet.workers)
    gateway.fleet.check_integrity()


@LEAVES
async def test_while_connecting(leave: Leave) -> None:
    with blackhole() as silent:
        config = plane([silent.url], upstream="connect_timeout: 60s, model_refresh: 1h")
        async with inside(config) as gateway, client_of(gateway) as client:
            silent.open()
            client.post()
            await eventually(lambda: gateway.active == 1 and gateway.pools[0]._connecting)
            leave(client)
            await gone(gateway)


@LEAVES
async def test_before_the_first_byte(gateway: Inside, worker: RawWorker, leave: Leave) -> None:
    async with client_of(gateway) as client:
        client.post()
        await eventually(lambda: worker.requests)
        assert gateway.active == 1
        leave(client)
        await gone(gateway, worker)


@LEAVES
async def test_while_the_head_is_coming(gateway: Inside, worker: RawWorker, leave: Leave) -> None:
    async def answer(turn: Turn) -> None:
        turn.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
        await turn.until_closed()

    worker.answer = answer
    async with client_of(gateway) as client:
        client.post()
        await eventually(lambda: worker.requests)
        await asyncio.sleep(0.02)
        leave(client)
        await gone(gateway, worker)


@LEAVES
@pytest.mark.parametrize(
    "framing",
    [b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"Content-Length: 9\r\n\r\nabc", b"X: y\r\n\r\nabc"],
)
async def test_mid_stream(gateway: Inside, worker: RawWorker, leave: Leave, framing: bytes) -> None:
    async def answer(turn: Turn) -> None:
        turn.write(b"HTTP/1.1 200 OK\r\n" + framing)
        await turn.until_closed()

    worker.answer = answer
    async with client_of(gateway) as client:
        client.post()
        await client.reader.readuntil(b"abc")
        leave(client)
        await gone(gateway, worker)


@LEAVES
async def test_while_its_body_is_being_written(leave: Leave) -> None:
    """A worker that does not read: the request is half out."""
    stuck: list[asyncio.StreamWriter] = []
    closed = asyncio.Event()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"GET"):
            stuck.append(writer)
            await asyncio.wait_for(leaving.wait(), 10)
            while True:
                try:
                    if not await reader.read(1 << 20):
                        break
                except ConnectionError:
                    break
            closed.set()
        writer.close()

    leaving = asyncio.Event()
    server = await asyncio.start_server(accepted, "127.0.0.1", 0, limit=4_096)
    async with inside(plane([f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"])) as gateway:
        async with client_of(gateway) as client:
            client.write(post(BODY + b" " * 20_000_000))
            await eventually(lambda: stuck)
            leave(client)
            leaving.set()
            await gone(gateway)
        async with asyncio.timeout(5):
            await closed.wait()
    server.close()


@LEAVES
async def test_while_paused_by_back_pressure(gateway: Inside, worker: RawWorker, leave: Leave) -> None:
    async def answer(turn: Turn) -> None:
        turn.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            turn.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
            await turn.writer.drain()

    worker.answer = answer
    async with client_of(gateway, rcvbuf=4_096) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # asyncio's own type lacks it
        client.post()
        await eventually(lambda: gateway.server.connections and next(iter(gateway.server.connections)).paused)
        leave(client)
        if leave is close:
            client.reset()  # with bytes unread, a close is a reset too
        await gone(gateway, worker)


@LEAVES
async def test_while_its_prompt_is_tokenized(leave: Leave, worker: RawWorker) -> None:
    """A long prompt waits for its tokens, since they may tell where it belongs. Nothing is sent for one that left."""
    rng = random.Random(1)
    prompt = " ".join(rng.choices(["river", "stone", "cloud", "ember"], k=200_000))
    raw = post(b'{"model": "m", "prompt": "%b"}' % prompt.encode(), path=b"/v1/completions")
    config = config_for(
        [worker.url],
        "models: [{name: m, tokenizer: embedded}]\ntokens: {inline_chars: 0, piece_chars: 64, wait: 30s}",
        workers_extra=[", models: [m], block_size: 1024"],  # so that the first piece does not fill a block
    )
    async with inside(config) as gateway:
        async with client_of(gateway) as client:
            client.write(raw)
            await eventually(lambda: any(c.exchange for c in gateway.server.connections))
            exchange = next(c.exchange for c in gateway.server.connections if c.exchange)
            assert exchange.attempts == 0, "it waits for its tokens"
            leave(client)
            await eventually(lambda: not gateway.server.connections, timeout=WITHIN)
            assert exchange.finished
            assert gateway.active == 0
        worker.answer = say_ok  # one who asks the same and stays gets an answer, once the tokens are there
        assert (await ask(gateway, raw)).body == b"ok"
        assert exchange.attempts == 0
        assert len(worker.requests) == 1


@LEAVES
async def test_between_two_attempts(leave: Leave) -> None:
    """The first worker breaks off; the client leaves while the second is being connected to."""

    async def broken(turn: Turn) -> None:
        turn.reset()

    upstream = "connect_timeout: 60s, model_refresh: 1h"
    with blackhole() as silent:
        async with RawWorker(broken).running() as bad:
            config = plane([bad.url, silent.url], upstream=upstream, extra="routing: {policy: round_robin}")
            async with inside(config) as gateway, client_of(gateway) as client:
                silent.open()
                await _left_between(gateway, client, bad, leave)


async def _left_between(gateway: Inside, client: Client, bad: RawWorker, leave: Leave) -> None:
    client.post()
    await eventually(lambda: bad.requests and gateway.pools[1]._connecting)
    leave(client)
    await gone(gateway)


async def test_pipelined_requests_of_one_that_left_are_not_served(gateway: Inside, worker: RawWorker) -> None:
    async with client_of(gateway) as client:
        client.write(post() * 5)
        await eventually(lambda: worker.requests)
        client.reset()
        await gone(gateway, worker)
    await asyncio.sleep(0.05)
    assert len(worker.requests) == 1
