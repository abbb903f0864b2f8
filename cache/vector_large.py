"""The graphs of all large partitions: begun, kept up to date and given up, so that no failure of theirs is noticed but
by the time that a search takes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from cache.vector_graph import Graphs, NewNodes, estimated_bytes, usearch_nodes
from cache.vector_rows import Floats, Match, Partition, Scope

log = logging.getLogger(__name__)


class LargePartitions:
    """Partitions of more than `exact_entries` get a graph, where `has_room` for its bytes in their scope; they keep it
    until they have less than half as many. Without `new_nodes` usearch makes the graphs.
    """

    def __init__(
        self, dim: int, exact_entries: int, has_room: Callable[[Scope, int], bool], new_nodes: NewNodes | None
    ) -> None:
        self._dim = dim
        self._exact_entries = exact_entries
        self._has_room = has_room
        self._new_nodes = new_nodes
        self._graphs: dict[Partition, Graphs] = {}
        self._failed = False
        self.bytes = 0
        """Of all graphs, as booked to their scopes."""

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def waiting(self) -> int:
        """Entries that `work` has still to take in."""
        return sum(graphs.waiting for graphs in [*self._graphs.values()])

    def grown(self, partition: Partition) -> None:
        """It has an entry more."""
        if len(partition) <= self._exact_entries or partition.follower is not None or self._failed:
            return
        if not self._has_room(partition.scope, estimated_bytes(self._dim, len(partition))):
            return  # it would cost entries
        try:
            if self._new_nodes is None:
                self._new_nodes = usearch_nodes()
            graphs = Graphs(partition, self._dim, self._new_nodes)
        except Exception as error:  # noqa: BLE001 - not installed, or whatever it raises
            self._give_up(error)
            return
        partition.follower = self._graphs[partition] = graphs
        self._charge(partition, graphs, graphs.bytes)

    def shrunk(self, partition: Partition) -> None:
        """It has an entry less."""
        if len(partition) < self._exact_entries // 2:
            self.drop(partition)

    def drop(self, partition: Partition) -> None:
        """It is searched exactly from now on, if it was not."""
        graphs = self._graphs.pop(partition, None)
        if graphs is not None:
            partition.follower = None
            self._charge(partition, graphs, 0)

    def search(self, partition: Partition, query: Floats, k: int, floor: float) -> list[Match] | None:
        """See `Graphs.search`; None where it has no graph that can answer."""
        graphs = self._graphs.get(partition)
        if graphs is None or not graphs.ready:
            return None
        try:
            return graphs.search(query, k, floor)
        except Exception as error:  # noqa: BLE001 - whatever usearch raises: the rows know, only slower
            self._give_up(error)
            return None

    def work(self, limit: int) -> bool:
        """At most `limit` entries go into a graph; True where more is to be done."""
        for partition, graphs in self._graphs.items():
            if not graphs.pending:
                continue
            try:
                graphs.work(limit)
            except Exception as error:  # noqa: BLE001 - whatever usearch raises: the rows know, only slower
                self._give_up(error)
                return False
            self._charge(partition, graphs, graphs.bytes)
            break
        return any(graphs.pending for graphs in self._graphs.values())

    def _charge(self, partition: Partition, graphs: Graphs, n_bytes: int) -> None:
        more = n_bytes - graphs.charged
        graphs.charged += more
        partition.scope.graph_bytes += more
        self.bytes += more

    def _give_up(self, error: Exception) -> None:
        """Once and for all: where it fails in one place it will in others."""
        self._failed = True
        for partition in [*self._graphs]:
            self.drop(partition)
        log.warning(
            "partitions above %d entries are searched exactly, which is slower: %s: %s",
            self._exact_entries,
            type(error).__name__,
            error,
        )
