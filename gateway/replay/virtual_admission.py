"""Requests that wait in front of a virtual fleet, as in the gateway: the real queue, rooms and predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Final

from backends.fleet_worker import Worker
from gateway.replay.arrival import Arrival
from gateway.replay.customers import Customer
from gateway.replay.records import RequestRecord
from gateway.replay.slo import Slos
from gateway.replay.virtual_engines import Engines, Known
from policies.admission import AdmissionQueue, make_admission
from policies.admission_types import AdmissionSettings, Refused, Request, ServiceClass, Ticket
from policies.batch_yield import BatchYield
from policies.drain_rate import DrainRate
from policies.latency_model import FleetLatency, WorkerLatency
from policies.latency_pressure import LatencyPressure
from policies.types import WorkerId
from policies.worker_room import DEFAULT_WINDOW_S, has_room

_MODEL: Final = "virtual"
_LOOKS: Final = 0.1
"""Share of the window after which a worker may have room again though it has told nothing."""
_UNKNOWN_RATE: Final = 8_000.0
_LEARNT: Final = 16
"""First tokens from which on a prediction is good enough to refuse somebody."""
_NO_SLOS: Final[Mapping[ServiceClass, Slos]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AdmissionStage:
    """How requests wait in front of the fleet."""

    policy: str
    """A name of `ADMISSION_POLICIES`."""
    customers: Sequence[Customer] = ()
    """By arrival; empty where all are of one tenant and class."""
    slos: Mapping[ServiceClass, Slos] = field(default_factory=lambda: _NO_SLOS)
    """A class without a bound on its time to first token has no deadline."""
    settings: AdmissionSettings = field(default_factory=AdmissionSettings)
    window_s: float = DEFAULT_WINDOW_S
    yields: tuple[float, float] = (0.6, 0.9)
    """Pressure from which batch work gets less, and from which it gets nothing."""


@dataclass(slots=True)
class _Request:
    """One that waits or runs."""

    index: int
    ticket: Ticket
    known: Known | None
    worker: int = -1
    cached: int = -1


class Admission:
    """One replay's. It is told of first tokens and ends by the engines, and tells which requests it has given up."""

    def __init__(
        self,
        stage: AdmissionStage,
        engines: Engines,
        arrivals: Sequence[Arrival],
        records: Sequence[RequestRecord],
        *,
        most_running: int,
        kv_tokens: int,
    ) -> None:
        """Raises ValueError for a policy that is not there, or customers for another number of arrivals."""
        if stage.customers and len(stage.customers) != len(arrivals):
            raise ValueError(f"{len(stage.customers):,} customers for {len(arrivals):,} requests")
        start, stop = stage.yields
        self.queue: AdmissionQueue = make_admission(
            stage.policy, stage.settings, batch_yield=BatchYield(start, stop, band=min(0.1, start / 2))
        )
        self._stage = stage
        self._engines = engines
        self._arrivals = arrivals
        self._records = records
        self._most_running = most_running
        self._kv_tokens = kv_tokens
        self._fleet = FleetLatency()
        self._latency: dict[int, WorkerLatency] = {}
        self._by_ticket: dict[Ticket, _Request] = {}
        self._by_index: dict[int, _Request] = {}
        self._drain = DrainRate()
        self._pressures = (LatencyPressure(), LatencyPressure())
        self._said = [0.0, 0.0]
        self._answered = 0
        self._default = Customer()
        self.demoted = 0
        engines.watcher = self

    # -- what the loop asks

    def __len__(self) -> int:
        return len(self.queue)

    def offer(self, index: int, now: float) -> bool:
        """A request came; False where it is refused at once."""
        arrival, customer, record = self._arrivals[index], self._customer(index), self._records[index]
        known = self._engines.read(arrival)
        slos = self._stage.slos.get(customer.service_class)
        due = now + slos.ttft if slos is not None and slos.ttft is not None else inf
        tokens, soonest = self._expect(arrival, known, now)
        request = Request(
            customer.tenant,
            _MODEL,
            tokens,
            customer.service_class,
            weight=customer.weight,
            deadline=due,
            lead_s=soonest if self._answered >= _LEARNT else 0.0,
        )
        wait = 0.0 if self._answered < _LEARNT else soonest + self.queue.tokens_ahead(request) / self._drain_rate()
        answer = self.queue.offer(request, now, wait)
        if isinstance(answer, Refused):
            self._give_up(record, "refused", answer.reason, now)
            return False
        self.demoted += answer.service_class != customer.service_class
        self._drain.queued(now)
        self._by_ticket[answer.ticket] = self._by_index[index] = _Request(index, answer.ticket, known)
        return True

    def dispatch(self, now: float) -> list[int]:
        """Send what there is room for; returns the requests that were given up."""
        while len(self.queue):
            free, among = self._rooms(now)
            dispatched = self.queue.next(now, partial(_same, free)) if free else None
            if dispatched is None:
                break
            self._send(self._by_ticket[dispatched.ticket], now, among)
        gone = []
        for expired in self.queue.expire(now):
            request = self._by_ticket.pop(expired.ticket)
            del self._by_index[request.index]
            self._drain.left(0.0, now, len(self.queue))
            self._give_up(self._records[request.index], "expired", expired.reason, now)
            gone.append(request.index)
        return gone

    def look_again_at(self, now: float) -> float:
        """When to dispatch again at the latest, if no engine tells anything before; infinite where nothing waits."""
        return now + _LOOKS * self._stage.window_s if len(self.queue) else inf

    def put_back(self, index: int, now: float) -> None:
        """Its worker was lost before it answered: it waits again."""
        request = self._by_index[index]
        self._latency[request.worker].ended(index, now)
        self.queue.put_back(request.ticket)
        self._drain.queued(now)

    def drop(self, index: int, now: float) -> None:
        """Its worker was lost in the middle of its answer."""
        request = self._by_index.pop(index)
        self._latency[request.worker].ended(index, now)
        del self._by_ticket[request.ticket]
        self.queue.finished(request.ticket)

    # -- what the engines tell

    def first_token(self, index: int, number: int, at: float, cached: int) -> None:
        """Its first token came; so much of its prompt was cached."""
        request = self._by_index[index]
        request.cached = cached
        self._answered += 1
        self._latency[number].first_token(index, at)
        self._press(0, index, self._records[index].ttft, at)

    def ended(self, index: int, number: int, at: float, output: int) -> None:
        """Its last of so many tokens came."""
        request = self._by_index.pop(index)
        del self._by_ticket[request.ticket]
        self._latency[number].ended(index, at, output)
        self.queue.finished(request.ticket, float(self._arrivals[index].input_tokens - request.cached))
        self._press(1, index, self._records[index].tpot, at)

    # -- parts

    def _customer(self, index: int) -> Customer:
        return self._stage.customers[index] if self._stage.customers else self._default

    def _press(self, which: int, index: int, seconds: float | None, now: float) -> None:
        """Interactive latency, of which batch work keeps out of the way."""
        customer = self._customer(index)
        slos = self._stage.slos.get(customer.service_class)
        if customer.service_class is not ServiceClass.INTERACTIVE or slos is None or seconds is None:
            return
        bound = slos.tpot if which else slos.ttft
        if bound is not None:
            self._said[which] = self._pressures[which].observe(seconds / bound, now)
            self.queue.pressure(max(self._said), now)

    def _expect(self, arrival: Arrival, known: Known, now: float) -> tuple[float, float]:
        """Tokens it lacks where most of it is, and seconds to its first token were it sent now."""
        held, _ = self._engines.held(known, arrival.input_tokens)
        workers = self._engines.workers
        most = max(held.values(), default=0)
        best = None
        for number in _likely(workers, held, now):
            cached = held.get(workers[number].id, 0)
            said = self._worker(number).predict(now, arrival.input_tokens - cached, cached)
            if best is None or said.ttft_s < best.ttft_s:
                best = said
        assert best is not None
        # While nobody waits, trying costs nobody anything, and whoever is always refused teaches nothing.
        soonest = best.ttft_s if len(self.queue) else best.ttft_s * best.ttft_s / best.ttft_p90_s
        return float(arrival.input_tokens - most), soonest

    def _worker(self, number: int) -> WorkerLatency:
        latency = self._latency.get(number)
        if latency is None:
            latency = self._latency[number] = WorkerLatency(self._fleet, kv_tokens=self._kv_tokens)
        return latency

    def _drain_rate(self) -> float:
        learnt = self._drain.rate
        if learnt:
            return learnt
        rates = [worker.prefill.rate or _UNKNOWN_RATE for worker in self._engines.workers.values()]
        return sum(rates)

    def _rooms(self, now: float) -> tuple[int, list[int]]:
        """How many workers have room, and which ones have it within twice the window: where much of a prompt is cached,
        waiting for a little longer may pay, and routing knows.
        """
        self._engines.scrape(now)
        kv_tokens, since, window_s = self._kv_tokens, self._engines.since_scrape, self._stage.window_s
        free, among = 0, []
        for number, worker in self._engines.workers.items():
            kv_used = None if worker.kv_used is None else worker.kv_used + since[number] / kv_tokens
            queued, rate = worker.prefill.remaining(now), worker.prefill.rate
            if has_room(
                queued,
                rate,
                worker.pending,
                window_s=2 * window_s,
                running=worker.active,
                most_running=self._most_running,
                kv_used=kv_used,
            ):
                among.append(number)
                free += rate is None or queued < window_s * rate or not worker.pending
        return free, among

    def _send(self, request: _Request, now: float, among: Sequence[int]) -> None:
        index = request.index
        arrival, record = self._arrivals[index], self._records[index]
        placed = self._engines.send(arrival, record, now, known=request.known, among=among)
        request.worker, request.known = placed.number, None
        latency = self._worker(placed.number)
        latency.sent(index, latency.predict(now, placed.lacking, placed.cached, placed.restore_s), now)
        self.queue.correct(request.ticket, float(placed.lacking))
        self._drain.left(float(placed.lacking), now, len(self.queue))

    def _give_up(self, record: RequestRecord, error: str, reason: str, now: float) -> None:
        record.error, record.error_detail, record.finished = error, str(reason), now


def _same(free: int, _model: str) -> int:
    return free


def _likely(workers: Mapping[int, Worker], held: Mapping[WorkerId, int], now: float) -> set[int]:
    """The worker that holds most of it, and the one with the least to do."""
    idlest = min(workers, key=lambda number: (workers[number].prefill.remaining(now), workers[number].active))
    if not held:
        return {idlest}
    return {idlest, max(workers, key=lambda number: held.get(workers[number].id, 0))}
