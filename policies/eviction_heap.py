"""Entries on offer by rank, lowest first, where a use costs nothing: ranks only rise, so they are corrected late."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from policies.eviction_types import Entry

_SLACK: Final = 64


class RankHeap:
    """O(log n) amortised for all it does. Among equals the one that was used longest ago comes first.

    The rank of an entry must not fall while it is on offer: an item then lies too low at worst, is met too early, and
    sinks to where it belongs.
    """

    __slots__ = ("_heap", "_pushes", "_rank", "_ranks")

    def __init__(self, rank: Callable[[Entry], float]) -> None:
        self._rank = rank
        # With items that nobody stands behind any longer; the count keeps entries from being compared.
        self._heap: list[tuple[tuple[float, int], int, Entry]] = []
        self._ranks: dict[Entry, tuple[float, int]] = {}
        self._pushes = 0

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._ranks

    def push(self, entry: Entry) -> None:
        """On offer from now on, unless it is."""
        if entry in self._ranks:
            return
        if len(self._heap) > 2 * len(self._ranks) + _SLACK:
            self._heap = [item for item in self._heap if self._ranks.get(item[2]) == item[0]]
            heapify(self._heap)
        rank = self._ranks[entry] = (self._rank(entry), entry.seq)
        self._pushes += 1
        heappush(self._heap, (rank, self._pushes, entry))

    def discard(self, entry: Entry) -> None:
        """Not on offer any longer, if it was."""
        self._ranks.pop(entry, None)

    def lowest(self) -> Entry | None:
        """The one of lowest rank; it stays. Pinned ones that are met are discarded."""
        heap, ranks = self._heap, self._ranks
        while heap:
            rank, _, entry = heap[0]
            if ranks.get(entry) != rank:
                heappop(heap)
            elif entry.pins:
                heappop(heap)
                del ranks[entry]
            elif (true := (self._rank(entry), entry.seq)) != rank:
                ranks[entry] = true
                self._pushes += 1
                heapreplace(heap, (true, self._pushes, entry))
            else:
                return entry
        return None
