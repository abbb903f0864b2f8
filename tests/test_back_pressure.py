"""A client that reads slowly slows its own worker down, and nothing else."""

from __future__ import annotations

import asyncio
import hashlib
import random

import pytest

from tests.data_plane_fixtures import BODY, OK, RawWorker, Turn, client_of, inside, plane
from tests.gateway_fixtures import eventually
from tests.tls_fixtures import authority, listen_tls, server_pair

LIMIT = 64 << 10
SIZE = 32 << 20


@pytest.mark.parametrize("framing", ["length", "chunked", "until close"])
@pytest.mark.parametrize("tls", ["no TLS", "TLS to the client", "TLS to the worker"])
async def test_a_client_that_does_not_read_stops_the_worker_and_loses_nothing(framing: str, tls: str) -> None:
    block = random.Random(5).randbytes(1 << 16)
    sent = 0
    finished = asyncio.Event()

    async def answer(turn: Turn) -> None:
        nonlocal sent
        head = {
            "length": b"Content-Length: %d" % SIZE,
            "chunked": b"Transfer-Encoding: chunked",
            "until close": b"X: y",
        }
        turn.writer.transport.set_write_buffer_limits(high=1)
        turn.write(b"HTTP/1.1 200 OK\r\n" + head[framing] + b"\r\n\r\n")
        while sent < SIZE:
            turn.write(b"10000\r\n%b\r\n" % block if framing == "chunked" else block)
            await turn.writer.drain()
            sent += len(block)
        if framing == "chunked":
            turn.write(b"0\r\n\r\n")
        elif framing == "until close":
            turn.writer.close()
        finished.set()

    async def quick(turn: Turn) -> None:
        if turn.body == BODY:
            await answer(turn)
        else:
            turn.write(OK)

    async with (
        RawWorker(
            quick, tls=authority().server_context(server_pair()) if tls == "TLS to the worker" else None
        ).running() as worker,
        inside(
            plane(
                [worker.url],
                limits=f"buffer_bytes: {LIMIT >> 10}KiB",
                listen=listen_tls() if tls == "TLS to the client" else "",
                worker=f", tls: {{ca: {authority().ca}}}" if tls == "TLS to the worker" else "",
            )
        ) as gateway,
    ):
        async with client_of(gateway, rcvbuf=65_536) as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # asyncio's own type lacks it
            client.post()
            await eventually(lambda: gateway.server.connections)
            connection = next(iter(gateway.server.connections))
            await eventually(lambda: connection.paused)
            before = -1
            while before != sent:  # until the worker's send blocks
                before = sent
                await asyncio.sleep(0.1)
            assert not finished.is_set()
            assert sent < SIZE // 2, "what the kernel's buffers hold and a little"
            assert connection.transport.get_write_buffer_size() <= LIMIT + (256 << 10), "one read past the limit"

            async with client_of(gateway) as other:  # meanwhile, nobody else waits
                for _ in range(50):
                    other.post(BODY + b" ")
                    assert (await other.response()).body == b"ok"
            assert not finished.is_set()

            client.writer.transport.resume_reading()  # type: ignore[attr-defined]  # the same
            body = (await client.response(timeout=30)).body
            assert len(body) == SIZE
            assert hashlib.sha256(body).digest() == hashlib.sha256(block * (SIZE // len(block))).digest()
            assert finished.is_set()
        await eventually(lambda: gateway.active == 0)


async def test_the_next_answer_waits_for_a_client_that_still_reads_the_last_one() -> None:
    """Pipelined: the second worker's connection is paused from the start, and both answers arrive whole."""
    body = random.Random(6).randbytes(4 << 20)

    async def answer(turn: Turn) -> None:
        turn.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    async with (
        RawWorker(answer).running() as worker,
        inside(plane([worker.url], limits="buffer_bytes: 16KiB")) as gateway,
    ):
        async with client_of(gateway, rcvbuf=8_192) as client:
            client.post()
            client.post()
            client.post()
            await eventually(lambda: gateway.server.connections and next(iter(gateway.server.connections)).paused)
            for _ in range(3):
                assert (await client.response()).body == body
        await eventually(lambda: not gateway.server.connections)
        assert gateway.active == 0


async def test_a_large_request_body_to_a_worker_that_reads_slowly() -> None:
    body = BODY + b" " * (8 << 20)
    async with RawWorker().running(rcvbuf=8_192) as worker, inside(plane([worker.url])) as gateway:
        async with client_of(gateway) as client:
            client.post(body)
            assert (await client.response()).body == b"ok"
        assert worker.requests[0][1] == body
