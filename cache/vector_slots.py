"""Bytes of the file of vectors: a header of one block, then slots of one size, each free or one record. Pure.

A free slot is all zeros. A record carries a checksum that covers its slot's number too, so that what is torn, damaged
or in the wrong place is none. Outside of it is only the count of uses, for the order of use. Integers are
little-endian; checksums are xxh3-128, against accidents.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Final

import xxhash

HEADER_SIZE: Final = 4_096
ID_SIZE: Final = 32
MAX_PARTITION: Final = 32
MIN_PARTITION: Final = 16

_VERSION: Final = 1
_MAGIC: Final = b"PGVECTOR"
_HEADER: Final = struct.Struct("<8sIII32s")
"""Magic, version, dim, most bytes of metadata, digest of the embedder's fingerprint; then the checksum."""
_COPIES: Final = (0, HEADER_SIZE // 2)
"""Where the header stands: a damaged block of the disk need not cost everything."""
_SUM: Final = 16
_USED: Final = struct.Struct("<Q")
USED_AT: Final = _SUM
_MOST_USED: Final = 1 << 62
"""It is not covered by the checksum: damage must not take it to where it cannot be counted on from."""
_BODY_AT: Final = _SUM + _USED.size
_FIELDS: Final = struct.Struct("<HH32s32s")
"""Lengths of partition and metadata, partition, id; then metadata and row, each in as many bytes as it may have."""
_ALIGN: Final = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """What makes the slots of a file what they are. Another one is another file."""

    dim: int
    max_meta: int
    embedder: bytes
    """SHA-256 of the embedder's fingerprint."""

    @property
    def slot_size(self) -> int:
        """In bytes."""
        size = _BODY_AT + _FIELDS.size + self.max_meta + 2 * self.dim
        return -(-size // _ALIGN) * _ALIGN


@dataclass(frozen=True, slots=True)
class Record:
    """What a slot holds."""

    used: int
    """Higher than that of whatever was used before."""
    partition: bytes
    id: bytes
    meta: bytes
    row: bytes
    """2 × dim bytes, see `vector_rows.to_row`."""


def layout(dim: int, max_meta: int, embedder: str) -> Layout:
    """For vectors of `dim` numbers that the embedder of that fingerprint makes, with at most `max_meta` bytes."""
    return Layout(dim, max_meta, hashlib.sha256(embedder.encode()).digest())


def encode_header(one: Layout) -> bytes:
    """`HEADER_SIZE` bytes."""
    body = _HEADER.pack(_MAGIC, _VERSION, one.dim, one.max_meta, one.embedder)
    copy = body + xxhash.xxh3_128_digest(body)
    return b"".join(copy.ljust(HEADER_SIZE // len(_COPIES), b"\0") for _ in _COPIES)


def decode_header(header: bytes) -> Layout | None:
    """What it says; None where no copy of it is whole, or of a version that is not known here."""
    for start in _COPIES:
        body = header[start : start + _HEADER.size]
        found = header[start + _HEADER.size : start + _HEADER.size + _SUM]
        if len(found) == _SUM and xxhash.xxh3_128_digest(body) == found:
            magic, version, dim, max_meta, embedder = _HEADER.unpack(body)
            return Layout(dim, max_meta, embedder) if (magic, version) == (_MAGIC, _VERSION) else None
    return None


def encode_slot(one: Layout, slot: int, record: Record) -> bytes:
    """All of a slot's bytes."""
    fields = _FIELDS.pack(len(record.partition), len(record.meta), record.partition, record.id)
    body = b"".join((fields, record.meta.ljust(one.max_meta, b"\0"), record.row))
    body = body.ljust(one.slot_size - _BODY_AT, b"\0")
    return b"".join((xxhash.xxh3_128_digest(body, slot), _USED.pack(record.used), body))


def decode_slot(one: Layout, slot: int, data: memoryview) -> Record | None:
    """The record; None where there is no whole one."""
    body = data[_BODY_AT:]
    if len(data) != one.slot_size or xxhash.xxh3_128_digest(body, slot) != data[:_SUM]:
        return None
    partition_size, meta_size, partition, entry_id = _FIELDS.unpack_from(body)
    if not (MIN_PARTITION <= partition_size <= MAX_PARTITION and meta_size <= one.max_meta):
        return None
    start = _FIELDS.size
    meta = bytes(body[start : start + meta_size])
    row = bytes(body[start + one.max_meta : start + one.max_meta + 2 * one.dim])
    used = min(_USED.unpack_from(data, USED_AT)[0], _MOST_USED)
    return Record(used, partition[:partition_size], entry_id, meta, row)


def encode_used(used: int) -> bytes:
    """What stands at `USED_AT` of a slot."""
    return _USED.pack(used)


def slot_at(one: Layout, slot: int) -> int:
    """Where in the file it begins."""
    return HEADER_SIZE + slot * one.slot_size
