"""Small frames in this process's memory, each an object of its own: for answers, of which there are many and most are
of a few kilobytes. KV has an arena instead (`memory_store`), whose frames start at 64 KiB.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Final

from cache.byte_pieces import copy_pieces, total_bytes
from cache.store import Buffer, ChunkKey, FrameInfo, StoreError, StoreStats
from policies.eviction import EvictionPolicy, make_eviction
from policies.types import Tier

ENTRY_BYTES: Final = 1_152
"""What a frame costs besides its bytes, at most: its key, its places here and in a policy; about 550 with LRU."""


class SmallStore:
    """An `EntryStore` in memory. `capacity` bounds all that it holds, `tenant_bytes` what one tenant may have; a tenant
    at its quota makes room among its own frames. `policy`: LRU unless one is given, which must have been told the same
    quota. No call waits for anything but the lock, which is held for microseconds: it may be asked in an event loop.
    """

    def __init__(
        self,
        capacity: int,
        *,
        policy: EvictionPolicy | None = None,
        tenant_bytes: int | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be above 0 bytes: {capacity}")
        self.capacity = capacity
        self._tenant_bytes = tenant_bytes
        self._policy = make_eviction("lru", default_quota=tenant_bytes) if policy is None else policy
        self._clock = clock
        self._frames: dict[ChunkKey, bytes] = {}
        self._counts: Counter[str] = Counter()
        self._closed = False
        self._lock = threading.Lock()

    @property
    def tier(self) -> Tier:
        """See `BlockStore`."""
        return Tier.HOST

    def contains(self, keys: Sequence[ChunkKey]) -> int:
        """See `BlockStore`."""
        with self._open():
            return next((at for at, key in enumerate(keys) if key not in self._frames), len(keys))

    def read(self, key: ChunkKey, limit: int | None = None) -> bytes | None:
        """See `EntryStore`."""
        with self._lock:
            if self._closed:
                raise _closed()
            frame = self._frames.get(key)
            if limit is not None:
                return None if frame is None else frame[:limit]
            if frame is None:
                self._counts["misses"] += 1
                return None
            self._counts["hits"] += 1
            self._policy.touch(key, self._clock())
            return frame

    def keys(self, prefix: bytes = b"") -> Iterator[ChunkKey]:
        """See `EntryStore`."""
        with self._open():
            found = list(self._frames)
        return (key for key in found if key.startswith(prefix))

    def read_into(self, key: ChunkKey, pieces: Sequence[memoryview]) -> bool:
        """See `BlockStore`."""
        with self._open():
            frame = self._frames.get(key)
            if frame is None or len(frame) != total_bytes(pieces):
                self._counts["misses"] += 1
                return False
            self._counts["hits"] += 1
            self._policy.touch(key, self._clock())
        copy_pieces(pieces, [frame])
        return True

    def write(self, key: ChunkKey, pieces: Sequence[Buffer], info: FrameInfo) -> bool:
        """See `BlockStore`. A single piece of `bytes` is kept as it is."""
        if info.parent == key:
            raise ValueError("a frame does not come before itself")
        only = pieces[0] if len(pieces) == 1 else None
        frame = only if type(only) is bytes else b"".join(pieces)
        with self._open():
            if key in self._frames or not self._make_room(len(frame) + ENTRY_BYTES, info):
                return False
            self._frames[key] = frame
            self._policy.admit(
                key,
                len(frame) + ENTRY_BYTES,
                self._clock(),
                parent=info.parent,
                tenant=info.tenant,
                cost=float(info.n_tokens),
            )
            self._counts["writes"] += 1
            return True

    def remove(self, key: ChunkKey) -> bool:
        """See `BlockStore`."""
        with self._open():
            return self._drop(key)

    def stats(self) -> StoreStats:
        """See `BlockStore`."""
        with self._lock:
            return StoreStats(
                entries=len(self._frames), bytes=self._policy.bytes, capacity=self.capacity, **self._counts
            )

    def close(self) -> None:
        """See `BlockStore`."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for key in list(self._frames):
                    self._drop(key)

    # --- with the lock held --------------------------------------------------------------------------------

    @contextmanager
    def _open(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise _closed()
            yield

    def _drop(self, key: ChunkKey) -> bool:
        if self._frames.pop(key, None) is None:
            return False
        self._policy.remove(key)
        return True

    def _make_room(self, n_bytes: int, info: FrameInfo) -> bool:
        """Whether so many bytes fit now. What comes before the new frame in its chain stays."""
        quota = self._tenant_bytes
        if n_bytes > self.capacity or (quota is not None and n_bytes > quota):
            return False
        if info.parent is not None:
            self._policy.pin(info.parent)
        try:
            if quota is not None and not self._evict(self._policy.bytes_of(info.tenant) + n_bytes - quota, info.tenant):
                return False
            return self._evict(self._policy.bytes + n_bytes - self.capacity, None)
        finally:
            if info.parent is not None:
                self._policy.unpin(info.parent)

    def _evict(self, need_bytes: int, tenant: str | None) -> bool:
        """Whether that much could be freed; if not, nothing goes."""
        if need_bytes <= 0:
            return True
        victims = self._policy.victims(need_bytes, self._clock(), tenant=tenant)
        if sum(len(self._frames[ChunkKey(key)]) + ENTRY_BYTES for key in victims) < need_bytes:
            return False
        for key in victims:
            self._drop(ChunkKey(key))
        self._counts["evictions"] += len(victims)
        return True


def _closed() -> StoreError:
    return StoreError("the store is closed")
