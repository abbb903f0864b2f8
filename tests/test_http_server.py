"""The client's side over real sockets: limits, deadlines, framing, and nothing smuggled past."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import AsyncIterator

import pytest

from tests.data_plane_fixtures import (
    BODY,
    CHAT,
    OK,
    WITHIN,
    Client,
    Inside,
    RawWorker,
    Turn,
    ask,
    chunked,
    client_of,
    hold,
    inside,
    plane,
    post,
)
from tests.gateway_fixtures import eventually
from tests.tls_fixtures import listen_tls

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\n"
MODELS = b"GET /v1/models HTTP/1.1\r\nHost: gateway\r\n\r\n"


async def echo(turn: Turn) -> None:
    turn.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(turn.body), turn.body))


@pytest.fixture
async def worker() -> AsyncIterator[RawWorker]:
    async with RawWorker(echo).running() as worker:
        yield worker


@pytest.fixture(params=["http", "https"])
async def gateway(worker: RawWorker, request: pytest.FixtureRequest) -> AsyncIterator[Inside]:
    limits = "head_bytes: 2KiB, body_bytes: 8KiB, pipelined_bytes: 4KiB, buffer_bytes: 64KiB"
    listen = listen_tls() if request.param == "https" else ""
    config = plane([worker.url], limits=limits, extra="tokens: {inline_chars: 1024}", listen=listen)
    async with inside(config) as gateway:
        yield gateway


@pytest.fixture(params=["http", "https"])
async def impatient(worker: RawWorker, request: pytest.FixtureRequest) -> AsyncIterator[Inside]:
    limits = "head_timeout: 0.3s, body_timeout: 0.3s, idle_timeout: 0.3s"
    listen = listen_tls() if request.param == "https" else ""
    async with inside(plane([worker.url], limits=limits, listen=listen)) as gateway:
        yield gateway


@pytest.fixture(params=["http", "https"])
async def small(worker: RawWorker, request: pytest.FixtureRequest) -> AsyncIterator[Inside]:
    listen = listen_tls() if request.param == "https" else ""
    async with inside(plane([worker.url], limits="max_connections: 3", listen=listen)) as gateway:
        yield gateway


def end(client: Client) -> None:
    """Close the client's half of TCP; under TLS that is all it can do without closing the other."""
    with socket.socket(fileno=os.dup(client.writer.get_extra_info("socket").fileno())) as sock:
        sock.shutdown(socket.SHUT_WR)


async def closes(client: Client) -> None:
    """Nothing more comes, and the gateway closes."""
    assert await client.rest() == b""


# Limits


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (HEAD + b"X: " + b"x" * 2_048 + b"\r\n\r\n", 431),
        (HEAD + b"X: " + b"x" * 2_048, 431),
        (b"x" * 2_049, 431),
        (HEAD + b"Content-Length: 8193\r\n\r\n", 413),
        (HEAD + b"Content-Length: 999999999999999999\r\n\r\n", 413),
        (HEAD + b"Content-Length: 9999999999999999999999\r\n\r\n", 400),
        (chunked([b"x" * 4_096, b"x" * 4_097]), 413),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2001\r\n" + b"x" * 8_193, 413),
        (HEAD + b"Expect: the-unexpected\r\nContent-Length: 2\r\n\r\n{}", 417),
        (b"POST /v1/chat/completions HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (b"POST /v1/chat/completions HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
)
async def test_a_refusal_is_told_and_closes(gateway: Inside, worker: RawWorker, raw: bytes, status: int) -> None:
    async with client_of(gateway) as client:
        client.write(raw)
        response = await client.response()
        assert response.status == status
        assert response.error
        assert response.fields["connection"] == "close"
        assert response.fields["x-request-id"]
        await closes(client)
    assert worker.requests == []


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b"GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n", 405, "method_not_allowed"),
        (post(path=b"/v1/models"), 405, "method_not_allowed"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 404, "unknown_route"),
        (post(path=b"/v1/chat/completions/"), 404, "unknown_route"),
        (post(path=b"/v1/../v1/chat/completions"), 404, "unknown_route"),
        (post(path=b"/metrics"), 404, "unknown_route"),
        (post(path=b"/v1/load_lora_adapter"), 404, "unknown_route"),
        (post(b"{"), 400, "invalid_json"),
        (post(b""), 400, "invalid_json"),
        (post(b"[]"), 400, "invalid_body"),
    ],
)
async def test_an_error_within_the_protocol_keeps_the_connection(
    gateway: Inside, worker: RawWorker, raw: bytes, status: int, code: str
) -> None:
    async with client_of(gateway) as client:
        for _ in range(2):
            client.write(raw)
            response = await client.response()
            assert response.status == status
            assert response.error["code"] == code
        assert worker.requests == []
        client.post()
        assert (await client.response()).body == BODY


async def test_a_head_and_a_body_of_exactly_the_limit_pass(gateway: Inside, worker: RawWorker) -> None:
    body = BODY + b" " * (8_192 - len(BODY))
    raw = post(body)
    head = raw[: -len(body)]
    padded = head[:-2] + b"X: " + b"x" * (2_048 - len(head) - 5) + b"\r\n\r\n"
    assert len(padded) == 2_048
    assert (await ask(gateway, padded + body)).body == body
    assert (await ask(gateway, chunked([body]))).body == body


async def test_an_error_is_readable_while_the_client_is_still_sending(gateway: Inside) -> None:
    """The refusal must not be lost in a reset, however much is still on its way."""
    for raw in (
        HEAD + b"Content-Length: 4000000\r\n\r\n" + b"x" * 4_000_000,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"10000\r\n%b\r\n" % (b"x" * 65_536) * 60,
        b"GET nonsense\r\n\r\n" + b"y" * 4_000_000,
    ):
        async with client_of(gateway) as client:
            client.write(raw)
            await client.writer.drain()
            assert (await client.response()).status in (400, 413)
            await closes(client)


async def test_head_answers_have_no_body(gateway: Inside) -> None:
    async with client_of(gateway) as client:
        client.write(MODELS.replace(b"GET", b"HEAD"))
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 405 ")
        client.post()
        assert (await client.response()).body == BODY


# Deadlines


async def test_a_head_that_does_not_arrive_in_time(impatient: Inside, worker: RawWorker) -> None:
    for begun in (b"P", HEAD, b"\r\nPOST"):
        async with client_of(impatient) as client:
            client.write(begun)
            response = await client.response()
            assert response.status == 408
            assert response.error["code"] == "request_timeout"
            await closes(client)
    assert worker.requests == []


async def test_a_head_that_trickles_does_not_push_its_deadline_off(impatient: Inside) -> None:
    async with client_of(impatient) as client:
        answer = asyncio.ensure_future(client.response())
        for byte in HEAD:
            client.write(bytes([byte]))
            await asyncio.wait([answer], timeout=0.05)
            if answer.done():
                break
        assert (await answer).status == 408


@pytest.mark.parametrize("framing", [b"Content-Length: 1000", b"Transfer-Encoding: chunked"])
async def test_a_body_that_does_not_arrive_in_time(impatient: Inside, worker: RawWorker, framing: bytes) -> None:
    async with client_of(impatient) as client:
        client.write(HEAD + framing + b"\r\n\r\n3e8\r\nxx")
        response = await client.response()
        assert response.status == 408
        assert "body" in str(response.error["message"])
        await closes(client)
    assert worker.requests == []


async def test_a_connection_without_a_request_is_closed(impatient: Inside) -> None:
    async with client_of(impatient) as client:
        await closes(client)
    async with client_of(impatient) as client:
        client.post()
        await client.response()
        await closes(client)
    await eventually(lambda: not impatient.server.connections)


async def test_empty_lines_keep_no_connection_open(impatient: Inside) -> None:
    async with client_of(impatient) as client:
        closed = asyncio.ensure_future(client.rest())
        for _ in range(200):
            client.write(b"\r\n")
            await asyncio.wait([closed], timeout=0.05)
            if closed.done():
                break
        with contextlib.suppress(ConnectionResetError):  # a line was on its way when the gateway closed
            assert (await closed) == b""
    await eventually(lambda: not impatient.server.connections)


async def test_too_many_connections(small: Inside, worker: RawWorker) -> None:
    async with client_of(small) as one, client_of(small) as two, client_of(small) as three:
        await eventually(lambda: len(small.server.connections) == 3)
        async with client_of(small) as four:
            four.post()
            response = await four.response()
            assert response.status == 503
            assert response.error["code"] == "too_many_connections"
            await closes(four)
        for client in (one, two, three):
            client.post()
            assert (await client.response()).status == 200
    await eventually(lambda: not small.server.connections)
    assert len(worker.requests) == 3
    assert (await ask(small)).status == 200


async def test_a_client_that_never_reads_is_let_go(worker: RawWorker) -> None:
    """Also when its answer is complete on this side and only waits to be taken."""

    async def big(turn: Turn) -> None:
        turn.write(b"HTTP/1.1 200 OK\r\ncontent-length: 8000000\r\n\r\n" + b"x" * 8_000_000)

    worker.answer = big
    config = plane([worker.url], limits="idle_timeout: 0.3s, buffer_bytes: 32MiB", upstream="idle_timeout: 0.5s")
    async with inside(config) as gateway:
        for fields in ((), (b"Connection: close",)):
            async with client_of(gateway, rcvbuf=4_096) as client:
                client.post(BODY, *fields)
                await eventually(lambda: len(gateway.server.connections) == 1)
                await eventually(lambda: not gateway.server.connections)
                assert gateway.active == 0


async def test_a_slow_client_gets_the_whole_of_a_closing_answer(worker: RawWorker) -> None:
    async def big(turn: Turn) -> None:
        turn.write(b"HTTP/1.1 200 OK\r\ncontent-length: 8000000\r\n\r\n" + b"x" * 8_000_000)

    worker.answer = big
    async with (
        inside(plane([worker.url], limits="buffer_bytes: 32MiB, idle_timeout: 0.3s")) as gateway,
        client_of(gateway, rcvbuf=4_096) as client,
    ):
        client.post(BODY, b"Connection: close")
        await asyncio.sleep(2.8)  # longer than a refusal is drained
        assert len((await client.response()).body) == 8_000_000


# Smuggling: whatever follows what cannot be trusted is never read as a request

EVIL = post(b'{"model": "m", "evil": 1}')
SMUGGLING = {
    "both lengths": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both lengths, other order": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "two lengths that differ": HEAD + b"Content-Length: 0\r\nContent-Length: 300\r\n\r\n",
    "a list of lengths": HEAD + b"Content-Length: 0, 0\r\n\r\n",
    "a signed length": HEAD + b"Content-Length: +0\r\n\r\n",
    "a hexadecimal length": HEAD + b"Content-Length: 0x0\r\n\r\n",
    "a length past 64 bits": HEAD + b"Content-Length: 18446744073709551616\r\n\r\n",
    "a length of many digits": HEAD + b"Content-Length: 00000000000000000000\r\n\r\n",
    "a length with a vertical tab": HEAD + b"Content-Length: \x0b0\r\n\r\n",
    "space before the colon": HEAD + b"Content-Length : 300\r\n\r\n",
    "a folded length": HEAD + b"X: y\r\n Content-Length: 300\r\n\r\n",
    "a folded coding": HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a misspelt coding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a coding twice": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "identity last": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a coding in HTTP/1.0": HEAD.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a bare LF between fields": HEAD + b"X: y\nContent-Length: 300\r\n\r\n",
    "a bare CR between fields": HEAD + b"X: y\rContent-Length: 300\r\n\r\n",
    "bare LFs at the end": HEAD + b"Content-Length: 0\n\n",
    "a bare LF at the end": HEAD + b"Content-Length: 0\r\n\n",
    "a bare LF in the request line": HEAD.replace(b"1.1\r\n", b"1.1\n") + b"\r\n",
    "a bare LF before the request": b"\n" + HEAD + b"Content-Length: 0\r\n\r\n",
    "a bare CR before the request": b"\rX" + HEAD + b"Content-Length: 0\r\n\r\n",
    "NUL": HEAD + b"X: y\x00\r\nContent-Length: 0\r\n\r\n",
    "two hosts": HEAD + b"Host: other\r\nContent-Length: 0\r\n\r\n",
    "chunk size with a sign": HEAD + b"Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n",
    "chunk size with 0x": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n",
    "chunk size with a space": HEAD + b"Transfer-Encoding: chunked\r\n\r\n 0\r\n\r\n",
    "chunk size past 64 bits": HEAD + b"Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n\r\n",
    "no chunk size": HEAD + b"Transfer-Encoding: chunked\r\n\r\n\r\n0\r\n\r\n",
    "chunk size ended by LF": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\n\r\n",
    "last chunk ended by LF": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\n",
    "chunk size ended by CR": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\r\n\r\n",
    "chunk longer than its size": HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nxx\r\n0\r\n\r\n",
    "chunk data ended by LF": HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\n0\r\n\r\n",
    "LF in a chunk extension": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0;a\nb\r\n\r\n",
    "NUL in a chunk extension": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0;\x00\r\n\r\n",
    "bare LF in a trailer": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\nZ: a\r\n\r\n",
    "space before a trailer's colon": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX : y\r\n\r\n",
    "HTTP/0.9": b"GET /v1/models\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "CONNECT": b"CONNECT gateway:443 HTTP/1.1\r\nHost: gateway\r\n\r\n",
    "RTSP": b"DESCRIBE /v1/models RTSP/1.0\r\n\r\n",
    "two spaces": HEAD.replace(b" HTTP", b"  HTTP") + b"Content-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("name", SMUGGLING)
@pytest.mark.parametrize("pieces", [0, 1])
async def test_nothing_is_smuggled(gateway: Inside, worker: RawWorker, name: str, pieces: int) -> None:
    async with client_of(gateway) as client:
        raw = SMUGGLING[name] + EVIL
        if pieces:
            for at in range(len(raw)):
                client.write(raw[at : at + 1])
                if at % 16 == 0:
                    await asyncio.sleep(0)
        else:
            client.write(raw)
        response = await client.response()
        assert response.status in (400, 501, 505), response
        assert response.error
        await closes(client)
    assert worker.requests == []
    assert (await ask(gateway)).status == 200


@pytest.mark.parametrize("fields", [b"Content-Length: 300 ", b"Content-Length: 300\t", b"content-length:\t 300 \t"])
async def test_a_length_with_white_space_is_a_length(gateway: Inside, worker: RawWorker, fields: bytes) -> None:
    body = EVIL + b" " * (300 - len(EVIL))
    response = await ask(gateway, HEAD + fields + b"\r\n\r\n" + body)
    assert response.error["code"] == "invalid_json"
    assert worker.requests == []


async def test_what_goes_upstream_is_framed_anew(gateway: Inside, worker: RawWorker) -> None:
    fields = (
        b"Connection: keep-alive, X-Secret",
        b"X-Secret: 1",
        b"TE: trailers",
        b"A: 1",
        b"Keep-Alive: timeout=5",
    )
    await ask(gateway, chunked([BODY[:5], BODY[5:]], *fields, trailer=b"T: 1\r\n", path=CHAT + b"?a=b%20c"))
    head, body = worker.requests[0]
    assert body == BODY
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /v1/chat/completions?a=b%20c HTTP/1.1"
    assert lines[1] == b"host: 127.0.0.1:%d" % worker.port
    assert lines[2] == b"A: 1"
    assert lines[3].startswith(b"x-request-id: prefixgate-")
    assert lines[4].startswith(b"via: 1.1 prefixgate-")
    assert lines[5:] == [b"content-length: %d" % len(BODY), b"", b""]


async def test_the_request_id_goes_both_ways(gateway: Inside, worker: RawWorker) -> None:
    async def answer(turn: Turn) -> None:
        turn.write(
            b"HTTP/1.1 200 OK\r\nX-Request-Id: the-worker's\r\nconnection: x-b\r\n"
            b"X-B: 1\r\nX-A: 2\r\ncontent-length: 0\r\n\r\n"
        )

    worker.answer = answer
    response = await ask(gateway, post(BODY, b"X-Request-ID: mine-1"))
    assert response.fields == {"x-a": "2", "x-request-id": "mine-1", "content-length": "0"}
    assert b"\r\nx-request-id: mine-1\r\n" in worker.requests[0][0]
    ids = {(await ask(gateway, post(BODY, b"X-Request-ID: not one"))).fields["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


async def test_a_request_that_comes_back_is_refused(gateway: Inside, worker: RawWorker) -> None:
    await ask(gateway)
    via = next(line for line in worker.requests[0][0].split(b"\r\n") if line.startswith(b"via"))
    response = await ask(gateway, post(BODY, via))
    assert response.status == 508
    assert response.error
    await ask(gateway, post(BODY, b"Via: 1.1 other"))
    assert b"\r\nvia: 1.1 other, " + via.removeprefix(b"via: ") + b"\r\n" in worker.requests[-1][0]
    assert len(worker.requests) == 2


# Keep-alive and pipelining


async def test_keep_alive(gateway: Inside, worker: RawWorker) -> None:
    async with client_of(gateway) as client:
        for i in range(20):
            body = BODY + b" " * i
            client.post(body)
            response = await client.response()
            assert response.body == body
            assert "connection" not in response.fields
    assert worker.connections == 1
    assert gateway.upstreams == 1


@pytest.mark.parametrize("raw", [post(BODY, b"Connection: close"), post(b"", b"Connection: close"),
                                 MODELS[:-2] + b"Connection: close\r\n\r\n"])  # fmt: skip
async def test_a_client_that_asks_for_it_is_closed(gateway: Inside, raw: bytes) -> None:
    async with client_of(gateway) as client:
        client.write(raw + EVIL)
        assert (await client.response()).fields["connection"] == "close"
        await closes(client)


async def test_an_http10_client(gateway: Inside, worker: RawWorker) -> None:
    """It gets the bare body of a chunked answer, and the end of the connection as the body's end."""

    async def answer(turn: Turn) -> None:
        turn.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n")
        await turn.writer.drain()
        await asyncio.sleep(0.02)
        turn.write(b"2\r\nde\r\n0\r\nTrailer: 1\r\n\r\n")

    worker.answer = answer
    for raw in (post(version=b"1.0"), post(BODY, b"Connection: keep-alive", version=b"1.0")):
        async with client_of(gateway) as client:
            client.write(raw)
            response = await client.response()
            assert "transfer-encoding" not in response.fields
            assert response.fields["connection"] == "close"
            assert response.body == b"abcde"
    assert worker.connections == 1
    worker.answer = echo
    async with client_of(gateway) as client:
        client.write(b"POST %b HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (CHAT, len(BODY), BODY))
        assert (await client.response()).body == BODY
        await closes(client)


async def test_pipelined_requests_are_answered_in_order(gateway: Inside, worker: RawWorker) -> None:
    async def answer(turn: Turn) -> None:
        await asyncio.sleep(0.02 if turn.number % 2 else 0)
        await echo(turn)

    worker.answer = answer
    bodies = [BODY + b" " * i for i in range(12)]
    raw = b""
    for i, body in enumerate(bodies):
        raw += post(body) if i % 3 else chunked([body[:3], body[3:]])
        raw += MODELS if i % 4 == 0 else b""
        raw += b"\r\n" if i % 5 == 0 else b""
    async with client_of(gateway) as client:
        client.write(raw)
        for i, body in enumerate(bodies):
            assert (await client.response()).body == body
            if i % 4 == 0:
                assert b'"list"' in (await client.response()).body
    assert [body for _, body in worker.requests] == bodies


async def test_a_malformed_request_behind_a_good_one(gateway: Inside, worker: RawWorker) -> None:
    async with client_of(gateway) as client:
        client.write(post() + b"nonsense\r\n\r\n" + EVIL)
        assert (await client.response()).body == BODY
        assert (await client.response()).status == 400
        await closes(client)
    assert len(worker.requests) == 1


async def test_pipelined_bytes_are_bounded(gateway: Inside, worker: RawWorker) -> None:
    worker.answer = hold
    async with client_of(gateway) as client:
        client.post()
        await eventually(lambda: worker.requests)
        client.write(post() * 100_000)
        connection = next(iter(gateway.server.connections))
        await eventually(lambda: not connection._reading)
        assert len(connection._buffer) <= 4_096 + 262_144, "the limit, and the one read that went past it"
        if gateway.tls is None:  # this client's TLS does not tell
            assert client.writer.transport.get_write_buffer_size() > 0


async def test_a_client_that_leaves_while_it_is_not_read(gateway: Inside, worker: RawWorker) -> None:
    worker.answer = hold
    async with client_of(gateway) as client:
        client.post()
        client.write(b"x" * 10_000)
        await eventually(lambda: worker.open)
        connection = next(iter(gateway.server.connections))
        await eventually(lambda: not connection._reading)
        client.reset()
        await eventually(lambda: not worker.open, timeout=WITHIN)
    await eventually(lambda: not gateway.active)


async def test_answers_nobody_reads_do_not_pile_up(gateway: Inside) -> None:
    """A client that pipelines requests answered here at once, and never reads, is read no further."""
    async with client_of(gateway, rcvbuf=4_096) as client:
        client.write(MODELS * 200_000)
        await eventually(lambda: gateway.server.connections)
        connection = next(iter(gateway.server.connections))
        await eventually(lambda: not connection._reading)
        assert connection.transport.get_write_buffer_size() < 1 << 20
        for _ in range(3_000):
            assert (await client.response()).status == 200


# Bodies in pieces


def cut(raw: bytes, rng: random.Random) -> list[bytes]:
    """The same bytes in pieces of random sizes."""
    pieces, at = [], 0
    while at < len(raw):
        size = rng.choice((1, 1, 2, 3, 5, 17, 100))
        pieces.append(raw[at : at + size])
        at += size
    return pieces


async def feed(client: Client, pieces: list[bytes]) -> None:
    """Hand each piece to the gateway in a read of its own."""
    for piece in pieces:
        client.write(piece)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


# Bodies that hold what ends heads and chunked bodies
BODIES = [BODY, b'{"model": "m",\r\n\r\n"z":\r\n0\r\n\r\n,"y":\r\n\r\n0}\r\n\r\n\r\n', BODY + b" " * 600]


@pytest.mark.parametrize("seed", range(8))
async def test_requests_cut_anywhere_equal_whole_ones(gateway: Inside, worker: RawWorker, seed: int) -> None:
    """One byte at a time and in random pieces, chunked and counted, with the next one right behind."""
    rng = random.Random(seed)
    raw, bodies = b"", []
    for body in BODIES * 2:
        pieces = cut(body, rng)
        trailer = b"Checksum: 1\r\n" if rng.random() < 0.5 else b""
        extended = chunked(pieces, trailer=trailer).replace(b"\r\n0\r\n", b"\r\n0;last\r\n", 1) if seed == 3 else None
        raw += (
            post(body)
            if rng.random() < 0.4
            else extended
            if extended and body is BODY
            else chunked(pieces, trailer=trailer)
        )
        bodies.append(body)
    async with client_of(gateway) as client:
        parts = [raw[at : at + 1] for at in range(len(raw))] if seed == 0 else cut(raw, rng)
        sender = asyncio.ensure_future(feed(client, parts))
        for body in bodies:
            response = await client.response()
            assert response.status == 200, response
            assert response.body == body
        await sender
    assert [body for _, body in worker.requests] == bodies


@pytest.mark.parametrize(
    "raw",
    [
        post(),
        chunked([BODY[:7], BODY[7:]]),
        post(b"{"),
        MODELS,
        post(path=b"/x"),
        b"G ET / HTTP/1.1\r\n\r\n",
        HEAD + b"Content-Length: 9000\r\n\r\n",
        b"\r\n\r\n" + post(),
    ],
)
async def test_one_byte_at_a_time_equals_whole(gateway: Inside, worker: RawWorker, raw: bytes) -> None:
    answers = []
    for pieces in ([raw], [raw[at : at + 1] for at in range(len(raw))]):
        async with client_of(gateway) as client:
            await feed(client, pieces)
            response = await client.response()
            answers.append((response.status, response.body, response.fields.keys()))
    assert answers[0] == answers[1]
    assert worker.requests[:1] == worker.requests[1:2] or len(worker.requests) == 2


async def test_a_chunked_body_with_an_offer_to_switch_protocols(gateway: Inside, worker: RawWorker) -> None:
    raw = chunked([BODY], b"Connection: Upgrade", b"Upgrade: h2c")
    async with client_of(gateway) as client:
        client.write(raw + raw)
        for _ in range(2):
            assert (await client.response()).body == BODY
    assert len(worker.requests) == 2


async def test_many_small_chunks_do_not_weigh_more_than_their_bytes(gateway: Inside, worker: RawWorker) -> None:
    body = BODY + b" " * 8_000
    assert (await ask(gateway, chunked([body[at : at + 2] for at in range(0, len(body), 2)]))).body == body


# Expect: 100-continue


@pytest.mark.parametrize("framing", [b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked"])
async def test_continue_is_said_where_the_body_will_be_taken(gateway: Inside, framing: bytes) -> None:
    async with client_of(gateway) as client:
        for _ in range(2):
            client.write(HEAD + b"Expect: 100-continue\r\n" + framing + b"\r\n\r\n")
            assert (await client.response()).status == 100
            client.write(BODY if b"Length" in framing else b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))
            assert (await client.response()).body == BODY


async def test_continue_is_not_said(gateway: Inside) -> None:
    async with client_of(gateway) as client:  # the body would not be taken
        client.write(HEAD + b"Expect: 100-continue\r\nContent-Length: 9000\r\n\r\n")
        assert (await client.response()).status == 413
        await closes(client)
    async with client_of(gateway) as client:  # the body is there already
        client.write(post(BODY, b"Expect: 100-continue"))
        assert (await client.response()).status == 200
    async with client_of(gateway) as client:  # there is none
        client.write(post(b"", b"Expect: 100-continue"))
        assert (await client.response()).status == 400
    async with client_of(gateway) as client:  # HTTP/1.0 does not know it
        client.write(post(BODY, b"Expect: 100-continue", version=b"1.0")[: -len(BODY)])
        client.write(BODY)
        assert (await client.response()).status == 200


# Leaving


async def test_a_client_that_closes_its_half_is_gone(gateway: Inside, worker: RawWorker) -> None:
    """No answer is computed for one that has said it will not go on; half a request just ends."""
    worker.answer = hold
    async with client_of(gateway) as client:
        client.post()
        await eventually(lambda: worker.open)
        end(client)
        await eventually(lambda: not worker.open, timeout=WITHIN)
        await closes(client)
    async with client_of(gateway) as client:
        client.write(HEAD)
        end(client)
        await closes(client)
    await eventually(lambda: not gateway.server.connections)


async def test_draining_finishes_what_runs_and_takes_nothing_new(worker: RawWorker) -> None:
    release = asyncio.Event()

    async def answer(turn: Turn) -> None:
        await release.wait()
        turn.write(OK)

    worker.answer = answer
    async with inside(plane([worker.url])) as gateway:
        async with client_of(gateway) as busy, client_of(gateway) as idle:
            busy.post()
            await eventually(lambda: worker.requests)
            closing = asyncio.ensure_future(gateway.server.close(grace=5.0))
            await closes(idle)
            assert not closing.done()
            release.set()
            assert (await busy.response()).body == b"ok"
            await closes(busy)
            busy.writer.close()
            await closing
        with pytest.raises(OSError, match=r".*"):
            await ask(gateway)


async def test_promised_bodies_take_no_room_until_they_come(worker: RawWorker) -> None:
    limits = "body_bytes: 100KB, total_body_bytes: 101KB"
    async with inside(plane([worker.url], limits=limits)) as gateway, contextlib.AsyncExitStack() as stack:
        body = BODY + b" " * 20_000
        clients = [await stack.enter_async_context(client_of(gateway)) for _ in range(8)]
        client = clients[-1]
        for each in clients:
            each.write(HEAD + b"Content-Length: 100000\r\n\r\n{")
        await eventually(lambda: len(gateway.server.connections) == 8 and gateway.server.held_bytes == 8)
        assert (await ask(gateway, post(body))).status == 200
        client.write(b" " * 99_998)
        await eventually(lambda: gateway.server.held_bytes > 99_000)
        assert (await ask(gateway, post(body))).status == 503
        client.write(b"}")
        assert (await client.response()).status == 200
        assert (await ask(gateway, post(body))).status == 200
