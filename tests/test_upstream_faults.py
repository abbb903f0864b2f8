"""Workers that refuse, lie, stall and break off: what the client sees, exactly, and what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.data_plane_fixtures import (
    BODY,
    OK,
    Answer,
    Blackhole,
    Client,
    Inside,
    RawWorker,
    Response,
    Turn,
    ask,
    blackhole,
    client_of,
    hold,
    inside,
    plane,
    post,
    refusing_url,
    say_ok,
    says,
)
from tests.gateway_fixtures import eventually

QUICK = "connect_timeout: 0.3s, first_byte_timeout: 0.4s, idle_timeout: 0.4s, cooldown: 60s, cooldown_max: 60s"
TURNS = "routing: {policy: round_robin}"  # so that the first candidate is w0


@pytest.fixture
async def good() -> AsyncIterator[RawWorker]:
    async with RawWorker().running() as worker:
        yield worker


@pytest.fixture
def silent() -> Iterator[Blackhole]:
    with blackhole() as silent:
        yield silent


async def reset(turn: Turn) -> None:
    turn.reset()


async def close(turn: Turn) -> None:
    await turn.close()


@contextlib.asynccontextmanager
async def in_front_of(answer: Answer, *, upstream: str = QUICK) -> AsyncIterator[tuple[Inside, RawWorker]]:
    """A gateway in front of one worker."""
    async with (
        RawWorker(answer).running() as worker,
        inside(plane([worker.url], upstream=upstream)) as gateway,
    ):
        yield gateway, worker


async def told(gateway: Inside, status: int) -> Response:
    """The error a client is told; the connection to it stays, and nothing stays booked."""
    async with client_of(gateway) as client:
        client.post()
        response = await client.response()
        assert response.status == status
        assert response.error["code"] == "worker_unavailable"
        client.write(b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await client.response()).status == 200
    assert gateway.active == 0
    return response


async def truncated(client: Client) -> bytes:
    """Read an answer that must break off; returns what came of it."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := await asyncio.wait_for(client.reader.read(65_536), 5):
            data += piece
    return data


# Before the first byte: another worker


@pytest.mark.parametrize("answer", [reset, close], ids=["reset", "closed"])
async def test_a_worker_that_breaks_off_before_its_first_byte(answer: Answer) -> None:
    async with (
        RawWorker(answer).running() as bad,
        RawWorker().running() as good,
        inside(plane([bad.url, good.url], upstream=QUICK, extra=TURNS)) as gateway,
    ):
        assert (await ask(gateway)).body == b"ok"
        assert (len(bad.requests), len(good.requests)) == (1, 1)
        assert bad.requests[0] == (bad.requests[0][0], BODY)
        assert [worker.active for worker in gateway.fleet.workers] == [0, 0]
        for _ in range(4):  # it rests now
            assert (await ask(gateway)).body == b"ok"
        assert len(bad.requests) == 1


async def test_a_worker_that_refuses_or_does_not_answer_the_connection(good: RawWorker) -> None:
    with blackhole() as silent:
        for bad in (refusing_url(), silent.url):
            config = plane([bad, good.url], upstream=QUICK + ", model_refresh: 1h", extra=TURNS)
            async with inside(config) as gateway:
                if bad == silent.url:
                    silent.open()
                assert (await ask(gateway)).body == b"ok"
                assert [worker.failures for worker in gateway.fleet.workers] == [1, 0]
                assert [worker.active for worker in gateway.fleet.workers] == [0, 0]


async def test_the_body_is_sent_again_whole() -> None:
    body = BODY + b" " * 3_000_000

    async def half(turn: Turn) -> None:
        turn.reset()

    async with (
        RawWorker(half).running() as bad,
        RawWorker().running() as good,
        inside(plane([bad.url, good.url], upstream=QUICK, extra=TURNS)) as gateway,
    ):
        assert (await ask(gateway, post(body))).body == b"ok"
        assert good.requests[0][1] == body


async def test_all_refuse() -> None:
    async with inside(plane([refusing_url(), refusing_url()], upstream=QUICK)) as gateway:
        response = await told(gateway, 502)
        assert "connection refused" in str(response.error["message"])


async def test_no_more_workers_are_tried_than_configured() -> None:
    async with contextlib.AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(RawWorker(reset).running()) for _ in range(4)]
        config = plane([worker.url for worker in workers], upstream=QUICK + ", max_attempts: 2", extra=TURNS)
        gateway = await stack.enter_async_context(inside(config))
        await told(gateway, 502)
        assert sorted(len(worker.requests) for worker in workers) == [0, 0, 1, 1]


async def test_connecting_takes_too_long() -> None:
    with blackhole() as silent:
        async with inside(plane([silent.url], upstream=QUICK + ", model_refresh: 1h")) as gateway:
            silent.open()
            await told(gateway, 504)


async def test_a_stale_pooled_connection_says_nothing_about_the_worker() -> None:
    """The worker closes an idle connection just as the next request is written on it."""

    async def answer(turn: Turn) -> None:
        if turn.number == 2:
            turn.reset()
        else:
            turn.write(OK)

    async with (
        RawWorker(answer).running() as worker,
        RawWorker().running() as other,
        inside(plane([worker.url, other.url], upstream=QUICK, extra=TURNS)) as gateway,
    ):
        for _ in range(3):  # w0, w1, w0: the third is on the used connection, and is sent again to the same worker
            assert (await ask(gateway)).body == b"ok"
        assert (len(worker.requests), len(other.requests)) == (3, 1)
        assert worker.connections == 2
        assert gateway.fleet.workers[0].failures == 0


async def test_a_connection_the_worker_closed_while_idle_is_not_used() -> None:
    async def answer(turn: Turn) -> None:
        turn.write(OK)
        await turn.close()

    async with in_front_of(answer) as (gateway, worker):
        for number in range(1, 4):
            assert (await ask(gateway)).body == b"ok"
            await eventually(lambda: gateway.upstreams == 0)
            assert worker.connections == number


async def test_a_worker_rests_after_refusing_and_comes_back() -> None:
    async with RawWorker().running() as good:
        bad = RawWorker()
        async with bad.running():
            pass  # takes a port, and leaves it
        upstream = "connect_timeout: 0.3s, cooldown: 2s, cooldown_max: 2s"
        async with inside(plane([bad.url, good.url], upstream=upstream, extra=TURNS)) as gateway:
            assert (await ask(gateway)).body == b"ok"
            resting = gateway.fleet.workers[0]
            assert resting.failures == 1
            async with bad.running():
                for _ in range(4):
                    await ask(gateway)
                assert bad.requests == []
                await eventually(lambda: resting.resting_until <= asyncio.get_running_loop().time())
                for _ in range(4):
                    assert (await ask(gateway)).body == b"ok"
                assert len(bad.requests) == 2
                assert resting.failures == 0


@pytest.mark.parametrize(
    "answer",
    [
        says(b"HTTP/1.1 200 OK\r\n", close=True),
        says(b"nonsense\r\n\r\n"),
        says(b"HTTP/1.1 100 Continue\r\n\r\n", close=True),
        says(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", close=True),
        says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", close=True),
        says(b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno"),
    ],
)
async def test_what_comes_before_the_first_byte_of_a_body_is_as_good_as_nothing(answer: Answer) -> None:
    async with (
        RawWorker(answer).running() as bad,
        RawWorker().running() as good,
        inside(plane([bad.url, good.url], upstream=QUICK, extra=TURNS)) as gateway,
    ):
        assert (await ask(gateway)).body == b"ok"
        assert (len(bad.requests), len(good.requests)) == (1, 1)


async def test_nobody_else_is_tried_once_the_answer_has_begun() -> None:
    async with (
        RawWorker(says(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", close=True)).running() as bad,
        RawWorker().running() as good,
        inside(plane([bad.url, good.url], upstream=QUICK, extra=TURNS)) as gateway,
        client_of(gateway) as client,
    ):
        client.post()
        assert (await truncated(client)).endswith(b"\r\n\r\nabc")
        assert (len(bad.requests), len(good.requests)) == (1, 0)


# Answers that are not HTTP


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: a\nY: b\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 000 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n0\r\n\r\n",
    ],
    ids=lambda raw: repr(raw[:80]),
)
async def test_malformed_answers(raw: bytes) -> None:
    async with in_front_of(says(raw)) as (gateway, worker):
        response = await told(gateway, 502)
        assert b"200 OK" not in response.body
        await eventually(lambda: gateway.upstreams == 0 and worker.open == 0)
        worker.answer = say_ok
        assert (await ask(gateway)).body == b"ok"


async def test_a_head_in_many_reads() -> None:
    raw = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    raw += b"HTTP/1.1 201 Made it\r\nX: y\r\nContent-Length: 3\r\n\r\nabc"
    async with in_front_of(says(*(raw[at : at + 1] for at in range(len(raw))))) as (gateway, _):
        for _ in range(2):
            response = await ask(gateway)
            assert (response.status, response.body) == (201, b"abc")
            assert "link" not in response.fields
            assert response.fields["x"] == "y"
        assert gateway.upstreams == 1


# Framing


async def test_an_answer_without_a_length_goes_on_until_its_end() -> None:
    async with in_front_of(says(b"HTTP/1.1 200 OK\r\nX: 1\r\n\r\nabc", b"def", close=True)) as (gateway, _):
        async with client_of(gateway) as client:
            client.post()
            response = await client.response()
            assert response.body == b"abcdef"
            assert response.fields["connection"] == "close"
            assert await client.rest() == b""
        assert gateway.active == 0


@pytest.mark.parametrize(
    ("raw", "status", "fields"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, set()),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", 204, set()),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, {"content-length"}),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, {"content-length"}),
        (b"HTTP/1.1 500 Oops\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 500, {"transfer-encoding"}),
    ],
)
async def test_answers_without_a_body(raw: bytes, status: int, fields: set[str]) -> None:
    async with in_front_of(says(raw)) as (gateway, worker), client_of(gateway) as client:
        for _ in range(3):
            client.post()
            response = await client.response()
            assert (response.status, response.body) == (status, b"")
            assert response.fields.keys() == fields | {"x-request-id"}
        assert worker.connections == 1, "the connection is kept"


async def test_chunks_may_be_cut_anywhere() -> None:
    """How they are cut, and what stands beside them, is between the worker and us."""
    body = b"3;ext=1\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\nX-Trailer: 1\r\n\r\n"
    for at in range(len(body)):
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        async with (
            in_front_of(says(head + body[:at], body[at:])) as (gateway, _),
            client_of(gateway) as client,
        ):
            client.post()
            assert (await client.response()).body == b"abc0123456789abcdef"


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize(
    "pieces",
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", b"abc"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"9\r\nabc"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n",),
    ],
)
@pytest.mark.parametrize("how", ["closed", "reset", "stalled"])
async def test_a_truncated_answer_never_looks_complete(pieces: tuple[bytes, ...], how: str, version: bytes) -> None:
    async def answer(turn: Turn) -> None:
        await says(*pieces, pause=0.02)(turn)
        if how == "stalled":
            await turn.until_closed()
        elif how == "reset":
            turn.reset()
        else:
            await turn.close()

    if how == "stalled" and version == b"1.0":
        return  # takes its time, and differs from a reset by nothing that the version could change
    async with in_front_of(answer) as (gateway, worker):
        async with client_of(gateway) as client:
            client.write(post(version=version))
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await client.response()
            assert b"0\r\n\r\n" not in await truncated(client)
        await eventually(lambda: gateway.upstreams == 0 and gateway.active == 0)
        assert len(worker.requests) == 1, "not repeated"


async def test_a_chunked_body_that_turns_to_nonsense() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    for nonsense in (b"zz\r\n", b"-1\r\n", b"3\r\nabcd\r\n0\r\n\r\n", b"\r\n0\r\n\r\n", b"0\n\n"):
        async with (
            in_front_of(says(head, nonsense, pause=0.02)) as (gateway, _),
            client_of(gateway) as client,
        ):
            client.post()
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await client.response()
            await eventually(lambda gateway=gateway: gateway.upstreams == 0)  # type: ignore[misc]  # bound at once


EXTRA = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL",
    b"EVIL",
    b"\r\n",
    b"\n",
    b"0\r\n\r\n",
    b"\r\nHTTP/1.1 200 OK\r\n\r\nEVIL",
    b"\r",
)


CHUNKED_OK = b"2\r\nok\r\n0\r\n\r\n"


@pytest.mark.parametrize("extra", EXTRA)
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ],
)
async def test_bytes_behind_an_answer_reach_nobody(raw: bytes, version: bytes, extra: bytes) -> None:
    """Neither this client nor, on the same connection, the next one; wherever the reads are cut."""
    whole = raw + extra
    for at in {len(raw), *range(len(raw) - 6, len(whole) + 1)}:
        pieces = [piece for piece in (whole[:at], whole[at:]) if piece]

        async def answer(turn: Turn, pieces: list[bytes] = pieces) -> None:
            if turn.number == 1:
                await says(*pieces, pause=0.002)(turn)
            else:
                turn.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhonest")

        async with in_front_of(answer) as (gateway, _):
            async with client_of(gateway) as client:
                client.write(post(BODY, b"Connection: close", version=version))
                got = await truncated(client)
                assert b"EVIL" not in got
                if got:  # either the whole answer, or a broken one: nothing behind its end
                    head, _, body = got.partition(b"\r\n\r\n")
                    if b"502" not in head:
                        assert raw.partition(b"\r\n\r\n")[2].startswith(body) or body in (b"ok", CHUNKED_OK)
            await eventually(lambda gateway=gateway: gateway.upstreams == 0)  # type: ignore[misc]  # bound at once
            for _ in range(2):
                assert (await ask(gateway)).body == b"honest"


async def test_bytes_nobody_asked_for_close_an_idle_connection() -> None:
    async def answer(turn: Turn) -> None:
        turn.write(OK)
        await turn.writer.drain()
        await asyncio.sleep(0.02)
        turn.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL")

    async with in_front_of(answer) as (gateway, _):
        assert (await ask(gateway)).body == b"ok"
        await eventually(lambda: gateway.upstreams == 0)
        assert (await ask(gateway)).body == b"ok"


async def test_an_answer_while_the_request_is_still_being_written() -> None:
    """It reaches the client whole, and the connection, with half a request on it, is not used again."""

    async def answer(turn: Turn) -> None:
        turn.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await turn.until_closed()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"GET"):
            await answer(Turn(head, b"", 0, reader, writer))
            done.set()
        writer.close()

    done = asyncio.Event()
    server = await asyncio.start_server(accepted, "127.0.0.1", 0, limit=4_096)
    async with inside(plane([f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"], upstream=QUICK)) as gateway:
        response = await ask(gateway, post(BODY + b" " * 20_000_000))
        assert (response.status, response.body) == (413, b"big")
        await eventually(lambda: gateway.upstreams == 0)
        await done.wait()
    server.close()


# Deadlines


async def test_no_first_byte_in_time() -> None:
    for answer in (hold, says(b"HTTP/1.1 200"), says(b"HTTP/1.1 100 Continue\r\n\r\n")):

        async def never(turn: Turn, answer: Answer = answer) -> None:
            await answer(turn)
            await turn.until_closed()

        async with in_front_of(never) as (gateway, worker):
            response = await told(gateway, 504)
            assert "no answer in time" in str(response.error["message"])
            await eventually(lambda worker=worker: not worker.open)  # type: ignore[misc]  # bound at once
            assert len(worker.requests) == 1, "not sent to anybody else: it may still be working on it"


async def test_a_slow_stream_that_makes_progress_is_no_stall() -> None:
    pieces = (b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n", *(b"x" for _ in range(12)))
    async with in_front_of(says(*pieces, pause=0.1)) as (gateway, _):
        assert (await ask(gateway)).body == b"x" * 12


# Nothing is left behind


async def test_nothing_leaks_over_many_kinds_of_ends(silent: Blackhole) -> None:
    """Three hundred requests that end in every way there is leave no connection, no task and no reservation."""
    rng = random.Random(3)

    async def fickle(turn: Turn) -> None:
        kind = rng.randrange(7)
        if kind == 0:
            turn.reset()
        elif kind == 1:
            await says(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", close=True)(turn)
        elif kind == 2:
            await says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")(turn)
            await turn.until_closed()
        elif kind == 3:
            await turn.until_closed()
        elif kind == 4:
            turn.write(b"nonsense\r\n\r\n")
        else:
            await asyncio.sleep(rng.random() * 0.02)
            turn.write(OK)

    async with RawWorker(fickle).running() as one, RawWorker(fickle).running() as two:
        upstream = (
            "connect_timeout: 0.3s, first_byte_timeout: 0.5s, idle_timeout: 0.5s, cooldown: 0.01s, cooldown_max: 0.01s"
        )
        config = plane([one.url, two.url, silent.url, refusing_url()], upstream=upstream, extra=TURNS)
        async with inside(config) as gateway:
            silent.open()
            before = len(asyncio.all_tasks())

            async def visit() -> None:
                async with client_of(gateway) as client:
                    client.post()
                    if rng.random() < 0.6:
                        await asyncio.sleep(rng.random() * 0.1)
                        if rng.random() < 0.5:
                            client.reset()
                    else:
                        await truncated_or_whole(client)

            for _ in range(5):
                await asyncio.gather(*(visit() for _ in range(60)))
                gateway.fleet.check_integrity()
            await eventually(lambda: not gateway.server.connections)
            await eventually(lambda: gateway.active == 0)
            gateway.fleet.check_integrity()
            assert all(len(worker.prefill) == 0 for worker in gateway.fleet.workers)
            assert all(not pool._connecting for pool in gateway.pools)
            await eventually(lambda: gateway.upstreams == sum(len(pool._idle) for pool in gateway.pools))
            await eventually(lambda: one.open + two.open == gateway.upstreams)
            await eventually(lambda: len(asyncio.all_tasks()) <= before + one.open + two.open)
            assert sum(worker.served for worker in gateway.fleet.workers) >= 300


async def truncated_or_whole(client: Client) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        response = await client.response()
        assert response.status in (200, 502, 504)
