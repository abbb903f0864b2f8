"""Vectors on disk: one file of slots in a directory of its own, which one process has open.

*Why slots and not a log.* What is removed must be gone. A log says so in a record further down: damage to that record
brings the removed one back, and its bytes stay until the log is written anew, which takes twice the space. Here a
removed record is overwritten where it stands: no damage anywhere can bring it back, nothing has to be compacted, and
the file is never larger than its slots. Free slots are used again, the first ones first; free ones at the end are cut
off.

*What survives.* A crash of the process at any moment leaves each record whole or none. A crash of the machine may lose
what was written, or bring back what was removed, since the last `sync`.

Methods raise OSError.
"""

from __future__ import annotations

import contextlib
import heapq
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cache import vector_slots as fmt
from cache.disk_files import Directory, read_exactly, write_all
from cache.vector_slots import Layout, Record

NAME: Final = "vectors"
_PIECE_BYTES: Final = 1 << 20


class VectorFile:
    """The file in `directory`, which is made where it is missing, with at most `max_slots` slots.

    What was there of another layout is thrown away, and `discarded` says so; so is what does not fit. Then `records`
    must be read once, before anything is written. Raises StoreError where another process has it.
    """

    def __init__(self, directory: Path, layout: Layout, *, max_slots: int) -> None:
        self._layout = layout
        self._max_slots = max_slots
        self._directory = Directory(directory)
        self._live = bytearray()
        """By slot: 1 where it is one record's."""
        self._free: list[int] = []  # a heap; some in it are live or beyond the end
        self.damaged = 0
        """Slots that were neither free nor a whole record."""
        self.discarded = ""
        """Why what was in the file was thrown away; empty where it was not."""
        try:
            self._fd = self._directory.open(NAME, os.O_RDWR | os.O_CREAT)
        except BaseException:
            self._directory.close()
            raise
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> Path:
        """The directory."""
        return self._directory.path

    @property
    def size(self) -> int:
        """Of the file, in bytes."""
        return fmt.slot_at(self._layout, len(self._live))

    def records(self) -> Iterator[tuple[int, Record]]:
        """Slots and what is in them. A damaged one is freed."""
        size = self._layout.slot_size
        per_piece = max(_PIECE_BYTES // size, 1)
        data = memoryview(bytearray(per_piece * size))
        damaged = []
        zeros = bytes(size)
        for first in range(0, len(self._live), per_piece):
            n_slots = min(per_piece, len(self._live) - first)
            if not read_exactly(self._fd, [data[: n_slots * size]], fmt.slot_at(self._layout, first)):
                break  # it is shorter than it was
            for slot in range(first, first + n_slots):
                content = data[(slot - first) * size : (slot - first + 1) * size]
                record = fmt.decode_slot(self._layout, slot, content)
                if record is not None:
                    self._live[slot] = 1
                    yield slot, record
                elif content != zeros:
                    damaged.append(slot)
        self.damaged += len(damaged)
        self._free = [slot for slot, live in enumerate(self._live) if not live]
        self.clear(damaged)

    def write(self, record: Record) -> int | None:
        """Keep it; its slot, or None where all are taken."""
        slot = self._next_free()
        if slot is None:
            return None
        try:
            write_all(self._fd, [fmt.encode_slot(self._layout, slot, record)], fmt.slot_at(self._layout, slot))
        except OSError:
            heapq.heappush(self._free, slot)
            raise
        self._live[slot] = 1
        return slot

    def used(self, slot: int, used: int) -> None:
        """Its record was used."""
        write_all(self._fd, [fmt.encode_used(used)], fmt.slot_at(self._layout, slot) + fmt.USED_AT)

    def clear(self, slots: Sequence[int]) -> None:
        """Overwrite them; nothing of what they held is left."""
        size = self._layout.slot_size
        for first, n_slots in _runs(sorted(slots), max(_PIECE_BYTES // size, 1)):
            write_all(self._fd, [bytes(n_slots * size)], fmt.slot_at(self._layout, first))
            for slot in range(first, first + n_slots):
                self._live[slot] = 0
                heapq.heappush(self._free, slot)
        n_slots = self._live.rfind(1) + 1
        if n_slots < len(self._live):
            del self._live[n_slots:]
            os.ftruncate(self._fd, self.size)

    def sync(self) -> None:
        """Make all that was written last."""
        os.fdatasync(self._fd)

    def destroy(self) -> None:
        """Leave nothing of it, by one way or the other, even on a disk that is full."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.fsync(self._fd)
            return
        self._directory.unlink(NAME)
        self._directory.sync()

    def close(self) -> None:
        """Let others have it; without `sync`."""
        with contextlib.suppress(OSError):
            os.close(self._fd)
        self._directory.close()

    def _begin(self) -> None:
        header = bytearray(fmt.HEADER_SIZE)
        size = os.fstat(self._fd).st_size
        os.preadv(self._fd, [header], 0)
        found = fmt.decode_header(bytes(header))
        if found == self._layout:
            self._resume(size, bytes(header))
            return
        if size >= fmt.HEADER_SIZE:
            self.discarded = _difference(found, self._layout)
        os.ftruncate(self._fd, 0)
        write_all(self._fd, [fmt.encode_header(self._layout)], 0)
        os.fsync(self._fd)
        self._directory.sync()

    def _resume(self, size: int, header: bytes) -> None:
        whole = fmt.encode_header(self._layout)
        if header != whole:
            write_all(self._fd, [whole], 0)
        n_slots = min(max(size - fmt.HEADER_SIZE, 0) // self._layout.slot_size, self._max_slots)
        self._live = bytearray(n_slots)
        if size != self.size:
            os.ftruncate(self._fd, self.size)

    def _next_free(self) -> int | None:
        while self._free:
            slot = heapq.heappop(self._free)
            if slot < len(self._live) and not self._live[slot]:
                return slot
        if len(self._live) >= self._max_slots:
            return None
        self._live.append(0)
        return len(self._live) - 1


def _difference(found: Layout | None, wanted: Layout) -> str:
    if found is None:
        return "it has no whole header of this version"
    return (
        "it is of another embedder" if found.embedder != wanted.embedder else "its vectors or metadata differ in size"
    )


def _runs(slots: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """First and length of runs in `slots`, which ascend, none longer than `most`."""
    begin = 0
    for at in range(1, len(slots) + 1):
        if at == len(slots) or slots[at] != slots[at - 1] + 1 or at - begin == most:
            yield slots[begin], at - begin
            begin = at
