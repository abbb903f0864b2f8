"""Which worker gets a request: every policy sees frozen snapshots and returns its choice with the numbers behind it.

A policy neither reads a clock nor rolls dice: `now` is in the snapshots, and `sample` is a number in [0, 1) that the
caller drew. Costs are seconds until the first token, where a policy has costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

from policies.types import WorkerId

DEFAULT_PREFILL_RATE: Final = 8_000.0
"""Tokens/s of a worker nobody has seen at work; where all are unknown it cancels out."""


class WorkerView(NamedTuple):
    """One worker as a policy sees it at the moment of the decision."""

    id: WorkerId
    active: int
    """Requests sent and not finished."""
    queued_tokens: float
    """Uncached prompt tokens that it has accepted and must prefill before anything new."""
    prefill_rate: float | None
    """Tokens/s, learnt; None before the first answer."""
    recent_tokens: float = 0.0
    """Uncached prompt tokens it was given of late, queued or done."""


class Prompt(NamedTuple):
    """What routing needs to know of a request."""

    tokens: int
    cached: Mapping[WorkerId, int]
    """Leading prompt tokens that a worker holds; a worker that is not named holds none."""


class RouteDecision(NamedTuple):
    """The worker chosen, by its place among the candidates, and each candidate's cost in seconds (if it has one)."""

    chosen: int
    cached_tokens: int
    costs: Sequence[float] = ()


class Needs(Enum):
    """What a policy looks at, so that nobody works out what it does not."""

    NOTHING = auto()
    """Which workers there are."""
    LOAD = auto()
    """How many requests each has."""
    PREFIXES = auto()
    """Tokens: what each has queued, and what it holds of the prompt."""


class RoutingPolicy(Protocol):
    """One decision. `workers` is never empty."""

    needs: Needs

    def choose(self, prompt: Prompt, workers: Sequence[WorkerView], sample: float) -> RouteDecision:
        """Pick one of `workers` for `prompt`; `sample` in [0, 1) breaks ties."""


class RoundRobin:
    """Each worker in turn."""

    needs = Needs.NOTHING

    def __init__(self) -> None:
        self._turn = -1

    def choose(self, prompt: Prompt, workers: Sequence[WorkerView], sample: float) -> RouteDecision:  # noqa: ARG002 - one signature for all
        """The next one in turn."""
        self._turn += 1
        index = self._turn % len(workers)
        return RouteDecision(index, prompt.cached.get(workers[index].id, 0))


class LeastLoaded:
    """The worker with the fewest unfinished requests."""

    needs = Needs.LOAD

    def choose(self, prompt: Prompt, workers: Sequence[WorkerView], sample: float) -> RouteDecision:
        """The one with the fewest, at random among equals."""
        index = lowest([worker.active for worker in workers], sample)
        return RouteDecision(index, prompt.cached.get(workers[index].id, 0))


class PredictedCost:
    """The worker with the lowest predicted time to first token, plus what serving it there costs everybody else.

    What waits ahead and what this worker lacks of the prompt are both uncached tokens, so they add up; a match
    only ever saves the tokens it covers. Three terms more, in the same unit:

    - recomputing delays whoever comes next on that worker, the more so the fuller the fleet is: what is lacked is
      weighed between `idle_weight` and `full_weight`;
    - each unfinished request costs `decode_tokens`, so that decoding spreads too;
    - `spread` of what the worker was given of late is added: where nothing else tells workers apart, or all share
      one prefix, work still evens out over a minute.
    """

    needs = Needs.PREFIXES

    def __init__(
        self,
        *,
        idle_weight: float = 1.0,
        full_weight: float = 5.0,
        decode_tokens: float = 64.0,
        spread: float = 0.02,
    ) -> None:
        self._idle_weight = idle_weight
        self._extra_weight = full_weight - idle_weight
        self._decode_tokens = decode_tokens
        self._spread = spread

    def choose(self, prompt: Prompt, workers: Sequence[WorkerView], sample: float) -> RouteDecision:
        """The cheapest one, at random among equals, with the costs of all."""
        tokens, cached = prompt
        known = [worker.prefill_rate for worker in workers if worker.prefill_rate]
        usual = sum(known) / len(known) if known else DEFAULT_PREFILL_RATE
        weight = self._idle_weight + self._extra_weight * fullness(tokens, workers)
        decode, spread, held = self._decode_tokens, self._spread, cached.get
        costs = [
            (queued + decode * active + spread * recent + weight * (tokens - held(worker, 0))) / (rate or usual)
            for worker, active, queued, rate, recent in workers
        ]
        index = lowest(costs, sample)
        return RouteDecision(index, cached.get(workers[index].id, 0), costs)


def fullness(tokens: int, workers: Sequence[WorkerView]) -> float:
    """How full the fleet is for a prompt of so many tokens, from 0 (nobody has work) to 1 (long queues everywhere)."""
    queued = sum([worker.queued_tokens for worker in workers]) / len(workers)
    return queued / (queued + tokens) if queued > 0 else 0.0


def lowest(costs: Sequence[float], sample: float) -> int:
    """Index of the lowest cost; `sample` in [0, 1) picks among equals."""
    least = min(costs)
    ties = costs.count(least)
    if ties == 1:
        return costs.index(least)
    return [i for i, cost in enumerate(costs) if cost == least][int(sample * ties)]


POLICIES: Final[Mapping[str, Callable[..., RoutingPolicy]]] = {
    "cost": PredictedCost,
    "least_loaded": LeastLoaded,
    "round_robin": RoundRobin,
}


def make_policy(name: str, **options: float) -> RoutingPolicy:
    """The policy of that name. Raises ValueError with the names there are."""
    try:
        factory = POLICIES[name]
    except KeyError:
        raise ValueError(f"no routing policy {name!r}; there are {', '.join(sorted(POLICIES))}") from None
    return factory(**options)
