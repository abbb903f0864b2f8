"""Simulated engines behind the gateway's own index, fleet state and routing policy, in virtual time."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from math import inf
from typing import Final, NamedTuple, Protocol

import xxhash

from backends.fleet_outlook import objective_of
from backends.fleet_state import FleetState
from backends.fleet_worker import Reservation, Worker
from backends.simulated.engine import EngineConfig, SimulatedEngine
from backends.simulated.kv_chain import EngineHash
from backends.simulated.kv_tiers import BlockTier, TierConfig
from backends.simulated.sequence import SimRequest, TokenOut
from backends.simulated.told_events import told
from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.prefix_index import PrefixIndex
from gateway.replay.arrival import Arrival
from gateway.replay.records import RequestRecord
from gateway.replay.slo import Slos
from policies.prefill_queue import FleetRate, PrefillQueue
from policies.restore_route import PricedRun
from policies.routing import Needs, Objective, Prompt, RoutingPolicy
from policies.types import BlockHash, Tier, TokenIds, WorkerId

_MODEL: Final = "virtual"
_PREDICTION_TTL: Final = 5.0
_SCRAPE_SECONDS: Final = 2.0


class Known(NamedTuple):
    """A prompt as the gateway reads it."""

    ids: TokenIds
    hashes: Sequence[BlockHash]


class Watcher(Protocol):
    """Who is told what the gateway sees of requests, by their index."""

    def first_token(self, index: int, at: float, cached: int) -> None:
        """Its first token came; so much of its prompt was cached."""

    def ended(self, index: int, at: float) -> None:
        """Its last token came."""


Submitted = Callable[[int, SimulatedEngine, float], None]
"""Told of a request, by its index, the engine that has just been given it, and when; it leaves the engine as it is."""


class Engines:
    """The fleet: engines, and what the gateway knows of them. Each method lives at the `now` it is given."""

    def __init__(
        self,
        policy: RoutingPolicy,
        workers: int,
        added: int,
        config: EngineConfig,
        rng: random.Random,
        *,
        store: TierConfig | None = None,
        knows_tiers: bool = True,
    ) -> None:
        """`store` is shared by all engines. Without `knows_tiers` only what is on devices is asked for, as long as a
        gateway does that knows no other tier.
        """
        rate = FleetRate()
        self._policy = policy
        self._asks = policy.needs is Needs.LATENCY
        self._rng = rng
        self._config = config
        self._block_size = config.block_size
        self.fleet = FleetState(
            [
                Worker(
                    WorkerId(str(i)),
                    "virtual",
                    1,
                    block_size=config.block_size,
                    configured_models=(_MODEL,),
                    kv_blocks=config.blocks,
                    prefill=PrefillQueue(rate),
                )
                for i in range(workers + added)
            ],
            cooldown=1.0,
            cooldown_max=1.0,
        )
        self.fleet.predicts = self._asks
        self._store = None if store is None else BlockTier(Tier.REDIS, store, "store")
        self._knows_tiers = knows_tiers
        self._next_scrape = 0.0
        slower = [tier.blocks for tier in (config.host, store) if tier is not None]
        self._index = PrefixIndex(max_blocks=2 * (workers + added) * (config.blocks + sum(slower)))
        self._root = root_hash(ChainKey(_MODEL, config.block_size))
        self._engines: dict[int, SimulatedEngine] = {}
        self.workers: dict[int, Worker] = {}
        """Those that are there, by number, as the gateway knows them."""
        self._due: list[tuple[float, int]] = []  # a heap: which engine has something to tell when, at the earliest
        self.watcher: Watcher | None = None
        self.submitted: Submitted | None = None
        self._reservations: dict[str, tuple[int, Reservation]] = {}
        self.sent: list[int] = []
        self.cached: list[int] = []
        self.choices: Counter[str] = Counter()
        """Why, of every decision."""
        for _ in range(workers):
            self.add()

    def add(self) -> None:
        """One more worker, empty."""
        number = len(self.sent)
        engine = self._engines[number] = SimulatedEngine(self._config, self._store)
        worker = self.workers[number] = self.fleet.workers[number]
        worker.learn_tiers(engine.tiers.prices)
        self._index.add_worker(worker.id, model=_MODEL, block_size=self._block_size)
        self._index.set_stores(worker.id, worker.stores)
        self.sent.append(0)
        self.cached.append(0)

    def lose(self, number: int, now: float) -> list[int]:
        """Take a worker away; returns the requests that it had."""
        self._engines.pop(number).tiers.close()
        del self.workers[number]
        self._index.remove_worker(WorkerId(str(number)))
        orphans = [name for name, (worker, _) in self._reservations.items() if worker == number]
        for name in orphans:
            _, reservation = self._reservations.pop(name)
            self.fleet.release(reservation, now)
        return [int(name) for name in orphans]

    def next_output_at(self) -> float | None:
        """When the next engine has something to tell, if any has work."""
        due = self._due
        while due:
            at, number = due[0]
            engine = self._engines.get(number)
            really = None if engine is None else engine.next_event_at()
            if really == at:
                return at
            heappop(due)
            if really is not None:
                heappush(due, (really, number))
        return None

    def read(self, arrival: Arrival) -> Known:
        """Its prompt."""
        ids = prompt_ids(arrival)
        return Known(ids, extend_chain(self._root, ids, self._block_size))

    def held(self, known: Known, n_tokens: int) -> tuple[dict[WorkerId, int], Mapping[WorkerId, Sequence[PricedRun]]]:
        """What each worker has of a prompt on its device, and what it could restore, as the gateway asks for it."""
        if not (self._knows_tiers and self._index.is_tiered):
            size = self._block_size
            return {worker: min(n * size, n_tokens - 1) for worker, n in self._index.match(known.hashes).items()}, {}
        cached: dict[WorkerId, int] = {}
        restorable: dict[WorkerId, Sequence[PricedRun]] = {}
        for worker, runs in self._index.match_runs(known.hashes).items():
            cached[worker], restorable[worker] = self.fleet.worker(worker).priced(runs, n_tokens)
        return cached, restorable

    def send(
        self,
        arrival: Arrival,
        record: RequestRecord,
        now: float,
        *,
        known: Known | None = None,
        among: Container[Worker] | None = None,
        slos: Slos | None = None,
    ) -> int:
        """Choose a worker, one of those `among` (not none), and submit the request to it, in one step. Returns how many
        tokens it was thought to lack there.
        """
        ids, hashes = known = known or self.read(arrival)
        self.scrape(now)
        cached, restorable = self.held(known, arrival.input_tokens)
        numbers = [number for number in self._engines if among is None or self.workers[number] in among]
        workers = [self.workers[number] for number in numbers]
        objective = None if slos is None or not self._asks else self._objective(slos, record, now)
        decision = self._policy.choose(
            Prompt(arrival.input_tokens, cached, _key(arrival), restorable, objective),
            [worker.view(now) for worker in workers],
            self._rng.random(),
        )
        number, worker = numbers[decision.chosen], workers[decision.chosen]
        lacking, restore_s = arrival.input_tokens - decision.cached_tokens, 0.0
        if decision.split is not None:
            lacking, restore_s = decision.split.computed_tokens, decision.split.restore_s
        there = arrival.input_tokens - lacking
        reservation = self.fleet.reserve(worker, lacking, now, streams=True, cached=there, restore_s=restore_s)
        self.choices[decision.reason] += 1
        ttl = _PREDICTION_TTL + worker.prefill.seconds(now)
        self._index.predict(worker.id, hashes, start=0, now=now, ttl=ttl)
        # The gateway's hashes do for the engine's, which nobody has to tell apart here: half the hashing.
        request = SimRequest(
            str(record.index),
            [EngineHash(each) for each in hashes],
            arrival.input_tokens,
            record.output_tokens,
            token_ids=ids,
            root=EngineHash(self._root),
        )
        self._reservations[request.id] = (number, reservation)
        self._submit(number, request, now)
        self.sent[number] += arrival.input_tokens
        record.worker = str(number)
        record.status = 200
        record.dispatched, record.predicted = now, reservation.predicted
        return lacking

    def _objective(self, slos: Slos, record: RequestRecord, now: float) -> Objective | None:
        due = inf if slos.ttft is None else record.scheduled + slos.ttft
        return objective_of(self.fleet, now, record.scheduled, due, slos.tpot)

    def _submit(self, number: int, request: SimRequest, now: float) -> None:
        engine = self._engines[number]
        engine.submit(request, now)
        if (at := engine.next_event_at()) is not None:
            heappush(self._due, (at, number))
        if self.submitted is not None:
            self.submitted(int(request.id), engine, now)

    def scrape(self, now: float) -> None:
        """Ask the engines for their metrics now and then, as a gateway does that knows their tiers."""
        if self._knows_tiers and now >= self._next_scrape:
            self._next_scrape = now + _SCRAPE_SECONDS
            for number, engine in self._engines.items():
                stats = engine.stats()
                self.fleet.learn_kv_used(self.fleet.workers[number], stats.kv_usage, stats.running, now)

    def advance(self, now: float, records: Sequence[RequestRecord]) -> list[int]:
        """Live until `now`, book what came out, and tell which requests ended."""
        ended: list[int] = []
        for number in self._with_news(now):
            if (engine := self._engines.get(number)) is not None:
                self._live(number, engine, now, records, ended)
        self._index.expire(now)
        return ended

    def _with_news(self, now: float) -> Sequence[int]:
        """Which engines to ask; all where one can push out of a shared store what another has there."""
        if self._store is not None:
            return list(self._engines)
        numbers = set()
        while self._due and self._due[0][0] <= now:
            numbers.add(heappop(self._due)[1])
        return sorted(numbers)

    def _live(
        self, number: int, engine: SimulatedEngine, now: float, records: Sequence[RequestRecord], ended: list[int]
    ) -> None:
        for output in engine.advance(now):
            index = int(output.id)
            _book(records[index], output)
            worker, reservation = self._reservations[output.id]
            if output.first:
                self.cached[worker] += output.cached_tokens
                self.fleet.first_byte(reservation, output.times[0])
                if self.watcher is not None:
                    self.watcher.first_token(index, output.times[0], output.cached_tokens)
            if output.finished:
                self.fleet.release(reservation, output.times[-1], output_tokens=records[index].token_events)
                del self._reservations[output.id]
                ended.append(index)
                if self.watcher is not None:
                    self.watcher.ended(index, output.times[-1])
        for batch in engine.take_kv_events():
            for change in batch.events:
                if (event := told(change, block_size=self._block_size)) is not None:
                    self._index.apply(WorkerId(str(number)), event)
        if (at := engine.next_event_at()) is not None:
            heappush(self._due, (at, number))


def _book(record: RequestRecord, output: TokenOut) -> None:
    record.tokens(output.times)
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


def _key(arrival: Arrival) -> int:
    """What keeps it together with others: its session, or how its prompt begins."""
    seed = arrival.session if arrival.session is not None else str(arrival.block_ids[:1])
    return xxhash.xxh3_64_intdigest(seed.encode())
