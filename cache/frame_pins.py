"""Frames that stay because somebody wants them to, and with each those before it in its chain: bounded in bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from cache.store import ChunkKey

Lookup = Callable[[ChunkKey], tuple[int, ChunkKey | None] | None]
"""Bytes of a frame that is here, and which one comes before it."""


class FramePins:
    """Counts what is held. Not safe to call from several threads."""

    def __init__(self, most_bytes: int, lookup: Lookup) -> None:
        self._most = most_bytes
        self._lookup = lookup
        self._pins: Counter[ChunkKey] = Counter()
        self._held: dict[ChunkKey, int] = {}
        """By how many it is held, whether it is here or not: those that follow it and are held, and its own pin."""
        self.bytes = 0
        """Of all frames that are here and held."""

    def pin(self, key: ChunkKey) -> bool:
        """Hold it until as many `unpin`. False where it is not here, or would be too much."""
        if key not in self._pins and (self._lookup(key) is None or self.bytes + self._unheld(key) > self._most):
            return False
        self._pins[key] += 1
        if self._pins[key] == 1:
            self._hold(key)
        return True

    def unpin(self, key: ChunkKey) -> bool:
        """Take one `pin` back; False where there is none."""
        if key not in self._pins:
            return False
        self._pins[key] -= 1
        if not self._pins[key]:
            del self._pins[key]
            self._release(key)
        return True

    def allows(self, key: ChunkKey, n_bytes: int, parent: ChunkKey | None) -> bool:
        """Whether it may come: what follows it may be pinned, so that it is held from the beginning."""
        return key not in self._held or self.bytes + n_bytes + self._unheld(parent) <= self._most

    def came(self, key: ChunkKey) -> None:
        """It is here now."""
        if key in self._held and (found := self._lookup(key)) is not None:
            self.bytes += found[0]
            self._hold(found[1])

    def went(self, key: ChunkKey, n_bytes: int, parent: ChunkKey | None) -> None:
        """It is here no longer, and its own pins are void."""
        if key not in self._held:
            return
        self.bytes -= n_bytes
        if self._pins.pop(key, 0):
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]
        self._release(parent)

    def _unheld(self, key: ChunkKey | None) -> int:
        """Bytes that holding it would add; no more of them than tell that it is too much."""
        total = 0
        while key is not None and key not in self._held and total <= self._most:
            found = self._lookup(key)
            if found is None:
                break
            total += found[0]
            key = found[1]
        return total

    def _hold(self, key: ChunkKey | None) -> None:
        while key is not None:
            self._held[key] = self._held.get(key, 0) + 1
            found = self._lookup(key) if self._held[key] == 1 else None
            if found is None:
                return
            self.bytes += found[0]
            key = found[1]

    def _release(self, key: ChunkKey | None) -> None:
        while key is not None:
            self._held[key] -= 1
            if self._held[key]:
                return
            del self._held[key]
            found = self._lookup(key)
            if found is None:
                return
            self.bytes -= found[0]
            key = found[1]
