"""KV on disk: frames in an append-only log of segments, in a directory of its own that one process has open.

*What survives.* A crash of the process loses nothing that `write` has returned for. A crash of the machine may lose
what was written since its segment was last synced: that happens when a segment is full, on `flush` and on `close`.
Neither ever yields a wrong frame: every frame is checked against its checksum when it is read, and one that does not
match is dropped. A record removed just before a crash of the machine may be back afterwards.

*Space.* All that is in the directory counts against `capacity`, files of others too, which are never touched. Evicted
frames give their space back at once by a hole in their segment (ext4, XFS, Btrfs, tmpfs); where the file system knows
no holes, or blocks larger than 4 KiB, a whole segment goes: the one with the frame that the policy likes least.

*Time.* Reads and writes run on the caller's thread, straight from and into its pieces. Nothing can cancel a local
disk call, so there is no deadline here: whoever calls must be able to do without the answer, as the tiered store
does. The one who fills a segment waits until it is synced.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from cache import disk_segment as fmt
from cache.disk_files import (
    ORDER,
    Directory,
    can_punch,
    index_name,
    punch,
    read_exactly,
    segment_name,
    write_all,
)  # fmt: skip
from cache.disk_load import load
from cache.disk_log import Garbage, Log, Next, Segment
from cache.disk_room import Room
from cache.disk_segment import Record
from cache.eviction_news import Evicted, EvictionNews
from cache.store import Buffer, ChunkKey, FrameInfo, OwnFrames, StoreError, StoreStats, tenant_digest
from policies.eviction import EvictionPolicy, make_eviction
from policies.types import Tier

DEFAULT_SEGMENT_BYTES: Final = 128 << 20
_EXPIRED_AT_ONCE: Final = 64
"""Frames that a call drops because their time is over: it does not wait for all of them."""
_PATIENCE: Final = 30.0
"""Seconds that `close` and `flush` wait for what other threads are doing."""
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DiskStore:
    """A `BlockStore` in a directory."""

    def __init__(
        self,
        directory: Path,
        *,
        capacity: int,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        tenant_bytes: int | None = None,
        policy: EvictionPolicy | None = None,
        evicted: Evicted | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        punch_holes: bool = True,
    ) -> None:
        """`capacity`, `segment_bytes` and `tenant_bytes` (what one tenant may have at most) in bytes. Segments of small
        stores are smaller, an eighth of the store.

        `policy`: LRU unless one is given, which must have been told the same quota; it knows tenants by
        `store.tenant_digest` in hex, for their names are not written down. `wall` is the clock of
        `FrameInfo.expires`.

        `evicted` is told of frames that made room, that proved damaged, or whose file was gone; not of those that are
        not found, or do not fit, when the store is opened.

        The directory is made where it is missing. Raises StoreError: it cannot be used, or another store has it open.
        """
        self._capacity = capacity
        self._policy = policy if policy is not None else make_eviction("lru", default_quota=tenant_bytes)
        self._news = EvictionNews(None)  # while it is opened
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._users = 0
        self._closed = False
        self._writing: set[ChunkKey] = set()
        self._counts: Counter[str] = Counter()
        self._retired: list[Directory] = []
        try:
            self._directory = Directory(directory)
        except OSError as error:
            raise _unusable(directory, error) from error
        try:
            by_record = punch_holes and can_punch(self._directory)
            self._log = Log(segment_bytes=max(1, min(segment_bytes, capacity // 8)), by_record=by_record)
            self._room = Room(self._log, self._policy, capacity=capacity, tenant_bytes=tenant_bytes)
            self._load()
        except BaseException as error:
            self._directory.close()
            if isinstance(error, OSError):
                raise _unusable(directory, error) from error
            raise
        self._news = EvictionNews(evicted)

    @property
    def tier(self) -> Tier:
        """See `BlockStore`."""
        return Tier.DISK

    def contains(self, keys: Sequence[ChunkKey]) -> int:
        """See `BlockStore`."""
        with self._lock:
            self._check_open()
            here = next((at for at, key in enumerate(keys) if not self._is_here(key)), len(keys))
            met = here < len(keys) and keys[here] in self._log.index
        if met:
            self.expire(_EXPIRED_AT_ONCE)
        return here

    def read_into(self, key: ChunkKey, pieces: Sequence[memoryview], *, expires: float | None = None) -> bool:
        """See `BlockStore`. A frame that is damaged or cannot be read is forgotten."""
        with self._using():
            record = self._to_read(key, sum(map(len, pieces)), expires)
            if record is None:
                return False
            try:
                with self._directory.opened(segment_name(record.segment)) as fd:
                    whole = read_exactly(fd, pieces, record.data)
            except OSError as error:
                if self._gone(record):
                    return False
                self._unreadable(record, error)
                raise self._failed("read", error) from error
            whole = whole and fmt.frame_checksum(pieces) == record.checksum
            with self._lock:
                # Of a record that was dropped meanwhile the bytes may be gone as well.
                here = self._log.index.get(key) is record
                self._counts["hits" if here and whole else "misses"] += 1
            if here and not whole:
                self._forget(record)
                raise self._failed("read", "a frame is damaged")
            return here

    def read(self, key: ChunkKey, limit: int | None = None) -> bytes | None:
        """See `EntryStore`."""
        with self._lock:
            self._check_open()
            record = self._log.index.get(key)
            if record is None:
                self._counts["misses"] += limit is None
                return None
        if limit is None:
            frame = bytearray(record.length)
            return bytes(frame) if self.read_into(key, [memoryview(frame)]) else None
        with self._using():
            begun = bytearray(min(limit, record.length))
            try:
                with self._directory.opened(segment_name(record.segment)) as fd:
                    whole = read_exactly(fd, [memoryview(begun)], record.data)
            except OSError as error:
                if self._gone(record):
                    return None
                raise self._failed("read", error) from error
            return bytes(begun) if whole else None

    def keys(self, prefix: bytes = b"") -> Iterator[ChunkKey]:
        """See `EntryStore`."""
        with self._lock:
            self._check_open()
            found = list(self._log.index)
        return (key for key in found if key.startswith(prefix))

    def write(self, key: ChunkKey, pieces: Sequence[Buffer], info: FrameInfo) -> bool:
        """See `BlockStore`. Where the file system is full the store makes do with less than its capacity for a
        while.
        """
        length = sum(map(len, pieces))
        tenant = tenant_digest(info.tenant)
        info = replace(info, tenant=tenant.hex())
        with self._using():
            if info.expires is not None and info.expires <= self._wall():
                return False
            self._drop_expired(_EXPIRED_AT_ONCE)
            with self._lock:
                known = key in self._log.index or key in self._writing
                if known or not self._room.can_hold(key, length, info):
                    return False
                self._writing.add(key)
            try:
                # Segment and offset are told when it has its place.
                n_tokens = min(info.n_tokens, fmt.MAX_TOKENS)
                checksum = fmt.frame_checksum(pieces)
                head = info.policy.pin
                draft = Record(0, 0, length, key, info.parent, tenant, n_tokens, checksum, info.expires, head)
                return self._append(draft, pieces, info)
            except OSError as error:
                raise self._failed("write", error) from error
            finally:
                with self._lock:
                    self._writing.discard(key)

    def remove(self, key: ChunkKey) -> bool:
        """See `BlockStore`."""
        with self._using():
            with self._lock:
                record = self._log.index.get(key)
            return record is not None and self._forget(record, removed=True)

    def of_tenants(self, tenants: Collection[str], seconds: float) -> OwnFrames:  # noqa: ARG002 - it is done at once
        """See `TenantStore`."""
        digests = set(map(tenant_digest, tenants))
        with self._lock:
            self._check_open()
            return OwnFrames([key for key, record in self._log.index.items() if record.tenant in digests])

    def pin(self, key: ChunkKey) -> bool:
        """Never evict it, nor those before it in its chain, until as many `unpin`, `remove`, or `close`. False where
        it is not here, where more than half of the capacity would be pinned, or where the file system knows no holes.
        Raises StoreError where the store is closed.
        """
        with self._lock:
            self._check_open()
            return self._room.pin(key)

    def unpin(self, key: ChunkKey) -> None:
        """Take one `pin` back; nothing happens where there is none. Raises StoreError where the store is closed."""
        with self._lock:
            self._check_open()
            self._room.unpin(key)

    def renew(self, key: ChunkKey, info: FrameInfo) -> None:
        """See `Keeper`. An end that was moved survives `close`; after a crash the one before counts."""
        info = replace(info, tenant=tenant_digest(info.tenant).hex())
        with self._lock:
            self._check_open()
            record = self._log.index.get(key)
            if record is not None and self._is_here(key):
                self._room.renew(record, info, self._clock())

    def expire(self, most: int) -> int:
        """See `Keeper`."""
        with self._using():
            return self._drop_expired(most)

    def flush(self) -> None:
        """Make what was written so far survive a crash of the machine. Raises StoreError."""
        with self._using():
            with self._lock:
                segments = [one for one in self._log.segments.values() if not one.sealed]
                for segment in segments:
                    # Nobody seals or deletes it meanwhile.
                    segment.pending += 1
            try:
                for segment in segments:
                    os.fdatasync(segment.fd)
                self._directory.sync()
            except OSError as error:
                raise self._failed("flush", error) from error
            finally:
                with self._lock:
                    for segment in segments:
                        segment.pending -= 1
                    # Others are being sealed, by those who filled them.
                    self._idle.wait_for(lambda: not self._sealing(), _PATIENCE)
                for segment in segments:
                    self._settle(segment)

    def _sealing(self) -> bool:
        return any(one.sealed and one.fd >= 0 for one in self._log.segments.values())

    def stats(self) -> StoreStats:
        """See `BlockStore`."""
        with self._lock:
            counts = self._counts
            return StoreStats(
                entries=len(self._log.index), bytes=self._log.bytes, capacity=self._capacity,
                hits=counts["hits"], misses=counts["misses"], writes=counts["writes"],
                evictions=self._room.evictions, errors=counts["errors"], expired=self._room.expirations,
            )  # fmt: skip

    def close(self) -> None:
        """See `BlockStore`. Waits for those who are reading or writing, for a while; a disk that hangs keeps its
        files.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if not self._idle.wait_for(lambda: not self._users, _PATIENCE):
                return
            self._log.roll()
            segments = list(self._log.segments.values())
        for segment in segments:
            self._settle(segment)
        try:
            places = [(key, self._room.end(key)) for key in self._log.index]
            self._directory.write(ORDER, fmt.encode_order(places))
            self._directory.sync()
        except OSError:
            self._count("errors")
        for directory in (self._directory, *self._retired):
            directory.close()

    # --- one record ----------------------------------------------------------------------------------------

    def _is_here(self, key: ChunkKey) -> bool:
        if key not in self._log.index:
            return False
        end = self._room.end(key)
        return end is None or end > self._wall()

    def _to_read(self, key: ChunkKey, length: int, expires: float | None) -> Record | None:
        with self._lock:
            record = self._log.index.get(key)
            over = record is not None and not self._is_here(key)
            if record is None or record.length != length or over:
                self._counts["misses"] += 1
                record = None
            else:
                self._log.touch(record)
                self._room.used(key, self._clock(), expires)
        if over:
            self._drop_expired(_EXPIRED_AT_ONCE)
        return record

    def _drop_expired(self, most: int) -> int:
        with self._lock:
            before = self._room.expirations
            garbage = self._room.expired(self._wall(), most)
            n_dropped = self._room.expirations - before
        if garbage:
            self._reclaim(garbage)
        return n_dropped

    def _gone(self, record: Record) -> bool:
        """Whether it was dropped while it was read, and its file with it: a miss."""
        with self._lock:
            gone = self._log.index.get(record.key) is not record
            self._counts["misses"] += gone
            return gone

    def _append(self, draft: Record, pieces: Sequence[Buffer], info: FrameInfo) -> bool:
        garbage: list[Garbage] = []
        placed = None
        try:
            with self._lock:
                garbage += self._room.admit(draft, self._clock())
                placed = self._place(draft, garbage)
        finally:
            if placed is None:
                self._reclaim(garbage)
        if placed is None:
            return False
        segment, record, paid = placed
        try:
            self._reclaim(garbage, paid)
            if not os.fstat(segment.fd).st_nlink:
                raise FileNotFoundError(errno.ENOENT, "the segment was deleted")
            write_all(segment.fd, [fmt.encode_header(record), *pieces], record.offset)
        except OSError as error:
            self._not_written(segment, record, error)
            raise
        with self._lock:
            self._room.wrote(segment, record, info, self._clock())
            self._counts["writes"] += 1
        self._settle(segment)
        return True

    def _not_written(self, segment: Segment, record: Record, error: OSError) -> None:
        with self._lock:
            garbage = self._room.failed(segment, record, full=error.errno in _FULL)
            if error.errno == errno.ENOENT:
                garbage += self._room.drop_all(segment)
        self._reclaim(garbage)
        self._settle(segment)

    def _unreadable(self, record: Record, error: OSError) -> None:
        if error.errno == errno.ENOENT:
            with self._lock:
                segment = self._log.segments.get(record.segment)
                garbage = self._room.drop_all(segment) if segment is not None else []
            self._reclaim(garbage)
        elif error.errno == errno.EIO:
            self._forget(record)

    def _forget(self, record: Record, *, removed: bool = False) -> bool:
        with self._lock:
            if self._log.index.get(record.key) is not record:
                return False
            garbage = self._room.drop(record, removed=removed)
        self._reclaim(garbage, lasting=True)
        return True

    # --- where it goes, under the lock ------------------------------------------------------------------------------

    def _place(self, draft: Record, garbage: list[Garbage]) -> tuple[Segment, Record, int] | None:
        """Where it goes, and how much of the garbage pays for it; None: there is no room."""
        paid = min(sum(one.bytes for one in garbage), self._log.cost(draft.extent))
        try:
            if not self._room.fits(draft, garbage):
                self._room.refuse(draft.key)
                return None
            if self._log.active is None:
                self._open_segment(garbage)
        except BaseException:
            self._room.refuse(draft.key)
            raise
        segment, offset = self._log.place(draft.extent, paid)
        return segment, replace(draft, segment=segment.number, offset=offset), paid

    def _open_segment(self, garbage: list[Garbage]) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        try:
            fd = self._directory.open(segment_name(self._log.next_number), flags)
        except FileNotFoundError:
            garbage += self._begin_anew()
            fd = self._directory.open(segment_name(self._log.next_number), flags)
        self._log.open_segment().fd = fd

    def _begin_anew(self) -> list[Garbage]:
        """The directory was deleted under us: make it again, and forget what was in it."""
        fresh = Directory(self._directory.path)
        self._retired.append(self._directory)
        self._directory = fresh
        return [lost for segment in list(self._log.segments.values()) for lost in self._room.drop_all(segment)]

    # --- files ---------------------------------------------------------------------------------------------

    def _reclaim(self, garbage: list[Garbage], paid: int = 0, *, lasting: bool = False) -> None:
        """Give space back; `paid` bytes of it are spent. `lasting`: where it cannot be given back, see to it that the
        record is not found again.
        """
        freed = 0
        for one in garbage:
            try:
                self._give_back(one, lasting=lasting)
                freed += one.bytes
            except FileNotFoundError:
                freed += one.bytes
            except OSError:
                with self._lock:
                    self._log.keep(one)
                    self._counts["errors"] += 1
        with self._lock:
            self._log.credit(freed - paid)
        self._news.tell(one.lost for one in garbage if one.lost is not None)

    def _give_back(self, garbage: Garbage, *, lasting: bool) -> None:
        segment, record = garbage.segment, garbage.record
        if record is None:
            if segment.fd >= 0:
                os.close(segment.fd)
                segment.fd = -1
            self._directory.unlink(segment_name(segment.number))
            self._directory.unlink(index_name(segment.number))
        elif segment.number in self._log.segments and (garbage.bytes or lasting):
            with self._directory.opened(segment_name(segment.number), os.O_RDWR) as fd:
                if garbage.bytes:
                    punch(fd, record.offset, record.extent)
                else:
                    # Headers tell what is there, once there is no index.
                    self._directory.unlink(index_name(segment.number))
                    write_all(fd, [bytes(fmt.HEADER_SIZE)], record.offset)

    def _settle(self, segment: Segment) -> None:
        """Seal or delete it, if it is time to."""
        with self._lock:
            todo = self._log.settle(segment)
            records = list(segment.live.values()) if todo is Next.SEAL else []
        if todo is Next.SEAL:
            records.sort(key=lambda record: record.offset)
            self._seal(segment, records)
        elif todo is Next.DELETE:
            self._reclaim([Garbage(segment, None, segment.charge)])

    def _seal(self, segment: Segment, records: list[Record]) -> None:
        try:
            os.fdatasync(segment.fd)
            self._directory.write(index_name(segment.number), fmt.encode_index(segment.number, records))
            self._directory.sync()
        except OSError:
            # What was lost is noticed when it is read, and a segment without an index when it is opened.
            self._count("errors")
        with self._lock:
            os.close(segment.fd)
            segment.fd = -1
            segment.pending -= 1
            self._idle.notify_all()
        self._settle(segment)

    def _load(self) -> None:
        found = load(self._directory, self._log)
        self._counts["errors"] += found.n_unreadable
        now = self._clock()
        for record in found.records:
            self._room.found(record, found.ends.get(record.key, record.expires), now)
        garbage = found.garbage + self._room.expired(self._wall(), len(found.records))
        self._room.shrink(garbage, now)
        self._reclaim(garbage)

    # --- who is here ---------------------------------------------------------------------------------------

    @contextmanager
    def _using(self) -> Iterator[None]:
        with self._lock:
            self._check_open()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._closed:
                    self._idle.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def _failed(self, what: str, why: OSError | str) -> StoreError:
        self._count("errors")
        reason = why if isinstance(why, str) else why.strerror
        return StoreError(f"{what} in {self._directory.path}: {reason}")


def _unusable(directory: Path, error: OSError) -> StoreError:
    return StoreError(f"{directory} cannot be opened as a store: {error.strerror}")
