"""The stream failure matrix: whatever a worker does wrong, the exact outcome for its client, and what is left behind.

Each row runs over real sockets, with simulated engines that make the fault: as a stream and in one piece, where the
worker is the only one and where there is another. Every row ends with the same questions: did any byte come twice, is
it booked as what it was, is everything that it held free again?
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import anthropic
import openai
import pytest

from backends.errors import UpstreamFault as Fault
from backends.simulated.fleet import FleetConfig, SimulatedFleet, SimulatedWorker
from gateway.app import running
from gateway.program import Program
from gateway.request_record import Outcome, RequestRecord
from policies.types import WorkerId
from tests.data_plane_fixtures import Client, Inside, Response, client_of, fields_of
from tests.gateway_fixtures import config_for, eventually, model_text
from tests.ports import fleet_ports
from tests.simulated_fixtures import DIALECTS, FAST, Dialect

PATIENT: Final = "20s"
SHORT: Final = "0.6s"
_DONE: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class End:
    """How a row ends."""

    outcome: Outcome
    status: int = 200
    error: str = ""
    """In the gateway's record."""
    faults: tuple[str, ...] = ("",)
    """Of each attempt."""
    ours: bool = False
    """Does a stream end with an error event of the gateway's?"""
    cut: bool = False
    """Does the body break off, as HTTP tells it?"""
    failures: int = 0
    """Of the first worker, as its ejection counts them."""


def failed(status: int, fault: Fault) -> End:
    """Nobody answered."""
    return End(Outcome.FAILED, status, fault.value, (fault.value,), failures=1)


def elsewhere(fault: Fault) -> End:
    """Another worker answered."""
    return End(Outcome.OK, faults=(fault.value, ""), failures=1)


def broken(fault: Fault) -> End:
    """A stream ended with an error event."""
    return End(Outcome.CUT, error=fault.value, faults=(fault.value,), ours=True, failures=1)


def cut(fault: Fault) -> End:
    """A body broke off."""
    return End(Outcome.CUT, error=fault.value, faults=(fault.value,), cut=True, failures=1)


@dataclass(frozen=True)
class Row:
    """A fault: what is armed, and the end as a stream and in one piece, alone and where there is another worker."""

    fault: str
    alone: tuple[End, End]
    several: tuple[End, End]
    first_byte_timeout: str = PATIENT
    idle_timeout: str = PATIENT


def before(fault: str, alone: End, other: Fault, **timeouts: str) -> Row:
    """Nothing has come yet: streams and bodies are alike."""
    return Row(fault, (alone, alone), (elsewhere(other), elsewhere(other)), **timeouts)


def midway(fault: str, stream: End, unary: End, **timeouts: str) -> Row:
    """Something has come: nobody else is asked."""
    return Row(fault, (stream, unary), (stream, unary), **timeouts)


OK: Final = End(Outcome.OK)
HALF: Final = End(Outcome.CUT, error=Fault.MALFORMED.value, faults=(Fault.MALFORMED.value,), failures=1)
"""A body that is complete as HTTP goes: it reaches its client, and is not taken for an answer."""
TOLD: Final = End(Outcome.WORKER_ERROR, error="error event", failures=1)
ENDED: Final = Fault.TRUNCATED

ROWS: Final = (
    before("refuse", failed(502, Fault.REFUSED), Fault.REFUSED),
    before("status=500", End(Outcome.WORKER_ERROR, 500, failures=1), Fault.SERVER_ERROR),
    before("status=503/7", End(Outcome.WORKER_ERROR, 503, failures=1), Fault.SERVER_ERROR),
    before("stall", failed(504, Fault.FIRST_BYTE_TIMEOUT), Fault.FIRST_BYTE_TIMEOUT, first_byte_timeout=SHORT),
    before("reset", failed(502, Fault.RESET), Fault.RESET),
    before("close", failed(502, Fault.RESET), Fault.RESET),
    midway("stall-mid", broken(Fault.IDLE_TIMEOUT), cut(Fault.IDLE_TIMEOUT), idle_timeout=SHORT),
    midway("reset-mid", broken(ENDED), cut(ENDED)),
    midway("close-mid", broken(ENDED), cut(ENDED)),
    midway("truncate", broken(ENDED), cut(ENDED)),
    midway("early-eof", broken(ENDED), cut(ENDED)),
    midway("malformed-sse", broken(Fault.MALFORMED), HALF),
    midway("error-event", TOLD, HALF),
    midway("slow=0.01", OK, OK),
)


@dataclass
class Stage:
    """A gateway in front of simulated workers, with a view of its parts."""

    program: Program
    url: str
    workers: list[SimulatedWorker]

    @property
    def record(self) -> RequestRecord:
        (record,) = self.program.recent.newest(1)
        return record


@contextlib.asynccontextmanager
async def stage(n: int, row: Row) -> AsyncIterator[Stage]:
    """`n` workers, of which the first makes the fault at the next request."""
    settings = FleetConfig(engine=FAST, faults=True, kv_events=False, **fleet_ports(n))
    async with SimulatedFleet(n, settings, text=model_text()) as fleet:
        upstream = (
            f"upstream: {{connect_timeout: 0.5s, first_byte_timeout: {row.first_byte_timeout},"
            f" idle_timeout: {row.idle_timeout}, cooldown: 60s, cooldown_max: 60s}}\n"
        )
        rest = "routing: {policy: round_robin}\nlimits: {drain_timeout: 0}\nresponse_headers: {worker: x-worker}"
        config = config_for(fleet.urls, upstream + rest, workers_extra=[", models: [simulated]"] * n)
        async with running(config) as (program, port):
            first = fleet.workers[0]
            if row.fault == "refuse":
                await first.kill()
            else:
                first.arm(row.fault)
            yield Stage(program, f"http://127.0.0.1:{port}", list(fleet.workers))


def body_of(dialect: Dialect, *, streams: bool) -> bytes:
    return json.dumps({**dialect.body, "stream": streams}).encode()


def events_of(stream: bytes) -> list[tuple[str, Any]]:
    """Name and payload of each event; asserts that all are complete."""
    assert stream.endswith(b"\n\n")
    events = []
    for event in stream.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in event.split("\n"))
        data = fields["data"]
        events.append((fields.get("event", ""), None if data == "[DONE]" else json.loads(data)))
    return events


def text_of(dialect: Dialect, stream: bytes) -> str:
    """What a client has to show."""
    text = ""
    for name, data in events_of(stream):
        if dialect.name == "chat" and data and data.get("choices"):
            text += data["choices"][0]["delta"].get("content") or ""
        elif dialect.name == "completion" and data and data.get("choices"):
            text += data["choices"][0]["text"]
        elif name == "response.output_text.delta":
            text += data["delta"]
        elif name == "content_block_delta":
            text += data["delta"]["text"]
    return text


def is_error(name: str, data: Any) -> bool:
    return bool(data) and (name in ("error", "response.failed") or ("error" in data and not name))


def check_error(dialect: Dialect, name: str, data: Any, message: str) -> None:
    """An error event of the gateway's, as this dialect has it."""
    if dialect.name == "messages":
        assert name == "error"
        assert data["type"] == "error"
        assert data["error"]["type"] in ("api_error", "timeout_error")
    elif dialect.name == "responses":
        assert name == "error"
        assert data["type"] == "error"
        assert data["error"]["code"] == "worker_failed"
    else:
        assert set(data) == {"error"}
        assert data["error"]["type"] == "server_error"
        assert data["error"]["code"] == "worker_failed"
    assert data["error"]["message"] == message


async def full_text(dialect: Dialect) -> str:
    """The answer of a worker that makes no mistake."""
    async with stage(1, Row("", (OK, OK), (OK, OK))) as well, client_of(_inside(well)) as client:
        client.post(body_of(dialect, streams=True), path=dialect.path.encode())
        return text_of(dialect, (await client.response(timeout=30)).body)


def _inside(stage: Stage) -> Inside:
    return Inside(stage.url, stage.program.server)


async def truncated(client: Client) -> bytes:
    """A body that breaks off; the connection ends with it."""
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    rest = b""
    with contextlib.suppress(ConnectionResetError):
        while part := await client.reader.read(65_536):
            rest += part
    length = fields_of(head[:-4]).get("content-length")
    assert not rest.endswith(b"0\r\n\r\n") if length is None else len(rest) < int(length)
    return rest


async def check_row(dialect: Dialect, row: Row, n: int, *, streams: bool, full: str) -> None:
    end = (row.alone if n == 1 else row.several)[not streams]
    async with stage(n, row) as on, client_of(_inside(on)) as client:
        client.post(body_of(dialect, streams=streams), path=dialect.path.encode())
        if end.cut:
            async with asyncio.timeout(30):
                assert await truncated(client)
        else:
            response = await client.response(timeout=30)
            assert response.fields.get("x-worker", "w0") == ("w1" if len(end.faults) > 1 else "w0")
            check_answer(dialect, end, response, streams=streams, full=full)
            client.write(b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await client.response()).status == 200, "the connection can be used again"
        await eventually(lambda: not on.program.pipeline.live)
        records = [record for record in on.program.recent.newest(5) if record.method == b"POST"]
        assert len(records) == 1
        check_books(on, end, records[0])


def check_answer(dialect: Dialect, end: End, response: Response, *, streams: bool, full: str) -> None:
    assert response.status == end.status
    assert "connection" not in response.fields
    if end.status != 200 or not streams:
        if end.outcome is Outcome.FAILED:
            error = json.loads(response.body)["error"]
            assert error["message"].startswith("No worker could answer this request: ")
        if end.outcome is Outcome.WORKER_ERROR:
            assert b"a simulated fault" in response.body
            assert response.fields.get("retry-after") == ("7" if end.status == 503 else None)
        return
    events = events_of(response.body)
    errors = [event for event in events if is_error(*event)]
    text = text_of(dialect, response.body)
    if end.outcome is Outcome.OK:
        assert text == full
        assert dialect.terminal in response.body
        assert not errors
        return
    assert full.startswith(text), "no byte twice, none that is not the answer's"
    if end.ours:
        assert errors == [events[-1]], "one error event, at the end"
        assert dialect.terminal not in response.body
        assert _DONE not in response.body
        check_error(dialect, *events[-1], f"The answer broke off: {end.error}.")
    else:
        told = [event for event in events if event != ("", None)]
        n_errors = 2 if dialect.name == "responses" else 1  # `error` and `response.failed`
        assert errors == told[-n_errors:], "the worker's own, and at most [DONE] behind it"
        assert dialect.failure in response.body
        assert (_DONE in response.body) == (dialect.name in ("chat", "completion")), "as the worker ends it"


def check_books(on: Stage, end: End, record: RequestRecord) -> None:
    """What is told of it, and that nothing is held any longer."""
    program = on.program
    assert (record.outcome, record.error) == (end.outcome, end.error)
    assert record.status == end.status
    assert tuple(attempt.fault for attempt in record.attempts) == end.faults
    assert [attempt.worker for attempt in record.attempts] == ["w0", "w1"][: len(end.faults)]
    (counted,) = [route.requests for route in program.metrics._routes.values() if route.kind == record.kind]
    assert counted == {(end.outcome, end.status // 100): 1}
    assert program.pipeline.rules.retries.in_flight == 0
    for worker in program.state.workers:
        assert (worker.active, worker.pending, worker.prefill.total) == (0, 0, 0)
        assert not worker.progress._in_flight
    assert program.state.ejections._records[WorkerId("w0")].failures == end.failures
    program.state.check_integrity()
    program.index.check_integrity()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.fault)
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_the_matrix(dialect: Dialect, row: Row) -> None:
    full = await full_text(dialect)
    assert full
    # Each to its own end: a stage whose neighbour has failed must not be torn down halfway.
    ends = await asyncio.gather(
        *(check_row(dialect, row, n, streams=streams, full=full) for n in (1, 2) for streams in (True, False)),
        return_exceptions=True,
    )
    if failures := [end for end in ends if isinstance(end, BaseException)]:
        raise BaseExceptionGroup("alone as a stream and in one piece, then beside another worker", failures)


MID_STREAM: Final = [row for row in ROWS if row.fault in ("reset-mid", "truncate", "malformed-sse")]


@pytest.mark.parametrize("row", MID_STREAM, ids=lambda row: row.fault)
async def test_the_official_clients_raise_their_own_errors(row: Row) -> None:
    async with stage(1, row) as on:
        first = on.workers[0]
        async with openai.AsyncOpenAI(base_url=on.url + "/v1", api_key="k", max_retries=0) as client:
            messages: Any = [{"role": "user", "content": "Hello"}]
            chat = await client.chat.completions.create(
                model="simulated", messages=messages, max_tokens=6, stream=True, stream_options={"include_usage": True}
            )
            with pytest.raises(openai.APIError, match="broke off"):
                [chunk async for chunk in chat]
            first.arm(row.fault)
            answer = await client.responses.create(model="simulated", input="Hello", max_output_tokens=32, stream=True)
            with pytest.raises(openai.APIError, match="broke off"):
                [event async for event in answer]
        async with anthropic.AsyncAnthropic(base_url=on.url, api_key="k", max_retries=0) as client:
            first.arm(row.fault)
            message = await client.messages.create(model="simulated", messages=messages, max_tokens=6, stream=True)
            with pytest.raises(anthropic.APIError, match="broke off"):
                [event async for event in message]
        await eventually(lambda: not on.program.pipeline.live)
        assert [record.outcome for record in on.program.recent.newest(5)] == [Outcome.CUT] * 3


async def test_the_official_clients_are_told_that_no_worker_answers() -> None:
    async with stage(1, ROWS[0]) as on:
        messages: Any = [{"role": "user", "content": "Hello"}]
        async with openai.AsyncOpenAI(base_url=on.url + "/v1", api_key="k", max_retries=0) as client:
            with pytest.raises(openai.InternalServerError) as told:
                await client.chat.completions.create(model="simulated", messages=messages, stream=True)
            assert told.value.status_code == 502
        async with anthropic.AsyncAnthropic(base_url=on.url, api_key="k", max_retries=0) as client:
            with pytest.raises(anthropic.InternalServerError) as failed_too:
                await client.messages.create(model="simulated", messages=messages, max_tokens=6)
            assert failed_too.value.status_code == 502
