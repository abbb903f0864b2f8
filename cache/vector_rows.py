"""Vectors of a partition in one matrix, and its exact search. Pure.

A component is kept as a whole number of 16 bits, of which `SCALE` are 1, and multiplied with the question's float32:
half the memory of float32. A similarity is off by √dim / 65,534 where every rounding goes against it, 3e-4 for 384
dimensions, and in practice by a fiftieth of that, about as much as two batches of an embedder differ by.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Rows: TypeAlias = NDArray[np.int16]

SCALE: Final = 32_767
_ROW: Final = np.dtype("<i2")
BLOCK_BYTES: Final = 6 << 20
"""Of rows made float32 at a time: few enough to be in a cache when they are multiplied, and so many that the thread
seldom has to ask for the interpreter's lock again, which a busy event loop may take 5 ms to give.
"""
_NORM_SLACK: Final = 0.01


class Match(NamedTuple):
    """An entry that a search found."""

    id: bytes
    similarity: float
    """Cosine, from -1 to 1."""
    meta: bytes


class Entry:
    """One vector's place and what is known of it. Shared by a partition, its graphs and the index; the first alone
    moves it.
    """

    __slots__ = ("id", "meta", "partition", "row", "slot")

    def __init__(self, entry_id: bytes, meta: bytes, partition: Partition, slot: int) -> None:
        self.id = entry_id
        self.meta = meta
        self.partition = partition
        self.row = GONE
        """In its partition's matrix."""
        self.slot = slot
        """In the file; `GONE` where it is in none."""


GONE: Final = -1


class Scope:
    """What one tenant scope has here."""

    __slots__ = ("entries", "graph_bytes", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries = 0
        self.graph_bytes = 0


class Follower(Protocol):
    """Told of every change of a partition."""

    def added(self, entry: Entry) -> None:
        """It has a row now."""
        ...

    def removed(self, entry: Entry) -> None:
        """It has none any longer."""
        ...


class Partition:
    """Entries that can answer the same questions. A million of them have one entry each, so a partition is little more
    than its rows: a buffer that grows by an eighth.
    """

    __slots__ = ("_data", "entries", "follower", "key", "scope")

    def __init__(self, key: bytes, scope: Scope) -> None:
        self.key = key
        self.scope = scope
        self.entries: list[Entry] = []
        """In the order of their rows."""
        self.follower: Follower | None = None
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self.entries)

    def append(self, entry: Entry, row: bytes) -> None:
        """One more; `row` as `to_row` makes it."""
        entry.row = len(self.entries)
        self.entries.append(entry)
        if self._data:
            self._data += row
        else:
            self._data = bytearray(row)  # without room to grow: most partitions do not
        if self.follower is not None:
            self.follower.added(entry)

    def remove(self, entry: Entry) -> None:
        """The last one takes its place."""
        size = len(self._data) // len(self.entries)
        last = self.entries.pop()
        if last is not entry:
            self._data[entry.row * size : (entry.row + 1) * size] = self._data[-size:]
            self.entries[entry.row] = last
            last.row = entry.row
        # What lies behind a buffer's end is still memory: it may be told by a core dump, and by nothing else.
        self._data[-size:] = bytes(size)
        del self._data[-size:]
        entry.row = GONE
        if self.follower is not None:
            self.follower.removed(entry)
            entry.meta = b""  # a graph keeps the entry until another takes its place

    def clear(self) -> None:
        """All of them are gone; for one without a follower."""
        for entry in self.entries:
            entry.row = GONE
        self.entries = []
        self._data[:] = bytes(len(self._data))
        self._data = bytearray()

    def rows(self) -> Rows:
        """All of them, entries × dim: a view, to be let go before the next change."""
        return np.frombuffer(self._data, _ROW).reshape(len(self.entries), -1)

    def search(self, query: Floats, k: int, floor: float) -> list[Match]:
        """The `k` best of at least `floor`, best first; equals by their ids."""
        return best(self.entries, similarities(self.rows(), query), k, floor)

    def search_among(self, entries: list[Entry], query: Floats, k: int, floor: float) -> list[Match]:
        """The same, of some entries of it alone."""
        rows = self.rows()[np.fromiter((entry.row for entry in entries), np.intp, len(entries))]
        return best(entries, similarities(rows, query), k, floor)


def to_floats(vector: Floats, dim: int) -> Floats:
    """It, checked. Raises ValueError where it is not of `dim` numbers and length 1."""
    floats = np.ascontiguousarray(vector, np.float32)
    if floats.shape != (dim,):
        raise ValueError(f"a vector of shape {floats.shape}, not of {dim} numbers")
    norm = float(np.linalg.norm(floats))
    if not abs(norm - 1) <= _NORM_SLACK:  # nor is it where there is a NaN
        raise ValueError(f"a vector of length {norm:.3g}, not 1")
    return floats


def to_row(floats: Floats) -> bytes:
    """As it is kept: 2 × dim bytes."""
    return np.rint(np.clip(floats, -1, 1) * SCALE).astype(_ROW).tobytes()


def similarities(rows: Rows, query: Floats) -> Floats:
    """Of each row with `query`."""
    found = np.empty(len(rows), np.float32)
    n_rows = max(BLOCK_BYTES // (4 * rows.shape[1]), 1)
    if len(rows) <= n_rows:
        np.dot(rows.astype(np.float32), query, out=found)
    else:
        block = np.empty((n_rows, rows.shape[1]), np.float32)
        for start in range(0, len(rows), n_rows):
            some = rows[start : start + n_rows]
            np.copyto(block[: len(some)], some)
            np.dot(block[: len(some)], query, out=found[start : start + len(some)])
    found *= np.float32(1 / SCALE)
    return np.clip(found, -1, 1, out=found)


def best(entries: list[Entry], found: Floats, k: int, floor: float) -> list[Match]:
    """The `k` best of those with at least `floor`, best first; equals by their ids."""
    above = np.flatnonzero(found >= floor)
    if len(above) > k:
        kth = np.partition(found[above], -k)[-k]
        above = above[found[above] >= kth]
    matches = [Match(entries[at].id, float(found[at]), entries[at].meta) for at in above.tolist()]
    matches.sort(key=lambda match: (-match.similarity, match.id))
    return matches[:k]
