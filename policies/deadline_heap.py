"""Requests by a time of theirs, earliest first and ties first come, where most leave before their turn."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from policies.fair_queue import Waiting

_SLACK: Final = 64


class DeadlineHeap:
    """O(log n) amortised. An item stays until it is met or until such items outnumber the others: whether somebody
    stands behind one, `stands` says by its time and its request.
    """

    __slots__ = ("_heap", "_stands")

    def __init__(self, stands: Callable[[float, Waiting], bool]) -> None:
        self._stands = stands
        self._heap: list[tuple[float, int, Waiting]] = []

    def __len__(self) -> int:
        """Items, those included that nobody stands behind."""
        return len(self._heap)

    def push(self, when: float, waiting: Waiting) -> None:
        """From now on it is here; for no longer than `stands` says so."""
        heappush(self._heap, (when, waiting.ticket, waiting))

    def first(self) -> Waiting | None:
        """The earliest; it stays."""
        heap = self._heap
        while heap:
            when, _, waiting = heap[0]
            if self._stands(when, waiting):
                return waiting
            heappop(heap)
        return None

    def pop(self) -> Waiting:
        """Take the earliest out. Raises IndexError where there is none."""
        heap = self._heap
        while True:
            when, _, waiting = heappop(heap)
            if self._stands(when, waiting):
                return waiting

    def tidy(self, live: int) -> None:
        """Drop what nobody stands behind, if it is more than the `live` others and a few."""
        if len(self._heap) > 2 * live + _SLACK:
            self._heap = [item for item in self._heap if self._stands(item[0], item[2])]
            heapify(self._heap)
