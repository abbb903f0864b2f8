"""Policies that look at no prompt: in turn, at random, or by the number of unfinished requests."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from policies.routing_types import Needs, Prompt, RouteDecision, WorkerView, decided, draw, loads, lowest
from policies.types import WorkerId

_MOST_REMEMBERED: Final = 4096
"""Workers whose turns are remembered. To forget them only starts the rotation anew."""


class RoundRobin:
    """Each worker in turn; where weights differ, in proportion to them and well mixed (nginx's smooth weighted one).

    Candidates come and go, and models with workers of their own share one policy: so turns belong to workers, not to
    places. Among equal weights the one whose turn is longest ago is next, which for an unchanging fleet is plain
    rotation and is done as such.
    """

    needs = Needs.NOTHING
    uses_key = False

    def __init__(self) -> None:
        self._rotation: list[WorkerView] = []  # the candidates of last time, where all weights were equal
        self._first = 0  # the turn at which this rotation was taken up
        self._turn = 0
        self._last_turn: dict[WorkerId, int] = {}  # as of the rotations before
        self._turns = 0
        self._credit: dict[WorkerId, float] = {}

    def choose(self, prompt: Prompt, workers: Sequence[WorkerView], sample: float) -> RouteDecision:  # noqa: ARG002 - one signature for all
        """The next one in turn."""
        if workers == self._rotation:
            self._turn = turn = self._turn + 1
            index = turn % len(workers)
        else:
            index = self._change(workers)
        cached = prompt.cached
        return decided((index, cached.get(workers[index].id, 0) if cached else 0, (), "turn", None))

    def _change(self, workers: Sequence[WorkerView]) -> int:
        self._book_rotation()
        weights = {worker.weight for worker in workers}
        if len(weights) > 1:
            self._rotation = []
            return self._by_weight(workers)
        last = self._last_turn
        turns = [last.get(worker.id, 0) for worker in workers]
        index = turns.index(min(turns))
        self._rotation = list(workers)
        self._first = self._turn = index
        return index

    def _book_rotation(self) -> None:
        """Note who had a turn in the rotation that ends, in that order."""
        rotation, last = self._rotation, self._last_turn
        if len(last) + len(rotation) > _MOST_REMEMBERED:
            last.clear()
        for turn in range(max(self._first, self._turn + 1 - len(rotation)), self._turn + 1 if rotation else 0):
            self._turns += 1
            last[rotation[turn % len(rotation)].id] = self._turns

    def _by_weight(self, workers: Sequence[WorkerView]) -> int:
        """Each earns its weight in every round; the richest is chosen and pays what all have earned."""
        credit = self._credit
        if len(credit) + len(workers) > _MOST_REMEMBERED:
            credit.clear()
        total, chosen, most = 0.0, 0, -inf
        for index, worker in enumerate(workers):
            total += worker.weight
            credit[worker.id] = has = credit.get(worker.id, 0.0) + worker.weight
            if has > most:
                chosen, most = index, has
        credit[workers[chosen].id] -= total
        return chosen


class RandomChoice:
    """Any worker, as often as its weight says."""

    needs = Needs.NOTHING
    uses_key = False

    def choose(self, prompt: Prompt, workers: Sequence[WorkerView], sample: float) -> RouteDecision:
        """The one that `sample` falls upon."""
        return at_random(prompt, workers, sample, "random")


class LeastLoaded:
    """The worker with the fewest unfinished requests for its weight."""

    needs = Needs.LOAD
    uses_key = False

    def choose(self, prompt: Prompt, workers: Sequence[WorkerView], sample: float) -> RouteDecision:
        """The one with the fewest, at random among equals."""
        costs = loads(workers)
        index = lowest(costs, sample)
        cached = prompt.cached
        return decided((index, cached.get(workers[index].id, 0) if cached else 0, costs, "least loaded", None))


class PowerOfTwo:
    """Of two workers drawn by weight, the one with fewer unfinished requests for its weight.

    Almost as even as looking at all of them, and many gateways that do so at once do not all run to the same worker
    (Mitzenmacher, "The power of two choices in randomized load balancing", 2001).
    """

    needs = Needs.LOAD
    uses_key = False

    def choose(self, prompt: Prompt, workers: Sequence[WorkerView], sample: float) -> RouteDecision:
        """The less loaded of the two; the first drawn where they are equal."""
        costs = [inf] * len(workers)
        first, second = two_of(workers, sample)
        for index in (first, second):
            costs[index] = (workers[index].active + 1) / workers[index].weight
        index = second if costs[second] < costs[first] else first
        return decided((index, prompt.cached.get(workers[index].id, 0), costs, "less loaded of two", None))


def two_of(workers: Sequence[WorkerView], sample: float) -> tuple[int, int]:
    """Two different workers drawn by weight from one sample; twice the same where there is only one."""
    weights = [worker.weight for worker in workers]
    first, left = draw(weights, sample)
    if len(workers) == 1:
        return first, first
    del weights[first]
    second, _ = draw(weights, left)
    return first, second + (second >= first)


def at_random(prompt: Prompt, workers: Sequence[WorkerView], sample: float, reason: str) -> RouteDecision:
    """Any of them by weight, for a policy that has nothing better to go by."""
    index, _ = draw([worker.weight for worker in workers], sample)
    return decided((index, prompt.cached.get(workers[index].id, 0), (), reason, None))
