"""Requests that wait in the gateway until a worker can start them soon.

The order is the admission queue's (`policies.admission`), which knows neither clocks nor sockets. Here are the requests
behind its tickets, what it asks about the workers, and the moments at which it is asked: when a request comes, when a
worker tells its first byte or is done with one, and a few times a second while any wait, since room also comes with
time. Every step is synchronous.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import ceil, inf, isfinite
from typing import TYPE_CHECKING, Final

from backends.fleet_forecast import FleetForecast
from gateway.api_error import ApiError
from gateway.request_record import Outcome
from policies.admission import AdmissionQueue
from policies.admission_types import Dispatched, Expired, Reason, Refused, Request, ServiceClass, Ticket
from policies.latency_pressure import SloPressure
from policies.worker_room import DEFAULT_WINDOW_S

if TYPE_CHECKING:
    from backends.fleet_state import FleetState
    from backends.fleet_worker import Worker
    from gateway.exchange import Exchange
    from policies.tenant import TenantPolicy
    from policies.types import WorkerId

_TICK: Final = 0.02
"""Seconds between two looks while requests wait."""
_GRACE: Final = 5.0
"""Seconds that a client's deadline is beyond the queue's own."""
_CHARS_PER_TOKEN: Final = 4
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

    worker_queue_s: float = DEFAULT_WINDOW_S
    max_running: int | None = None
    deadline_header: Callable[[bytes], bytes | None] | None = None
    """Finds the header in a head's fields."""
    header_name: str = ""


@dataclass(slots=True)
class Turn:
    """A request's place in the queue of a gate, and later in the workers."""

    gate: AdmissionGate
    ticket: Ticket
    model: str
    """By which it waits: that of its workers."""
    waits: bool = True
    over: bool = False


class AdmissionGate:
    """Of one pipeline. `send` starts a request whose turn it is, at one of the workers that have room."""

    def __init__(
        self,
        fleet: FleetState,
        queue: AdmissionQueue,
        settings: GateSettings,
        *,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[Exchange, Collection[Worker] | None], None],
        held: Callable[[Exchange], Mapping[WorkerId, int]],
    ) -> None:
        """`held`: how many leading tokens of a request's prompt each worker has; who is not named has none."""
        self.queue = queue
        self.refusals: dict[tuple[ServiceClass, Reason], int] = {}
        """Not served, by class and reason, since the start."""
        self._fleet = fleet
        self._loop = loop
        self._send = send
        self._held = held
        self._forecast = FleetForecast(fleet)
        self._among: dict[str, list[Worker]] = {}  # by model, those with room, as they were looked at last
        self._waiting: dict[Ticket, Exchange] = {}
        self._pressures: dict[str, SloPressure] = {}  # by model, where anything was told of late
        self._pumping = False
        self._due: asyncio.Handle | None = None
        self._tick: asyncio.TimerHandle | None = None
        self.configure(settings)

    def configure(self, settings: GateSettings) -> None:
        """These settings hold from now on."""
        self._settings = settings
        self._forecast.window_s = settings.worker_queue_s
        self._forecast.most_running = settings.max_running

    @property
    def pressure(self) -> float:
        """Recent latency of interactive requests ÷ its objective, of the model where that is highest."""
        now = self._loop.time()
        return max((pressure.at(now) for pressure in self._pressures.values()), default=0.0)

    def enter(self, exchange: Exchange) -> None:
        """Send a request on its way as soon as it is its turn, which may be now.

        Raises:
            ApiError: 503 or 429 where it would wait too long or there is no room for it; 400 for a deadline that is
                none.
        """
        now, fleet, policy = self._loop.time(), self._fleet, exchange.policy
        model, n_tokens = _model(fleet, exchange), _tokens(exchange)
        due = exchange.due = self._deadline(exchange, policy)
        held: Mapping[WorkerId, int] = {}
        lead = 0.0
        alone = not self.queue.waiting_for(model)
        waits = not (alone and self._room(model))
        if waits or due < inf:
            held = self._held(exchange)
            workers = fleet.candidates(fleet.serving(model), (), now)
            lead = self._forecast.first_token(workers, held, n_tokens, now, alone=alone)
        request = Request(
            policy.name,
            model,
            float(n_tokens - max(held.values(), default=0)),
            ServiceClass[policy.priority.name],
            policy.weight,
            due,
            lead,
            len(exchange.body),
        )
        ahead = self._forecast.turn(model, self.queue.tokens_ahead(request), fleet.serving(model)) if waits else 0.0
        outcome = self.queue.offer(request, now, lead + ahead)
        exchange.record.service_class = request.service_class.name.lower()
        if isinstance(outcome, Refused):
            raise self._refusal(request.service_class, outcome.reason, outcome.retry_after_s)
        turn = exchange.turn = Turn(self, outcome.ticket, model)
        self._waiting[outcome.ticket] = exchange
        self._forecast.drains[model].queued(now)
        self._pump(now)
        if turn.waits:
            call = exchange.call
            assert call is not None, "read before"
            call.fields = {}  # they weigh several times the body
            exchange.wait(self.queue.longest_wait(outcome.service_class) + _GRACE)

    def first_byte(self, exchange: Exchange, now: float) -> None:
        """A worker has computed a prompt: it may have room for another. Of an answer that does not stream nobody knows
        when it began.
        """
        objective, turn = exchange.policy.slo_ttft_s, exchange.turn
        assert turn is not None, "it was its turn"
        if exchange.teaches and exchange.record.service_class == _INTERACTIVE and objective is not None:
            pressure = self._pressures.setdefault(turn.model, SloPressure())
            seconds = now - exchange.record.arrived
            self.queue.pressure(turn.model, pressure.first_token(seconds, objective, now), now, pressure.ends_at)
        self.freed()

    def leave(self, exchange: Exchange) -> None:
        """The request is over, whether it was sent or not."""
        turn, usage = exchange.turn, exchange.record.usage
        if turn is None or turn.over:
            return
        turn.over = True
        if turn.waits:
            turn.waits = False
            del self._waiting[turn.ticket]
            self.queue.cancel(turn.ticket)
            self._left(turn, 0.0, self._loop.time())
        else:
            self._tell_pace(exchange, turn.model)
            prompt, cached = usage.prompt, usage.cached
            self.queue.finished(turn.ticket, None if prompt is None or cached is None else float(prompt - cached))
        self.freed()

    def _left(self, turn: Turn, tokens: float, now: float) -> None:
        """It waits no longer; so many tokens were sent."""
        self._forecast.drains[turn.model].left(tokens, now, self.queue.waiting_for(turn.model))

    def _tell_pace(self, exchange: Exchange, model: str) -> None:
        """How fast the tokens of an answer came that streamed to its end."""
        record, objective = exchange.record, exchange.policy.slo_tpot_s
        n_tokens = (record.usage.completion or 0) - 1
        if objective is None or n_tokens < 1 or not exchange.teaches or record.service_class != _INTERACTIVE:
            return
        if record.outcome is Outcome.OK and record.first_byte_at:
            now = record.finished_at
            pressure = self._pressures.setdefault(model, SloPressure())
            ratio = (now - record.first_byte_at) / n_tokens / objective
            self.queue.pressure(model, pressure.per_token(ratio, now), now, pressure.ends_at)

    def freed(self) -> None:
        """There may be room somewhere: look at the end of this turn."""
        if self._waiting and self._due is None:
            self._due = self._loop.call_soon(self._look)

    def release_all(self) -> None:
        """Nobody is to wait here any longer: send them all."""
        for ticket in list(self._waiting):
            self.queue.cancel(ticket)
            exchange, _ = self._take(ticket, over=True)
            self._send(exchange, None)
        if self._tick is not None:
            self._tick.cancel()

    def _take(self, ticket: Ticket, *, over: bool = False) -> tuple[Exchange, Turn]:
        """It waits no longer."""
        exchange = self._waiting.pop(ticket)
        turn = exchange.turn
        assert turn is not None, "it waited"
        turn.waits, turn.over = False, over
        return exchange, turn

    def _look(self) -> None:
        self._due = None
        self._pump(self._loop.time())

    def _again(self) -> None:
        self._tick = None
        now = self._loop.time()
        self._fade(now)
        self._pump(now)

    def _fade(self, now: float) -> None:
        """What is no longer recent does not count, though nothing more is told."""
        for model, pressure in [*self._pressures.items()]:
            if pressure.fades_at < now:
                self.queue.pressure(model, pressure.at(now), now, pressure.ends_at)
                if pressure.fades_at == inf:
                    del self._pressures[model]

    def _pump(self, now: float) -> None:
        """Send all whose turn it is, give up all whose time is over."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while (dispatched := self.queue.next(now, self._room)) is not None:
                self._dispatch(dispatched, now)
            for expired in self.queue.expire(now):
                self._give_up(expired, now)
            self._forecast.look(self.queue, now)
        finally:
            self._pumping = False
        if self._waiting and self._tick is None:
            self._tick = self._loop.call_later(_TICK, self._again)

    def _dispatch(self, dispatched: Dispatched, now: float) -> None:
        exchange, turn = self._take(dispatched.ticket)
        record, lacking = exchange.record, dispatched.request.tokens
        record.queued_s = dispatched.waited_s
        record.service_class = dispatched.service_class.name.lower()
        self._send(exchange, self._among.get(dispatched.request.model))
        if exchange.prompt is not None and record.attempts:
            lacking = float(exchange.prompt.tokens - record.cached_tokens - record.restored_tokens)
            self.queue.correct(dispatched.ticket, lacking)
        self._left(turn, lacking, now)

    def _give_up(self, expired: Expired, now: float) -> None:
        exchange, turn = self._take(expired.ticket, over=True)
        exchange.record.queued_s = expired.waited_s
        self._left(turn, 0.0, now)
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

    def _deadline(self, exchange: Exchange, policy: TenantPolicy) -> float:
        """When its first token is due: by its tenant's objective or by what the client asks, whichever is sooner."""
        arrived = exchange.record.arrived
        due = inf if policy.slo_ttft_s is None else arrived + policy.slo_ttft_s
        find = self._settings.deadline_header
        text = None if find is None else find(exchange.head.fields)
        if text is None:
            return due
        try:
            asked = float(text)
        except ValueError:
            asked = -1.0
        if not (isfinite(asked) and 0 < asked <= _LONGEST_DEADLINE_MS):
            name = self._settings.header_name
            message = f"The header `{name}` must be a number of milliseconds above 0, at most a day."
            raise ApiError(400, message, param=name, code="invalid_deadline")
        return min(due, arrived + asked / 1000.0)

    # -- the workers

    def _room(self, model: str) -> int:
        """How many more requests the workers of a model could start soon. Where none may be given anything, whoever is
        sent is told why; where all have as many as they may, they wait.
        """
        now, fleet = self._loop.time(), self._fleet
        serving = fleet.serving(model)
        workers = fleet.candidates(serving, (), now)
        if not workers:
            self._among.pop(model, None)
            return int(not any(not worker.draining and not worker.has_room() for worker in serving))
        free, self._among[model] = self._forecast.rooms(workers, now)
        return free


_INTERACTIVE: Final = ServiceClass.INTERACTIVE.name.lower()


def _tokens(exchange: Exchange) -> int:
    """Of its prompt, as far as is known."""
    prompt = exchange.prompt
    return len(exchange.body) // _CHARS_PER_TOKEN if prompt is None else prompt.tokens


def _model(fleet: FleetState, exchange: Exchange) -> str:
    """Adapters of one model have its workers in common, and so its queue."""
    call = exchange.call
    assert call is not None, "read before"
    assert call.model is not None, "only what names a model is kept waiting"
    base, _ = fleet.chain_of(call.model)
    return base if fleet.serving(base) else call.model
