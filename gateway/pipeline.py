"""One request from top to bottom: read, recognise, route, send, account.

Every step is synchronous, and on the way of a prompt seen before none waits. The two places where a request may wait
are the tokens of a long new prompt (`_await_tokens`, under a deadline) and the worker itself.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Final

from backends.errors import UpstreamFault
from backends.fleet_state import FleetState, Worker
from backends.upstream_pool import UpstreamPool
from cache.prefix_index import PrefixIndex
from gateway.api_error import ApiError
from gateway.calls import read_call
from gateway.dialects.anthropic import ANTHROPIC
from gateway.dialects.openai import OPENAI
from gateway.exchange import Exchange
from gateway.model_choice import served_model, unknown_model, workers_for
from gateway.own_answers import own_answer, speaks_anthropic
from gateway.prompts import PromptReader, PromptView, guess
from gateway.routes import RouteTable, dialect_of
from policies.routing import Needs, Prompt, RoutingPolicy
from policies.types import WorkerId

log = logging.getLogger(__name__)

_NOTHING_CACHED: Final[Mapping[WorkerId, int]] = {}
_LOAD: Final = Needs.LOAD
_PREFIXES: Final = Needs.PREFIXES
_FIRST_ERROR_STATUS: Final = 400
_PROLONG_STEPS: Final = 16
_NO_FIELDS: Final[dict[str, object]] = {}
_ANY_PROMPT: Final = Prompt(0, _NOTHING_CACHED)


class RequestPipeline:
    """The life of a request. One instance serves all of them; what belongs to one request is in its exchange."""

    def __init__(
        self,
        fleet: FleetState,
        pools: Mapping[WorkerId, UpstreamPool],
        policy: RoutingPolicy,
        *,
        index: PrefixIndex,
        readers: Mapping[str, PromptReader],
        routes: RouteTable,
        loop: asyncio.AbstractEventLoop,
        via: bytes,
        max_attempts: int,
        token_wait: float,
        prediction_ttl: float,
        unconfirmed_ttl: float,
        sample: Callable[[], float] = random.random,
        access_log: bool = False,
    ) -> None:
        """`readers` by base model. A prompt waits at most `token_wait` seconds for its tokens; what a worker is
        predicted to hold is forgotten after `prediction_ttl` seconds past its first byte unless an event confirms
        it, or after `unconfirmed_ttl` where the worker publishes no events.
        """
        self.fleet = fleet
        self._pools = pools
        self._policy = policy
        self._needs = policy.needs
        self._index = index
        self._readers = readers
        self._routes = routes
        self._loop = loop
        self._via = b"\r\nvia: 1.1 " + via
        self._max_attempts = max_attempts
        self._token_wait = token_wait
        self._prediction_ttl = prediction_ttl
        self._unconfirmed_ttl = unconfirmed_ttl
        self._sample = sample
        self._access_log = access_log
        self._reader_failed = False

    # 1. In: a whole request has been read

    def begin(self, exchange: Exchange) -> None:
        """Answer the request, or find out what it needs and send it on its way."""
        self._or_refuse(exchange, self._begin)

    def _or_refuse(self, exchange: Exchange, step: Callable[[Exchange], None]) -> None:
        """Take a step; where it fails, the client gets an answer all the same."""
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
        try:
            route = self._routes.find(head.path, head.method)
        except ApiError:
            exchange.dialect = dialect_of(head.path)
            raise
        exchange.dialect = route.dialect
        if route.answered_here:
            anthropic = speaks_anthropic(head.fields)
            exchange.dialect = ANTHROPIC if anthropic else OPENAI
            exchange.respond(200, own_answer(route.kind, head.path, self.fleet, anthropic=anthropic))
            return
        call = exchange.call = read_call(route, exchange.body, head.path)
        if not call.may_go_anywhere:
            call.model = served_model(self.fleet, call.model)
        if self._needs is _PREFIXES and call.has_prompt:
            self._read_prompt(exchange)
        else:
            exchange.prompt = guess(call) if self._needs is _PREFIXES else None
            self._dispatch(exchange)

    # 2. Tokens and blocks

    def _read_prompt(self, exchange: Exchange) -> None:
        call = exchange.call
        assert call is not None, "set by begin"
        assert call.model is not None, "set by begin"
        base, adapter = self.fleet.chain_of(call.model)
        reader = self._readers.get(base)
        if reader is None:
            exchange.prompt = guess(call)
            self._dispatch(exchange)
            return
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

    def _await_tokens(self, exchange: Exchange, reader: PromptReader, view: PromptView) -> None:
        """Wait for the rest of the tokens, but not for longer than they are worth."""
        timer = self._loop.call_later(self._token_wait, self._dispatch, exchange)
        exchange.wait(self._token_wait + 1.0)

        def arrived() -> None:
            timer.cancel()
            if exchange.attempts == 0:
                self._dispatch(exchange)
            else:
                self._predict(exchange, view)

        if not reader.resolve(view, arrived):
            timer.cancel()
            self._dispatch(exchange)

    # 3. Route: choose and reserve in one synchronous step

    def _dispatch(self, exchange: Exchange) -> None:
        if not exchange.finished:
            self._or_refuse(exchange, self._route)

    def _route(self, exchange: Exchange) -> None:
        call = exchange.call
        assert call is not None, "set by begin"
        now = self._loop.time()
        fleet = self.fleet
        workers = fleet.candidates(workers_for(fleet, call), exchange.tried, now)
        if not workers:
            raise unknown_model(self.fleet, call.model or "")  # it was served a moment ago
        view = exchange.prompt
        if view is None:
            views = [worker.load() if self._needs is _LOAD else worker.name_only for worker in workers]
            decision = self._policy.choose(_ANY_PROMPT, views, self._sample())
            lacking = None
        else:
            prompt = Prompt(view.tokens, self._cached_tokens(view) if view.blocks else _NOTHING_CACHED)
            decision = self._policy.choose(prompt, [worker.view(now) for worker in workers], self._sample())
            lacking = view.tokens - decision.cached_tokens if call.has_prompt else None
            exchange.cached_tokens = decision.cached_tokens
            exchange.cached_blocks = decision.cached_tokens // workers[decision.chosen].block_size
        worker = exchange.worker = workers[decision.chosen]
        exchange.reservation = fleet.reserve(worker, lacking, now, streams=call.streams and not call.is_batch)
        if view is not None:
            exchange.prompt_tokens = view.tokens
            if view.blocks:
                self._predict(exchange, view)
        call.fields = _NO_FIELDS  # they have told all that is needed, and weigh several times the body
        self._send(exchange, worker)

    def _cached_tokens(self, view: PromptView) -> dict[WorkerId, int]:
        """Leading tokens each worker holds. The last token is always computed: something must be sampled from."""
        most = view.tokens - 1
        cached: dict[WorkerId, int] = {}
        for size, blocks in view.blocks.items():
            for worker, depth in self._index.match(blocks.hashes).items():
                if self.fleet.worker(worker).block_size == size:
                    cached[worker] = min(depth * size, most)
        return cached

    def _predict(self, exchange: Exchange, view: PromptView) -> None:
        """The worker will soon hold this prompt: say so at once, for those who come right behind."""
        worker = exchange.worker
        if worker is None or exchange.failed:
            return
        blocks = view.blocks.get(worker.block_size)
        if blocks is None or not blocks.hashes:
            return
        now = self._loop.time()
        if worker.publishes_events and view.confirmable:
            # What it holds already was confirmed, or will be for the request that was predicted to bring it.
            start = exchange.cached_blocks
            ttl = self._prediction_ttl + worker.prefill.seconds(now)
        else:
            # Each use prolongs the whole prefix, in steps of time, so that most uses find nothing to do.
            start = 0
            ttl = self._unconfirmed_ttl
            now -= now % (ttl / _PROLONG_STEPS)
        fresh = self._index.predict(worker.id, blocks.hashes, start=start, now=now, ttl=ttl)
        exchange.predicted = [*exchange.predicted, *fresh] if exchange.predicted else fresh

    def _take_back(self, exchange: Exchange) -> None:
        """The worker did not do what was predicted: nobody shall follow this request there."""
        if exchange.predicted and exchange.worker is not None:
            self._index.unpredict(exchange.worker.id, exchange.predicted)
        exchange.predicted = ()

    def _send(self, exchange: Exchange, worker: Worker, *, fresh: bool = False) -> None:
        head = exchange.head
        via = self._via if head.via is None else b"%b, via: %b" % (self._via, head.via)
        request = b"%b %b%b HTTP/1.1\r\nhost: %b%b\r\nx-request-id: %b%b\r\ncontent-length: %d\r\n\r\n%b" % (
            head.method, head.path, head.query, worker.authority, head.fields,
            exchange.request_id, via, len(exchange.body), exchange.body,
        )  # fmt: skip
        exchange.send(self._pools[worker.id], request, fresh=fresh)

    # 4. The worker answers, or does not

    def first_byte(self, exchange: Exchange) -> None:
        """Its prefill is over."""
        now = exchange.first_byte_at = self._loop.time()
        reservation = exchange.reservation
        assert reservation is not None, "reserved before it was sent"
        if exchange.status >= _FIRST_ERROR_STATUS:
            self.fleet.refused(reservation, now)
            return
        worker = reservation.worker
        if worker.failures:
            log.info("worker %s answers again", worker.id)
        self.fleet.first_byte(reservation, now)

    def fault(self, exchange: Exchange, fault: UpstreamFault, detail: str) -> None:
        """The attempt failed and nothing has reached the client: try another worker where that is safe."""
        worker = exchange.worker
        if worker is None:
            exchange.refuse(ApiError(fault.status, f"This request was not sent in time: {fault.value}."))
            return
        if fault is UpstreamFault.RESET and exchange.reused:
            # The worker closed an idle connection just as it was used: that says nothing about the worker.
            exchange.reused = False
            self._send(exchange, worker, fresh=True)
            return
        now = self._loop.time()
        self._take_back(exchange)
        self._release(exchange, now)
        if fault.may_retry:
            if self.fleet.rest(worker, now):
                log.warning("worker %s: %s (%s)", worker.id, fault.value, detail)
                if not worker.publishes_events:
                    self._index.clear(worker.id)  # an engine that went away has lost its cache
            exchange.tried.append(worker)
            if exchange.attempts < self._max_attempts and self._others_left(exchange):
                self._dispatch(exchange)
                return
        message = f"No worker could answer this request: {fault.value}."
        exchange.refuse(ApiError(fault.status, message, code="worker_unavailable"))

    def finished(self, exchange: Exchange) -> None:
        """Always the last step, however the exchange ended."""
        now = self._loop.time()
        self._release(exchange, now)
        if exchange.failed:
            self._take_back(exchange)
        if self._access_log:
            worker = exchange.worker
            log.info(
                "%s %s %d worker=%s cached=%d tokens=%d ttft_ms=%.1f ms=%.1f bytes=%d request_id=%s%s",
                _shown(exchange.head.method), _shown(exchange.head.path), exchange.status,
                worker.id if worker else "-", exchange.cached_tokens, exchange.prompt_tokens,
                max(exchange.first_byte_at - exchange.arrived, 0.0) * 1e3, (now - exchange.arrived) * 1e3,
                exchange.response_bytes, _shown(exchange.request_id), " cut short" if exchange.cut_short else "",
            )  # fmt: skip

    def _release(self, exchange: Exchange, now: float) -> None:
        if exchange.reservation is not None:
            self.fleet.release(exchange.reservation, now)
            exchange.reservation = None

    def _others_left(self, exchange: Exchange) -> bool:
        call = exchange.call
        assert call is not None, "set by begin"
        return any(worker not in exchange.tried for worker in workers_for(self.fleet, call))


def _shown(value: bytes) -> str:
    return value[:200].decode("ascii", "backslashreplace")
