"""What a worker tells of its stores: what reading from each costs, and how full it is. Whenever it looks at them, it
has them drop what has outlived its time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Executor, Future
from typing import Final

from backends.worker.kv.restore_choice import RestorePrice
from backends.worker.messages import TierStats
from cache.store import StoreError, StoreStats
from cache.tiered_store import TieredStore
from policies.types import Tier

_EVERY: Final = 5.0
"""Seconds between two looks at how full the stores are: one may be across the network."""
log = logging.getLogger(__name__)

_UNKNOWN: Final = StoreStats()


class TierReport:
    """Of the engine's thread."""

    def __init__(
        self, store: TieredStore, price: RestorePrice, names: Mapping[Tier, str], *, bytes_per_token: float
    ) -> None:
        """`names`: of each tier, the fastest first, what its store is called by those who share it, or nothing."""
        self._store = store
        self._price = price
        self._names = names
        self._bytes_per_token = bytes_per_token
        self._sizes: dict[Tier, StoreStats] = {}
        self._look: Future[dict[Tier, StoreStats]] | None = None
        self._due = 0.0

    def refresh(self, now: float, threads: Executor) -> None:
        """Have the sizes looked up, now and then."""
        if self._look is not None and self._look.done():
            self._sizes = self._look.result()
            self._look = None
        if self._look is None and now >= self._due:
            self._due = now + _EVERY
            self._look = threads.submit(self._look_at_all)

    def stats(self) -> tuple[TierStats, ...]:
        """Prices as of now, sizes as of some seconds ago."""
        told = []
        for tier, name in self._names.items():
            round_trip, per_byte = self._price.speed(tier)
            sizes = self._sizes.get(tier, _UNKNOWN)
            told.append(
                TierStats(
                    tier.value, name, round_trip, per_byte * self._bytes_per_token,
                    sizes.entries, sizes.bytes, sizes.capacity, sizes.expired,
                )
            )  # fmt: skip
        return tuple(told)

    def _look_at_all(self) -> dict[Tier, StoreStats]:
        """On one of the threads."""
        try:
            self._store.expire()
        except StoreError:
            pass  # it is closed
        except Exception:  # a bug: what is expired is not given out either way
            log.exception("expired KV could not be dropped")
        return {tier: self._store.stats_of(tier) for tier in self._names}
