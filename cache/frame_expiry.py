"""Until when frames may be given out, by the wall clock: it goes on while no process runs, and is the same for all."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from cache.store import ChunkKey

_SLACK: Final = 64


class FrameExpiry:
    """Of the frames of one store that have an end; O(log n) amortised. Not safe to call from several threads.

    A frame that is used again and again moves its end each time: the heap is told of it only when the old one has come.
    """

    __slots__ = ("_ends", "_heap")

    def __init__(self) -> None:
        self._ends: dict[ChunkKey, float] = {}
        self._heap: list[tuple[float, ChunkKey]] = []
        """For each frame an item at its end or before; and items of frames that have none any longer."""

    def __len__(self) -> int:
        """Frames that have an end."""
        return len(self._ends)

    def end(self, key: ChunkKey) -> float | None:
        """Seconds since 1970; None: it has none."""
        return self._ends.get(key)

    def over(self, key: ChunkKey, now: float) -> bool:
        """Is it not to be given out any more?"""
        end = self._ends.get(key)
        return end is not None and end <= now

    def set(self, key: ChunkKey, end: float | None) -> None:
        """It is here, and ends then; None leaves what is known of it as it is."""
        if end is None:
            return
        before = self._ends.get(key)
        self._ends[key] = end
        if before is None or end < before:
            heappush(self._heap, (end, key))
            if len(self._heap) > 2 * len(self._ends) + _SLACK:
                self._heap = [(when, one) for one, when in self._ends.items()]
                heapify(self._heap)

    def drop(self, key: ChunkKey) -> None:
        """It is here no longer."""
        self._ends.pop(key, None)

    def due(self, now: float, most: int) -> list[ChunkKey]:
        """Those that have ended, the first first; they stay until `drop`, and are named again."""
        named: dict[ChunkKey, float] = {}
        heap = self._heap
        while heap and heap[0][0] <= now and len(named) < most:
            when, key = heappop(heap)
            end = self._ends.get(key)
            if end is None:
                continue
            if end > when:  # it was used since
                heappush(heap, (end, key))
            elif end == when:
                named[key] = when
        for key, when in named.items():
            heappush(heap, (when, key))
        return list(named)
