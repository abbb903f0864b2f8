"""A trace replayed in virtual time: the gateway's own routing and index in front of simulated engines, no sockets.

Exact and repeatable, and much faster than life, so that routing policies can be compared on a laptop and in tests.
What is left out is what happens on the wire; what is in is every decision.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from backends.fleet_state import FleetState
from backends.fleet_worker import Reservation, Worker
from backends.simulated.engine import EngineConfig, SimulatedEngine
from backends.simulated.sequence import request_from_ids
from backends.simulated.told_events import told
from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.prefix_index import PrefixIndex
from gateway.replay.arrival import Arrival
from gateway.replay.stats import percentile
from policies.prefill_queue import FleetRate, PrefillQueue
from policies.routing import Prompt, RoutingPolicy
from policies.types import TokenIds, WorkerId

_MODEL: Final = "virtual"
_PREDICTION_TTL: Final = 5.0


@dataclass(frozen=True, slots=True)
class VirtualResult:
    """What came of a replay; times in seconds of the trace, tokens summed over all requests."""

    ttft: tuple[float, ...]
    """By request, in the order of arrival."""
    input_tokens: int
    cached_tokens: int
    load: tuple[int, ...]
    """Prompt tokens each worker had to compute."""

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
) -> VirtualResult:
    """Send each arrival at its time ÷ `speed` to the worker that `policy` chooses among `workers` engines."""
    fleet = _VirtualFleet(policy, workers, engine, random.Random(seed))  # noqa: S311 - it breaks ties
    for number, arrival in enumerate(arrivals):
        fleet.arrive(number, arrival, arrival.at / speed)
    fleet.run_out()
    return VirtualResult(
        ttft=tuple(fleet.ttft[number] for number in range(len(arrivals))),
        input_tokens=sum(arrival.input_tokens for arrival in arrivals),
        cached_tokens=sum(fleet.cached),
        load=tuple(total - cached for total, cached in zip(fleet.sent, fleet.cached, strict=True)),
    )


class _VirtualFleet:
    def __init__(self, policy: RoutingPolicy, workers: int, config: EngineConfig, rng: random.Random) -> None:
        rate = FleetRate()
        self._policy = policy
        self._rng = rng
        self._block_size = config.block_size
        self._engines = [SimulatedEngine(config) for _ in range(workers)]
        self._fleet = FleetState(
            [
                Worker(
                    WorkerId(str(i)),
                    "virtual",
                    1,
                    block_size=config.block_size,
                    configured_models=(_MODEL,),
                    prefill=PrefillQueue(rate),
                )
                for i in range(workers)
            ],
            cooldown=1.0,
            cooldown_max=1.0,
        )
        self._index = PrefixIndex(max_blocks=2 * workers * config.blocks)
        for worker in self._fleet.workers:
            self._index.add_worker(worker.id, model=_MODEL, block_size=config.block_size)
        self._root = root_hash(ChainKey(_MODEL, config.block_size))
        self._reservations: dict[str, tuple[int, float, Reservation]] = {}
        self.ttft: dict[int, float] = {}
        self.sent = [0] * workers
        self.cached = [0] * workers

    def arrive(self, number: int, arrival: Arrival, now: float) -> None:
        self._advance(now)
        ids = prompt_ids(arrival)
        hashes = extend_chain(self._root, ids, self._block_size)
        most = arrival.input_tokens - 1
        cached = {worker: min(n * self._block_size, most) for worker, n in self._index.match(hashes).items()}
        workers = self._fleet.workers
        decision = self._policy.choose(
            Prompt(arrival.input_tokens, cached), [worker.view(now) for worker in workers], self._rng.random()
        )
        worker = workers[decision.chosen]
        lacking = arrival.input_tokens - decision.cached_tokens
        reservation = self._fleet.reserve(worker, lacking, now, streams=True)
        ttl = _PREDICTION_TTL + worker.prefill.seconds(now)
        self._index.predict(worker.id, hashes, start=0, now=now, ttl=ttl)
        request = request_from_ids(
            str(number), ids, max(arrival.output_tokens, 1), block_size=self._block_size, model=_MODEL
        )
        self._reservations[request.id] = (decision.chosen, now, reservation)
        self._engines[decision.chosen].submit(request, now)
        self.sent[decision.chosen] += arrival.input_tokens

    def run_out(self) -> None:
        while (due := [at for engine in self._engines if (at := engine.next_event_at()) is not None]) != []:
            self._advance(min(due))

    def _advance(self, now: float) -> None:
        for i, engine in enumerate(self._engines):
            for output in engine.advance(now):
                worker, sent_at, reservation = self._reservations[output.id]
                if output.first:
                    self.ttft[int(output.id)] = output.times[0] - sent_at
                    self.cached[worker] += output.cached_tokens
                    self._fleet.first_byte(reservation, output.times[0])
                if output.finished:
                    self._fleet.release(reservation, output.times[-1])
                    del self._reservations[output.id]
            for batch in engine.take_kv_events():
                for change in batch.events:
                    if (event := told(change, block_size=self._block_size)) is not None:
                        self._index.apply(WorkerId(str(i)), event)
        self._index.expire(now)


def prompt_ids(arrival: Arrival) -> TokenIds:
    """Token ids of an arrival's prompt: the same block id gives the same tokens, another id other ones."""
    size = arrival.block_tokens
    blocks = [
        struct.pack("<II", block, 0) + struct.pack(f"<{size - 2}I", *range(size - 2)) for block in arrival.block_ids
    ]
    return TokenIds(b"".join(blocks)[: 4 * arrival.input_tokens])
