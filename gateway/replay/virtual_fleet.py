"""A trace replayed in virtual time: the gateway's own routing and index in front of simulated engines, no sockets.

Exact and repeatable, and much faster than life, so that routing policies can be compared on a laptop and in tests.
What is left out is what happens on the wire; what is in is every decision.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import fmean
from typing import Final

from backends.simulated.engine import EngineConfig
from backends.simulated.kv_tiers import TierConfig
from gateway.replay.arrival import Arrival
from gateway.replay.plan import plan, session_chains, timed_chains
from gateway.replay.records import RequestRecord
from gateway.replay.slo import Slos
from gateway.replay.stats import percentile
from gateway.replay.virtual_admission import Admission, AdmissionStage
from gateway.replay.virtual_engines import Engines, Submitted
from policies.routing import RoutingPolicy

_TOLD_EVERY: Final = 256


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker dies ``at`` so many seconds, with its cache. What had no token yet goes to another one, as the gateway
    would have it; what had, fails.
    """

    at: float
    worker: int


@dataclass(frozen=True, slots=True)
class Added:
    """One more worker, empty, from ``at`` on; it has the next number."""

    at: float


@dataclass(frozen=True, slots=True)
class VirtualResult:
    """What came of a replay; times in seconds of the trace, tokens summed over all requests."""

    records: tuple[RequestRecord, ...]
    """By request, in the order of arrival, as a replay over the wire would book them."""
    load: tuple[int, ...]
    """Prompt tokens each worker had to compute."""
    choices: Mapping[str, int] = field(default_factory=dict)
    """How often each reason decided."""
    demoted: int = 0
    """Requests that were put in a lower class when they came."""

    @property
    def ttft(self) -> tuple[float, ...]:
        """Of the requests that had a first token, in the order of arrival."""
        return tuple(record.ttft for record in self.records if record.ttft is not None)

    @property
    def input_tokens(self) -> int:
        """Of all requests."""
        return sum(record.input_tokens for record in self.records)

    @property
    def cached_tokens(self) -> int:
        """Of those, from a cache."""
        return sum(record.cached_tokens or 0 for record in self.records)

    @property
    def mean_ttft(self) -> float:
        """Mean time to first token."""
        return fmean(self.ttft)

    def ttft_at(self, share: float) -> float:
        """That percentile, as a share of 1."""
        return percentile(sorted(self.ttft), share)

    @property
    def hit_share(self) -> float:
        """Share of the input tokens that came from a cache."""
        return self.cached_tokens / self.input_tokens

    @property
    def imbalance(self) -> float:
        """The most loaded worker's load over the mean."""
        return max(self.load) / fmean(self.load)


def replay_virtually(
    arrivals: Sequence[Arrival],
    policy: RoutingPolicy,
    *,
    workers: int,
    engine: EngineConfig,
    speed: float = 1.0,
    seed: int = 0,
    max_output: int | None = None,
    concurrency: int | None = None,
    changes: Sequence[Lost | Added] = (),
    store: TierConfig | None = None,
    knows_tiers: bool = True,
    admission: AdmissionStage | None = None,
    predicts: bool = False,
    slos: Callable[[int], Slos | None] | None = None,
    watch: Callable[[int], None] | None = None,
    submitted: Submitted | None = None,
) -> VirtualResult:
    """Send each arrival at its time ÷ `speed` to the worker that `policy` chooses among `workers` engines; one with a
    pause follows the answer before it in its session. With `concurrency` so many users send instead, each its next
    request after the answer. `store` is a tier that the engines share; without `knows_tiers` the policy is told of
    devices alone. With `admission` requests wait in front of the fleet, and some are refused; without, each is sent at
    once. Only where it `predicts` (with `admission` always) is it said what each should take. `slos` tells what a
    policy that asks for it is told of each request's promise, by its index; with `admission` that is its class's.
    `watch` is told now and then how many requests have come, `submitted` of each one that an engine is given.

    Raises ValueError for a fleet that cannot be: no workers or users, a worker lost that is not there, or the last.
    """
    _check(workers, concurrency, changes)
    records = plan(arrivals, speed=speed, max_output=max_output)
    added = sum(isinstance(change, Added) for change in changes)
    rng = random.Random(seed)  # noqa: S311 - it breaks ties
    fleet = Engines(policy, workers, added, engine, rng, store=store, knows_tiers=knows_tiers)
    fleet.fleet.predicts = predicts or fleet.fleet.predicts
    fleet.submitted = submitted
    stage = None
    if admission is not None:
        stage = Admission(admission, fleet, arrivals, records, most_running=engine.max_num_seqs)
    loop = _Loop(fleet, arrivals, records, stage, watch, slos=slos)
    loop.plan(speed, concurrency, changes)
    loop.run()
    return VirtualResult(
        records=tuple(records),
        load=tuple(total - cached for total, cached in zip(fleet.sent, fleet.cached, strict=True)),
        choices=dict(fleet.choices),
        demoted=stage.demoted if stage else 0,
    )


def _check(workers: int, concurrency: int | None, changes: Sequence[Lost | Added]) -> None:
    if workers < 1 or (concurrency is not None and concurrency < 1):
        raise ValueError(f"expected at least one worker and one user, got {workers} and {concurrency}")
    alive, known = set(range(workers)), workers
    for change in sorted(changes, key=lambda change: change.at):
        if isinstance(change, Added):
            alive.add(known)
            known += 1
        elif change.worker not in alive or len(alive) == 1:
            raise ValueError(f"worker {change.worker} cannot be lost at {change.at:g} s: it is the last, or not there")
        else:
            alive.remove(change.worker)


class _Loop:
    """What happens next: a request that is due, a change of the fleet, or an engine's next output."""

    def __init__(
        self,
        fleet: Engines,
        arrivals: Sequence[Arrival],
        records: Sequence[RequestRecord],
        admission: Admission | None,
        watch: Callable[[int], None] | None,
        *,
        slos: Callable[[int], Slos | None] | None,
    ) -> None:
        self._fleet = fleet
        self._admission = admission
        self._slos = slos
        self._watch = watch
        self._came = 0
        self._arrivals = arrivals
        self._records = records
        self._changes: list[Lost | Added] = []
        self._next: dict[int, int] = {}
        self._waiting: list[int] = []  # heads of chains that no user has taken yet, the next one last
        self._due: list[tuple[float, int]] = []
        self._speed = 1.0

    def plan(self, speed: float, concurrency: int | None, changes: Sequence[Lost | Added]) -> None:
        """Who is due when, and who follows whom."""
        self._speed = speed
        self._changes = sorted(changes, key=lambda change: change.at)
        chains = timed_chains(self._arrivals) if concurrency is None else session_chains(self._arrivals)
        self._next = {before: after for chain in chains for before, after in itertools.pairwise(chain)}
        heads = [chain[0] for chain in chains]
        if concurrency is None:
            self._due = [(self._records[index].scheduled, index) for index in heads]
        else:
            self._due = [(0.0, index) for index in heads[:concurrency]]
            self._waiting = heads[concurrency:][::-1]
        heapq.heapify(self._due)

    def run(self) -> None:
        """Until nothing is left to happen."""
        steps = bool(self._next or self._waiting)  # an answer can bring forth a request
        admission, now = self._admission, 0.0
        while True:
            moments = [self._due[0][0]] if self._due else []
            if self._changes:
                moments.append(self._changes[0].at)
            waits = admission is not None and len(admission) > 0
            if (steps or waits or not moments) and (output_at := self._fleet.next_output_at()) is not None:
                moments.append(output_at)
            if waits and admission is not None and (again := admission.look_again_at(now)) < inf:
                moments.append(again)
            if not moments:
                return
            now = max(now, min(moments))
            self._live_until(now)

    def _live_until(self, now: float) -> None:
        for index in self._fleet.advance(now, self._records):
            self._answered(index, now)
        while self._changes and self._changes[0].at <= now:
            self._change(self._changes.pop(0), now)
        while self._due and self._due[0][0] <= now:
            due, index = heapq.heappop(self._due)
            self._came += 1
            if self._watch is not None and not self._came % _TOLD_EVERY:
                self._watch(self._came)
            self._records[index].scheduled = due
            self._records[index].sent = due
            self._begin(index, now)
        if self._admission is not None:
            for index in self._admission.dispatch(now):
                self._answered(index, now)

    def _begin(self, index: int, now: float) -> None:
        if self._admission is None:
            self._fleet.send(self._arrivals[index], self._records[index], now, slos=self._slos and self._slos(index))
        elif not self._admission.offer(index, now):
            self._answered(index, now)

    def _answered(self, index: int, now: float) -> None:
        ended = self._records[index].finished or now
        if (after := self._next.get(index)) is not None:
            heapq.heappush(self._due, (max(now, ended + (self._arrivals[after].pause or 0.0) / self._speed), after))
        elif self._waiting:
            heapq.heappush(self._due, (max(now, ended), self._waiting.pop()))

    def _change(self, change: Lost | Added, now: float) -> None:
        if isinstance(change, Added):
            self._fleet.add()
            return
        admission = self._admission
        for index in self._fleet.lose(change.worker, now):
            record = self._records[index]
            if record.first_token is None:
                self._fleet.sent[change.worker] -= record.input_tokens
                if admission is None:
                    self._fleet.send(self._arrivals[index], record, now, slos=self._slos and self._slos(index))
                else:
                    admission.put_back(index, now)
                continue
            record.error, record.error_detail = "reset_mid_stream", "its worker was lost"
            record.finished = now
            if admission is not None:
                admission.drop(index)
            self._answered(index, now)
