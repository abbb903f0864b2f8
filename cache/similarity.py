"""Similarity search for the semantic response cache: which known questions of one partition are closest to this one.

An entry is a vector of length 1, the 32-byte id of the answer that it leads to, and a few bytes of the caller's. It
lives in a partition, a key of 16 to 32 bytes that begins with the digest of a tenant's scope; a search sees nothing
but its own partition. Partitions are searched exactly, and large ones through a graph once `work` has built it, where
usearch is installed.

Bounded in entries and bytes, overall and for each scope; what makes room is an eviction policy's choice. Optionally
kept in a file (see `vector_file`). What is removed is in neither from then on.

Everything blocks, for milliseconds, and is meant for one thread beside the event loop. Not safe to call from several.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cache import vector_slots as fmt
from cache.eviction_news import Evicted, EvictionNews
from cache.store import ChunkKey, StoreError
from cache.vector_graph import NewNodes
from cache.vector_keeper import VectorKeeper, slots_within
from cache.vector_large import LargePartitions
from cache.vector_rows import Entry, Floats, Match, Partition, Scope, to_floats, to_row
from cache.vector_slots import ID_SIZE, MAX_PARTITION, MIN_PARTITION, Record
from policies.eviction import EvictionPolicy, make_eviction

__all__ = ["Limits", "Match", "SimilarityIndex", "SimilarityStats"]

ENTRY_BYTES: Final = 1_216
"""What an entry costs besides its row and metadata: its place here and in a policy, and a partition of its own."""
EXACT_ENTRIES: Final = 50_000
"""Entries of a partition up to which it is searched exactly: a few milliseconds."""
MAX_META: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Raises ValueError where one is below 1."""

    entries: int
    bytes: int
    """Of memory: rows, metadata, graphs and what is kept to find them."""
    scope_entries: int | None = None
    scope_bytes: int | None = None
    file_bytes: int | None = None
    """Of the file; entries beyond it are kept in memory alone."""

    def __post_init__(self) -> None:
        told = (self.entries, self.bytes, self.scope_entries, self.scope_bytes, self.file_bytes)
        if any(one is not None and one < 1 for one in told):
            raise ValueError(f"a limit below 1: {told}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarityStats:
    """As of now."""

    entries: int
    partitions: int
    scopes: int
    bytes: int
    """All that counts against `Limits.bytes`."""
    file_bytes: int
    """0: there is no file, or it could not be written to any longer."""
    graphs: int
    """Large partitions that have one or will have."""
    waiting: int
    """Entries that `work` has still to do."""
    evictions: int


class SimilarityIndex:
    """All partitions of one embedder.

    `dim`: numbers of a vector. `scope_size`: bytes that the keys of one scope's partitions begin with. `policy`: the
    name of an eviction policy. `evicted` is told of the ids that made room. `new_nodes`: what makes graphs; usearch,
    unless told.
    """

    def __init__(
        self,
        dim: int,
        limits: Limits,
        *,
        scope_size: int = 16,
        max_meta: int = MAX_META,
        policy: str = "lru",
        evicted: Evicted | None = None,
        exact_entries: int = EXACT_ENTRIES,
        new_nodes: NewNodes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if dim < 1 or not 1 <= scope_size <= MIN_PARTITION or not 0 <= max_meta < 1 << 16:
            raise ValueError(f"vectors of {dim} numbers, scopes of {scope_size} bytes, metadata of {max_meta}")
        self.dim = dim
        self.limits = limits
        self.max_meta = max_meta
        self._scope_size = scope_size
        self._clock = clock
        quota = limits.scope_bytes
        if quota is None and limits.scope_entries is not None:
            quota = limits.bytes  # a policy chooses among a tenant's entries only where that has one
        self._policy: EvictionPolicy = make_eviction(policy, default_quota=quota)
        self._news = EvictionNews(evicted)
        self._entries: dict[bytes, Entry] = {}
        self._partitions: dict[bytes, Partition] = {}
        self._scopes: dict[bytes, Scope] = {}
        self._large = LargePartitions(dim, exact_entries, self._has_room, new_nodes)
        self._keeper = VectorKeeper()
        self._uses = 0
        self._evictions = 0

    def open(self, directory: Path, embedder: str) -> int:
        """Keep entries in a file there too, and take in what is in it, before anything is added; how many entries it
        were. What another embedder has left is thrown away: `embedder` is its fingerprint. Takes about 30 µs an entry.
        Raises StoreError where the directory cannot be used, or another process uses it: all is in memory alone then.
        """
        assert not self._entries, "opened too late"
        layout = fmt.layout(self.dim, self.max_meta, embedder)
        slots = self.limits.entries
        if self.limits.file_bytes is not None:
            slots = min(slots, slots_within(layout, self.limits.file_bytes))
        try:
            self._take_in(self._keeper.open(directory, layout, max_slots=slots))
        except StoreError:
            self._forget([*self._partitions.values()])
            raise
        return len(self._entries)

    def flush(self) -> None:
        """What was added and removed until now survives a crash of the machine, too. Raises StoreError as `remove`."""
        self._keeper.sync()

    def close(self) -> None:
        """Give the file back, whole. Raises StoreError as `remove`."""
        self._keeper.close()

    # --- entries -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry_id: bytes) -> bool:
        return entry_id in self._entries

    def add(self, partition: bytes, entry_id: bytes, vector: Floats, meta: bytes = b"") -> bool:
        """Keep it, in the place of another one of that id. False where it is larger than a limit. Raises ValueError
        for a vector not of length 1, a key or id of another size, and more metadata than there may be; StoreError as
        `remove` does.
        """
        self._check(partition, entry_id, meta)
        row = to_row(to_floats(vector, self.dim))
        known = self._entries.get(entry_id)
        if known is not None:
            self._drop([known])
        if not self._make_room_for(partition, self._size(meta)):
            return False
        self._uses += 1
        record = Record(self._uses, partition, entry_id, meta, row)
        entry = self._insert(record, self._keeper.write(record))
        self._admit(entry)
        self._large.grown(entry.partition)
        return True

    def search(self, partition: bytes, vector: Floats, k: int = 1, floor: float = -1.0) -> list[Match]:
        """The `k` entries of the partition that are most similar, of at least `floor`, best first; equals by their
        ids. Not a use. Raises ValueError for a vector not of length 1 and for `k` below 1.
        """
        if k < 1:
            raise ValueError(f"the {k} best")
        query = to_floats(vector, self.dim)
        found = self._partitions.get(partition)
        if found is None:
            return []
        matches = self._large.search(found, query, k, floor)
        return found.search(query, k, floor) if matches is None else matches

    def touch(self, entry_id: bytes) -> None:
        """It was used: others go first."""
        entry = self._entries.get(entry_id)
        if entry is None:
            return
        self._policy.touch(entry_id, self._clock())
        self._uses += 1
        self._keeper.used(entry.slot, self._uses)

    def remove(self, entry_id: bytes) -> bool:
        """It is gone, from the file too; False where it was not here. Until `flush` a crash of the machine, not of the
        process, may bring it back. Raises StoreError where the file can be neither written to nor deleted.
        """
        entry = self._entries.get(entry_id)
        if entry is not None:
            self._drop([entry])
        return entry is not None

    def count(self, prefix: bytes) -> int:
        """Entries of the partitions whose keys begin with that: what `forget` would remove."""
        return sum(map(len, self._beginning(prefix)))

    def forget(self, prefix: bytes) -> int:
        """Remove all entries of the partitions whose keys begin with `prefix`, a scope's for one; how many it were.
        They are gone for good, even if the machine crashes. Raises StoreError as `remove` does.
        """
        return self._forget(self._beginning(prefix))

    def forget_entries(
        self, partition: Callable[[bytes], bool], entry: Callable[[bytes], bool], *, dry_run: bool = False
    ) -> int:
        """The same, entry by entry: those whose ids are chosen, in the partitions whose keys are. With `dry_run` they
        are only counted.
        """
        chosen = [
            each for one in self._partitions.values() if partition(one.key) for each in one.entries if entry(each.id)
        ]
        if not dry_run:
            self._drop(chosen)
            self._keeper.sync()
        return len(chosen)

    # --- large partitions ----------------------------------------------------------------------------------

    def work(self, limit: int = 64) -> bool:
        """A slice of what is to be done in the background: at most `limit` entries, a millisecond each, go into a
        graph. True where more is to be done. To be called again and again, and some time after entries were added.
        """
        return self._large.work(limit)

    def stats(self) -> SimilarityStats:
        """As of now; from any thread."""
        return SimilarityStats(
            entries=len(self._entries),
            partitions=len(self._partitions),
            scopes=len(self._scopes),
            bytes=self._bytes,
            file_bytes=self._keeper.bytes,
            graphs=len(self._large),
            waiting=self._large.waiting,
            evictions=self._evictions,
        )

    def check(self) -> None:
        """Raises AssertionError where the books contradict each other; for tests and idle times."""
        for key, partition in self._partitions.items():
            assert partition.key == key
            assert partition.rows().shape == (len(partition), self.dim)
            assert [entry.row for entry in partition.entries] == [*range(len(partition))]
            assert all(entry.partition is partition for entry in partition.entries)
            assert self._scopes[key[: self._scope_size]] is partition.scope
        assert {id(entry) for one in self._partitions.values() for entry in one.entries} == {
            id(entry) for entry in self._entries.values()
        }
        assert sum(scope.entries for scope in self._scopes.values()) == len(self._entries) == len(self._policy)
        assert self._policy.bytes == sum(self._size(entry.meta) for entry in self._entries.values())
        assert self._large.bytes == sum(scope.graph_bytes for scope in self._scopes.values())

    # --- in and out ----------------------------------------------------------------------------------------

    def _check(self, partition: bytes, entry_id: bytes, meta: bytes) -> None:
        if not MIN_PARTITION <= len(partition) <= MAX_PARTITION or len(entry_id) != ID_SIZE:
            raise ValueError(f"a partition's key of {len(partition)} bytes, an id of {len(entry_id)}")
        if len(meta) > self.max_meta:
            raise ValueError(f"{len(meta)} bytes of metadata; there may be {self.max_meta}")

    def _insert(self, record: Record, slot: int) -> Entry:
        partition = self._partitions.get(record.partition)
        if partition is None:
            partition = self._partitions[record.partition] = Partition(record.partition, self._scope(record.partition))
        entry = Entry(record.id, record.meta, partition, slot)
        self._entries[record.id] = entry
        partition.append(entry, record.row)
        partition.scope.entries += 1
        return entry

    def _scope(self, partition: bytes) -> Scope:
        key = partition[: self._scope_size]
        scope = self._scopes.get(key)
        if scope is None:
            scope = self._scopes[key] = Scope(key.hex())
        return scope

    def _admit(self, entry: Entry) -> None:
        tenant = entry.partition.scope.name
        self._policy.admit(entry.id, self._size(entry.meta), self._clock(), parent=None, tenant=tenant, cost=1.0)

    def _take_in(self, records: Iterable[tuple[int, Record]]) -> None:
        used: dict[bytes, int] = {}
        old = []
        for slot, record in records:
            if record.id in used:  # one that was replaced is back after a crash of the machine
                if record.used <= used[record.id]:
                    old.append(slot)
                    continue
                old.append(self._entries[record.id].slot)
                self._leave(self._entries[record.id])
            used[record.id] = record.used
            self._insert(record, slot)
        self._keeper.clear(old)
        for entry_id in sorted(used, key=used.__getitem__):
            self._uses = used[entry_id]
            self._admit(self._entries[entry_id])
        self._make_room(None, 0)
        for scope in [*self._scopes.values()]:
            self._make_room(scope, 0)
        for partition in self._partitions.values():
            self._large.grown(partition)

    def _drop(self, entries: Iterable[Entry]) -> None:
        """The file first: what memory has forgotten nobody would remove from it any more."""
        going = [*entries]
        try:
            self._keeper.clear([entry.slot for entry in going])
        finally:
            for entry in going:
                self._leave(entry)

    def _leave(self, entry: Entry) -> None:
        del self._entries[entry.id]
        self._policy.remove(entry.id)
        partition = entry.partition
        partition.remove(entry)
        partition.scope.entries -= 1
        self._large.shrunk(partition)
        if not partition:
            self._leave_empty(partition)

    def _leave_empty(self, partition: Partition) -> None:
        del self._partitions[partition.key]
        if not partition.scope.entries:
            del self._scopes[partition.key[: self._scope_size]]

    def _beginning(self, prefix: bytes) -> list[Partition]:
        return [one for one in self._partitions.values() if one.key.startswith(prefix)]

    def _forget(self, partitions: list[Partition]) -> int:
        entries = [entry for one in partitions for entry in one.entries]
        try:
            self._keeper.clear([entry.slot for entry in entries])
        finally:
            for entry in entries:
                del self._entries[entry.id]
                self._policy.remove(entry.id)
            for partition in partitions:
                self._large.drop(partition)
                partition.scope.entries -= len(partition)
                partition.clear()
                self._leave_empty(partition)
        self._keeper.sync()
        return len(entries)

    # --- bounds --------------------------------------------------------------------------------------------

    @property
    def _bytes(self) -> int:
        return self._policy.bytes + self._large.bytes

    def _size(self, meta: bytes) -> int:
        return ENTRY_BYTES + 2 * self.dim + len(meta)

    def _bytes_above(self, scope: Scope | None, size: int) -> int:
        """By how much `size` more would go over the bound of a scope, or of all; below 0: there is room."""
        if scope is None:
            return self._bytes + size - self.limits.bytes
        if self.limits.scope_bytes is None:
            return -1
        return self._policy.bytes_of(scope.name) + scope.graph_bytes + size - self.limits.scope_bytes

    def _excess(self, scope: Scope | None, size: int) -> int:
        """Bytes that must go before an entry of `size` fits in; 1 where an entry must, whatever its size."""
        n_entries, most = len(self._entries), self.limits.entries
        if scope is not None:
            n_entries, most = scope.entries, self.limits.scope_entries or self.limits.entries
        return max(self._bytes_above(scope, size), 1 if n_entries + (size > 0) > most else 0)

    def _has_room(self, scope: Scope, size: int) -> bool:
        return self._bytes_above(scope, size) <= 0 and self._bytes_above(None, size) <= 0

    def _make_room_for(self, partition: bytes, size: int) -> bool:
        if size > min(self.limits.bytes, self.limits.scope_bytes or self.limits.bytes):
            return False
        scope = self._scopes.get(partition[: self._scope_size])
        return (scope is None or self._make_room(scope, size)) and self._make_room(None, size)

    def _make_room(self, scope: Scope | None, size: int) -> bool:
        while (excess := self._excess(scope, size)) > 0:
            names = self._policy.victims(excess, self._clock(), tenant=None if scope is None else scope.name)
            if not names:
                return False
            self._drop(self._entries[name] for name in names)
            self._evictions += len(names)
            self._news.tell(map(ChunkKey, names))
        return True
