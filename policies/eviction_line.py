"""Entries on offer by their last use, the one longest unused first, where a use is cheap at any time."""

from __future__ import annotations

from collections import OrderedDict

from policies.eviction_heap import RankHeap
from policies.eviction_types import Entry


class RecencyLine:
    """What is used goes to the end of a line, what takes an evicted child's place to its beginning: O(1). Only who
    belongs in between waits in a heap beside it, O(log n), amortised over the few.
    """

    __slots__ = ("_aside", "_line")

    def __init__(self) -> None:
        self._line: OrderedDict[Entry, None] = OrderedDict()
        self._aside = RankHeap(_last_use)

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._line or entry in self._aside

    def push(self, entry: Entry) -> None:
        """On offer from now on, unless it is."""
        line = self._line
        if entry in self:
            return
        if not line or entry.seq > next(reversed(line)).seq:
            line[entry] = None
        elif entry.seq < next(iter(line)).seq:
            line[entry] = None
            line.move_to_end(entry, last=False)
        else:
            self._aside.push(entry)

    def used(self, entry: Entry) -> None:
        """It was used last of all; to be told of each that is on offer. Nothing happens where it is not."""
        if entry in self._line:
            self._line.move_to_end(entry)
        elif entry in self._aside:
            self._aside.discard(entry)
            self._line[entry] = None

    def discard(self, entry: Entry) -> None:
        """Not on offer any longer, if it was."""
        if entry in self._line:
            del self._line[entry]
        else:
            self._aside.discard(entry)

    def lowest(self) -> Entry | None:
        """The one that was used longest ago; it stays. Pinned ones that are met are discarded."""
        line = self._line
        first = next(iter(line), None)
        while first is not None and first.pins:
            del line[first]
            first = next(iter(line), None)
        aside = self._aside.lowest()
        if first is None or aside is None:
            return first or aside
        return first if first.seq < aside.seq else aside


def _last_use(entry: Entry) -> float:
    return entry.seq
