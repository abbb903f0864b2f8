"""A tier of stored answers: what fails is a miss, and what keeps failing rests."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from cache.guarded_tier import GuardedTier
from cache.store import ChunkKey, EntryStore, FrameInfo, StoreError

_LONGEST_REST_S: Final = 5.0
"""Short: a tier that is back is of use at once, and with Redis the answers of all tiers wait for what it forgot."""


class Tally:
    """Counts by name, of many threads."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str) -> None:
        """One more."""
        with self._lock:
            self._counts[name] += 1

    def all(self) -> dict[str, int]:
        """As of now."""
        with self._lock:
            return dict(self._counts)


class EntryTier(GuardedTier):
    """See `GuardedTier`. Nothing but `walk` raises."""

    def __init__(self, store: EntryStore, clock: Callable[[], float], count: Callable[[str], None]) -> None:
        super().__init__(store, clock, count, longest_rest_s=_LONGEST_REST_S)
        self._entries = store

    def read(self, key: ChunkKey, limit: int | None = None) -> bytes | None:
        """See `EntryStore`; None where the store has failed, too."""
        return self.ask(lambda: self._entries.read(key, limit))

    def replace(self, key: ChunkKey, frame: bytes, info: FrameInfo) -> bool | None:
        """Write it, in the place of what is there. None where the store has failed."""
        kept = self.write(key, [frame], info)
        if kept is False and self.remove(key):
            kept = self.write(key, [frame], info)
        return kept

    def walk(self, prefix: bytes) -> Iterator[ChunkKey]:
        """See `EntryStore.keys`. Raises StoreError where the store has failed, or rests."""
        pages: Iterator[ChunkKey] | None = self.ask(lambda: self._entries.keys(prefix))
        while pages is not None:
            found = self.ask(lambda: (next(pages, None),))
            if found is None:
                break
            if found[0] is None:
                return
            yield found[0]
        raise StoreError(f"the {self.tier} tier was not walked to its end")
