"""Every fault of a simulated worker, in every dialect, streamed and not: what a raw client sees, byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import aiohttp
import pytest

from backends.simulated.faults import Fault, FaultError, FaultKind, parse_faults
from backends.simulated.fleet import SimulatedWorker
from tests.data_plane_fixtures import fields_of
from tests.gateway_fixtures import eventually
from tests.simulated_fixtures import DIALECTS, STORY, Dialect, one_worker

DIALECT = pytest.mark.parametrize("dialect", DIALECTS, ids=[each.name for each in DIALECTS])
BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["unary", "stream"])


@pytest.fixture
async def worker() -> AsyncIterator[SimulatedWorker]:
    async with one_worker() as running:
        yield running


@dataclass(frozen=True)
class Seen:
    """All that came before the connection ended, or before there was silence."""

    ending: str
    """`eof`, `reset` or `silence`."""
    raw: bytes

    @property
    def status(self) -> int:
        return int(self.raw[9:12]) if self.raw else 0

    @property
    def fields(self) -> dict[str, str]:
        return fields_of(self.raw.partition(b"\r\n\r\n")[0])

    @property
    def complete(self) -> bool:
        """Whether the body is whole as HTTP counts: its length, or its last chunk."""
        body = self.raw.partition(b"\r\n\r\n")[2]
        if "content-length" in self.fields:
            return len(body) == int(self.fields["content-length"])
        return body.endswith(b"0\r\n\r\n")

    @property
    def body(self) -> bytes:
        """The body, without the framing of chunks; as far as it came."""
        body = self.raw.partition(b"\r\n\r\n")[2]
        if body and self.fields.get("transfer-encoding") != "chunked":
            return body
        plain = b""
        while body:
            size, _, rest = body.partition(b"\r\n")
            plain += rest[: int(size, 16)]
            body = rest[int(size, 16) + 2 :]
        return plain


async def ask(
    worker: SimulatedWorker,
    dialect: Dialect,
    fault: str = "",
    *,
    streamed: bool,
    enough: Callable[[Seen], bool] = lambda _: False,
) -> Seen:
    """One request on a connection of its own. Silence is when nothing comes for a while once there is `enough`."""
    body = json.dumps({**dialect.body, "stream": streamed}).encode()
    head = f"POST {dialect.path} HTTP/1.1\r\nHost: w\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
    raw, ending = b"", "eof"
    try:
        writer.write(head.encode() + (f"x-simulate-fault: {fault}\r\n" if fault else "").encode() + b"\r\n" + body)
        while True:
            async with asyncio.timeout(0.1 if enough(Seen("", raw)) else 10):
                data = await reader.read(1 << 16)
            if not data:
                break
            raw += data
    except ConnectionResetError:
        ending = "reset"
    except TimeoutError:
        ending = "silence"
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return Seen(ending, raw)


@DIALECT
@BOTH
async def test_nothing_fails_unasked(worker: SimulatedWorker, dialect: Dialect, *, streamed: bool) -> None:
    seen = await ask(worker, dialect, "reset@somebody-else", streamed=streamed)
    assert (seen.ending, seen.status, seen.complete) == ("eof", 200, True)
    assert (dialect.terminal in seen.body) is streamed
    if not streamed:
        json.loads(seen.body)


@DIALECT
@BOTH
@pytest.mark.parametrize(("fault", "ending"), [("reset", "reset"), ("close", "eof"), ("stall", "silence")])
async def test_before_the_first_byte(
    worker: SimulatedWorker, dialect: Dialect, fault: str, ending: str, *, streamed: bool
) -> None:
    seen = await ask(worker, dialect, fault, streamed=streamed, enough=lambda _: fault == "stall")
    assert (seen.ending, seen.raw) == (ending, b"")
    assert worker.engine.idle


@DIALECT
@BOTH
async def test_a_status_in_the_dialect_s_shape(worker: SimulatedWorker, dialect: Dialect, *, streamed: bool) -> None:
    seen = await ask(worker, dialect, "status=503/7", streamed=streamed)
    assert (seen.status, seen.complete, seen.fields["retry-after"]) == (503, True, "7")
    error = json.loads(seen.body)
    assert error["error"]["message"] == "a simulated fault"
    assert (error.get("type") == "error") is (dialect.name == "messages")
    assert "retry-after" not in (await ask(worker, dialect, "status", streamed=streamed)).fields


@DIALECT
@pytest.mark.parametrize(
    ("fault", "ending", "complete"),
    [
        ("stall-mid=3", "silence", False),
        ("reset-mid=3", "reset", False),
        ("close-mid=3", "eof", False),
        ("truncate=3", "eof", True),
        ("truncate=1000000", "eof", True),
        ("early-eof", "eof", True),
        ("malformed-sse=3", "eof", True),
        ("error-event=3", "eof", True),
    ],
)
async def test_in_the_middle_of_a_stream(
    worker: SimulatedWorker, dialect: Dialect, fault: str, ending: str, *, complete: bool
) -> None:
    whole = await ask(worker, dialect, streamed=True)
    seen = await ask(worker, dialect, fault, streamed=True, enough=lambda seen: seen.body.count(b"\n\n") == 3)
    assert (seen.ending, seen.status, seen.complete) == (ending, 200, complete)
    events = whole.body.removesuffix(b"\n\n").split(b"\n\n")
    got = seen.body.removesuffix(b"\n\n").split(b"\n\n")
    if fault.endswith("=3"):
        assert len(got) == 3 + (fault == "malformed-sse=3") + (fault == "error-event=3") * got_failures(dialect)
    else:
        assert len(got) == len(events) - 1
    assert (dialect.failure in seen.body) is (fault == "error-event=3")
    if dialect.name not in ("chat", "completion") or fault != "error-event=3":
        assert dialect.terminal not in seen.body
    if fault == "malformed-sse=3":
        with pytest.raises(ValueError, match="Expecting"):
            json.loads(got[-1].removeprefix(b"data: "))
    assert worker.engine.idle


def got_failures(dialect: Dialect) -> int:
    """Events that tell of a failure: OpenAI's error chunk has `[DONE]` behind it, a response fails besides."""
    return 1 if dialect.name == "messages" else 2


@DIALECT
@pytest.mark.parametrize(
    ("fault", "ending", "complete", "valid"),
    [
        ("stall-mid", "silence", False, False),
        ("reset-mid", "reset", False, False),
        ("close-mid", "eof", False, False),
        ("truncate", "eof", False, False),
        ("early-eof", "eof", True, False),
        ("malformed-sse", "eof", True, False),
        ("error-event", "eof", True, False),
        ("slow=0.01", "eof", True, True),
    ],
)
async def test_in_the_middle_of_a_body(
    worker: SimulatedWorker, dialect: Dialect, fault: str, ending: str, *, complete: bool, valid: bool
) -> None:
    seen = await ask(worker, dialect, fault, streamed=False, enough=lambda seen: len(seen.body) > 0)
    assert (seen.ending, seen.status, seen.complete) == (ending, 200, complete)
    assert seen.body
    if valid:
        json.loads(seen.body)
    else:
        with pytest.raises(ValueError, match=r"Expecting|Unterminated|delimiter"):
            json.loads(seen.body)
    assert worker.engine.idle


@DIALECT
async def test_a_slow_stream_is_whole(worker: SimulatedWorker, dialect: Dialect) -> None:
    seen = await ask(worker, dialect, "slow=0.001", streamed=True)
    assert (seen.complete, dialect.terminal in seen.body) == (True, True)


@DIALECT
@BOTH
async def test_cached_tokens_can_be_misreported(worker: SimulatedWorker, dialect: Dialect, *, streamed: bool) -> None:
    if dialect.name in ("chat", "completion"):
        dialect = Dialect("", dialect.path, {**dialect.body, "stream_options": {"include_usage": True}}, b"", b"")
    seen = await ask(worker, dialect, "misreport=123", streamed=streamed)
    name = b"cache_read_input_tokens" if dialect.path == "/v1/messages" else b"cached_tokens"
    assert b'"%b":123' % name in seen.body
    assert b'"%b":123' % name not in (await ask(worker, dialect, streamed=streamed)).body


@DIALECT
@BOTH
async def test_an_engine_that_hangs_is_healthy_and_still(
    worker: SimulatedWorker, dialect: Dialect, *, streamed: bool
) -> None:
    async with aiohttp.ClientSession(base_url=worker.url) as http:
        async with http.post("/simulate/fault", json={"fault": "hang"}) as response:
            assert response.status == 200
        asking = asyncio.create_task(ask(worker, dialect, streamed=streamed))
        await eventually(lambda: not worker.engine.idle)
        for path in ("/health", "/metrics", "/v1/models"):
            async with http.get(path) as response:
                assert response.status == 200
        await asyncio.sleep(0.2)
        assert worker.engine.stats().generation_tokens == 0
        assert not asking.done()
        async with http.post("/simulate/resume") as response:
            assert response.status == 200
    seen = await asking
    assert (seen.status, seen.complete) == (200, True)
    assert worker.engine.idle


async def test_a_hang_ends_after_its_seconds_and_keeps_what_runs(worker: SimulatedWorker) -> None:
    seen = await ask(worker, DIALECTS[0], "hang=0.05", streamed=True)
    assert (seen.complete, worker.driver.hung) == (True, False)
    worker.hang()
    asking = asyncio.create_task(ask(worker, DIALECTS[0], streamed=True))
    await eventually(lambda: not worker.engine.idle)
    asking.cancel()  # a client that leaves is felt all the same
    await asyncio.gather(asking, return_exceptions=True)
    await eventually(lambda: worker.engine.idle)
    worker.resume()
    assert (await ask(worker, DIALECTS[0], streamed=True)).complete


async def test_routes_without_a_stream_fail_too(worker: SimulatedWorker) -> None:
    body = {"model": "simulated", "input": STORY}
    for path in ("/v1/embeddings", "/v1/images/generations"):
        seen = await ask(worker, Dialect("", path, body, b"", b""), "reset-mid", streamed=False)
        assert (seen.ending, seen.status, seen.complete) == ("reset", 200, False)


async def test_a_worker_can_be_armed_and_disarmed(worker: SimulatedWorker) -> None:
    worker.arm("status=502", times=2)
    assert [(await ask(worker, DIALECTS[1], streamed=True)).status for _ in range(3)] == [502, 502, 200]
    worker.arm("status=502", times=2)
    worker.arm("")
    assert (await ask(worker, DIALECTS[1], streamed=False)).status == 200
    with pytest.raises(FaultError, match="unheard-of"):
        worker.arm("unheard-of")
    with pytest.raises(ValueError, match="times"):
        worker.arm("reset", times=-1)
    async with one_worker(faults=False) as honest:
        with pytest.raises(RuntimeError):
            honest.arm("reset")


def test_faults_are_read_with_their_numbers() -> None:
    assert parse_faults("status=429/2", "w") == Fault(FaultKind.STATUS, 429.0, 2)
    assert parse_faults("reset@other, close@w", "w") == Fault(FaultKind.CLOSE)
    assert parse_faults("", "w") is None
    for wrong in ("status=many", "status=500/soon", "reset close"):
        with pytest.raises(FaultError):
            parse_faults(wrong, "w")


@pytest.mark.parametrize("kind", [FaultKind.TRUNCATE, FaultKind.EARLY_EOF, FaultKind.RESET_MID])
@pytest.mark.parametrize("events", [0, 1, 2, 7])
def test_the_last_event_never_comes(kind: FaultKind, events: int) -> None:
    for number in (None, 0.0, 3.0, 100.0):
        assert Fault(kind, number).place(events) <= max(0, events - 1)
