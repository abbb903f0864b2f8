"""Policies that keep together what belongs together: by a key's hash, or by a threshold on the prefix match."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log
from typing import Final

import xxhash

from policies.routing_load import at_random
from policies.routing_types import Needs, Prompt, RouteDecision, WorkerView, decided, loads, lowest

_FRACTION: Final = 2.0**-53


class ConsistentHash:
    """Weighted rendezvous hashing on the request's key, with bounded loads.

    Every key has an order of its own over all workers and goes to the first one that has room. When a worker goes, only
    its keys move; when a weight changes, keys move only to or from that worker. Sources: Thaler and Ravishankar, "Using
    name-based mappings to increase hit rates", 1998 (rendezvous); Schindelhauer and Schomaker, "Weighted distributed
    hash tables", 2005 (the logarithmic method); Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded
    loads", 2018.
    """

    needs = Needs.LOAD
    uses_key = True

    def __init__(self, *, bound: float = 1.25) -> None:
        """No worker gets more than `bound` × its share of the unfinished requests. Raises ValueError below 1."""
        if not bound >= 1.0:
            raise ValueError(f"bound must be at least 1, not {bound!r}: else nobody may have room")
        self._bound = bound

    def choose(self, prompt: Prompt, workers: Sequence[WorkerView], sample: float) -> RouteDecision:
        """The first in the key's order that has room; any by weight for a request without a key."""
        if prompt.key is None:
            return at_random(prompt, workers, sample, "no key")
        distances = [distance(prompt.key, worker) for worker in workers]
        per_weight = self._bound * (sum([worker.active for worker in workers]) + 1)
        per_weight /= sum([worker.weight for worker in workers])
        order = sorted(range(len(workers)), key=distances.__getitem__)
        costs = loads(workers)
        for index in order:
            worker = workers[index]
            if worker.active < ceil(per_weight * worker.weight):
                reason = "hash" if index == order[0] else "over bound"
                break
        else:  # rounding took the last bit of room
            index, reason = lowest(costs, sample), "over bound"
        return decided((index, prompt.cached.get(workers[index].id, 0), costs, reason, None))


def distance(key: int, worker: WorkerView) -> float:
    """How far a worker is from a key, from 0: the time at which it would come first in a race, if its speed is its
    weight. Depends on nothing but the two, in every process.
    """
    point = xxhash.xxh3_64_intdigest(worker.id.encode(), seed=key)
    return -log(((point >> 11) + 0.5) * _FRACTION) / worker.weight


class PrefixAffinity:
    """The threshold rule of SGLang's router (`cache_aware`): follow the prefix while the load is even.

    Where the most loaded worker has over `imbalance` requests more than the least loaded one, and over `ratio` times
    as many, the least loaded one is taken. Otherwise the one that holds most of the prompt, if it holds over
    `threshold` of it; else the least loaded. Requests count for the worker's weight. Source: sgl-router's README.
    """

    needs = Needs.PREFIXES
    uses_key = False

    def __init__(self, *, threshold: float = 0.5, imbalance: float = 32.0, ratio: float = 1.1) -> None:
        self._threshold = threshold
        self._imbalance = imbalance
        self._ratio = ratio

    def choose(self, prompt: Prompt, workers: Sequence[WorkerView], sample: float) -> RouteDecision:
        """The match or the least loaded, and in `reason` which of the two and why."""
        costs = loads(workers)
        busy = [worker.active / worker.weight for worker in workers]
        most, least = max(busy), min(busy)
        held = [prompt.cached.get(worker.id, 0) for worker in workers]
        best = max(held)
        if most - least > self._imbalance and most > self._ratio * least:
            index, reason = lowest(costs, sample), "imbalanced"
        elif best > self._threshold * prompt.tokens:
            holders = [i for i, tokens in enumerate(held) if tokens == best]
            index, reason = holders[lowest([costs[i] for i in holders], sample)], "match"
        else:
            index, reason = lowest(costs, sample), "no match"
        return decided((index, held[index], costs, reason, None))
