"""Requests by the time at which they will be given up, where most leave before."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from policies.admission_types import Ticket

if TYPE_CHECKING:
    from policies.fair_queue import Waiting

_SLACK: Final = 64


class ExpiryHeap:
    """O(log n) amortised. What has left is dropped when it is met, or when it outnumbers what waits."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[float, Ticket, Waiting]] = []

    def __len__(self) -> int:
        """Items, those included that have left."""
        return len(self._heap)

    def items(self) -> Sequence[tuple[float, Ticket, Waiting]]:
        """All of these, in no order."""
        return self._heap

    def push(self, waiting: Waiting) -> None:
        """It will be given up when its `expires` says, unless that changes or it leaves."""
        heappush(self._heap, (waiting.expires, waiting.ticket, waiting))

    def left(self, n_waiting: int) -> None:
        """One has left, and so many wait."""
        heap = self._heap
        if len(heap) > 2 * n_waiting + _SLACK:
            self._heap = [item for item in heap if item[2].flow and item[2].expires == item[0]]
            heapify(self._heap)

    def due(self, now: float) -> Waiting | None:
        """The first to be given up by now; it stays until it leaves."""
        heap = self._heap
        while heap:
            when, _, waiting = heap[0]
            if waiting.flow and waiting.expires == when:
                return waiting if when <= now else None
            heappop(heap)
        return None

    def first(self) -> float | None:
        """When the first is given up."""
        heap = self._heap
        while heap:
            when, _, waiting = heap[0]
            if waiting.flow and waiting.expires == when:
                return when
            heappop(heap)
        return None
