"""A trace replayed in virtual time: the gateway's own routing and index in front of simulated engines, no sockets.

Exact and repeatable, and much faster than life, so that routing policies can be compared on a laptop and in tests.
What is left out is what happens on the wire; what is in is every decision.
"""

from __future__ import annotations

import heapq
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import Final

from backends.fleet_state import FleetState, Reservation, Worker
from backends.simulated.engine import EngineConfig, SimulatedEngine
from backends.simulated.sequence import TokenOut, request_from_ids
from backends.simulated.told_events import told
from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.prefix_index import PrefixIndex
from gateway.replay.arrival import Arrival
from gateway.replay.plan import plan, session_chains, timed_chains
from gateway.replay.records import RequestRecord
from gateway.replay.stats import percentile
from policies.prefill_queue import FleetRate, PrefillQueue
from policies.routing import Prompt, RoutingPolicy
from policies.types import TokenIds, WorkerId

_MODEL: Final = "virtual"
_PREDICTION_TTL: Final = 5.0


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
) -> VirtualResult:
    """Send each arrival at its time ÷ `speed` to the worker that `policy` chooses among `workers` engines; one with a
    pause follows the answer before it in its session. With `concurrency` so many users send instead, each its next
    request after the answer.

    Raises ValueError for a fleet that cannot be: no workers or users, a worker lost that is not there, or the last.
    """
    _check(workers, concurrency, changes)
    records = plan(arrivals, speed=speed, max_output=max_output)
    added = sum(isinstance(change, Added) for change in changes)
    fleet = _VirtualFleet(policy, workers, added, engine, random.Random(seed))  # noqa: S311 - it breaks ties
    _Loop(fleet, arrivals, records, speed, concurrency, sorted(changes, key=lambda change: change.at)).run()
    return VirtualResult(
        records=tuple(records),
        load=tuple(total - cached for total, cached in zip(fleet.sent, fleet.cached, strict=True)),
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
        fleet: _VirtualFleet,
        arrivals: Sequence[Arrival],
        records: Sequence[RequestRecord],
        speed: float,
        concurrency: int | None,
        changes: Sequence[Lost | Added],
    ) -> None:
        self._fleet = fleet
        self._arrivals = arrivals
        self._records = records
        self._speed = speed
        self._changes = list(changes)
        chains = timed_chains(arrivals) if concurrency is None else session_chains(arrivals)
        self._next = {before: after for chain in chains for before, after in zip(chain, chain[1:], strict=False)}
        heads = [chain[0] for chain in chains]
        begun = heads if concurrency is None else heads[:concurrency]
        self._waiting = [] if concurrency is None else heads[: concurrency - 1 : -1]
        self._due = [(records[index].scheduled if concurrency is None else 0.0, index) for index in begun]
        heapq.heapify(self._due)
        self._steps = bool(self._next or self._waiting)  # whether an answer can bring forth a request

    def run(self) -> None:
        while True:
            moments = [self._due[0][0]] if self._due else []
            if self._changes:
                moments.append(self._changes[0].at)
            if (self._steps or not moments) and (output_at := self._fleet.next_output_at()) is not None:
                moments.append(output_at)
            if not moments:
                return
            self._live_until(min(moments))

    def _live_until(self, now: float) -> None:
        for index in self._fleet.advance(now, self._records):
            self._answered(index, now)
        while self._changes and self._changes[0].at <= now:
            self._change(self._changes.pop(0), now)
        while self._due and self._due[0][0] <= now:
            due, index = heapq.heappop(self._due)
            self._records[index].scheduled = due
            self._records[index].sent = due
            self._fleet.send(self._arrivals[index], self._records[index], now)

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
        for index in self._fleet.lose(change.worker):
            record = self._records[index]
            if record.first_token is None:
                self._fleet.sent[change.worker] -= record.input_tokens
                self._fleet.send(self._arrivals[index], record, now)
                continue
            record.error, record.error_detail = "reset_mid_stream", "its worker was lost"
            record.finished = now
            self._answered(index, now)


class _VirtualFleet:
    def __init__(
        self, policy: RoutingPolicy, workers: int, added: int, config: EngineConfig, rng: random.Random
    ) -> None:
        rate = FleetRate()
        self._policy = policy
        self._rng = rng
        self._config = config
        self._block_size = config.block_size
        self._fleet = FleetState(
            [
                Worker(
                    WorkerId(str(i)),
                    "virtual",
                    1,
                    config.block_size,
                    configured_models=(_MODEL,),
                    prefill=PrefillQueue(rate),
                )
                for i in range(workers + added)
            ],
            cooldown=1.0,
            cooldown_max=1.0,
        )
        self._index = PrefixIndex(max_blocks=2 * (workers + added) * config.blocks)
        self._root = root_hash(ChainKey(_MODEL, config.block_size))
        self._engines: dict[int, SimulatedEngine] = {}
        self._reservations: dict[str, tuple[int, float, Reservation]] = {}
        self.sent: list[int] = []
        self.cached: list[int] = []
        for _ in range(workers):
            self.add()

    def add(self) -> None:
        number = len(self.sent)
        self._engines[number] = SimulatedEngine(self._config)
        self._index.add_worker(self._fleet.workers[number].id, model=_MODEL, block_size=self._block_size)
        self.sent.append(0)
        self.cached.append(0)

    def lose(self, number: int) -> list[int]:
        """The requests that it had."""
        del self._engines[number]
        self._index.remove_worker(WorkerId(str(number)))
        orphans = [name for name, (worker, _, _) in self._reservations.items() if worker == number]
        for name in orphans:
            _, sent_at, reservation = self._reservations.pop(name)
            self._fleet.release(reservation, sent_at)
        return [int(name) for name in orphans]

    def next_output_at(self) -> float | None:
        return min((at for engine in self._engines.values() if (at := engine.next_event_at()) is not None), default=None)

    def send(self, arrival: Arrival, record: RequestRecord, now: float) -> None:
        ids = prompt_ids(arrival)
        hashes = extend_chain(self._root, ids, self._block_size)
        most = arrival.input_tokens - 1
        cached = {worker: min(n * self._block_size, most) for worker, n in self._index.match(hashes).items()}
        numbers = list(self._engines)
        workers = [self._fleet.workers[number] for number in numbers]
        decision = self._policy.choose(
            Prompt(arrival.input_tokens, cached), [worker.view(now) for worker in workers], self._rng.random()
        )
        number, worker = numbers[decision.chosen], workers[decision.chosen]
        lacking = arrival.input_tokens - decision.cached_tokens
        reservation = self._fleet.reserve(worker, lacking, now, streams=True)
        ttl = _PREDICTION_TTL + worker.prefill.seconds(now)
        self._index.predict(worker.id, hashes, start=0, now=now, ttl=ttl)
        request = request_from_ids(
            str(record.index), ids, record.output_tokens, block_size=self._block_size, model=_MODEL
        )
        self._reservations[request.id] = (number, now, reservation)
        self._engines[number].submit(request, now)
        self.sent[number] += arrival.input_tokens
        record.worker = str(number)
        record.status = 200

    def advance(self, now: float, records: Sequence[RequestRecord]) -> list[int]:
        """Live until `now`, book what came out, and tell which requests ended."""
        ended = []
        for number, engine in self._engines.items():
            for output in engine.advance(now):
                index = int(output.id)
                _book(records[index], output)
                worker, _, reservation = self._reservations[output.id]
                if output.first:
                    self.cached[worker] += output.cached_tokens
                    self._fleet.first_byte(reservation, output.times[0])
                if output.finished:
                    self._fleet.release(reservation, output.times[-1])
                    del self._reservations[output.id]
                    ended.append(index)
            for batch in engine.take_kv_events():
                for change in batch.events:
                    if (event := told(change, block_size=self._block_size)) is not None:
                        self._index.apply(WorkerId(str(number)), event)
        self._index.expire(now)
        return ended


def _book(record: RequestRecord, output: TokenOut) -> None:
    for at in output.times:
        record.token(at)
    if output.first:
        record.prompt_tokens, record.cached_tokens = record.input_tokens, output.cached_tokens
    if output.finished:
        record.completion_tokens = record.token_events
        record.finished = output.times[-1]


def prompt_ids(arrival: Arrival) -> TokenIds:
    """Token ids of an arrival's prompt: the same block id gives the same tokens, another id other ones."""
    rest = _rest_of_block(arrival.block_tokens)
    blocks = [struct.pack("<Q", block & (2**64 - 1)) + rest for block in arrival.block_ids]
    return TokenIds(b"".join(blocks)[: 4 * arrival.input_tokens])


@lru_cache(maxsize=16)
def _rest_of_block(size: int) -> bytes:
    return struct.pack(f"<{size - 2}I", *range(size - 2))
