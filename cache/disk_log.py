"""The disk store's books: which segments there are, what lives in them, what they cost. Pure: no file is touched.

A segment is written from its beginning on, becomes *full*, is *sealed* once nobody writes to it, and is deleted as a
whole once nothing in it lives. The space of a single record can be given back before, where the file system does that
(`by_record`); elsewhere it stays until its segment goes.

Space is charged until it has been given back, except that a new record may take over at once what its own writer is
about to give back. So the files never hold more than `bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from typing import Final

from cache.disk_segment import ALIGN, HEADER_SIZE, PLACE_SIZE, Record
from cache.store import ChunkKey

STORE_OVERHEAD: Final = 4 * ALIGN
"""Bytes of the directory itself, the lock, and the roundings of the order."""
SEGMENT_OVERHEAD: Final = 2 * ALIGN + 128
"""Bytes of its map in the file system, of its index's roundings, and of two names in the directory."""
RECORD_OVERHEAD: Final = HEADER_SIZE + PLACE_SIZE
"""Bytes in the segment's index and in the order of use."""


@dataclass(eq=False, slots=True)
class Segment:
    """One file of the log."""

    number: int
    end: int = 0
    """Where the next record begins."""
    held: int = 0
    """Bytes of extents that take up space, whether their records live or not."""
    placed: int = 0
    """Records that it was given."""
    live: dict[ChunkKey, Record] = field(default_factory=dict)
    pending: int = 0
    """Who is writing to it, or sealing it."""
    full: bool = False
    sealed: bool = False
    fd: int = -1
    """To write to it, until it is sealed."""

    @property
    def charge(self) -> int:
        """Bytes that it takes up, all in all."""
        return SEGMENT_OVERHEAD + RECORD_OVERHEAD * self.placed + self.held


@dataclass(frozen=True, slots=True)
class Garbage:
    """Space that is to be given back: that of one record, or of the whole segment."""

    segment: Segment
    record: Record | None
    bytes: int
    """What that will free."""
    lost: ChunkKey | None = None
    """Its frame was evicted or damaged: nobody asked for it to go."""


class Next(Enum):
    """What a segment is ready for."""

    NOTHING = auto()
    SEAL = auto()
    DELETE = auto()


class Log:
    """All segments and the index over them. Not safe to call from several threads."""

    def __init__(self, *, segment_bytes: int, by_record: bool) -> None:
        self.segment_bytes = segment_bytes
        self.by_record = by_record
        self.bytes = STORE_OVERHEAD
        """Charged: never less than what the files take up."""
        self.index: dict[ChunkKey, Record] = {}
        """The one longest unused comes first."""
        self.segments: dict[int, Segment] = {}
        self.active: Segment | None = None
        self.next_number = 1
        """Of the segment that is opened next; none comes again."""

    def adopt(self, number: int, records: list[Record], end: int, held: int) -> Segment:
        """A sealed segment that was found; `held` bytes of it take up space. Its records are not in the index yet."""
        self.next_number = max(self.next_number, number + 1)
        segment = Segment(number, end, held, len(records), full=True, sealed=True)
        self.segments[number] = segment
        self.bytes += segment.charge
        segment.live = {record.key: record for record in records}
        return segment

    def cost(self, extent: int) -> int:
        """Bytes that one more record will be charged."""
        return extent + RECORD_OVERHEAD + (SEGMENT_OVERHEAD if self.active is None else 0)

    def open_segment(self) -> Segment:
        """A new one, which is written to from now on."""
        self.active = self.segments[self.next_number] = Segment(self.next_number)
        self.next_number += 1
        self.bytes += SEGMENT_OVERHEAD
        return self.active

    def place(self, extent: int, paid: int) -> tuple[Segment, int]:
        """Where a record goes: the active segment, which there must be, and the offset. `paid`: bytes of garbage that
        its writer gives back first, and which are not to be credited to anybody else.
        """
        segment = self.active
        assert segment is not None
        offset = segment.end
        segment.end += extent
        segment.held += extent
        segment.placed += 1
        segment.pending += 1
        self.bytes += extent + RECORD_OVERHEAD - paid
        if segment.end >= self.segment_bytes:
            self.roll()
        return segment, offset

    def roll(self) -> None:
        """The active segment takes no more."""
        if self.active is not None:
            self.active.full = True
            self.active = None

    def publish(self, segment: Segment, record: Record) -> None:
        """It is written: it can be found from now on."""
        segment.live[record.key] = record
        self.index[record.key] = record

    def touch(self, record: Record) -> None:
        """It was used last of all."""
        del self.index[record.key]
        self.index[record.key] = record

    def drop(self, record: Record) -> Garbage:
        """It cannot be found any more; its space is charged until it is credited."""
        del self.index[record.key]
        segment = self.segments[record.segment]
        del segment.live[record.key]
        return self.waste(segment, record)

    def waste(self, segment: Segment, record: Record) -> Garbage:
        """The space of a record that is not in the index."""
        freed = record.extent if self.by_record else 0
        segment.held -= freed
        return Garbage(segment, record, freed)

    def settle(self, segment: Segment) -> Next:
        """What is to be done with it after something in it has changed. SEAL counts as writing to it. DELETE: it is
        out of the books, but charged until it is credited.
        """
        if segment.pending or not segment.full or segment.number not in self.segments:
            return Next.NOTHING
        if not segment.live:
            del self.segments[segment.number]
            return Next.DELETE
        if segment.sealed:
            return Next.NOTHING
        segment.sealed = True
        segment.pending += 1
        return Next.SEAL

    def credit(self, n_bytes: int) -> None:
        """That much has been given back."""
        self.bytes -= n_bytes

    def keep(self, garbage: Garbage) -> None:
        """It could not be given back: it goes with its segment."""
        garbage.segment.held += garbage.bytes

    def check(self) -> None:
        """Raises AssertionError where the books contradict each other."""
        assert {record.key for s in self.segments.values() for record in s.live.values()} == set(self.index)
        for segment in self.segments.values():
            extents = sorted((record.offset, record.offset + record.extent) for record in segment.live.values())
            assert all(end <= begin for (_, end), (begin, _) in pairwise(extents))
            assert sum(end - begin for begin, end in extents) <= segment.held <= segment.end
            assert not extents or extents[-1][1] <= segment.end
            assert segment.live or segment.pending or not segment.full
