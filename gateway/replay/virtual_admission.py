"""Requests that wait in front of a virtual fleet, as in the gateway: the real queue, rooms and predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Final

from backends.fleet_forecast import FleetForecast
from backends.fleet_worker import Worker
from gateway.replay.arrival import Arrival
from gateway.replay.customers import Customer
from gateway.replay.records import RequestRecord
from gateway.replay.slo import Slos
from gateway.replay.virtual_engines import Engines, Known
from policies.admission import AdmissionQueue, make_admission
from policies.admission_types import AdmissionSettings, Refused, Request, ServiceClass, Ticket
from policies.latency_pressure import SloPressure
from policies.worker_room import DEFAULT_WINDOW_S

_MODEL: Final = "virtual"
_LOOKS: Final = 0.1
"""Share of the window after which a worker may have room again though it has told nothing."""
_NO_SLO: Final = Slos()
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


@dataclass(slots=True)
class _Request:
    """One that waits or runs."""

    index: int
    ticket: Ticket
    known: Known | None
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
    ) -> None:
        """Raises ValueError for a policy that is not there, or customers for another number of arrivals."""
        if stage.customers and len(stage.customers) != len(arrivals):
            raise ValueError(f"{len(stage.customers):,} customers for {len(arrivals):,} requests")
        self.queue: AdmissionQueue = make_admission(stage.policy, stage.settings)
        self._stage = stage
        self._engines = engines
        self._arrivals = arrivals
        self._records = records
        self._forecast = FleetForecast(engines.fleet, window_s=stage.window_s, most_running=most_running)
        self._by_ticket: dict[Ticket, _Request] = {}
        self._by_index: dict[int, _Request] = {}
        self._pressure = SloPressure()
        self._default = Customer()
        self.demoted = 0
        engines.watcher = self
        engines.fleet.predicts = True

    # -- what the loop asks

    def __len__(self) -> int:
        return len(self.queue)

    def offer(self, index: int, now: float) -> bool:
        """A request came; False where it is refused at once."""
        arrival, customer, record = self._arrivals[index], self._customer(index), self._records[index]
        known = self._engines.read(arrival)
        slos = self._stage.slos.get(customer.service_class)
        due = now + slos.ttft if slos is not None and slos.ttft is not None else inf
        held, _ = self._engines.held(known, arrival.input_tokens)
        workers, forecast = [*self._engines.workers.values()], self._forecast
        lead = forecast.first_token(workers, held, arrival.input_tokens, now, alone=not len(self.queue))
        request = Request(
            customer.tenant,
            _MODEL,
            float(arrival.input_tokens - max(held.values(), default=0)),
            customer.service_class,
            weight=customer.weight,
            deadline=due,
            lead_s=lead,
        )
        record.expected_s = lead + forecast.turn(_MODEL, self.queue.tokens_ahead(request), workers)
        answer = self.queue.offer(request, now, record.expected_s)
        if isinstance(answer, Refused):
            self._give_up(record, "refused", answer.reason, now)
            return False
        self.demoted += answer.service_class != customer.service_class
        self._forecast.drains[_MODEL].queued(now)
        self._by_ticket[answer.ticket] = self._by_index[index] = _Request(index, answer.ticket, known)
        return True

    def dispatch(self, now: float) -> list[int]:
        """Send what there is room for; returns the requests that were given up."""
        if self._pressure.fades_at < now:
            self.queue.pressure(_MODEL, self._pressure.at(now), now, self._pressure.ends_at)
        while len(self.queue):
            self._engines.scrape(now)
            free, among = self._forecast.rooms([*self._engines.workers.values()], now)
            dispatched = self.queue.next(now, partial(_same, free))
            if dispatched is None:
                break
            self._send(self._by_ticket[dispatched.ticket], now, among)
        self._forecast.look(self.queue, now)
        gone = []
        for expired in self.queue.expire(now):
            request = self._by_ticket.pop(expired.ticket)
            del self._by_index[request.index]
            self._forecast.drains[_MODEL].left(0.0, now, len(self.queue))
            self._give_up(self._records[request.index], "expired", expired.reason, now)
            gone.append(request.index)
        return gone

    def look_again_at(self, now: float) -> float:
        """When to dispatch again at the latest, if no engine tells anything before; infinite where nothing waits."""
        return now + _LOOKS * self._stage.window_s if len(self.queue) else inf

    def put_back(self, index: int, now: float) -> None:
        """Its worker was lost before it answered: it waits again."""
        self.queue.put_back(self._by_index[index].ticket)
        self._forecast.drains[_MODEL].queued(now)

    def drop(self, index: int) -> None:
        """Its worker was lost in the middle of its answer."""
        request = self._by_index.pop(index)
        del self._by_ticket[request.ticket]
        self.queue.finished(request.ticket)

    # -- what the engines tell

    def first_token(self, index: int, at: float, cached: int) -> None:
        """Its first token came; so much of its prompt was cached."""
        self._by_index[index].cached = cached
        bound, seconds = self._slos(index).ttft, self._records[index].ttft
        if bound is not None and seconds is not None:
            self.queue.pressure(_MODEL, self._pressure.first_token(seconds, bound, at), at, self._pressure.ends_at)

    def ended(self, index: int, at: float) -> None:
        """Its last token came."""
        request = self._by_index.pop(index)
        del self._by_ticket[request.ticket]
        self.queue.finished(request.ticket, float(self._arrivals[index].input_tokens - request.cached))
        bound, seconds = self._slos(index).tpot, self._records[index].tpot
        if bound is not None and seconds is not None:
            self.queue.pressure(_MODEL, self._pressure.per_token(seconds / bound, at), at, self._pressure.ends_at)

    # -- parts

    def _customer(self, index: int) -> Customer:
        return self._stage.customers[index] if self._stage.customers else self._default

    def _slos(self, index: int) -> Slos:
        """Those of interactive requests, of which batch work keeps out of the way."""
        customer = self._customer(index)
        interactive = customer.service_class is ServiceClass.INTERACTIVE
        return self._stage.slos.get(ServiceClass.INTERACTIVE, _NO_SLO) if interactive else _NO_SLO

    def _send(self, request: _Request, now: float, among: Sequence[Worker]) -> None:
        arrival, record = self._arrivals[request.index], self._records[request.index]
        lacking = float(
            self._engines.send(
                arrival,
                record,
                now,
                known=request.known,
                among=among,
                slos=self._stage.slos.get(self._customer(request.index).service_class),
            )
        )
        request.known = None
        self.queue.correct(request.ticket, lacking)
        self._forecast.drains[_MODEL].left(lacking, now, len(self.queue))

    def _give_up(self, record: RequestRecord, error: str, reason: str, now: float) -> None:
        record.error, record.error_detail, record.finished = error, str(reason), now


def _same(free: int, _model: str) -> int:
    return free
