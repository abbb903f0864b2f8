"""Requests that wait in the gateway until a worker can start them soon.

The order is the admission queue's (`policies.admission`), which knows neither clocks nor sockets. Here are the requests
behind its tickets, what it asks about the workers, and the moments at which it is asked: when a request comes, when a
worker tells its first byte or is done with one, and a few times a second while any wait, since room also comes with
time. Every step is synchronous.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf, isfinite
from typing import TYPE_CHECKING, Final

from gateway.api_error import ApiError
from policies.admission import AdmissionQueue
from policies.admission_types import Dispatched, Expired, Reason, Refused, Request, ServiceClass, Ticket
from policies.latency_pressure import LatencyPressure
from policies.worker_room import has_room

if TYPE_CHECKING:
    from backends.fleet_state import FleetState
    from backends.fleet_worker import Worker
    from gateway.exchange import Exchange
    from policies.tenant import TenantPolicy

_TICK: Final = 0.02
"""Seconds between two looks while requests wait."""
_GRACE: Final = 5.0
"""Seconds that a client's deadline is beyond the queue's own."""
_CHARS_PER_TOKEN: Final = 4
_LEARNT: Final = 16
"""First tokens after which a worker's predictions count."""
_LONGEST_DEADLINE_MS: Final = 86_400_000.0
_OWN: Final = (Reason.TENANT_FULL, Reason.TENANT_BYTES)
_WHY: Final = {
    Reason.DEADLINE: "The workers are too busy to begin its answer in time.",
    Reason.WAITED: "It has waited as long as it may, and no worker had room for it.",
    Reason.QUEUE_FULL: "Too many requests are waiting.",
    Reason.QUEUE_BYTES: "Too many requests are waiting.",
    Reason.TENANT_FULL: "Too many requests of this key are waiting.",
    Reason.TENANT_BYTES: "Too many requests of this key are waiting.",
}


@dataclass(frozen=True, slots=True)
class GateSettings:
    """What is not the queue's own."""

    worker_queue_s: float = 0.2
    max_running: int | None = None
    deadline_header: Callable[[bytes], bytes | None] | None = None
    """Finds the header in a head's fields."""
    header_name: str = ""


class AdmissionGate:
    """Of one pipeline. `send` starts a request whose turn it is, `refuse` answers one that is given up."""

    def __init__(
        self,
        fleet: FleetState,
        queue: AdmissionQueue,
        settings: GateSettings,
        *,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[Exchange], None],
        cached_tokens: Callable[[Exchange], int],
    ) -> None:
        """`cached_tokens`: of a request's prompt, on the worker that has most of it."""
        self.queue = queue
        self.settings = settings
        self.refusals: dict[tuple[ServiceClass, Reason], int] = {}
        """Not served, by class and reason, since the start."""
        self._fleet = fleet
        self._loop = loop
        self._send = send
        self._cached_tokens = cached_tokens
        self._waiting: dict[Ticket, Exchange] = {}
        self._pressure = LatencyPressure()
        self.pressure = 0.0
        """Recent times to first token of interactive requests ÷ their objective, as the queue was told."""
        self._pumping = False
        self._due: asyncio.Handle | None = None
        self._tick: asyncio.TimerHandle | None = None

    def enter(self, exchange: Exchange) -> None:
        """Send a request on its way as soon as it is its turn, which may be now.

        Raises:
            ApiError: 503 or 429 where it would wait too long or there is no room for it; 400 for a deadline that is
                none.
        """
        now = self._loop.time()
        policy = exchange.policy
        tokens = self._estimate(exchange)
        waits = bool(self.queue) or not self._room(_model(self._fleet, exchange))
        if waits:
            tokens -= self._cached_tokens(exchange)
        lead = self._lead(exchange, tokens, now)
        request = Request(
            policy.name,
            _model(self._fleet, exchange),
            tokens,
            ServiceClass[policy.priority.name],
            policy.weight,
            self._deadline(exchange, policy),
            lead,
            len(exchange.body),
        )
        outcome = self.queue.offer(request, now, lead + (self._ahead(request) if waits else 0.0))
        exchange.record.service_class = request.service_class.name.lower()
        if isinstance(outcome, Refused):
            raise self._refusal(request.service_class, outcome.reason, outcome.retry_after_s)
        exchange.gate, exchange.slot = self, outcome.ticket
        exchange.waits = True
        self._waiting[outcome.ticket] = exchange
        self._pump(now)
        if exchange.waits:
            call = exchange.call
            assert call is not None, "read before"
            call.fields = {}  # they weigh several times the body
            exchange.wait(self.queue.settings.rules[outcome.service_class].max_wait_s + _GRACE)

    def first_byte(self, exchange: Exchange, now: float) -> None:
        """A worker has computed a prompt: it may have room for another. Of an answer that does not stream nobody knows
        when it began.
        """
        objective = exchange.policy.slo_ttft_s
        if exchange.teaches and exchange.record.service_class == _INTERACTIVE and objective is not None:
            self.pressure = self._pressure.observe((now - exchange.record.arrived) / objective, now)
            self.queue.pressure(self.pressure, now)
        self.freed()

    def leave(self, exchange: Exchange) -> None:
        """The request is over, whether it was sent or not."""
        ticket = exchange.slot
        if ticket is None:
            return
        exchange.slot = None
        if exchange.waits:
            exchange.waits = False
            del self._waiting[ticket]
            self.queue.cancel(ticket)
        else:
            self.queue.finished(ticket)
        self.freed()

    def freed(self) -> None:
        """There may be room somewhere: look at the end of this turn."""
        if self._waiting and self._due is None:
            self._due = self._loop.call_soon(self._look)

    def release_all(self) -> None:
        """Nobody is to wait here any longer: send them all."""
        for ticket, exchange in list(self._waiting.items()):
            self.queue.cancel(ticket)
            exchange.slot, exchange.waits = None, False
            self._send(exchange)
        self._waiting.clear()
        if self._tick is not None:
            self._tick.cancel()

    def _look(self) -> None:
        self._due = None
        self._pump(self._loop.time())

    def _again(self) -> None:
        self._tick = None
        self._pump(self._loop.time())

    def _pump(self, now: float) -> None:
        """Send all whose turn it is, give up all whose time is over."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while (dispatched := self.queue.next(now, self._room)) is not None:
                self._dispatch(dispatched)
            for expired in self.queue.expire(now):
                self._give_up(expired)
        finally:
            self._pumping = False
        if self._waiting and self._tick is None:
            self._tick = self._loop.call_later(_TICK, self._again)

    def _dispatch(self, dispatched: Dispatched) -> None:
        exchange = self._waiting.pop(dispatched.ticket)
        exchange.waits = False
        exchange.record.queued_s = dispatched.waited_s
        exchange.record.service_class = dispatched.service_class.name.lower()
        self._send(exchange)
        if exchange.slot is not None and exchange.prompt is not None:
            record = exchange.record
            lacking = exchange.prompt.tokens - record.cached_tokens - record.restored_tokens
            self.queue.correct(dispatched.ticket, lacking)

    def _give_up(self, expired: Expired) -> None:
        exchange = self._waiting.pop(expired.ticket)
        exchange.waits, exchange.slot = False, None
        exchange.record.queued_s = expired.waited_s
        retry = self.queue.settings.min_retry_s
        exchange.refuse(self._refusal(expired.request.service_class, expired.reason, retry))

    def _refusal(self, service_class: ServiceClass, reason: Reason, retry_after_s: float) -> ApiError:
        key = (service_class, reason)
        self.refusals[key] = self.refusals.get(key, 0) + 1
        fields = b"\r\nretry-after: %d" % ceil(retry_after_s)
        if reason in _OWN:
            return ApiError(429, f"{_WHY[reason]} Try again later.", code="too_many_waiting", fields=fields)
        code = "objective_out_of_reach" if reason is Reason.DEADLINE else "overloaded"
        return ApiError(503, f"This request was not sent to a worker. {_WHY[reason]}", code=code, fields=fields)

    # -- what is expected of it

    def _estimate(self, exchange: Exchange) -> float:
        """Tokens of its prompt."""
        prompt = exchange.prompt
        return len(exchange.body) // _CHARS_PER_TOKEN if prompt is None else prompt.tokens

    def _deadline(self, exchange: Exchange, policy: TenantPolicy) -> float:
        """When its first token is due: by its tenant's objective or by what the client asks, whichever is sooner."""
        arrived = exchange.record.arrived
        due = inf if policy.slo_ttft_s is None else arrived + policy.slo_ttft_s
        find = self.settings.deadline_header
        text = None if find is None else find(exchange.head.fields)
        if text is None:
            return due
        try:
            asked = float(text)
        except ValueError:
            asked = -1.0
        if not (isfinite(asked) and 0 < asked <= _LONGEST_DEADLINE_MS):
            name = self.settings.header_name
            message = f"The header `{name}` must be a number of milliseconds above 0, at most a day."
            raise ApiError(400, message, param=name, code="invalid_deadline")
        return min(due, arrived + asked / 1000.0)

    def _lead(self, exchange: Exchange, tokens: float, now: float) -> float:
        """Seconds from being sent to its first token, on the worker that has least to do; 0 before anything is learnt
        of it: nobody is refused for what was only believed.
        """
        workers = self._serving(exchange)
        if not workers:
            return 0.0
        latency = self._fleet.latency_of(min(workers, key=_queued))
        return latency.predict(now, tokens).ttft_s if latency.model.ttft_errors.count >= _LEARNT else 0.0

    def _ahead(self, request: Request) -> float:
        """Seconds of prefill that are sent to the workers of its model before it."""
        rates = [worker.prefill.rate or 0.0 for worker in self._fleet.serving(request.model)]
        rate = sum(rates)
        return self.queue.tokens_ahead(request) / rate if rate else 0.0

    # -- the workers

    def _serving(self, exchange: Exchange) -> tuple[Worker, ...]:
        return self._fleet.serving(_model(self._fleet, exchange))

    def _room(self, model: str) -> int:
        """How many more requests the workers of a model could start soon. Where none may be given anything, whoever is
        sent is told why; where all have as many as they may, they wait.
        """
        now, fleet, settings = self._loop.time(), self._fleet, self.settings
        serving = fleet.serving(model)
        workers = fleet.candidates(serving, (), now)
        if not workers:
            return int(not any(not worker.draining and not worker.has_room() for worker in serving))
        free = 0
        for worker in workers:
            prefill = worker.prefill
            free += has_room(
                prefill.remaining(now) if prefill.total else 0.0,
                prefill.rate,
                len(prefill),
                window_s=settings.worker_queue_s,
                running=worker.active,
                most_running=settings.max_running,
                kv_used=worker.kv_used,
            )
        return free


_INTERACTIVE: Final = ServiceClass.INTERACTIVE.name.lower()


def _queued(worker: Worker) -> float:
    return worker.prefill.total


def _model(fleet: FleetState, exchange: Exchange) -> str:
    """Adapters of one model have its workers in common, and so its queue."""
    call = exchange.call
    assert call is not None, "read before"
    assert call.model is not None, "only what names a model is kept waiting"
    base, _ = fleet.chain_of(call.model)
    return base if fleet.serving(base) else call.model
