"""What every routing policy sees and says: frozen snapshots of the workers in, a choice with its reasons out.

A policy neither reads a clock nor rolls dice: `now` is in the snapshots, and `sample` is a number in [0, 1) that the
caller drew.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from itertools import accumulate
from math import inf
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from policies.latency_model import Prediction
from policies.restore_route import PricedRun, RestoreSplit
from policies.types import WorkerId

_BELOW_ONE: Final = 1.0 - 2.0**-53


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
    weight: float = 1.0
    """How much of the work it shall take, as configured × its share while it starts slowly; above 0."""
    restoring_s: float = 0.0
    """Seconds that what it restores from slower tiers already will take."""
    room_tokens: float = inf
    """What fits in its device cache beside the requests that run, as it said last; infinite where it does not say."""


NOTHING_RESTORABLE: Final[Mapping[WorkerId, Sequence[PricedRun]]] = MappingProxyType({})


class Objective(NamedTuple):
    """What a request was promised, and who can tell whether a worker would keep it."""

    ttft_s: float
    """Seconds that are left until its first token is due; at or below 0 where it is late already, infinite where
    nothing is promised of it."""
    promised_ttft_s: float
    """The same as it was when the request came."""
    tpot_s: float
    """Seconds for each output token after that; infinite where nothing is promised."""
    predict: Callable[[WorkerId, float, float, float], Prediction]
    """Of a worker, given the prompt's tokens that it computes, those that it has or restores, and the seconds that it
    restores: some microseconds a call. Valid for this one decision."""


class Prompt(NamedTuple):
    """What routing needs to know of a request."""

    tokens: int
    cached: Mapping[WorkerId, int]
    """Leading prompt tokens that a worker holds; a worker that is not named holds none."""
    key: int | None = None
    """Stable 64-bit hash of what keeps requests together (a session, a prefix); None where nothing is known."""
    restorable: Mapping[WorkerId, Sequence[PricedRun]] = NOTHING_RESTORABLE
    """What lies behind that on a worker's slower tiers, in order; a worker that is not named can restore nothing."""
    objective: Objective | None = None
    """None where nothing is promised, or the policy does not need it."""


class RouteDecision(NamedTuple):
    """The worker chosen, by its place among the candidates, and what speaks for it."""

    chosen: int
    cached_tokens: int
    costs: Sequence[float] = ()
    """One for each candidate, or empty: seconds ÷ weight for `cost`, otherwise (requests + 1) ÷ weight; infinite for
    a candidate that was not looked at."""
    reason: str = ""
    """A short constant: which rule of the policy decided."""
    split: RestoreSplit | None = None
    """What the worker is predicted to restore and to compute; None where a policy does not ask."""


decided: Final[Callable[[tuple[int, int, Sequence[float], str, RestoreSplit | None]], RouteDecision]] = partial(
    tuple.__new__, RouteDecision
)
"""A decision of all five fields, made without a call in Python: a seventh of the time that choosing takes."""


class Needs(Enum):
    """What a policy looks at, so that nobody works out what it does not."""

    NOTHING = auto()
    """Which workers there are, and their weights."""
    LOAD = auto()
    """How many requests each has."""
    PREFIXES = auto()
    """Tokens: what each has queued, and what it holds of the prompt."""
    LATENCY = auto()
    """All that, and how long the request would take, of those workers that it asks about."""


class RoutingPolicy(Protocol):
    """One decision. `workers` is never empty."""

    needs: Needs
    uses_key: bool
    """Whether it looks at `Prompt.key`."""

    def choose(self, prompt: Prompt, workers: Sequence[WorkerView], sample: float) -> RouteDecision:
        """Pick one of `workers` for `prompt`; `sample` in [0, 1) breaks ties."""


def loads(workers: Sequence[WorkerView]) -> list[float]:
    """Requests that each would have with one more, for its weight: weighted least requests, as Envoy counts them."""
    # By place and without a division where it would change nothing: this is half the time of `least_loaded`.
    return [worker[1] + 1 if worker[5] == 1.0 else (worker[1] + 1) / worker[5] for worker in workers]


def lowest(costs: Sequence[float], sample: float) -> int:
    """Index of the lowest cost; `sample` in [0, 1) picks among equals."""
    order = sorted(costs)  # faster than min and count for the few there are
    least = order[0]
    index = costs.index(least)
    if len(order) > 1 and order[1] == least:
        for _ in range(int(sample * costs.count(least))):
            index = costs.index(least, index + 1)
    return index


def draw(weights: Sequence[float], sample: float) -> tuple[int, float]:
    """An index drawn in proportion to `weights`, and what is left of `sample`, even in [0, 1) again, for another."""
    ends = list(accumulate(weights))
    point = sample * ends[-1]
    index = min(bisect_right(ends, point), len(ends) - 1)
    start = ends[index - 1] if index else 0.0
    left = (point - start) / (ends[index] - start) if ends[index] > start else 0.0
    return index, min(max(left, 0.0), _BELOW_ONE)


def slow_start_share(age_s: float, window_s: float, floor: float = 0.1) -> float:
    """Share of its weight that a worker gets `age_s` seconds after it came (or came back).

    It grows in step with its age, from `floor` to 1 at `window_s`: Envoy's slow start with an aggression of 1.
    A window of 0 means that there is no slow start.
    """
    if window_s <= 0 or age_s >= window_s:
        return 1.0
    return max(floor, age_s / window_s)
