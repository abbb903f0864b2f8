"""Which entries of a store go when room is needed: the eviction policies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from policies.eviction_chains import ChainedEviction
from policies.eviction_cost import GdsfOrder, HitDensityOrder
from policies.eviction_queues import S3FifoOrder, SieveOrder
from policies.eviction_recency import LruOrder, TailLruOrder
from policies.eviction_types import EvictionPolicy, Order

__all__ = ["DEFAULT_TAIL", "DEFAULT_TTL", "EVICTION_POLICIES", "EvictionPolicy", "make_eviction"]

DEFAULT_TTL: Final = 3600.0
"""Seconds that `lru_ttl` keeps what is not used."""
DEFAULT_TAIL: Final = 2048.0
"""What `tail_lru` lets a request compute again, in the unit of the entries' cost; made for tokens."""

EVICTION_POLICIES: Final[Mapping[str, Callable[[float], Order]]] = {
    "gdsf": lambda _: GdsfOrder(),
    "hit_density": lambda _: HitDensityOrder(),
    "lru": lambda _: LruOrder(),
    "lru_ttl": lambda _: LruOrder(),
    "s3_fifo": lambda _: S3FifoOrder(),
    "sieve": lambda _: SieveOrder(),
    "tail_lru": TailLruOrder,
}
"""Name → what makes its order, given the tail that `tail_lru` may lose."""


def make_eviction(
    name: str,
    *,
    quotas: Mapping[str, int] | None = None,
    default_quota: int | None = None,
    ttl: float | None = None,
    tail: float = DEFAULT_TAIL,
) -> EvictionPolicy:
    """The policy of that name. Each takes the same options: bytes that a tenant may have before it is evicted from
    first, for tenants by name and for all others; seconds that what is not used is kept, without end unless told, and
    `DEFAULT_TTL` for `lru_ttl`; how much of a chain's end `tail_lru` thinks it can do without.

    Raises ValueError with the names there are, for negative quotas, and for a `ttl` not above 0.
    """
    try:
        factory = EVICTION_POLICIES[name]
    except KeyError:
        raise ValueError(f"no eviction policy {name!r}; there are {', '.join(sorted(EVICTION_POLICIES))}") from None
    if ttl is None and name == "lru_ttl":
        ttl = DEFAULT_TTL
    return ChainedEviction(lambda: factory(tail), quotas=quotas, default_quota=default_quota, ttl=ttl)
