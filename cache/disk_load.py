"""The disk store's books from the files that are there, when it is opened."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from cache import disk_segment as fmt
from cache.disk_files import ORDER, Directory, index_name
from cache.disk_log import Garbage, Log
from cache.disk_scan import Found, punch_gaps, scan
from cache.disk_segment import Record
from cache.store import ChunkKey

_LARGEST_ORDER: Final = 1 << 30
"""Bytes of an order of use that are believed to be one."""


@dataclass(slots=True)
class Loaded:
    """What was found."""

    records: list[Record] = field(default_factory=list)
    """All that live, the one longest unused first, as far as that is known."""
    ends: dict[ChunkKey, float | None] = field(default_factory=dict)
    """When each ends, where its last use has moved that."""
    garbage: list[Garbage] = field(default_factory=list)
    n_unreadable: int = 0
    """Segments that could not be read; they are left alone, and charged."""


def load(directory: Directory, log: Log) -> Loaded:
    """Fill the log. Raises OSError only where the directory itself cannot be read."""
    loaded = Loaded()
    numbers, indexes, foreign = directory.listing()
    log.bytes += foreign
    for number in set(indexes) - set(numbers):
        directory.unlink(index_name(number))
    for number in numbers:
        log.next_number = number + 1
        try:
            found = scan(directory, number, has_index=number in indexes)
            _adopt(directory, log, found, loaded)
        except OSError:
            loaded.n_unreadable += 1
            log.bytes += directory.size(number)
    _in_order(directory, log, loaded)
    loaded.records = list(log.index.values())
    return loaded


def _adopt(directory: Directory, log: Log, found: Found, loaded: Loaded) -> None:
    held = found.end
    if log.by_record:
        punch_gaps(directory, found)
        held = sum(record.extent for record in found.records)
    if found.records and not found.indexed:
        # Without one it is slower to open the next time, and nothing else.
        with suppress(OSError):
            directory.write(index_name(found.number), fmt.encode_index(found.number, found.records), sync=False)
    segment = log.adopt(found.number, found.records, found.end, held)
    for record in found.records:
        older = log.index.get(record.key)
        if older is not None:
            # Given up and written anew, and the first one was back after a crash.
            loaded.garbage.append(log.drop(older))
            segment.live[record.key] = record
        log.index[record.key] = record
    for one in [*log.segments.values()]:
        if not one.live:
            del log.segments[one.number]
            loaded.garbage.append(Garbage(one, None, one.charge))


def _in_order(directory: Directory, log: Log, loaded: Loaded) -> None:
    """As they were used; those of which that is not known come last. What is noted is out of date from now on."""
    with suppress(OSError):
        for key, end in fmt.decode_order(directory.read(ORDER, limit=_LARGEST_ORDER)):
            if record := log.index.get(key):
                log.touch(record)
                loaded.ends[key] = end
    directory.unlink(ORDER)
