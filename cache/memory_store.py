"""The host memory tier: frames in one arena that is set aside when the store is made.

Two threads never wait for each other's copies: the lock is held to look up, to make room and to count, and bytes are
copied without it. What is being copied is pinned: it is not evicted, and where it is removed meanwhile its pages are
used again only after the last copy has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from threading import Condition
from time import monotonic, time
from typing import Final

from cache.arena import Arena
from cache.byte_pieces import copy_pieces, total_bytes
from cache.eviction_news import Evicted, EvictionNews
from cache.extents import Extent, Extents
from cache.frame_expiry import FrameExpiry
from cache.frame_pins import FramePins
from cache.pinned_heads import PinnedHeads
from cache.store import Buffer, ChunkKey, FrameInfo, OwnFrames, StoreError, StoreStats
from policies.eviction import EvictionPolicy, make_eviction
from policies.types import Tier

PAGE_BYTES: Final = 1 << 16
"""Pages of 64 KiB: a frame wastes less than one, and the most scattered frame is still copied 64 KiB at a time."""

ENTRY_BYTES: Final = 1_024
"""What one frame costs besides its pages: its entry here and in a policy, and its keys."""

EXTENT_BYTES: Final = 192
"""What one run of pages costs."""

_CLOSE_SECONDS: Final = 5.0
_EXPIRED_AT_ONCE: Final = 64
"""Frames that a write drops because their time is over: it does not wait for all of them."""


class _Frame:
    """Where a frame lies. The policy knows it while it is written and not removed."""

    __slots__ = ("charge", "extents", "length", "parent", "readers", "removed", "tenant", "written")

    def __init__(self, length: int, extents: list[Extent], info: FrameInfo, charge: int) -> None:
        self.length = length
        self.extents = extents
        self.parent = info.parent
        self.tenant = info.tenant
        self.charge = charge
        self.written = False
        self.readers = 0
        self.removed = False


class MemoryStore:
    """A `BlockStore` in this process's memory.

    `capacity` bounds everything, the arena and what is kept to find frames in it; a store of less than one page holds
    nothing and is refused with ValueError. `tenant_bytes` is the most that one tenant may have; a tenant at its quota
    makes room among its own frames. `policy`: LRU unless one is given, which must have been told the same quota.
    `evicted` is told of frames that made room. With `prefault` the memory is there before the first write instead of
    at it, and `hugepages` asks for large pages. `wall` is the clock of `FrameInfo.expires`. Raises StoreError where
    the memory cannot be had.
    """

    def __init__(
        self,
        capacity: int,
        *,
        policy: EvictionPolicy | None = None,
        evicted: Evicted | None = None,
        tenant_bytes: int | None = None,
        page_bytes: int = PAGE_BYTES,
        prefault: bool = True,
        hugepages: bool = False,
        clock: Callable[[], float] = monotonic,
        wall: Callable[[], float] = time,
    ) -> None:
        # Every page may be a frame or a run of its own: with that reserved, all pages fit into the bound at any time.
        n_pages = capacity // (page_bytes + ENTRY_BYTES + EXTENT_BYTES)
        if n_pages < 1:
            raise ValueError(f"capacity must be at least {page_bytes + ENTRY_BYTES + EXTENT_BYTES} bytes: {capacity}")
        self.capacity = capacity
        self._page_bytes = page_bytes
        self._tenant_bytes = tenant_bytes
        self._clock = clock
        self._wall = wall
        self._arena = Arena(n_pages, page_bytes, prefault=prefault, hugepages=hugepages)
        self._extents = Extents(n_pages)
        self._policy = make_eviction("lru", default_quota=tenant_bytes) if policy is None else policy
        self._news = EvictionNews(evicted)
        self._gone: list[ChunkKey] = []
        """Evicted while the lock is held: whoever gives it up tells of them."""
        self._frames: dict[ChunkKey, _Frame] = {}
        self._pins = FramePins(capacity // 2, self._charge_of)
        self._heads = PinnedHeads(Tier.HOST, capacity, self._hold, self._let_go)
        self._expiry = FrameExpiry()
        self._charged = 0
        self._by_tenant: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._n_entries = 0
        self._under_way = 0
        self._closed = False
        self._lock = Condition()

    @property
    def tier(self) -> Tier:
        """See `BlockStore`."""
        return Tier.HOST

    def contains(self, keys: Sequence[ChunkKey]) -> int:
        """See `BlockStore`."""
        with self._telling():
            find = self._found if self._expiry else self._whole
            return next((at for at, key in enumerate(keys) if find(key) is None), len(keys))

    def read_into(self, key: ChunkKey, pieces: Sequence[memoryview], *, expires: float | None = None) -> bool:
        """See `BlockStore`."""
        length = total_bytes(pieces)
        with self._telling():
            frame = self._found(key)
            if frame is None or frame.length != length:
                self._counts["misses"] += 1
                return False
            self._counts["hits"] += 1
            now = self._clock()
            self._policy.touch(key, now)
            self._heads.used(key, now)
            self._expiry.set(key, expires)
            self._pin(key, frame)
            self._under_way += 1
        try:
            copy_pieces(pieces, self._arena.memory(frame.extents, frame.length))
        finally:
            with self._lock:
                self._unpin(key, frame)
                self._finished()
        return True

    @contextmanager
    def lend(self, key: ChunkKey) -> Iterator[Sequence[memoryview] | None]:
        """See `Lender`. Pinned meanwhile; the views are of no use afterwards. `close` waits for it, as for a reader."""
        with self._telling():
            frame = self._found(key)
            if frame is None:
                pieces = []
            else:
                pieces = [piece.toreadonly() for piece in self._arena.memory(frame.extents, frame.length)]
                self._pin(key, frame)
                self._under_way += 1
        if frame is None:
            yield None
            return
        try:
            yield pieces
        finally:
            for piece in pieces:
                with suppress(BufferError):  # somebody made something else of it, and keeps that
                    piece.release()
            with self._lock:
                self._unpin(key, frame)
                self._finished()

    def write(self, key: ChunkKey, pieces: Sequence[Buffer], info: FrameInfo) -> bool:
        """See `BlockStore`."""
        length = total_bytes(pieces)
        if info.parent == key:
            raise ValueError("a frame does not come before itself")
        with self._telling():
            if self._found(key) is not None or key in self._frames:
                return False
            if info.expires is not None and info.expires <= self._wall():
                return False
            # The frame before it stays while it is written, or its chain would be cut off.
            parent = None if info.parent is None else self._frames.get(info.parent)
            if info.parent is not None and parent is not None:
                self._pin(info.parent, parent)
            frame = self._reserve(key, length, info)
            self._under_way += 1
        whole = False
        try:
            if frame is not None:
                copy_pieces(self._arena.memory(frame.extents, frame.length), pieces)
                whole = True
        finally:
            with self._lock:
                if frame is not None:
                    self._settle(key, frame, info, whole=whole)
                if info.parent is not None and parent is not None:
                    self._unpin(info.parent, parent)
                self._finished()
        return whole

    def remove(self, key: ChunkKey) -> bool:
        """See `BlockStore`. A frame that is being written counts as written, and is not kept."""
        with self._open():
            frame = self._frames.get(key)
            if frame is None:
                return False
            self._drop(key, frame)
            return True

    def of_tenants(self, tenants: Collection[str], seconds: float) -> OwnFrames:  # noqa: ARG002 - it is done at once
        """See `TenantStore`; those that are being written, too."""
        with self._open():
            return OwnFrames([key for key, frame in self._frames.items() if frame.tenant in tenants])

    def pin(self, key: ChunkKey) -> bool:
        """Never evict it, nor those before it in its chain, until as many `unpin`, or `remove`. False where it is not
        here, or more than half of the capacity would be pinned. Raises StoreError.
        """
        with self._open():
            return self._hold(key)

    def unpin(self, key: ChunkKey) -> None:
        """Take one `pin` back; nothing happens where there is none. Raises StoreError."""
        with self._open():
            self._let_go(key)

    def renew(self, key: ChunkKey, info: FrameInfo) -> None:
        """See `Keeper`."""
        with self._telling():
            self._limit(info)
            frame = self._found(key)
            if frame is not None:
                self._expiry.set(key, info.expires)
                self._heads.here(key, frame.charge, info, self._clock())

    def expire(self, most: int) -> int:
        """See `Keeper`."""
        with self._telling():
            return self._drop_expired(most)

    def stats(self) -> StoreStats:
        """See `BlockStore`."""
        with self._lock:
            held = 0 if self._closed else self._charged
            return StoreStats(entries=self._n_entries, bytes=held, capacity=self.capacity, **self._counts)

    def close(self) -> None:
        """See `BlockStore`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._lock.wait_for(lambda: not self._under_way, _CLOSE_SECONDS)
            self._frames.clear()
            self._n_entries = 0
            # With a copy still under way the memory is given back when that ends.
            if not self._under_way:
                self._arena.free()

    # --- with the lock held --------------------------------------------------------------------------------

    @contextmanager
    def _open(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise StoreError("the store is closed")
            yield

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """The same; and once the lock is given up, whoever wants to know is told what went meanwhile."""
        with self._lock:
            if self._closed:
                raise StoreError("the store is closed")
            yield
            gone, self._gone = self._gone, []
        self._news.tell(gone)

    def _finished(self) -> None:
        self._under_way -= 1
        if self._closed and not self._under_way:
            self._arena.free()
            self._lock.notify_all()

    def _charge_of(self, key: ChunkKey) -> tuple[int, ChunkKey | None] | None:
        frame = self._whole(key)
        return None if frame is None else (frame.charge, frame.parent)

    def _whole(self, key: ChunkKey) -> _Frame | None:
        frame = self._frames.get(key)
        return frame if frame is not None and frame.written else None

    def _found(self, key: ChunkKey) -> _Frame | None:
        """A frame that may be given out; one whose time is over goes."""
        frame = self._whole(key)
        if frame is not None and self._expiry and self._expiry.over(key, self._wall()):
            self._lose(key, frame)
            return None
        return frame

    def _drop_expired(self, most: int) -> int:
        due = self._expiry.due(self._wall(), most) if self._expiry else []
        for key in due:
            self._lose(key, self._frames[key])
        return len(due)

    def _lose(self, key: ChunkKey, frame: _Frame) -> None:
        self._drop(key, frame)
        self._counts["expired"] += 1
        self._gone.append(key)

    def _hold(self, key: ChunkKey) -> bool:
        if not self._pins.pin(key):
            return False
        self._policy.pin(key)
        return True

    def _let_go(self, key: ChunkKey) -> None:
        if self._pins.unpin(key):
            self._policy.unpin(key)

    def _limit(self, info: FrameInfo) -> float:
        """What its tenant may have."""
        quota, most = info.policy.quota(Tier.HOST), inf if self._tenant_bytes is None else self._tenant_bytes
        self._policy.limit(info.tenant, quota)
        return most if quota is None else min(quota, most)

    def _pin(self, key: ChunkKey, frame: _Frame) -> None:
        frame.readers += 1
        if frame.written:
            self._policy.pin(key)

    def _unpin(self, key: ChunkKey, frame: _Frame) -> None:
        frame.readers -= 1
        if frame.removed:
            if not frame.readers:
                self._release(frame)
        elif frame.written:
            self._policy.unpin(key)

    def _reserve(self, key: ChunkKey, length: int, info: FrameInfo) -> _Frame | None:
        """Pages for a frame that is about to be written; None: there is no room for it."""
        n_pages = max(1, -(-length // self._page_bytes))
        # At worst each page is a run of its own.
        most = n_pages * (self._page_bytes + EXTENT_BYTES) + ENTRY_BYTES
        quota = self._limit(info)
        if n_pages > self._extents.n_pages or most > quota:
            return None
        if not self._pins.allows(key, most, info.parent):
            return None
        self._drop_expired(_EXPIRED_AT_ONCE)
        extents = self._take(n_pages, most, info.tenant, quota)
        if extents is None:
            return None
        charge = n_pages * self._page_bytes + ENTRY_BYTES + EXTENT_BYTES * len(extents)
        frame = self._frames[key] = _Frame(length, extents, info, charge)
        frame.readers = 1  # its writer: nobody else gets these pages before it is done
        self._charged += charge
        self._by_tenant[info.tenant] += charge
        return frame

    def _take(self, n_pages: int, most: int, tenant: str, quota: float) -> list[Extent] | None:
        over = self._by_tenant[tenant] + most - quota
        if over > 0 and not self._evict_own(int(over), tenant):
            return None
        missing = n_pages - self._extents.n_free
        if missing > 0 and not self._evict_any(missing):
            return None
        return self._extents.take(n_pages)

    def _evict_own(self, need_bytes: int, tenant: str) -> bool:
        """Evict frames of one tenant; nothing where that does not suffice. Its pins are against others alone."""
        if self._evict_unpinned(need_bytes, tenant):
            return True
        return self._heads.give_way(tenant, need_bytes, self._clock()) and self._evict_unpinned(need_bytes, tenant)

    def _evict_unpinned(self, need_bytes: int, tenant: str) -> bool:
        own, size = [], 0
        for key in map(ChunkKey, self._policy.victims(need_bytes, self._clock(), tenant=tenant)):
            if size >= need_bytes:  # the policy counts pages alone, and names more
                break
            own.append(key)
            size += self._frames[key].charge
        if size < need_bytes:
            return False
        self._evict(own)
        return True

    def _evict_any(self, n_pages: int) -> bool:
        """Evict until as many pages are free; nothing where that cannot be reached, because the rest is in use."""
        victims = [*map(ChunkKey, self._policy.victims(n_pages * self._page_bytes, self._clock()))]
        if sum(extent.n_pages for key in victims for extent in self._frames[key].extents) < n_pages:
            return False
        self._evict(victims)
        return True

    def _evict(self, keys: Sequence[ChunkKey]) -> None:
        for key in keys:
            self._drop(key, self._frames[key])
        self._counts["evictions"] += len(keys)
        self._gone += keys

    def _settle(self, key: ChunkKey, frame: _Frame, info: FrameInfo, *, whole: bool) -> None:
        """The writer is done: all can read the frame, unless it was removed meanwhile or is not whole."""
        frame.readers -= 1
        if whole:
            self._counts["writes"] += 1
        if frame.removed:
            if not frame.readers:
                self._release(frame)
        elif not whole:
            self._drop(key, frame)
        else:
            frame.written = True
            self._n_entries += 1
            self._policy.admit(
                key,
                self._page_bytes * sum(extent.n_pages for extent in frame.extents),
                self._clock(),
                parent=info.parent,
                tenant=info.tenant,
                cost=float(info.n_tokens),
            )
            for _ in range(frame.readers):
                self._policy.pin(key)
            self._pins.came(key)
            self._expiry.set(key, info.expires)
            self._heads.here(key, frame.charge, info, self._clock())

    def _drop(self, key: ChunkKey, frame: _Frame) -> None:
        """Nobody finds it any more; its pages are free at once, or when those who copy it are done."""
        del self._frames[key]
        if frame.written:
            self._n_entries -= 1
            self._policy.remove(key)
            self._pins.went(key, frame.charge, frame.parent)
            self._heads.gone(key)
            self._expiry.drop(key)
        frame.removed = True
        if not frame.readers:
            self._release(frame)

    def _release(self, frame: _Frame) -> None:
        self._extents.give_back(frame.extents)
        self._charged -= frame.charge
        self._by_tenant[frame.tenant] -= frame.charge
        if not self._by_tenant[frame.tenant]:
            del self._by_tenant[frame.tenant]
