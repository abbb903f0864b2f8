"""Workers that fail where framing, pipelining or a name makes it awkward: one clean end each, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from backends.errors import UpstreamFault
from gateway.app import running
from gateway.request_record import Outcome
from policies.types import WorkerId
from tests.data_plane_fixtures import (
    Answer,
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
    say_ok,
    says,
)
from tests.gateway_fixtures import eventually
from tests.ports import free_port

STREAM = b'{"model": "m", "messages": [], "stream": true}'
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
MODELS = b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n"
TURNS = "routing: {policy: round_robin}"


def sized(length: int, *pieces: bytes, close: bool = False) -> Answer:
    """A stream with a Content-Length."""
    return says(SSE + b"content-length: %d\r\n\r\n" % length, *pieces, close=close)


def in_chunks(*pieces: bytes, close: bool = False) -> Answer:
    end = () if close else (b"0\r\n\r\n",)
    framed = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    return says(SSE + b"transfer-encoding: chunked\r\n\r\n", *framed, *end, close=close)


def error_in(body: bytes) -> dict[str, Any]:
    """The one error event, at the end."""
    assert body.count(b'"error"') == 1
    told = json.loads(body.rpartition(b"data: ")[2])["error"]
    assert isinstance(told, dict)
    return told


@contextlib.asynccontextmanager
async def in_front_of(answer: Answer, **options: str) -> AsyncIterator[tuple[Inside, RawWorker]]:
    """A gateway in front of one worker."""
    async with RawWorker(answer).running() as worker, inside(plane([worker.url], **options)) as gateway:
        yield gateway, worker


@pytest.mark.parametrize(
    "answer",
    [
        sized(len(EVENT) * 2 + 500, EVENT, EVENT[:20], close=True),
        sized(len(EVENT) * 2, EVENT, EVENT),
        sized(len(EVENT) + 10, EVENT, b"data: {a\n\n"),
        says(SSE + b"\r\n", EVENT, EVENT[:9], close=True),
        in_chunks(EVENT, EVENT[:9]),
    ],
    ids=["a length that is not reached", "a length without the end", "a length with nonsense", "until close", "chunks"],
)
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_an_error_event_ends_a_stream_however_it_is_framed(answer: Answer, version: bytes) -> None:
    async with (
        RawWorker(answer).running() as worker,
        inside(plane([worker.url])) as gateway,
        client_of(gateway) as client,
    ):
        client.write(post(STREAM, version=version))
        response = await client.response()
        assert response.body.startswith(EVENT)
        assert error_in(response.body)["code"] == "worker_failed"
        assert "content-length" not in response.fields
        if version == b"1.1":
            client.write(MODELS)
            assert (await client.response()).status == 200
        else:
            assert await client.rest() == b""
        await eventually(lambda: gateway.active == 0)


async def test_a_stream_with_a_length_that_ends_well() -> None:
    async with (
        RawWorker(sized(len(EVENT + DONE), EVENT, DONE)).running() as worker,
        inside(plane([worker.url])) as gateway,
        client_of(gateway) as client,
    ):
        for _ in range(2):
            client.post(STREAM)
            assert (await client.response()).body == EVENT + DONE


@pytest.mark.parametrize("behind", [b"\n", b": bye\n\n", b"data: {", b"data: nonsense\n\n"])
@pytest.mark.parametrize("close", [False, True])
async def test_what_comes_behind_the_end_breaks_nothing(behind: bytes, close: bool) -> None:
    answer = in_chunks(EVENT, DONE, behind, close=close)
    async with in_front_of(answer) as (gateway, _), client_of(gateway) as client:
        client.post(STREAM)
        body = (await client.response()).body
        assert body in (EVENT + DONE, EVENT + DONE + behind)


@pytest.mark.parametrize("then", [b"", EVENT, b"data: {broken\n\n"])
@pytest.mark.parametrize("close", [False, True])
async def test_a_worker_that_told_its_own_error_is_not_told_on_again(then: bytes, close: bool) -> None:
    own = b'data: {"error":{"message":"out of memory"}}\n\n'
    answer = in_chunks(EVENT, own, *([then] if then else []), close=close)
    async with in_front_of(answer) as (gateway, _), client_of(gateway) as client:
        client.post(STREAM)
        body = (await client.response()).body
        assert error_in(body[: len(EVENT + own)]) == {"message": "out of memory"}
        assert body.count(b'"error"') == 1
        client.write(MODELS)
        assert (await client.response()).status == 200


async def test_requests_pipelined_behind_a_stream_that_breaks_are_served() -> None:
    async def answer(turn: Turn) -> None:
        await (in_chunks(EVENT, close=True) if b'"stream"' in turn.body else say_ok)(turn)

    async with in_front_of(answer) as (gateway, _), client_of(gateway) as client:
        client.write(post(STREAM) + post() + post(STREAM) + MODELS)
        for expected in ("broken", "ok", "broken", "models"):
            response = await client.response()
            if expected == "broken":
                assert error_in(response.body)["code"] == "worker_failed"
            else:
                assert response.status == 200


async def test_the_error_event_reaches_a_client_that_was_not_reading() -> None:
    many = EVENT * 20_000

    async def answer(turn: Turn) -> None:
        turn.write(SSE + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(many), many))
        await turn.until_closed()

    limits = "buffer_bytes: 16KiB"
    async with in_front_of(answer, limits=limits, upstream="request_timeout: 1s") as (gateway, worker):
        async with client_of(gateway, rcvbuf=4_096) as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # asyncio's own type lacks it
            client.write(post(STREAM) + MODELS)
            await eventually(lambda: worker.requests and next(iter(gateway.server.connections)).paused)
            await eventually(lambda: worker.open == 0)  # its time is over
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]  # as above
            body = (await client.response()).body
            event = error_in(body)
            assert "request took too long" in str(event["message"])
            passed = body[: body.rindex(b'data: {"error"')]
            assert many.startswith(passed)
            assert passed.endswith(b"\n\n")
            assert (await client.response()).status == 200
        assert gateway.active == 0


async def test_one_answer_does_not_mark_the_next() -> None:
    """The first worker says that its body goes on until it closes, and sends none; the second is as usual."""
    async with (
        RawWorker(says(b"HTTP/1.1 500 No\r\n\r\n", close=True)).running() as bad,
        RawWorker(say_ok).running() as good,
        inside(plane([bad.url, good.url], extra=TURNS)) as gateway,
        client_of(gateway) as client,
    ):
        client.post()
        response = await client.response()
        assert (response.body, response.fields.get("connection")) == (b"ok", None)
    async with (
        RawWorker(says(b"HTTP/1.1 200 OK\r\n\r\n")).running() as bad,
        inside(plane([bad.url], upstream="first_byte_timeout: 0.3s, connect_timeout: 0.2s")) as gateway,
        client_of(gateway) as client,
    ):
        client.post()
        assert (await client.response()).status == 504
        client.write(MODELS)
        assert (await client.response()).status == 200, "ours is framed by its length"


@pytest.mark.parametrize(
    ("raw", "fault", "truncated"),
    [
        (b'content-length: 9\r\n\r\n{"a": [1,', "malformed answer", False),
        (b'transfer-encoding: chunked\r\n\r\n9\r\n{"a": [1,\r\n0\r\n\r\n', "answer ended early", True),
    ],
)
async def test_half_a_json_object_is_not_booked_as_an_answer(raw: bytes, fault: str, truncated: bool) -> None:
    worker = RawWorker(says(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + raw))
    async with worker.running(), running(plane([worker.url])) as (program, port):
        async with client_of(Inside(f"http://127.0.0.1:{port}", program.server)) as client:
            client.post()
            if truncated:
                with pytest.raises(asyncio.IncompleteReadError):
                    await client.response()
            else:
                assert (await client.response()).body == b'{"a": [1,'
        (record,) = program.recent.newest(5)
        assert (record.outcome, record.error) == (Outcome.CUT, fault)


async def test_compressed_bodies_are_not_judged() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\n"
    async with in_front_of(says(head + b"\x1f\x8b\x00\x00")) as (gateway, _):
        assert (await ask(gateway)).body == b"\x1f\x8b\x00\x00"


def not_there(n: int) -> list[str]:
    """URLs of workers that refuse connections."""
    port = free_port()
    return [f"http://127.1.{number // 250}.{number % 250 + 1}:{port}" for number in range(n)]


async def test_two_hundred_workers_that_are_not_there_are_passed_over() -> None:
    async with (
        RawWorker(say_ok).running() as good,
        inside(plane([*not_there(200), good.url], extra=TURNS)) as gateway,
    ):
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(ask(gateway)) for _ in range(5)]
        assert all(answer.result().body == b"ok" for answer in answers)
        assert gateway.active == 0


async def test_two_hundred_workers_that_are_not_there_and_nobody_else() -> None:
    async with inside(plane(not_there(200))) as gateway:
        for _ in range(2):
            response = await ask(gateway)
            assert (response.status, response.error["code"]) == (502, "worker_unavailable")
        assert gateway.active == 0


async def test_what_must_not_be_repeated_takes_no_idle_connection() -> None:
    """An idle connection may be closed just as it is used, and then nobody knows whether the request was taken."""
    taken: list[bytes] = []

    async def once(turn: Turn) -> None:
        taken.append(turn.head)
        turn.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await turn.reader.readuntil(b"\r\n\r\n")
        taken.append(b"again")
        turn.reset()

    upload = post(b'{"model": "m"}', path=b"/v1/files")
    async with in_front_of(once) as (gateway, worker):
        assert (await ask(gateway)).body == b"ok"
        assert gateway.pools[0].idle == 1
        assert (await ask(gateway, upload)).body == b"ok"
        assert worker.connections == 2
        assert b"again" not in taken


async def test_what_must_not_be_repeated_is_not_after_a_reset() -> None:
    async def reset(turn: Turn) -> None:
        turn.reset()

    async with (
        RawWorker(reset).running() as bad,
        RawWorker(say_ok).running() as good,
        inside(plane([bad.url, good.url], extra=TURNS)) as gateway,
    ):
        response = await ask(gateway, post(b'{"model": "m"}', path=b"/v1/files"))
        assert response.status == 502
        assert (len(bad.requests), len(good.requests)) == (1, 0)
        assert (await ask(gateway)).body == b"ok"


async def test_a_worker_that_has_left_says_nothing_about_its_successor(caplog: pytest.LogCaptureFixture) -> None:
    """A worker is replaced by another one of its name while it has a request: only that request ends."""
    async with RawWorker(hold).running() as old, running(plane([old.url])) as (program, port):
        gateway = Inside(f"http://127.0.0.1:{port}", program.server)
        spec = program.fleet.members[WorkerId("w0")].spec
        async with client_of(gateway) as client:
            client.post()
            await eventually(lambda: old.requests)
            before = program.state.workers[0]
            leaving = program.fleet.remove(WorkerId("w0"), 0.3)
            await asyncio.sleep(0)
            after = program.fleet.add(spec)
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                await leaving
            assert before.active == 0
            # It was the only other place: the request went on to the successor, which is well.
            await eventually(lambda: after.active == 1)
            assert after.failures == 0
            assert after.resting_until == 0
            assert program.state.ejections._records[WorkerId("w0")].failures == 0
            assert not [record for record in caplog.records if "closed before" in record.message]
            assert before not in program.state._impaired


async def test_a_stream_of_a_removed_worker_ends_with_an_error_event() -> None:
    async def answer(turn: Turn) -> None:
        turn.write(SSE + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(EVENT), EVENT))
        await turn.until_closed()

    async with (
        RawWorker(answer).running() as worker,
        running(plane([worker.url])) as (program, port),
        client_of(Inside(f"http://127.0.0.1:{port}", program.server)) as client,
    ):
        client.post(STREAM)
        await client.reader.readuntil(EVENT[:20])
        await program.fleet.remove(WorkerId("w0"), 0.0)
        rest = await client.reader.readuntil(b"0\r\n\r\n")
        assert UpstreamFault.TRUNCATED.value.encode() in rest


async def test_the_deadline_passes_while_a_prompt_waits_for_its_tokens() -> None:
    words = " ".join(f"word{number}" for number in range(5_000))
    extra = "models: [{name: m, tokenizer: embedded}]\ntokens: {inline_chars: 0, piece_chars: 64, wait: 30s}"
    async with (
        RawWorker(say_ok).running() as worker,
        running(plane([worker.url], upstream="request_timeout: 0.05s", extra=extra, worker=", block_size: 1024")) as (
            program,
            port,
        ),
    ):
        gateway = Inside(f"http://127.0.0.1:{port}", program.server)
        gate = threading.Event()
        program._executor.submit(gate.wait, 20)  # so that no thread is free for the tokens
        response = await ask(
            gateway, post(json.dumps({"model": "m", "prompt": words}).encode(), path=b"/v1/completions")
        )
        gate.set()
        assert (response.status, response.error["code"]) == (504, "request_timeout")
        (record,) = program.recent.newest(1)
        assert (record.outcome, record.error, record.attempts) == (Outcome.FAILED, "request_timeout", [])
        assert not program.pipeline.live
        await asyncio.sleep(0.1)
        assert not worker.requests


async def test_a_chunked_request_is_repeated_whole() -> None:
    async def no(turn: Turn) -> None:
        turn.write(b"HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\nno")

    async with (
        RawWorker(no).running() as bad,
        RawWorker(say_ok).running() as good,
        inside(plane([bad.url, good.url], extra=TURNS)) as gateway,
    ):
        assert (await ask(gateway, chunked([STREAM[:9], STREAM[9:]]))).body == b"ok"
        assert [body for _, body in bad.requests] == [body for _, body in good.requests] == [STREAM]
