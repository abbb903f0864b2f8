"""Which frames of which tier somebody was told of, so that only changes are told, and in their order.

What is found in a store may be gone when it is told, and what is missing may be there again. So whoever asks a store
takes a `mark` first: what was told after the mark outweighs the store's answer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from cache.store import ChunkKey
from policies.types import Tier

Moved: TypeAlias = Callable[[Tier, ChunkKey, bool], None]
"""A tier has got (True) or lost (False) a frame. Called from any thread; it returns quickly and calls nothing back."""

MOST_TOLD: Final = 1 << 17
"""Frames of one tier. Of more the oldest count as lost until they are found again: unknown is not cached."""

log = logging.getLogger(__name__)


class _Known:
    """Of one tier."""

    __slots__ = ("doubted", "keys", "last_loss")

    def __init__(self) -> None:
        self.keys: dict[ChunkKey, int] = {}
        """When each was told or found last, oldest first."""
        self.last_loss = 0
        self.doubted = 0
        """What was told or found last before that may be gone."""


class Told:
    """Safe for many threads. `moved` is called with its lock held."""

    def __init__(self, tiers: Iterable[Tier], moved: Moved | None, *, most: int = MOST_TOLD) -> None:
        self._moved = moved
        self._most = most
        self._known = {tier: _Known() for tier in tiers}
        self._now = 0
        self._broken = False
        self._lock = threading.Lock()

    def knows(self, tier: Tier, key: ChunkKey) -> bool:
        """Does that tier have it, as far as was told, and without a doubt?"""
        with self._lock:
            known = self._known[tier]
            return known.keys.get(key, 0) > known.doubted

    def mark(self) -> int:
        """Taken before a store is asked."""
        with self._lock:
            return self._now

    def here(self, tier: Tier, keys: Sequence[ChunkKey], mark: int) -> list[ChunkKey]:
        """The tier has them. Returns those to look for again, because the tier has lost frames since `mark`."""
        news = []
        with self._lock:
            known = self._known[tier]
            self._now += 1
            for key in keys:
                if known.keys.pop(key, None) is None:
                    self._tell(tier, key, here=True)
                    news.append(key)
                known.keys[key] = self._now
            while len(known.keys) > self._most:
                oldest = next(iter(known.keys))
                del known.keys[oldest]
                self._tell(tier, oldest, here=False)
            return news if known.last_loss > mark else []

    def missing(self, tier: Tier, key: ChunkKey, mark: int) -> bool:
        """The tier was asked and does not have it; it may have got it since `mark`. True where that is news."""
        with self._lock:
            known = self._known[tier]
            if known.keys.get(key, mark + 1) > mark:
                return False
            del known.keys[key]
            self._tell(tier, key, here=False)
            return True

    def vanished(self, tier: Tier, key: ChunkKey, mark: int) -> None:
        """As `missing`, and nobody here has removed it. Where that is news all else is in doubt: a Redis that was
        started again has lost everything.
        """
        if self.missing(tier, key, mark):
            with self._lock:
                self._known[tier].doubted = self._now

    def lost(self, tier: Tier, key: ChunkKey) -> None:
        """The tier itself says that it is gone."""
        with self._lock:
            known = self._known[tier]
            self._now += 1
            known.last_loss = self._now
            if known.keys.pop(key, None) is not None:
                self._tell(tier, key, here=False)

    def _tell(self, tier: Tier, key: ChunkKey, *, here: bool) -> None:
        if self._moved is None:
            return
        try:
            self._moved(tier, key, here)
        except Exception:  # whatever it is, it is not the store's: frames are kept all the same
            if not self._broken:
                log.exception("whoever is told of frames fails")
            self._broken = True
