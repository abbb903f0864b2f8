"""Approximate search of one large partition: usearch's HNSW graph (Malkov and Yashunin, arXiv 1603.09320), built a
slice at a time beside the exact search and brought up to date the same way.

The graph holds one signed byte a component and only names candidates; how similar they are is told by the partition's
own rows. An entry that is gone is never named, though the graph still has its node: once a quarter of a graph is gone
another is built, and takes its place when it is whole. Nothing of it is kept in a file: it can be made again from the
vectors, and a graph that disagrees with them is worse than none.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cache.vector_rows import GONE, Entry, Floats, Match, Partition, Rows

CONNECTIVITY: Final = 32
EXPANSION_ADD: Final = 128
EXPANSION_SEARCH: Final = 256
"""usearch's own are 16, 128 and 64, which find the nearest of 10,000 random vectors four times in ten; these find it 97
times in a hundred, and one that a question is close to at any size. More costs as much as searching exactly does.
"""

_CANDIDATES: Final = 64
"""Named by the graph for the rows to choose from, or four times what is asked for."""
_WAITING_MOST: Final = 4_096
"""Entries not yet in the graph that are searched one by one beside it; with more all are."""
_GONE_SHARE: Final = 0.25
_WAITING_BYTES: Final = 100
_LABEL_BYTES: Final = 8


class Candidates(Protocol):
    """What a search of usearch answers."""

    @property
    def keys(self) -> NDArray[np.uint64]:
        """Labels, the nearest first."""
        ...


class Nodes(Protocol):
    """As much of `usearch.index.Index` as is used here."""

    def add(self, keys: NDArray[np.uint64], vectors: NDArray[np.int8], *, threads: int) -> object:
        """Nodes with these labels."""
        ...

    def search(self, vectors: NDArray[np.int8], count: int, *, threads: int) -> Candidates:
        """Those near to one vector."""
        ...

    @property
    def memory_usage(self) -> int:
        """In bytes."""
        ...


class NewNodes(Protocol):
    """Makes them."""

    def __call__(self, dim: int) -> Nodes:
        """None yet, for vectors of `dim` numbers."""
        ...


def usearch_nodes() -> NewNodes:
    """By usearch. Raises ImportError where it is not installed."""
    from usearch.index import Index  # noqa: PLC0415 - optional, and only large partitions need it

    def make(dim: int) -> Nodes:
        nodes: Nodes = Index(
            ndim=dim,
            metric="cos",
            dtype="i8",
            connectivity=CONNECTIVITY,
            expansion_add=EXPANSION_ADD,
            expansion_search=EXPANSION_SEARCH,
        )
        return nodes

    return make


class Graph:
    """One graph over a partition's entries: some are in it, some wait."""

    def __init__(self, nodes: Nodes, entries: list[Entry]) -> None:
        self._nodes = nodes
        self._entries: list[Entry] = []  # by their labels
        self._gone = 0
        self.waiting = dict.fromkeys(entries)

    @property
    def worn(self) -> bool:
        """So much of it is gone that another should take its place."""
        return self._gone > _GONE_SHARE * len(self._entries)

    @property
    def bytes(self) -> int:
        """In memory."""
        return self._nodes.memory_usage + _LABEL_BYTES * len(self._entries) + _WAITING_BYTES * len(self.waiting)

    def take_in(self, partition: Partition, limit: int) -> int:
        """At most `limit` of those that wait; how many it were."""
        some = [entry for entry, _ in zip(self.waiting, range(limit), strict=False)]
        if not some:
            return 0
        rows = partition.rows()[np.fromiter((entry.row for entry in some), np.intp, len(some))]
        labels = np.arange(len(self._entries), len(self._entries) + len(some), dtype=np.uint64)
        self._nodes.add(labels, to_bytes(rows), threads=1)
        self._entries += some
        for entry in some:
            del self.waiting[entry]
        return len(some)

    def removed(self, entry: Entry) -> None:
        """It is not to be named any more."""
        if entry in self.waiting:
            del self.waiting[entry]
        else:
            self._gone += 1

    def candidates(self, query: Floats, count: int) -> list[Entry]:
        """Entries near to it that are still there, and all that wait."""
        labels = self._nodes.search(to_bytes(query[np.newaxis])[0], count, threads=1).keys
        named = (self._entries[label] for label in labels.tolist())
        return [*(entry for entry in named if entry.row != GONE), *self.waiting]


class Graphs:
    """A partition's graph, and the next one while it is built. A `Follower` of the partition."""

    def __init__(self, partition: Partition, dim: int, new_nodes: NewNodes) -> None:
        self._partition = partition
        self._dim = dim
        self._new_nodes = new_nodes
        self._serving: Graph | None = None
        self._building: Graph | None = None
        self.charged = 0
        """Bytes that the index has booked for it."""
        self._start()

    @property
    def ready(self) -> bool:
        """It answers; otherwise the partition does, exactly."""
        return self._serving is not None and len(self._serving.waiting) <= _WAITING_MOST

    @property
    def pending(self) -> bool:
        """There is something to do for `work`."""
        worn = self._serving is not None and self._serving.worn
        return worn or self._building is not None or self.waiting > 0

    @property
    def waiting(self) -> int:
        """Entries that `work` has still to take in."""
        return sum(len(graph.waiting) for graph in self._all())

    @property
    def bytes(self) -> int:
        """In memory."""
        return sum(graph.bytes for graph in self._all())

    def added(self, entry: Entry) -> None:
        """See `Follower`."""
        for graph in self._all():
            graph.waiting[entry] = None

    def removed(self, entry: Entry) -> None:
        """See `Follower`."""
        for graph in self._all():
            graph.removed(entry)

    def work(self, limit: int) -> int:
        """Take in at most `limit` entries, and go over to the next graph once it is whole; how many it were. Whatever
        usearch raises gets through.
        """
        done = sum(graph.take_in(self._partition, limit) for graph in self._all()[:1])
        if self._building is not None and not self._building.waiting:
            self._serving, self._building = self._building, None
        elif self._building is None and self._serving is not None and self._serving.worn:
            self._start()
        return done

    def search(self, query: Floats, k: int, floor: float) -> list[Match]:
        """As `Partition.search`, of most of the entries that matter. Whatever usearch raises gets through."""
        assert self._serving is not None
        entries = self._serving.candidates(query, max(_CANDIDATES, 4 * k))
        if len(entries) < min(k, len(self._partition)):  # its neighbours are gone: it cannot tell
            return self._partition.search(query, k, floor)
        return self._partition.search_among(entries, query, k, floor)

    def _start(self) -> None:
        self._building = Graph(self._new_nodes(self._dim), self._partition.entries)

    def _all(self) -> list[Graph]:
        return [graph for graph in (self._building, self._serving) if graph is not None]


def to_bytes(rows: Rows | Floats) -> NDArray[np.int8]:
    """One byte a component, each row stretched as far as it goes: a cosine does not see how far."""
    floats = rows.astype(np.float32)
    most = np.maximum(np.abs(floats).max(axis=1, keepdims=True), np.float32(1e-9))
    stretched: NDArray[np.int8] = np.rint(floats * (127 / most)).astype(np.int8)
    return stretched


def estimated_bytes(dim: int, entries: int) -> int:
    """Memory that a graph of so many will take, roughly and not too little."""
    return 2 * entries * (dim + 12 * CONNECTIVITY)
