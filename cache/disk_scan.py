"""What is in a segment that is found when the store is opened.

With a whole index beside it no record is looked at. Else headers are read one after the other, frames are skipped.
Where no header is, the next one is looked for from block to block, so that damage costs only what it hits. The file
is cut off after its last record.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cache import disk_segment as fmt
from cache.disk_files import Directory, index_name, next_data, punch, read_exactly, segment_name
from cache.disk_segment import ALIGN, HEADER_SIZE, Record

_LARGEST_INDEX: Final = 256 << 20
"""Bytes of an index that are believed to be one."""


@dataclass(frozen=True, slots=True)
class Found:
    """A segment's records, in their order."""

    number: int
    records: list[Record]
    end: int
    """Bytes of the file, rounded up."""
    gaps: list[tuple[int, int]]
    """Begin and end of what belongs to no record and takes up space."""
    indexed: bool
    """There is a whole index beside it."""


def scan(directory: Directory, number: int, *, has_index: bool) -> Found:
    """Read one segment. Raises OSError."""
    with directory.opened(segment_name(number), os.O_RDWR) as fd:
        size = os.fstat(fd).st_size
        records = _by_index(directory, fd, number, size) if has_index else None
        indexed = records is not None
        if records is None:
            records = list(_by_headers(fd, number, size))
        end = records[-1].end if records else 0
        if size > end:
            os.ftruncate(fd, end)
        return Found(number, records, fmt.aligned(end), list(_gaps(fd, records)), indexed)


def _by_index(directory: Directory, fd: int, number: int, size: int) -> list[Record] | None:
    try:
        data = directory.read(index_name(number), limit=_LARGEST_INDEX)
    except OSError:
        return None
    records = fmt.decode_index(data, number)
    # Records whose space was given back since the index was written have left a hole.
    return records and [one for one in records if one.end <= size and next_data(fd, one.offset) == one.offset]


def _by_headers(fd: int, number: int, size: int) -> Iterator[Record]:
    header = memoryview(bytearray(HEADER_SIZE))
    offset = 0
    while (data := next_data(fd, offset)) is not None:
        offset = data // ALIGN * ALIGN
        if not read_exactly(fd, [header], offset):
            return
        record = fmt.decode_header(header, number)
        if record is None or record.offset != offset or record.end > size:
            offset += ALIGN
            continue
        yield record
        offset += record.extent


def _gaps(fd: int, records: list[Record]) -> Iterator[tuple[int, int]]:
    begin = 0
    for record in records:
        if begin < record.offset and (next_data(fd, begin) or 0) < record.offset:
            yield begin, record.offset
        begin = record.offset + record.extent


def punch_gaps(directory: Directory, found: Found) -> None:
    """Give the space back that belongs to no record. Raises OSError."""
    if found.gaps:
        with directory.opened(segment_name(found.number), os.O_RDWR) as fd:
            for begin, end in found.gaps:
                punch(fd, begin, end - begin)
