"""Memory that is set aside once, in pages."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from cache.extents import Extent
from cache.store import StoreError

_MADV_POPULATE_WRITE: Final = 23
"""madvise(2), Linux 5.14; Python has no name for it."""


class Arena:
    """`n_pages` pages of `page_bytes`. With `prefault` they are there from now on instead of at the first write;
    `hugepages` asks for large ones. Raises StoreError where the memory cannot be had.
    """

    def __init__(self, n_pages: int, page_bytes: int, *, prefault: bool, hugepages: bool) -> None:
        self._page_bytes = page_bytes
        self._map = _mapped(n_pages * page_bytes, prefault=prefault, hugepages=hugepages)
        self._view = memoryview(self._map)

    def memory(self, extents: Sequence[Extent], length: int) -> list[memoryview]:
        """`length` bytes, run by run; they end in the last page."""
        size, view = self._page_bytes, self._view
        runs = [view[start * size : (start + n_pages) * size] for start, n_pages in extents]
        spare = sum(map(len, runs)) - length
        return [*runs[:-1], runs[-1][: len(runs[-1]) - spare]]

    def free(self) -> None:
        """Give it back, now or with the last view of it that somebody keeps; again does nothing."""
        self._view.release()
        with suppress(BufferError):
            self._map.close()


def _mapped(size: int, *, prefault: bool, hugepages: bool) -> mmap.mmap:
    try:
        mapped = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise StoreError(f"no memory for an arena of {size} bytes") from error
    if hugepages and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # advice: a kernel without large pages serves as well
            mapped.madvise(mmap.MADV_HUGEPAGE)
    if prefault:
        try:
            mapped.madvise(_MADV_POPULATE_WRITE)
        except OSError:
            mapped[:: mmap.PAGESIZE] = bytes(-(-size // mmap.PAGESIZE))
    return mapped
