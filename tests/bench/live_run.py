"""Recorded requests, sent over HTTP to a gateway at their times, each with its tenant's key: one run, and whether this
machine kept up with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from types import SimpleNamespace
from typing import Final

import aiohttp

from gateway.replay.arrival import Arrival
from gateway.replay.client import ReplayClient, Target
from gateway.replay.customers import Customer
from gateway.replay.plan import plan, timed_chains
from gateway.replay.records import RequestRecord
from gateway.replay.run import raise_file_limit
from gateway.replay.schedule import MonotonicClock, run_open_loop
from gateway.replay.slo import Slos
from gateway.replay.stats import percentile
from policies.admission_types import ServiceClass
from tests.bench.live_engine import Lag
from tests.bench.live_fleet import MODEL, LiveFleet, Setup, running

_PROBE_S: Final = 0.05
_PATIENCE_S: Final = 60.0
"""After the last arrival, for answers that have begun."""
_REFUSED: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_EXPECTED: Final = {None, "cancelled", *(f"http_{status}" for status in _REFUSED)}


@dataclass
class Machine:
    """How it kept up. Seconds, and shares of one core."""

    client_lag: float = 0.0
    """How late requests were sent, the 99th percentile; likewise the next ones."""
    probe: float = 0.0
    """What `GET /health` took, through the loops of this client and of the gateway."""
    engine_lag: float = 0.0
    gateway_cpu: float = 0.0

    def kept_up(self, most_lag: float, most_cpu: float = 0.8) -> bool:
        """Whether nothing of what was measured is the machine's."""
        return max(self.client_lag, self.probe, self.engine_lag) <= most_lag and self.gateway_cpu <= most_cpu


@dataclass
class LiveRun:
    """What came of it."""

    records: list[RequestRecord]
    machine: Machine
    statuses: Counter[int]
    faults: list[str]
    """What ought not to be; empty, or something is broken."""


@dataclass
class _Answers:
    """What is seen of every answer's head."""

    statuses: Counter[int] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    async def head(
        self, session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestEndParams
    ) -> None:
        """Of one."""
        response = params.response
        self.statuses[response.status] += 1
        if response.status in _REFUSED:
            retry = response.headers.get("retry-after", "")
            if not retry.isdecimal() or not 1 <= int(retry) <= 60:
                self.faults[f"{response.status} with Retry-After {retry!r}"] += 1
        elif response.status != HTTPStatus.OK:
            self.faults[f"status {response.status}"] += 1


async def live_run(setup: Setup, arrivals: Sequence[Arrival], customers: Sequence[Customer], speed: float) -> LiveRun:
    """Start everything, send everything, wait until all is answered that may still count, stop everything."""
    raise_file_limit()
    records = plan(arrivals, speed=speed, max_output=None)
    answers, machine, lag = _Answers(), Machine(), Lag()
    async with running(setup) as fleet, contextlib.AsyncExitStack() as stack:
        clock = MonotonicClock()
        clients = {
            name: ReplayClient(
                Target(fleet.url, MODEL, "completions"),
                arrivals,
                records,
                session=await stack.enter_async_context(_session(key, answers)),
                clock=clock,
            )
            for name, key in fleet.keys.items()
        }
        probes = await stack.enter_async_context(_probed(fleet))
        await stack.enter_async_context(lag.watched())
        sender = _Sender(arrivals, customers, records, clients, clock, speed)
        stop = asyncio.Event()
        watch = asyncio.create_task(_stop_when_decided(records, customers, setup.slos, clock, stop))
        gc.collect()
        gc.freeze()
        before, begun = fleet.gateway.cpu_seconds(), time.perf_counter()
        clock.restart()
        await run_open_loop([records[chain[0]].scheduled for chain in sender.chains], clock, sender.send, stop=stop)
        machine.gateway_cpu = (fleet.gateway.cpu_seconds() - before) / (time.perf_counter() - begun)
        gc.unfreeze()
        watch.cancel()
    late = sorted(record.lateness for record in records if record.lateness is not None)
    machine.client_lag = max(percentile(late, 0.99), lag.p99())
    machine.probe = percentile(sorted(probes), 0.99) if probes else 0.0
    machine.engine_lag = fleet.engine_lag
    return LiveRun(records, machine, answers.statuses, [*fleet.faults, *_faults(records, answers)])


def _faults(records: Sequence[RequestRecord], answers: _Answers) -> list[str]:
    ends = (
        Counter(f"{record.error}: {record.error_detail}" for record in records if record.error not in _EXPECTED)
        + answers.faults
    )
    unsent = sum(record.sent is None for record in records)
    short = sum(record.ok and record.completion_tokens != record.output_tokens for record in records)
    found = [f"{count} × {what}" for what, count in ends.most_common(5)]
    if unsent:
        found.append(f"{unsent} requests were not sent")
    if short:
        found.append(f"{short} answers of another length than asked for")
    return found


def _session(key: str, answers: _Answers) -> aiohttp.ClientSession:
    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(answers.head)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"authorization": f"Bearer {key}"},
        trace_configs=[trace],
    )


@contextlib.asynccontextmanager
async def _probed(fleet: LiveFleet) -> AsyncIterator[list[float]]:
    """What `GET /health` takes, twenty times a second, until left."""
    seen: list[float] = []

    async def probe() -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                begun = time.perf_counter()
                async with session.get(f"{fleet.url}/health") as answer:
                    await answer.read()
                seen.append(time.perf_counter() - begun)
                await asyncio.sleep(_PROBE_S)

    task = asyncio.create_task(probe())
    try:
        yield seen
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@dataclass
class _Sender:
    """Chains of requests, each request by the client of its tenant."""

    arrivals: Sequence[Arrival]
    customers: Sequence[Customer]
    records: Sequence[RequestRecord]
    clients: Mapping[str, ReplayClient]
    clock: MonotonicClock
    speed: float

    def __post_init__(self) -> None:
        self.chains = timed_chains(self.arrivals)

    def send(self, number: int) -> Coroutine[object, object, None]:
        """Chain `number` to its end."""
        return self._send(self.chains[number])

    async def _send(self, chain: Sequence[int]) -> None:
        for place, index in enumerate(chain):
            if place:
                pause = (self.arrivals[index].pause or 0.0) / self.speed
                self.records[index].scheduled = self.clock.now() + pause
                await self.clock.sleep_until(self.records[index].scheduled)
            await self.clients[self.customers[index].tenant].send(index)


async def _stop_when_decided(
    records: Sequence[RequestRecord],
    customers: Sequence[Customer],
    slos: Mapping[ServiceClass, Slos],
    clock: MonotonicClock,
    stop: asyncio.Event,
) -> None:
    """When all that is not answered has missed its objective: then nobody waits any longer for it."""
    end = max(record.scheduled for record in records) + _PATIENCE_S
    bounds = [slos[each.service_class].ttft for each in customers]
    while not stop.is_set():
        await asyncio.sleep(0.1)
        now = clock.now()
        if now > end or all(_decided(record, bound, now) for record, bound in zip(records, bounds, strict=True)):
            stop.set()


def _decided(record: RequestRecord, bound: float | None, now: float) -> bool:
    if record.finished is not None:
        return True
    return record.sent is not None and record.first_token is None and bound is not None and now > record.sent + bound
