"""Meet the objective first, then pack: the `cost` policy, held to what requests were promised."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from policies.latency_model import Prediction
from policies.restore_route import RestoreSplit, best_split
from policies.routing_cost import DEFAULT_PREFILL_RATE, PredictedCost
from policies.routing_types import Needs, Objective, Prompt, RouteDecision, WorkerView, decided

SLO_CHOICES: Final = ("in time", "packed", "late")
"""Reasons of a decision about a request that was promised something."""
_LOOSE: Final = 2.0
"""Times the tightest promise from which on a request can make room for others."""
_PACKED_FROM: Final = 0.1
_PACKED_TO: Final = 0.5
"""Where a loose request is packed: what waits there takes from the one to the other times the tightest promise."""
_SPARE: Final = 0.5
"""Of the time that it has left, what the upper bound of its prediction may take where it is packed."""
_SAME_WORK: Final = 64
"""Tokens more to compute that anything but the cheapest may cost."""
_LOOKED_AT: Final = 4
"""Workers asked about at most, for either question: a prediction takes some microseconds."""
_REMEMBERED: Final = 128


class MeetThenPack:
    """Of the workers thought to keep a request's promise, the one where `cost` says that it costs least.

    Where the cheapest is thought to be late, the next ones are looked at, in the order of their costs: one that is all
    but sure to be in time is taken if no more has to be computed there. Otherwise the cheapest serves the request: sent
    where its first token comes soonest, what is lost anyway would be computed where nothing of it is cached, and
    the lateness would spread. (It did: a tenth fewer hits, and fewer promises kept than by `cost` alone.)

    Where promises differ, the loose ones are packed. A request promised over twice as much time as the tightest of
    late goes, at the same work, to a worker that has a queue already, but one short enough for the tightest promise;
    so the others stay free for whoever has no time. That is only where it is all but sure of its own time.

    A request that was promised nothing goes where `cost` says. Pure; what it remembers is the tightest promise.
    """

    needs = Needs.LATENCY
    uses_key = False

    def __init__(self, **cost: float) -> None:
        """`cost`: as of `PredictedCost`."""
        self._cost = PredictedCost(**cost)
        self._tightest = _Tightest()

    def choose(self, prompt: Prompt, workers: Sequence[WorkerView], sample: float) -> RouteDecision:
        """The choice, with the costs of all as `cost` sees them, and which of `SLO_CHOICES` it was."""
        cheapest = self._cost.choose(prompt, workers, sample)
        objective = prompt.objective
        if objective is None:
            return cheapest
        tightest = self._tightest.of(objective.promised_ttft_s)
        asked = _Asked(prompt, objective, workers)
        if objective.promised_ttft_s > _LOOSE * tightest:
            for place in self._packable(asked, cheapest, tightest):
                if asked.sure(place, _SPARE):
                    return asked.decision(place, cheapest, "packed")
        if asked.in_time(cheapest.chosen):
            return asked.decision(cheapest.chosen, cheapest, "in time")
        others = sorted(range(len(workers)), key=cheapest.costs.__getitem__)
        most = asked.split(cheapest.chosen).computed_tokens + _SAME_WORK
        for place in others[:_LOOKED_AT]:
            if place != cheapest.chosen and asked.split(place).computed_tokens <= most and asked.sure(place):
                return asked.decision(place, cheapest, "in time")
        return asked.decision(cheapest.chosen, cheapest, "late")

    @staticmethod
    def _packable(asked: _Asked, cheapest: RouteDecision, tightest: float) -> list[int]:
        """Where something waits, but not too much, and no more would have to be computed; the cheapest first."""
        most = asked.split(cheapest.chosen).computed_tokens + _SAME_WORK
        found = []
        for place, view in enumerate(asked.workers):
            rate = (view.prefill_rate or DEFAULT_PREFILL_RATE) * view.weight
            if view.queued_tokens <= _PACKED_FROM * tightest * rate:
                continue
            computed = asked.split(place).computed_tokens
            if computed <= most and view.queued_tokens + computed <= _PACKED_TO * tightest * rate:
                found.append(place)
        return sorted(found, key=cheapest.costs.__getitem__)[:_LOOKED_AT]


class _Asked:
    """One request, and what is predicted of it."""

    __slots__ = ("_objective", "_prompt", "workers")

    def __init__(self, prompt: Prompt, objective: Objective, workers: Sequence[WorkerView]) -> None:
        self._prompt = prompt
        self._objective = objective
        self.workers = workers

    def split(self, place: int) -> RestoreSplit:
        """What a worker would restore of the prompt, and what it would compute."""
        prompt, view = self._prompt, self.workers[place]
        held, runs = prompt.cached.get(view.id, 0), prompt.restorable.get(view.id, ())
        if not runs:
            return RestoreSplit(0, 0.0, prompt.tokens - held)
        rate = view.prefill_rate or DEFAULT_PREFILL_RATE
        return best_split(prompt.tokens, held, runs, rate=rate, wait_s=view.restoring_s)

    def in_time(self, place: int) -> bool:
        """Is its first token as likely as not to come in time? How long the others take hangs on prompts that are yet
        to come, wherever it goes.
        """
        return self._said(place).ttft_s <= self._objective.ttft_s

    def sure(self, place: int, share: float = 1.0) -> bool:
        """Would even the upper bounds be within that share of the time that is left, and fast enough per token?"""
        said, objective = self._said(place), self._objective
        return said.ttft_p90_s <= share * objective.ttft_s and said.tpot_p90_s <= objective.tpot_s

    def decision(self, place: int, cheapest: RouteDecision, reason: str) -> RouteDecision:
        """That worker."""
        held = self._prompt.cached.get(self.workers[place].id, 0)
        split = self.split(place) if self._prompt.restorable else None
        return decided((place, held, cheapest.costs, reason, split))

    def _said(self, place: int) -> Prediction:
        split = self.split(place)
        computed = split.computed_tokens
        return self._objective.predict(
            self.workers[place].id, computed, self._prompt.tokens - computed, split.restore_s
        )


class _Tightest:
    """The shortest time to a first token that was promised of late: over the last 128 to 256 requests."""

    __slots__ = ("_before", "_now", "_seen")

    def __init__(self) -> None:
        self._before = self._now = inf
        self._seen = 0

    def of(self, promised_s: float) -> float:
        """One more promise, and the shortest now."""
        if self._seen >= _REMEMBERED:
            self._before, self._now, self._seen = self._now, inf, 0
        self._seen += 1
        self._now = min(self._now, promised_s)
        return min(self._before, self._now)
