"""Which worker gets a request, and what is remembered of that: choose and reserve in one synchronous step.

The choice is the policy's, unless the request belongs to a session or follows an earlier answer: then it goes where
that is, as long as the worker may be tried. What the worker will hold because of the request is entered into the
index as a prediction, and taken back if it does not come to that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import xxhash

from gateway.api_error import ApiError
from gateway.header_finder import header_finder
from gateway.model_choice import unknown_model, workers_for
from gateway.prompt_text import beginning
from gateway.request_record import Attempt
from policies.affinity import AffinityMap
from policies.restore_route import PricedRun, best_split
from policies.routing import (
    DEFAULT_PREFILL_RATE,
    NOTHING_RESTORABLE,
    Needs,
    Prompt,
    RouteDecision,
    RoutingPolicy,
    WorkerView,
)
from policies.types import TierRun, WorkerId

if TYPE_CHECKING:
    from backends.fleet_state import FleetState
    from backends.fleet_worker import Worker
    from cache.prefix_index import PrefixIndex
    from gateway.exchange import Exchange
    from gateway.prompts import PromptView
    from policies.restore_route import RestoreSplit

_NOTHING_CACHED: Final[Mapping[WorkerId, int]] = {}
_Known: TypeAlias = tuple[
    Mapping[WorkerId, int], Mapping[WorkerId, Sequence[PricedRun]], Mapping[WorkerId, Sequence[TierRun]] | None
]
"""Leading tokens on each worker's device, what it could restore behind them, and the runs of both where there are
slower tiers."""
_NOTHING_KNOWN: Final[_Known] = ({}, NOTHING_RESTORABLE, None)
_LOAD: Final = Needs.LOAD
_NOTHING: Final = Needs.NOTHING
_PROLONG_STEPS: Final = 16
_ANY_PROMPT: Final = Prompt(0, _NOTHING_CACHED)
_ANSWER: Final = b"\r"
"""Before the ids of answers: what no header's value can hold, so that no session is ever taken for an answer."""
_LONGEST_SESSION: Final = 128
_BEFORE_SLOW_DOWN: Final = b"\r\nretry-after: 1"


class Placement:
    """Places requests on workers."""

    def __init__(
        self,
        fleet: FleetState,
        index: PrefixIndex,
        policy: RoutingPolicy,
        *,
        affinity: AffinityMap,
        session_header: str | None,
        prediction_ttl: float,
        unconfirmed_ttl: float,
        sample: Callable[[], float],
    ) -> None:
        """What a worker is predicted to hold is forgotten after `prediction_ttl` seconds past its first byte unless
        an event confirms it, or after `unconfirmed_ttl` where the worker publishes no events.
        """
        self.needs = policy.needs
        self._fleet = fleet
        self._index = index
        self._policy = policy
        self._affinity = affinity
        self._session_of = None if session_header is None else header_finder(session_header)
        self._prediction_ttl = prediction_ttl
        self._unconfirmed_ttl = unconfirmed_ttl
        self._sample = sample

    def recognise(self, exchange: Exchange) -> None:
        """Find out what keeps this request together with others, while its fields are at hand."""
        call = exchange.call
        assert call is not None, "read before"
        scope = b"" if exchange.tenant is None else exchange.tenant.scope
        if call.follows is not None:
            exchange.session = scope + _ANSWER + call.follows.encode()
            exchange.follows = True
        elif self._session_of is not None and (found := self._session_of(exchange.head.fields)) is not None:
            named = _short(found)
            if named:  # a session has a home for each model: not every worker serves all of them
                exchange.session = b"%b%b\n%b" % (scope, (call.model or "").encode(), named)
        salt = call.fields.get("cache_salt")
        exchange.salt = salt if type(salt) is str else ""
        exchange.teaches = call.streams and not call.is_batch
        if self._policy.uses_key:
            seed = exchange.session or (call.session_hint or "").encode() or beginning(call)
            exchange.key = xxhash.xxh3_64_intdigest(seed) if seed else None

    def choose(self, exchange: Exchange, now: float, among: Collection[Worker] | None = None) -> Worker:
        """Choose a worker, one of `among` if any of them may be tried, and book the request there. What only one worker
        can answer goes there in any case.

        Raises:
            ApiError: 503 where no worker may be given anything, 404 where none serves the model any longer.
        """
        call = exchange.call
        assert call is not None, "read before"
        fleet = self._fleet
        serving = workers_for(fleet, call)
        workers = fleet.candidates(serving, exchange.tried, now)
        if not workers:
            raise _nobody(fleet, call.model or "", serving, exchange.tried)
        if among is not None and not exchange.follows:
            workers = [worker for worker in workers if worker in among] or workers
        prompt = exchange.prompt
        cached, restorable, runs = self._known(prompt)
        views = self._views(workers, now) if prompt is None else [worker.view(now) for worker in workers]
        decision = None if exchange.session is None else self._home(exchange.session, exchange, workers, cached, now)
        exchange.record.session = decision is not None
        if decision is None:
            decision = self._decide(exchange, prompt, cached, restorable, views)
        worker = exchange.worker = workers[decision.chosen]
        if restorable and decision.split is None:
            decision = decision._replace(split=self._split(exchange, decision, views[decision.chosen], restorable))
        lacking = None if prompt is None else prompt.tokens - decision.cached_tokens
        restore_s = 0.0
        if decision.split is not None:
            lacking, restore_s = decision.split.computed_tokens, decision.split.restore_s
        reservation = exchange.reservation = fleet.reserve(
            worker,
            lacking,
            now,
            streams=exchange.teaches,
            generates=call.generates,
            cached=0 if prompt is None or lacking is None else prompt.tokens - lacking,
            restore_s=restore_s,
        )
        exchange.cached_blocks = decision.cached_tokens // worker.block_size
        record = exchange.record
        record.routed_at = now
        record.predicted_ttft = None if reservation.predicted is None else reservation.predicted.ttft_s
        record.cached_tokens = decision.cached_tokens
        record.restored_tokens = 0 if decision.split is None else decision.split.restored_tokens
        record.attempts.append(Attempt(worker.id, views, cached, decision, now, runs, restorable))
        if prompt is not None:
            record.prompt_tokens = prompt.tokens
            if prompt.blocks:
                self.predict(exchange, prompt, now)
        if exchange.session is not None and not exchange.follows:
            self._affinity.put(exchange.session, worker.id, now)
        return worker

    def _known(self, prompt: PromptView | None) -> _Known:
        """What the workers have of a prompt."""
        if prompt is None or not prompt.blocks:
            return _NOTHING_KNOWN
        if not self._index.is_tiered:
            return self._cached_tokens(prompt), NOTHING_RESTORABLE, None
        runs = self._runs(prompt)
        return (*self._priced(runs, prompt.tokens), runs)

    def _views(self, workers: Sequence[Worker], now: float) -> list[WorkerView]:
        """What the policy needs to see for a request without a prompt that matters."""
        if self.needs is _NOTHING:
            return [worker.name(now) if worker.slow_start else worker.name_only for worker in workers]
        if self.needs is _LOAD:
            return [worker.load(now) for worker in workers]
        return [worker.view(now) for worker in workers]

    def answered(self, answer_id: str, worker: Worker, now: float, *, scope: bytes = b"") -> None:
        """Only this worker can go on from that answer, for requests of the tenant of that scope."""
        self._affinity.put(scope + _ANSWER + answer_id.encode(), worker.id, now)

    def _home(
        self,
        session: bytes,
        exchange: Exchange,
        workers: Sequence[Worker],
        cached: Mapping[WorkerId, int],
        now: float,
    ) -> RouteDecision | None:
        """The worker where the request's session is, if it may be tried."""
        home = self._affinity.get(session, now)
        if home is None:
            return None
        for place, worker in enumerate(workers):
            if worker.id == home:
                return RouteDecision(place, cached.get(home, 0), (), "follows" if exchange.follows else "session")
        return None

    def _decide(
        self,
        exchange: Exchange,
        prompt: PromptView | None,
        cached: Mapping[WorkerId, int],
        restorable: Mapping[WorkerId, Sequence[PricedRun]],
        views: list[WorkerView],
    ) -> RouteDecision:
        policy = self._policy
        if prompt is None and not policy.uses_key:
            return policy.choose(_ANY_PROMPT, views, self._sample())
        asked = Prompt(prompt.tokens if prompt else 0, cached, exchange.key, restorable)
        return policy.choose(asked, views, self._sample())

    @staticmethod
    def _split(
        exchange: Exchange,
        decision: RouteDecision,
        view: WorkerView,
        restorable: Mapping[WorkerId, Sequence[PricedRun]],
    ) -> RestoreSplit | None:
        """What a worker will restore that was chosen without asking for that: it is not work that waits there."""
        if exchange.prompt is None or view.id not in restorable:
            return None
        return best_split(
            exchange.prompt.tokens,
            decision.cached_tokens,
            restorable[view.id],
            rate=view.prefill_rate or DEFAULT_PREFILL_RATE,
            wait_s=view.restoring_s,
        )

    def held(self, exchange: Exchange) -> Mapping[WorkerId, int]:
        """Leading tokens of its prompt that each worker holds on its device."""
        prompt = exchange.prompt
        return _NOTHING_CACHED if prompt is None or not prompt.blocks else self._cached_tokens(prompt)

    def _cached_tokens(self, view: PromptView) -> dict[WorkerId, int]:
        """Leading tokens each worker holds. The last token is always computed: something must be sampled from."""
        most = view.tokens - 1
        cached: dict[WorkerId, int] = {}
        find = self._fleet.find
        for size, blocks in view.blocks.items():
            for worker_id, depth in self._index.match(blocks.hashes).items():
                worker = find(worker_id)
                if worker is not None and worker.block_size == size:
                    cached[worker_id] = min(depth * size, most)
        return cached

    def _runs(self, view: PromptView) -> dict[WorkerId, Sequence[TierRun]]:
        """What each worker has of the prompt on any tier, in order."""
        found: dict[WorkerId, Sequence[TierRun]] = {}
        for size, blocks in view.blocks.items():
            for worker_id, runs in self._index.match_runs(blocks.hashes).items():
                worker = self._fleet.find(worker_id)
                if worker is not None and worker.block_size == size:
                    found[worker_id] = runs
        return found

    def _priced(
        self, found: Mapping[WorkerId, Sequence[TierRun]], n_tokens: int
    ) -> tuple[dict[WorkerId, int], Mapping[WorkerId, Sequence[PricedRun]]]:
        """The leading tokens each worker holds, as `_cached_tokens` has it, and what it could restore behind them."""
        cached: dict[WorkerId, int] = {}
        restorable: dict[WorkerId, Sequence[PricedRun]] = {}
        for worker_id, runs in found.items():
            held, behind = self._fleet.worker(worker_id).priced(runs, n_tokens)
            if held:
                cached[worker_id] = held
            if behind:
                restorable[worker_id] = behind
        return cached, restorable

    # -- predictions

    def predict(self, exchange: Exchange, view: PromptView, now: float) -> None:
        """The worker will soon hold this prompt: say so at once, for those who come right behind."""
        worker = exchange.worker
        if worker is None or exchange.failed:
            return
        blocks = view.blocks.get(worker.block_size)
        if blocks is None or not blocks.hashes:
            return
        if worker.publishes_events and view.confirmable:
            # What it holds already was confirmed, or will be for the request that was predicted to bring it.
            start = exchange.cached_blocks
            ttl = self._prediction_ttl + worker.prefill.seconds(now)
        else:
            # Each use prolongs the whole prefix, in steps of time, so that most uses find nothing to do.
            start = 0
            ttl = self._unconfirmed_ttl
            now -= now % (ttl / _PROLONG_STEPS)
        fresh = self._index.predict(worker.id, blocks.hashes, start=start, now=now, ttl=ttl, salt=exchange.salt)
        exchange.predicted = [*exchange.predicted, *fresh] if exchange.predicted else fresh

    def take_back(self, exchange: Exchange) -> None:
        """The worker did not do what was predicted: nobody shall follow this request there."""
        if exchange.predicted and exchange.worker is not None:
            self._index.unpredict(exchange.worker.id, exchange.predicted)
        exchange.predicted = ()


def _nobody(fleet: FleetState, model: str, serving: Sequence[Worker], tried: Sequence[Worker]) -> ApiError:
    if not serving:
        return unknown_model(fleet, model)  # it was served a moment ago
    if all(worker.draining or worker in tried for worker in serving):
        return ApiError(503, "All workers of this model are being drained.", code="no_worker")
    message = "All workers of this model have as many requests as they may."
    return ApiError(503, message, code="overloaded", fields=_BEFORE_SLOW_DOWN)


def _short(session: bytes) -> bytes:
    """A session's name, in so many bytes that remembering it costs little."""
    return session if len(session) <= _LONGEST_SESSION else xxhash.xxh3_128_digest(session)
