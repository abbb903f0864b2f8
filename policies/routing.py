"""Which worker gets a request: the routing policies by name, and the words they are spoken to with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from policies.routing_affinity import ConsistentHash, PrefixAffinity
from policies.routing_cost import CHOICES, DEFAULT_PREFILL_RATE, PredictedCost, fullness
from policies.routing_load import LeastLoaded, PowerOfTwo, RandomChoice, RoundRobin
from policies.routing_slo import SLO_CHOICES, MeetThenPack
from policies.routing_types import (
    NOTHING_RESTORABLE,
    Needs,
    Objective,
    Prompt,
    RouteDecision,
    RoutingPolicy,
    WorkerView,
    lowest,
    slow_start_share,
)

__all__ = [
    "CHOICES",
    "DEFAULT_PREFILL_RATE",
    "NOTHING_RESTORABLE",
    "POLICIES",
    "SLO_CHOICES",
    "ConsistentHash",
    "LeastLoaded",
    "MeetThenPack",
    "Needs",
    "Objective",
    "PowerOfTwo",
    "PredictedCost",
    "PrefixAffinity",
    "Prompt",
    "RandomChoice",
    "RoundRobin",
    "RouteDecision",
    "RoutingPolicy",
    "WorkerView",
    "fullness",
    "lowest",
    "make_policy",
    "slow_start_share",
]

POLICIES: Final[Mapping[str, Callable[..., RoutingPolicy]]] = {
    "consistent_hash": ConsistentHash,
    "cost": PredictedCost,
    "least_loaded": LeastLoaded,
    "power_of_two": PowerOfTwo,
    "prefix_affinity": PrefixAffinity,
    "random": RandomChoice,
    "round_robin": RoundRobin,
    "slo": MeetThenPack,
}


def make_policy(name: str, **options: float) -> RoutingPolicy:
    """The policy of that name. Raises ValueError with the names there are."""
    try:
        factory = POLICIES[name]
    except KeyError:
        raise ValueError(f"no routing policy {name!r}; there are {', '.join(sorted(POLICIES))}") from None
    return factory(**options)
