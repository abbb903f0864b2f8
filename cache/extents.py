"""Pages of an arena, handed out in runs: a request is met in one run where one fits, else in several.

Frames are copied in pieces anyway, so a frame need not lie in one run: every free page can be used, whatever the order
in which frames of different sizes came and went. What fragmentation can cost is more copies for a frame, at worst one
for each page, and never room. What rounding costs is less than a page for each frame.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple


class Extent(NamedTuple):
    """A run of pages."""

    start: int
    n_pages: int


class Extents:
    """Which pages are free. Not for several threads at once."""

    def __init__(self, n_pages: int) -> None:
        self.n_pages = n_pages
        self.n_free = 0
        self._by_size: list[tuple[int, int]] = []  # (pages, start), sorted: the best fit is found by bisection
        self._by_start: dict[int, int] = {}
        self._by_end: dict[int, int] = {}
        if n_pages:
            self._insert(Extent(0, n_pages))

    @property
    def n_holes(self) -> int:
        """Free runs: 1 where nothing is scattered."""
        return len(self._by_size)

    def take(self, n_pages: int) -> list[Extent] | None:
        """`n_pages` pages: the smallest run that holds them, else the largest ones there are; None: not that many are
        free.
        """
        if n_pages > self.n_free:
            return None
        taken = []
        while n_pages:
            at = bisect_left(self._by_size, (n_pages, 0))
            # None is as large: the largest is used up.
            length, start = self._by_size[at if at < len(self._by_size) else -1]
            self._discard(Extent(start, length))
            used = min(length, n_pages)
            if used < length:
                self._insert(Extent(start + used, length - used))
            taken.append(Extent(start, used))
            n_pages -= used
        return taken

    def give_back(self, extents: list[Extent]) -> None:
        """Runs that `take` gave are free again, and one with those beside them."""
        for extent in extents:
            start, end = extent.start, extent.start + extent.n_pages
            if (before := self._by_end.get(start)) is not None:
                start -= before
                self._discard(Extent(start, before))
            if (after := self._by_start.get(end)) is not None:
                self._discard(Extent(end, after))
                end += after
            self._insert(Extent(start, end - start))

    def _insert(self, extent: Extent) -> None:
        start, length = extent
        insort(self._by_size, (length, start))
        self._by_start[start] = length
        self._by_end[start + length] = length
        self.n_free += length

    def _discard(self, extent: Extent) -> None:
        start, length = extent
        del self._by_size[bisect_left(self._by_size, (length, start))]
        del self._by_start[start]
        del self._by_end[start + length]
        self.n_free -= length
