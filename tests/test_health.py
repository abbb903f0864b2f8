"""Workers that fail are found, left out and taken back; what is asked of them stays bounded. Over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from backends.errors import UpstreamFault
from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet
from backends.simulated.timing import LinearPrefill
from backends.worker_status import Standing
from gateway.app import running
from gateway.program import Program
from gateway.request_record import Outcome
from policies.types import WorkerId
from tests.data_plane_fixtures import (
    OK,
    Answer,
    Client,
    Inside,
    RawWorker,
    Turn,
    ask,
    blackhole,
    client_of,
    hold,
    plane,
    post,
    say_ok,
)
from tests.gateway_fixtures import MODEL, config_for, eventually, model_text
from tests.ports import fleet_ports
from tests.simulated_fixtures import FAST

TURNS = "routing: {policy: round_robin}\n"
W0 = WorkerId("w0")
NO = b"HTTP/1.1 500 No\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
STREAM = b'{"model": "m", "messages": [], "stream": true}'
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
BEGUN = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (
    len(EVENT),
    EVENT,
)


async def say_no(turn: Turn) -> None:
    turn.write(NO)


@contextlib.asynccontextmanager
async def raw_fleet(*answers: Answer, **options: str) -> AsyncIterator[tuple[Program, Inside, list[RawWorker]]]:
    """A gateway in front of workers whose every byte is decided here."""
    async with contextlib.AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(RawWorker(answer).running()) for answer in answers]
        config = plane([worker.url for worker in workers], **options)
        program, port = await stack.enter_async_context(running(config))
        yield program, Inside(f"http://127.0.0.1:{port}", program.server), workers
        await eventually(lambda: not program.pipeline.live)
        assert program.pipeline.rules.retries.in_flight == 0
        program.state.check_integrity()


@contextlib.asynccontextmanager
async def simulated_fleet(
    n: int, extra: str, *, engine: EngineConfig = FAST, tokenizer: bool = False
) -> AsyncIterator[tuple[Program, Inside, SimulatedFleet]]:
    """A gateway in front of simulated engines."""
    settings = FleetConfig(model=MODEL, engine=engine, faults=True, kv_events=False, **fleet_ports(n))
    async with SimulatedFleet(n, settings, text=model_text()) as fleet:
        models = f"models: [{{name: {MODEL}, tokenizer: embedded}}]\n" if tokenizer else ""
        extra = models + "limits: {drain_timeout: 0}\n" + extra
        config = config_for(fleet.urls, extra, workers_extra=[f", models: [{MODEL}]"] * n)
        async with running(config) as (program, port):
            yield program, Inside(f"http://127.0.0.1:{port}", program.server), fleet


def standing(program: Program, worker: str = "w0") -> Standing:
    (status,) = [status for status in program.fleet.statuses(program.loop.time()) if status.id == worker]
    return status.standing


def logged(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


def chat(prompt: str = "Hello", *, tokens: int = 4, streams: bool = False) -> bytes:
    messages = [{"role": "user", "content": prompt}]
    return post(json.dumps({"model": MODEL, "messages": messages, "max_tokens": tokens, "stream": streams}).encode())


# Passive ejection


async def test_failures_in_a_row_eject_a_worker_and_it_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    health = "health: {ejection: {consecutive_failures: 3, base: 1.5s, sweep: 0.2s}}"
    with caplog.at_level(logging.INFO):
        async with raw_fleet(say_no, say_ok, say_ok, extra=TURNS + health) as (program, gateway, (bad, *_)):
            while standing(program) is Standing.READY:
                assert (await ask(gateway)).status == 200, "another one answers"
            assert len(bad.requests) == 3
            assert standing(program) is Standing.EJECTED
            assert logged(caplog, "worker w0 is left out for") == 1
            for _ in range(9):
                assert (await ask(gateway)).status == 200
            assert len(bad.requests) == 3, "it is left alone"
            bad.answer = say_ok
            await eventually(lambda: standing(program) is Standing.READY)
            await eventually(lambda: logged(caplog, "worker w0 is back after its ejection") == 1)
            for _ in range(6):
                assert (await ask(gateway)).status == 200
            assert len(bad.requests) > 3
            assert logged(caplog, "worker w0 is left out for") == 1
            assert [worker.ejections for worker in program.state.workers] == [1, 0, 0]


async def test_no_more_are_ejected_than_may_be() -> None:
    health = "health: {ejection: {consecutive_failures: 2, base: 60s, max_share: 0.5}, retries: {minimum: 9}}"
    async with raw_fleet(say_no, say_no, say_no, say_ok, extra=TURNS + health, upstream="max_attempts: 4") as (
        program,
        gateway,
        workers,
    ):
        for _ in range(20):
            assert (await ask(gateway)).status == 200
            assert program.state.ejections.n_out(program.loop.time()) <= 2
        assert program.state.ejections.n_out(program.loop.time()) == 2
        out = [worker for worker in ("w0", "w1", "w2", "w3") if standing(program, worker) is Standing.EJECTED]
        assert len(out) == 2
        assert "w3" not in out
        (left,) = {"w0", "w1", "w2"} - set(out)
        assert len(workers[int(left[1])].requests) > 4, "it is asked on"


async def test_in_a_panic_all_are_asked() -> None:
    health = "health: {ejection: {consecutive_failures: 1, base: 60s, panic_share: 0.6}}"
    async with raw_fleet(say_no, say_ok, extra=TURNS + health) as (program, gateway, (bad, _)):
        for _ in range(6):
            assert (await ask(gateway)).status == 200
        assert standing(program) is Standing.EJECTED
        assert len(bad.requests) > 1, "with half of them left, both are used"


async def test_streams_that_break_count_as_failures_and_whole_ones_do_not() -> None:
    async def breaks(turn: Turn) -> None:
        turn.write(BEGUN)
        await turn.close()

    health = "health: {ejection: {consecutive_failures: 3, base: 60s}}"
    async with raw_fleet(breaks, extra=health) as (program, gateway, (worker,)):
        for answer in (breaks, breaks, say_ok, breaks, breaks):
            worker.answer = answer
            await ask(gateway, post(STREAM))
        assert standing(program) is Standing.READY
        worker.answer = breaks
        await ask(gateway, post(STREAM))
        assert standing(program) is Standing.EJECTED
        assert (await ask(gateway, post(STREAM))).status == 200, "the only one is asked all the same"


# Active probes


PROBES = "health: {probe: {interval: 0.1s, timeout: 5s, unhealthy_after: 2, healthy_after: 2}}\n"


async def test_a_worker_that_fails_its_probes_is_left_out_until_they_succeed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        async with simulated_fleet(2, TURNS + PROBES) as (program, gateway, fleet):
            await fleet.workers[0].kill()
            await eventually(lambda: standing(program) is Standing.UNHEALTHY)
            worker = program.state.worker(W0)
            assert worker.probe_failures >= 2
            assert worker.failures == 0, "no request told so"
            for _ in range(4):
                assert (await ask(gateway, chat())).status == 200
            assert [record.worker for record in program.recent.newest(4)] == ["w1"] * 4
            await fleet.workers[0].restart()
            await eventually(lambda: standing(program) is Standing.READY)
            assert worker.probe_successes >= 2
            for _ in range(4):
                assert (await ask(gateway, chat())).status == 200
            assert {record.worker for record in program.recent.newest(4)} == {"w0", "w1"}
            assert logged(caplog, "worker w0 fails its probes") == 1
            assert logged(caplog, "worker w0 is well again") == 1


async def test_a_worker_that_refused_is_used_again_when_a_probe_finds_it() -> None:
    probes = "health: {probe: {interval: 0.1s, unhealthy_after: 1000}}\nupstream: {cooldown: 60s, cooldown_max: 60s}\n"
    async with simulated_fleet(2, TURNS + probes) as (program, gateway, fleet):
        await fleet.workers[0].kill()
        for _ in range(4):
            assert (await ask(gateway, chat())).status == 200
        assert standing(program) is Standing.RESTING
        await fleet.workers[0].restart()
        await eventually(lambda: standing(program) is Standing.READY)
        for _ in range(4):
            assert (await ask(gateway, chat())).status == 200
        assert {record.worker for record in program.recent.newest(4)} == {"w0", "w1"}


async def test_where_all_fail_their_probes_they_are_asked_all_the_same() -> None:
    async with simulated_fleet(1, PROBES) as (program, gateway, fleet):
        await fleet.workers[0].kill()
        await eventually(lambda: standing(program) is Standing.UNHEALTHY)
        assert (await ask(gateway, chat())).status == 502
        await fleet.workers[0].restart()
        assert (await ask(gateway, chat())).status == 200


# Hung, and busy


HUNG = "health: {probe: {interval: 0.1s, metrics_interval: 0.1s}, hung: {after: 0.8s, patience: 2}, ejection: {base: 1s, sweep: 0.2s}}\n"  # noqa: E501 - one line of YAML


async def test_a_worker_that_hangs_is_recognised_though_its_health_is_well(caplog: pytest.LogCaptureFixture) -> None:
    slow = replace(FAST, speed=1.0)
    async with simulated_fleet(2, TURNS + HUNG, engine=slow) as (program, gateway, fleet):
        first = fleet.workers[0]
        async with client_of(gateway) as streaming, client_of(gateway) as waiting:
            streaming.write(chat(tokens=2000, streams=True))
            head = await streaming.reader.readuntil(b"content")
            assert b" 200 " in head
            first.hang()
            assert (await ask(gateway, chat())).status == 200  # on w1
            waiting.write(chat("another", streams=True))  # on w0
            await eventually(lambda: program.state.worker(W0).active == 2)
            async with aiohttp.ClientSession() as http, http.get(first.url + "/health") as response:
                assert response.status == 200
            whole = await waiting.response()
            assert whole.status == 200
            assert b'"error"' not in whole.body
            broken = await streaming.reader.readuntil(b"0\r\n\r\n")
            assert broken.count(b'"error"') == 1
            assert UpstreamFault.HUNG.value.encode() in broken
            assert standing(program) is Standing.HUNG
            assert logged(caplog, "worker w0 hangs: 2 requests and no progress; it is left out") == 1
            assert standing(program, "w1") is Standing.READY
        outcomes = {record.outcome: record for record in program.recent.newest(2)}
        assert [attempt.fault for attempt in outcomes[Outcome.OK].attempts] == [UpstreamFault.HUNG, ""]
        assert outcomes[Outcome.CUT].error == UpstreamFault.HUNG
        first.resume()
        await eventually(lambda: standing(program) is Standing.READY)
        for _ in range(2):
            assert (await ask(gateway, chat())).status == 200
        program.state.check_integrity()


async def test_all_requests_of_a_worker_that_hangs_go_elsewhere() -> None:
    """More than the retry budget would allow: no worker is at work on them."""
    async with simulated_fleet(2, TURNS + HUNG + "") as (program, gateway, fleet):
        fleet.workers[0].hang()
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(ask(gateway, chat(f"number {i}"))) for i in range(40)]
        assert [answer.result().status for answer in answers] == [200] * 40
        assert program.pipeline.rules.retries.in_flight == 0


async def test_a_worker_that_is_merely_busy_is_not_taken_for_hung(caplog: pytest.LogCaptureFixture) -> None:
    busy = EngineConfig(timing=LinearPrefill(tokens_per_s=1200), speed=1.0)
    async with simulated_fleet(1, HUNG, engine=busy, tokenizer=True) as (program, gateway, _):
        words = " ".join(f"item {i} of many" for i in range(420))
        assert (await ask(gateway, chat(words[:4000], streams=True))).status == 200  # from it the rate is known
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(ask(gateway, chat(f"{i} {words}", streams=True))) for i in range(2)]
        for answer in answers:
            assert b"[DONE]" in answer.result().body
        record = program.recent.newest(1)[0]
        assert record.first_byte_at - record.routed_at > 1.6, "silent for longer than a hung one may be"
        assert standing(program) is Standing.READY
        assert not logged(caplog, "hangs")


# Circuit breakers


@pytest.mark.parametrize("limit", ["max_requests", "max_connections", "max_pending"])
async def test_no_worker_is_asked_for_more_than_it_may_be(limit: str) -> None:
    go = asyncio.Event()
    most = 0

    async def answer(turn: Turn) -> None:
        nonlocal most
        most = max(most, workers[0].open, workers[1].open)
        await go.wait()
        turn.write(OK)

    breaker = f"health: {{breaker: {{{limit}: 3}}}}"
    async with raw_fleet(answer, answer, extra=breaker) as (program, gateway, workers):
        asked = [asyncio.create_task(ask(gateway)) for _ in range(30)]
        await eventually(lambda: sum(task.done() for task in asked) == 24)
        refused = [task.result() for task in asked if task.done()]
        assert {(response.status, response.fields["retry-after"]) for response in refused} == {(503, "1")}
        assert {response.error["code"] for response in refused} == {"overloaded"}
        anthropic = await ask(gateway, post(path=b"/v1/messages"))
        assert (anthropic.status, anthropic.fields["retry-after"]) == (503, "1")
        assert json.loads(anthropic.body)["error"]["type"] == "overloaded_error"
        assert [worker.active for worker in program.state.workers] == [3, 3]
        go.set()
        assert [response.status for response in await asyncio.gather(*asked)].count(200) == 6
        assert most == 3
        async with asyncio.TaskGroup() as tasks:
            again = [tasks.create_task(ask(gateway)) for _ in range(6)]
        assert [response.result().status for response in again] == [200] * 6


async def test_pending_counts_only_what_has_no_answer_yet() -> None:
    async def begins(turn: Turn) -> None:
        turn.write(BEGUN)
        await turn.until_closed()

    async with (
        raw_fleet(begins, extra="health: {breaker: {max_pending: 1}}") as (program, gateway, _),
        client_of(gateway) as one,
        client_of(gateway) as other,
    ):
        for client in (one, other):
            client.post(STREAM)
            await client.reader.readuntil(b"choices")
        assert program.state.worker(W0).active == 2


async def test_a_full_fleet_keeps_the_error_of_the_worker_that_answered() -> None:
    """Another worker is there but has no room: what the first one said is passed on."""
    async with (
        raw_fleet(say_ok, hold, extra=TURNS + "health: {breaker: {max_requests: 1}}") as (program, gateway, workers),
        client_of(gateway) as filling,
    ):
        assert (await ask(gateway)).status == 200  # by w0
        filling.post()
        await eventually(lambda: program.state.worker(WorkerId("w1")).active == 1)
        workers[0].answer = say_no
        response = await ask(gateway)
        assert (response.status, response.body) == (500, b"{}")


# The retry budget


async def test_where_all_fail_the_attempts_stay_within_the_budget() -> None:
    n, first, second = 20, asyncio.Event(), asyncio.Event()
    attempts = 0

    async def answer(turn: Turn) -> None:
        nonlocal attempts
        attempts += 1
        await (first if attempts <= n else second).wait()
        turn.write(NO)

    retries = "health: {retries: {share: 0.2, minimum: 3}, ejection: {consecutive_failures: 1000}}"
    async with raw_fleet(answer, answer, answer, extra=TURNS + retries) as (program, gateway, _):
        asked = [asyncio.create_task(ask(gateway)) for _ in range(n)]
        await eventually(lambda: attempts == n)
        first.set()
        await eventually(lambda: sum(task.done() for task in asked) == n - 4)
        await eventually(lambda: attempts == n + 4)
        assert program.pipeline.rules.retries.in_flight == 4
        second.set()
        assert [response.status for response in await asyncio.gather(*asked)] == [500] * n
        assert attempts == n + 2 * 4, "each of them on all three workers"


# Timeouts


async def begins(turn: Turn) -> None:
    turn.write(BEGUN)
    await turn.until_closed()


async def trickles(turn: Turn) -> None:
    turn.write(BEGUN)
    with contextlib.suppress(ConnectionError):
        while not turn.writer.is_closing():
            turn.write(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
            await turn.writer.drain()
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("answer", "upstream", "fault"),
    [
        (hold, "first_byte_timeout: 0.4s, connect_timeout: 0.3s", UpstreamFault.FIRST_BYTE_TIMEOUT),
        (hold, "request_timeout: 0.4s", UpstreamFault.REQUEST_TIMEOUT),
        (begins, "idle_timeout: 0.4s", UpstreamFault.IDLE_TIMEOUT),
        (trickles, "request_timeout: 0.6s, idle_timeout: 5s", UpstreamFault.REQUEST_TIMEOUT),
    ],
    ids=["first byte", "whole, nothing came", "between chunks", "whole, mid-stream"],
)
async def test_each_timeout_has_its_own_error(answer: Answer, upstream: str, fault: UpstreamFault) -> None:
    async with raw_fleet(answer, upstream=upstream) as (program, gateway, (worker,)):
        async with client_of(gateway) as client:
            client.post(STREAM)
            response = await client.response()
            if answer is hold:
                assert response.status == 504
                assert fault.value in str(response.error["message"])
            else:
                assert response.status == 200
                assert response.body.count(b'"error"') == 1
                assert fault.value.encode() in response.body
            client.write(b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await client.response()).status == 200
        await eventually(lambda: worker.open == 0)
        record = next(record for record in program.recent.newest(5) if record.method == b"POST")
        assert record.error == fault.value
        failures = program.state.ejections._records[W0].failures
        assert failures == (0 if fault is UpstreamFault.REQUEST_TIMEOUT else 1), "a long request is nobody's fault"


async def test_connecting_has_its_own_timeout() -> None:
    with blackhole() as silent:
        config = plane([silent.url], upstream="connect_timeout: 0.3s, model_refresh: 1h")
        async with running(config) as (program, port):
            silent.open()
            response = await ask(Inside(f"http://127.0.0.1:{port}", program.server))
            assert response.status == 504
            assert program.recent.newest(1)[0].error == UpstreamFault.CONNECT_TIMEOUT.value


# Drain


async def test_while_it_drains_it_lives_is_not_ready_and_finishes_its_streams() -> None:
    finish = asyncio.Event()

    async def answer(turn: Turn) -> None:
        turn.write(BEGUN)
        await finish.wait()
        turn.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    async with RawWorker(answer).running() as worker:
        limits = "limits: {drain_timeout: 30s}\nadmin: {port: 0}"
        config = config_for([worker.url], limits, workers_extra=[", models: [m]"])
        async with contextlib.AsyncExitStack() as stack:
            program, port = await stack.enter_async_context(running(config))
            gateway = Inside(f"http://127.0.0.1:{port}", program.server)
            async with client_of(gateway) as client, aiohttp.ClientSession() as http:
                client.post(STREAM)
                await client.reader.readuntil(b"choices")
                assert await probes(http, program) == (200, 200)
                closing = asyncio.create_task(stack.aclose())
                await eventually(lambda: program.stopping)
                assert await probes(http, program) == (200, 503)
                with pytest.raises(ConnectionRefusedError):
                    await ask(gateway)
                finish.set()
                rest = await client.rest()
                assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
                await closing


async def probes(http: aiohttp.ClientSession, program: Program) -> tuple[int, int]:
    """Status of liveness and readiness."""
    statuses = []
    for path in ("livez", "readyz"):
        async with http.get(f"http://127.0.0.1:{program.admin_port}/{path}") as response:
            statuses.append(response.status)
    return statuses[0], statuses[1]


async def test_streams_that_do_not_end_are_cut_off_in_the_end() -> None:
    async with RawWorker(begins).running() as worker:
        config = config_for([worker.url], "limits: {drain_timeout: 0.3s}", workers_extra=[", models: [m]"])
        async with contextlib.AsyncExitStack() as stack:
            program, port = await stack.enter_async_context(running(config))
            async with client_of(Inside(f"http://127.0.0.1:{port}", program.server)) as client:
                client.post(STREAM)
                await client.reader.readuntil(b"choices")
                await stack.aclose()
                with contextlib.suppress(ConnectionResetError):
                    assert not (await client.rest()).endswith(b"0\r\n\r\n")
        await eventually(lambda: worker.open == 0)


@contextlib.asynccontextmanager
async def told_to_stop(worker: RawWorker, tmp_path: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, Client]]:
    """A real process, with a stream under way when it is told to stop for the first time."""
    file = tmp_path / "gateway.yaml"
    file.write_text(
        "listen: {port: 0}\nadmin: {port: null}\nlimits: {drain_timeout: 60s}\n"
        f"workers: [{{url: '{worker.url}', name: w0, models: [m]}}]\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "serve", "-c", str(file), stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(40):
            line = await _line_with(process.stderr, b"listening on ")
            reader, writer = await asyncio.open_connection("127.0.0.1", int(line.strip().rpartition(b":")[2]))
            client = Client(reader, writer)
            client.post(STREAM)
            await client.reader.readuntil(b"choices")
            process.send_signal(signal.SIGTERM)
            await _line_with(process.stderr, b"stopping; requests in flight")
            yield process, client
            writer.close()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _line_with(reader: asyncio.StreamReader, text: bytes) -> bytes:
    while text not in (line := await reader.readline()):
        assert line, "the process has ended"
    return line


async def test_after_one_signal_streams_finish(tmp_path: Path) -> None:
    finish = asyncio.Event()

    async def answer(turn: Turn) -> None:
        turn.write(BEGUN)
        await finish.wait()
        turn.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    async with RawWorker(answer).running() as worker, told_to_stop(worker, tmp_path) as (process, client):
        finish.set()
        assert (await client.rest()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert await process.wait() == 0


async def test_after_a_second_signal_it_ends_at_once(tmp_path: Path) -> None:
    async with RawWorker(begins).running() as worker, told_to_stop(worker, tmp_path) as (process, client):
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 130
        with contextlib.suppress(ConnectionResetError):
            assert not (await client.rest()).endswith(b"0\r\n\r\n")
        await eventually(lambda: worker.open == 0)
