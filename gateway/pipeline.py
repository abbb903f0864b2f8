"""One request from top to bottom: read, recognise, route, send, account.

Every step is synchronous, and on the way of a prompt seen before none waits. The two places where a request may wait
are the tokens of a long new prompt (`_await_tokens`, under a deadline) and the worker itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from backends.errors import UpstreamFault
from backends.fleet_state import FleetState
from backends.fleet_worker import Worker
from backends.http1 import RequestHead
from backends.upstream_pool import UpstreamPool
from backends.upstream_request import WorkerAccess, render_request
from cache.prefix_index import PrefixIndex
from gateway import tenant_gate
from gateway.admission import AdmissionGate
from gateway.api_error import ApiError
from gateway.calls import Call, read_call
from gateway.dialects.anthropic import ANTHROPIC
from gateway.dialects.openai import OPENAI
from gateway.exchange import Exchange
from gateway.model_choice import fallback_of, served_model, workers_for
from gateway.model_rewrite import renamed
from gateway.own_answers import own_answer, speaks_anthropic
from gateway.placement import Placement
from gateway.prompts import PromptView, Reader, guess
from gateway.reader_table import ReaderTable
from gateway.request_record import Observer, Outcome
from gateway.response_caching import ResponseCaching
from gateway.routes import RouteTable, dialect_of
from gateway.telemetry.trace_context import TraceContext
from gateway.tenancy import Tenancy
from policies import ejection
from policies.retry_budget import RetryBudget
from policies.routing import Needs
from policies.types import WorkerId

log = logging.getLogger(__name__)

_PREFIXES: Final = Needs.PREFIXES
_FIRST_ERROR_STATUS: Final = 400
_NO_FIELDS: Final[dict[str, object]] = {}
_FINISHED_WELL: Final = (Outcome.OK, Outcome.CLIENT_ERROR)


@dataclass(frozen=True, slots=True)
class Rules:
    """What the configuration says of the way of a request; replaced as a whole when it changes."""

    max_attempts: int = 3
    """Workers that may receive the same request."""
    token_wait: float = 0.05
    """Seconds that a prompt waits at most for its tokens."""
    retry_statuses: frozenset[int] = frozenset({500, 502, 503, 504})
    retries: RetryBudget = field(default_factory=RetryBudget)
    aliases: Mapping[str, str] = field(default_factory=dict)
    fallbacks: Mapping[str, Sequence[str]] = field(default_factory=dict)


class Target(Protocol):
    """What it takes to send a request to a worker."""

    pool: UpstreamPool
    access: WorkerAccess

    @property
    def takes_salt(self) -> bool:
        """Does it take the salts of tenants?"""


class RequestPipeline:
    """The life of a request. One instance serves all of them; what belongs to one request is in its exchange."""

    def __init__(
        self,
        fleet: FleetState,
        targets: Mapping[WorkerId, Target],
        placement: Placement,
        *,
        index: PrefixIndex,
        readers: ReaderTable,
        routes: RouteTable,
        loop: asyncio.AbstractEventLoop,
        via: bytes,
        rules: Rules,
        observers: Sequence[Observer] = (),
    ) -> None:
        """`targets` by worker, as they are at each moment."""
        self.fleet = fleet
        self.live: set[Exchange] = set()
        self.placement = placement
        self.readers = readers
        self.rules = rules
        self.observers = tuple(observers)
        self.tenancy: Tenancy | None = None  # None where nobody is asked for a key
        self.gate: AdmissionGate | None = None  # None where nobody waits here
        self.responses: ResponseCaching | None = None  # None where no answers are kept
        self.trace: Callable[[bytes | None], TraceContext] | None = None  # None where no spans are made
        self._targets = targets
        self._index = index
        self.routes = routes
        self._loop = loop
        self._via = b"1.1 " + via
        self._reader_failed = False

    # 1. In: a whole request has been read

    def unwelcome(self, head: RequestHead) -> bool:
        """Is a request certain to be refused, whatever its body?"""
        return self.tenancy is not None and tenant_gate.unwelcome(head, self.tenancy)

    def begin(self, exchange: Exchange) -> None:
        """Answer the request, or find out what it needs and send it on its way."""
        self.live.add(exchange)
        exchange.record.traceparent = exchange.head.traceparent
        if self.trace is not None:
            exchange.record.trace = self.trace(exchange.head.traceparent)
        self.attempt(exchange, self._begin)

    def attempt(self, exchange: Exchange, step: Callable[[Exchange], None]) -> None:
        """Take a step; where it fails, the client gets an answer all the same."""
        if exchange.finished:
            return
        try:
            step(exchange)
        except ApiError as error:
            exchange.refuse(error)
        except Exception:
            log.exception("request %s: a fault of the gateway's own", _shown(exchange.request_id))
            exchange.refuse(
                ApiError(500, "The gateway failed on this request; its log says why.", code="internal_error")
            )

    def _begin(self, exchange: Exchange) -> None:
        head = exchange.head
        tenancy = self.tenancy
        tenant = None if tenancy is None else tenant_gate.identify(exchange, tenancy)
        may_use = None if tenant is None else tenant.may_use
        try:
            route = self.routes.find(head.path, head.method)
        except ApiError:
            exchange.dialect = dialect_of(head.path)
            raise
        exchange.dialect = route.dialect
        if route.answered_here:
            anthropic = speaks_anthropic(head.fields)
            exchange.dialect = ANTHROPIC if anthropic else OPENAI
            aliases = self.rules.aliases
            answer = own_answer(
                route.kind, head.path, self.fleet, anthropic=anthropic, aliases=aliases, may_use=may_use
            )
            exchange.respond(200, answer)
            return
        call = exchange.call = read_call(route, exchange.body, head.path)
        exchange.repeatable = route.idempotent
        named = call.model
        alias = self.rules.aliases.get(named) if named is not None else None
        if alias is not None:
            call.model = alias
            exchange.body = renamed(exchange.body, alias)
        if tenant is not None:
            tenant_gate.check_model(exchange, call, tenant, named)
        if call.model in self.rules.fallbacks:
            self._fall_back(exchange, call, may_use)
        if not call.may_go_anywhere:
            call.model = served_model(self.fleet, call.model, may_use)
        record = exchange.record
        record.kind = route.kind.value
        record.dialect = route.dialect.name
        record.model = call.model
        record.streams = call.streams
        if tenant is not None:
            tenant_gate.admit(exchange, call, tenant, self._loop.time())
        if self.responses is None or not self.responses.enter(exchange):
            self._go_on(exchange)

    def proceed(self, exchange: Exchange) -> None:
        """No answer to it is known: send it on its way to a worker."""
        self.live.add(exchange)
        self.attempt(exchange, self._go_on)

    def _go_on(self, exchange: Exchange) -> None:
        call = exchange.call
        assert call is not None, "read before"
        self.placement.recognise(exchange)
        if self.placement.needs is _PREFIXES and call.has_prompt:
            self._read_prompt(exchange)
        else:
            self._dispatch(exchange)

    def _fall_back(self, exchange: Exchange, call: Call, may_use: Callable[[str], bool] | None) -> None:
        """Take another model where nobody can serve the one that was asked for."""
        assert call.model is not None, "it has fallbacks"
        others = self.rules.fallbacks[call.model]
        model = fallback_of(self.fleet, call.model, others, self._loop.time(), may_use)
        if model is not None:
            call.model = model
            exchange.body = renamed(exchange.body, model)

    # 2. Tokens and blocks

    def _read_prompt(self, exchange: Exchange) -> None:
        call = exchange.call
        assert call is not None, "set by begin"
        assert call.model is not None, "set by begin"
        base, adapter = self.fleet.chain_of(call.model)
        reader = self.readers.get(base)
        try:
            view = reader.read(
                call,
                adapter=adapter,
                block_sizes=self.fleet.block_sizes(call.model),
                longest=self.fleet.longest_prompt(call.model),
            )
        except Exception:
            # What a prompt does to a template or a tokenizer is no reason to fail a request: it is a miss.
            if not self._reader_failed:
                log.exception("model %s: a prompt could not be read; such prompts are routed by load", base)
            self._reader_failed = True
            view = guess(call)
        else:
            self._reader_failed = False
        exchange.prompt = view
        if not view.rest:
            self._dispatch(exchange)
        elif view.matters:
            self._await_tokens(exchange, reader, view)
        else:
            self._dispatch(exchange)
            reader.resolve(view, lambda: self._predict(exchange, view))

    def _await_tokens(self, exchange: Exchange, reader: Reader, view: PromptView) -> None:
        """Wait for the rest of the tokens, but not for longer than they are worth."""
        token_wait = self.rules.token_wait
        timer = self._loop.call_later(token_wait, self._dispatch, exchange)
        exchange.wait(token_wait + 1.0)

        def arrived() -> None:
            timer.cancel()
            if exchange.attempts == 0:
                self._dispatch(exchange)
            else:
                self._predict(exchange, view)

        if not reader.resolve(view, arrived):
            timer.cancel()
            self._dispatch(exchange)

    def _predict(self, exchange: Exchange, view: PromptView) -> None:
        self.placement.predict(exchange, view, self._loop.time())

    # 3. Route: choose and reserve in one synchronous step, then send

    def _dispatch(self, exchange: Exchange) -> None:
        """Send it, or have it wait for its turn; whose turn it was once is only sent again."""
        turn, call, gate = exchange.turn, exchange.call, self.gate
        if exchange.finished or (turn is not None and turn.waits):
            return
        if gate is None or turn is not None or call is None or not call.has_prompt or call.model is None:
            self.send(exchange)
        else:
            self.attempt(exchange, gate.enter)

    def send(self, exchange: Exchange, among: Collection[Worker] | None = None) -> None:
        """It is its turn: send it to one of these workers; None: to any."""
        if not exchange.finished:
            self.attempt(exchange, partial(self._route, among=among))

    def _route(self, exchange: Exchange, *, among: Collection[Worker] | None) -> None:
        worker = self.placement.choose(exchange, self._loop.time(), among)
        assert exchange.call is not None, "set by begin"
        exchange.call.fields = _NO_FIELDS  # they have told all that is needed, and weigh several times the body
        self._send(exchange, worker, self._targets[worker.id])

    def held(self, exchange: Exchange) -> Mapping[WorkerId, int]:
        """Leading tokens of its prompt that each worker holds."""
        return self.placement.held(exchange)

    def _send(self, exchange: Exchange, worker: Worker, target: Target, *, fresh: bool = False) -> None:
        exchange.attempts += not fresh  # a second try on the same worker is not another attempt
        head = exchange.head
        salting = exchange.salting
        # With tenants the client's key is for this gateway alone.
        credentials = target.access.lines(head) if exchange.tenant is None else target.access.own
        request = render_request(
            head,
            exchange.body if salting is None or not target.takes_salt else salting.into(exchange.body),
            host=worker.authority,
            request_id=exchange.request_id,
            via=self._via,
            credentials=credentials,
            forwarded=exchange.client.forwarded_fields(head),
            traceparent=None if exchange.record.trace is None else exchange.record.trace.traceparent,
        )
        # An idle connection may be closed just as it is used, and nobody can tell whether the request was taken: what
        # must not be repeated takes a connection of its own.
        exchange.send(target.pool, request, fresh=fresh or not exchange.repeatable)

    # 4. The worker answers, or does not

    def first_byte(self, exchange: Exchange) -> None:
        """Its prefill is over."""
        now = exchange.record.first_byte_at = self._loop.time()
        reservation = exchange.reservation
        if reservation is None:
            return  # it comes from the cache
        if exchange.record.status >= _FIRST_ERROR_STATUS:
            self.fleet.refused(reservation, now)
            return
        worker = reservation.worker
        if worker.failures:
            log.info("worker %s answers again", worker.id)
        self.fleet.first_byte(reservation, now)
        if exchange.turn is not None:
            exchange.turn.gate.first_byte(exchange, now)

    def learn_id(self, exchange: Exchange, beginning: bytes) -> bool:
        """Remember which worker has the answer that begins like this, if its id is in there."""
        answer_id = exchange.dialect.answer_id(beginning)
        if answer_id is None or exchange.worker is None:
            return False
        scope = b"" if exchange.tenant is None else exchange.tenant.scope
        self.placement.answered(answer_id, exchange.worker, self._loop.time(), scope=scope)
        return True

    def would_retry(self, exchange: Exchange, status: int) -> bool:
        """Is a worker's answer of that status to be thrown away for another worker's?"""
        return status in self.rules.retry_statuses and self._may_go_on(exchange, UpstreamFault.SERVER_ERROR)

    def fault(self, exchange: Exchange, fault: UpstreamFault, detail: str) -> None:
        """The attempt failed and nothing has reached the client: try another worker where that may be done."""
        worker = exchange.worker
        if worker is None:
            message = f"This request was not sent in time: {fault.value}."
            exchange.refuse(ApiError(fault.status, message, code="request_timeout"))
            return
        if exchange.reused:
            # The worker closed an idle connection just as it was used: that says nothing about the worker.
            exchange.reused = False
            target = self._targets.get(worker.id)
            if target is not None:
                self._send(exchange, worker, target, fresh=True)
                return
        now = self._loop.time()
        self.placement.take_back(exchange)
        self._release(exchange, now)
        exchange.record.attempts[-1].fault = fault.value
        self._blame(worker, fault, detail, now)
        if self._may_go_on(exchange, fault):
            exchange.tried.append(worker)
            self._dispatch(exchange)
            return
        exchange.record.error = fault.value
        message = f"No worker could answer this request: {fault.value}."
        exchange.refuse(ApiError(fault.status, message, code="worker_unavailable"))

    def broken(self, exchange: Exchange, fault: UpstreamFault, detail: str) -> None:
        """The worker failed after the first byte: nothing is repeated."""
        if exchange.worker is not None:
            exchange.record.attempts[-1].fault = fault.value
            self._blame(exchange.worker, fault, detail, self._loop.time())

    def _may_go_on(self, exchange: Exchange, fault: UpstreamFault) -> bool:
        """May another worker be tried? Takes a place in the retry budget where that is needed, for good."""
        call = exchange.call
        if call is None or fault is UpstreamFault.REQUEST_TIMEOUT or not (fault.unreached or exchange.repeatable):
            return False
        exchange.attempts -= fault.unreached  # nobody has received it
        if exchange.attempts >= self.rules.max_attempts:
            return False
        tried = {exchange.worker, *exchange.tried}
        others = [worker for worker in workers_for(self.fleet, call) if worker not in tried and not worker.draining]
        if not others or not (fault.unreached or any(worker.has_room() for worker in others)):
            return False
        if fault.free or exchange.retrying is not None:
            return True
        if not self.rules.retries.try_take(len(self.live)):
            return False
        exchange.retrying = self.rules.retries
        return True

    def _blame(self, worker: Worker, fault: UpstreamFault, detail: str, now: float) -> None:
        """What the fault says about the worker."""
        if self.fleet.find(worker.id) is not worker:
            return  # it has left, and another one may have its name
        if fault.gone and self.fleet.rest(worker, now):
            log.warning("worker %s: %s (%s)", worker.id, fault.value, detail)
            if not worker.publishes_events:
                self._index.clear(worker.id)  # an engine that went away has lost its cache
        if fault in (UpstreamFault.HUNG, UpstreamFault.REQUEST_TIMEOUT):
            return  # the one has its own judge, and the other is the request's own length
        server_error = fault is UpstreamFault.SERVER_ERROR
        self._record(worker, ejection.Outcome.SERVER_ERROR if server_error else ejection.Outcome.GATEWAY, now, fault)

    def _record(self, worker: Worker, outcome: ejection.Outcome, now: float, why: str = "") -> None:
        if self.fleet.record(worker, outcome, now):
            until = self.fleet.ejections.until(worker.id) or now
            log.warning("worker %s is left out for %.0f s: it keeps failing (%s)", worker.id, until - now, why)

    # 5. Account: always the last step, however the exchange ended

    def finished(self, exchange: Exchange) -> None:
        """The exchange is over."""
        now = exchange.record.finished_at = self._loop.time()
        self.live.discard(exchange)
        if exchange.caching is not None:
            exchange.caching.caching.finished(exchange)
        self._release(exchange, now)
        if exchange.ticket is not None:
            tenant_gate.release(exchange, now)
        if exchange.turn is not None:
            exchange.turn.gate.leave(exchange)
        if exchange.retrying is not None:
            exchange.retrying.give_back()
        if exchange.failed:
            self.placement.take_back(exchange)
        record, worker = exchange.record, exchange.worker
        if worker is not None and record.first_byte_at:
            if record.outcome in _FINISHED_WELL:
                self.fleet.record(worker, ejection.Outcome.OK, now)
            elif record.outcome is Outcome.WORKER_ERROR:
                self._record(worker, ejection.Outcome.SERVER_ERROR, now, record.error or str(record.status))
        for observer in self.observers:
            try:
                observer.finished(record)
            except Exception:
                log.exception("request %s: it could not be accounted for", _shown(exchange.request_id))

    def _release(self, exchange: Exchange, now: float) -> None:
        if exchange.reservation is not None:
            self.fleet.release(exchange.reservation, now, output_tokens=exchange.record.usage.completion or 0)
            exchange.reservation = None


def _shown(value: bytes) -> str:
    return value[:200].decode("ascii", "backslashreplace")
