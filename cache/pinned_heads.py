"""The beginnings of prompts that a store keeps because their tenant wants it to: those used last, bounded in bytes.

What is pinned begins a chain or follows what is pinned. One chain gets a quarter of the bound at most, or one frame,
so that a long document does not drive out the others' beginnings. Where the bound is reached, the ends of those used
longest ago go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cache.store import ChunkKey, FrameInfo
from policies.eviction import make_eviction
from policies.types import Tier

SHARE: Final = 0.25
"""Of a store, what one tenant may have pinned; all together half, see `FramePins`."""
_CHAIN: Final = 4


class PinnedHeads:
    """Not safe to call from several threads. Frames of tenants that pin nothing cost a lookup at most."""

    def __init__(
        self, tier: Tier, capacity: int, pin: Callable[[ChunkKey], bool], unpin: Callable[[ChunkKey], None]
    ) -> None:
        """`pin` is False where the store does not take it."""
        self._tier = tier
        self._most = int(capacity * SHARE)
        self._pin = pin
        self._unpin = unpin
        # Only for its books: which are the ends of chains, and which was used longest ago.
        self._books = make_eviction("lru", default_quota=0)
        self._reach: dict[ChunkKey, int] = {}
        """Of each that is pinned, bytes of its chain up to its end."""

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._reach

    def bytes_of(self, tenant: str) -> int:
        """What it has pinned."""
        return self._books.bytes_of(tenant)

    def here(self, key: ChunkKey, n_bytes: int, info: FrameInfo, now: float) -> None:
        """A frame is here that its tenant has just written or used: pin it, if it wants that and there is room."""
        if key in self._reach:
            self._books.touch(key, now)
            return
        if not info.policy.pin:
            return
        before = 0 if info.parent is None else self._reach.get(info.parent)
        quota = info.policy.quota(self._tier)
        most = self._most if quota is None else min(self._most, quota)
        if before is None or before + n_bytes > (most // _CHAIN if before else most):
            return
        self._reach[key] = before + n_bytes
        self._books.admit(key, n_bytes, now, parent=info.parent, tenant=info.tenant, cost=0.0)
        self._books.pin(key)
        over = self._books.bytes_of(info.tenant) - most
        enough = over <= 0 or self.give_way(info.tenant, over, now)
        self._books.unpin(key)
        if not (enough and self._pin(key)):
            self.gone(key)

    def used(self, key: ChunkKey, now: float) -> None:
        """It was used, whoever did."""
        if key in self._reach:
            self._books.touch(key, now)

    def gone(self, key: ChunkKey) -> None:
        """It is not here any more, and its pins with it."""
        if self._reach.pop(key, None) is not None:
            self._books.remove(key)

    def give_way(self, tenant: str, n_bytes: int, now: float) -> bool:
        """Unpin of this tenant's frames so many bytes, or all there are; False where that is less."""
        victims = self._books.victims(n_bytes, now, tenant=tenant)
        before = self._books.bytes_of(tenant)
        for key in map(ChunkKey, victims):
            self.gone(key)
            self._unpin(key)
        return before - self._books.bytes_of(tenant) >= n_bytes
