"""What each tenant with a quota has in Redis, as far as this process has written it. Pure.

Nobody counts what all workers have written, so a quota here is one of each worker's, from when it started: what was
written before, or by others, it does not know. What Redis evicted or let expire is counted until that is noticed.
"""

from __future__ import annotations

from typing import Final

from cache.store import ChunkKey, FrameInfo
from policies.eviction import make_eviction
from policies.types import Tier

FRAME_OVERHEAD: Final = 256
"""Bytes that Redis needs for a frame besides its own: its name, its entry, its expiry."""
MOST_FRAMES: Final = 1 << 17
"""Frames that are counted, some hundred bytes each; one beyond is not written."""


class RedisQuotas:
    """Not safe to call from several threads."""

    def __init__(self) -> None:
        self._books = make_eviction("lru", default_quota=0)

    def __len__(self) -> int:
        """Frames that are counted."""
        return len(self._books)

    def bytes_of(self, tenant: str) -> int:
        """What it has, as far as that is known."""
        return self._books.bytes_of(tenant)

    def room(self, n_bytes: int, info: FrameInfo, now: float) -> list[ChunkKey] | None:
        """What has to go for a frame of that size, the end of a chain first; None: it cannot be kept at all."""
        quota = info.policy.quota(Tier.REDIS)
        if quota is None:
            return []
        charge = n_bytes + FRAME_OVERHEAD
        over = self._books.bytes_of(info.tenant) + charge - quota
        if charge > quota or len(self._books) >= MOST_FRAMES:
            return None
        return [*map(ChunkKey, self._books.victims(over, now, tenant=info.tenant))]

    def wrote(self, key: ChunkKey, n_bytes: int, info: FrameInfo, now: float) -> None:
        """It is in Redis."""
        if info.policy.quota(Tier.REDIS) is not None:
            self._books.admit(
                key, n_bytes + FRAME_OVERHEAD, now, parent=info.parent, tenant=info.tenant, cost=float(info.n_tokens)
            )

    def used(self, key: ChunkKey, now: float) -> None:
        """It was read."""
        self._books.touch(key, now)

    def gone(self, key: ChunkKey) -> None:
        """It is not there, or not any more."""
        self._books.remove(key)
