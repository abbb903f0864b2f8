"""Bytes of the disk store's files: records, the index beside a sealed segment, the order of use. Pure: no file is
touched.

A segment is a file of records, each at a multiple of `ALIGN` bytes: a header of `HEADER_SIZE` bytes, then the frame.
The header names its own segment and offset and carries its own checksum: what happens to lie in a frame, or in a
block that the file system has used before, is not mistaken for one. Integers are little-endian; checksums are
xxh3-128. They are against accidents; frames of a store that is not trusted are sealed by their codec.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import xxhash

from cache.store import Buffer, ChunkKey

ALIGN: Final = 4096
"""Where records begin, in bytes: the block of file systems, so that the space of each can be given back."""

HEADER_SIZE: Final = 192
MAX_TOKENS: Final = 2**32 - 1

_SUM: Final = 16
_NO_PARENT: Final = bytes(32)
_HEADER: Final = struct.Struct("<8sQQQ32s32s16sII16sd32x")
"""Magic, segment, offset, frame length, key, parent, tenant, tokens, flags, frame checksum, end (0: none); the checksum
of all that comes after it."""
_RECORD_MAGIC: Final = b"PGKVrec2"
_EARLIER_MAGIC: Final = b"PGKVrec1"
"""Of records without an end, written by those who would not know of one."""
_INDEX_MAGIC: Final = b"PGKVidx1"
_ORDER_MAGIC: Final = b"PGKVord2"
_PLACE: Final = struct.Struct("<32sd")
"""Key, end (0: none)."""
PLACE_SIZE: Final = _PLACE.size
"""Bytes of a frame in the order of use."""
_LIST: Final = struct.Struct("<8sQQ")
"""Magic, segment (0 for the order), count."""
_HAS_PARENT: Final = 1
_HEAD: Final = 2


@dataclass(frozen=True, slots=True)
class Record:
    """One frame in a segment: what its header says."""

    segment: int
    offset: int
    """Of the header."""
    length: int
    """Of the frame, in bytes."""
    key: ChunkKey
    parent: ChunkKey | None
    tenant: bytes
    n_tokens: int
    checksum: bytes
    """Of the frame."""
    expires: float | None = None
    """See `FrameInfo`; as it was when the record was written."""
    head: bool = False
    """Its tenant wants the beginnings of its prompts kept."""

    @property
    def data(self) -> int:
        """Offset of the frame."""
        return self.offset + HEADER_SIZE

    @property
    def end(self) -> int:
        """Offset behind the frame's last byte."""
        return self.offset + HEADER_SIZE + self.length

    @property
    def extent(self) -> int:
        """Bytes from its beginning to where the next one may begin."""
        return extent(self.length)


def extent(length: int) -> int:
    """Bytes of disk for a frame of `length` bytes and its header."""
    return aligned(HEADER_SIZE + length)


def aligned(n_bytes: int) -> int:
    """Rounded up to `ALIGN`."""
    return -(-n_bytes // ALIGN) * ALIGN


def frame_checksum(pieces: Iterable[Buffer]) -> bytes:
    """Of the pieces, one after the other."""
    state = xxhash.xxh3_128()
    for piece in pieces:
        state.update(piece)
    return state.digest()


def encode_header(record: Record) -> bytes:
    """`HEADER_SIZE` bytes."""
    body = _HEADER.pack(
        _RECORD_MAGIC,
        record.segment,
        record.offset,
        record.length,
        record.key,
        record.parent or _NO_PARENT,
        record.tenant,
        record.n_tokens,
        (_HAS_PARENT if record.parent is not None else 0) | (_HEAD if record.head else 0),
        record.checksum,
        record.expires or 0.0,
    )
    return body + xxhash.xxh3_128_digest(body)


def decode_header(header: Buffer, segment: int) -> Record | None:
    """The record that `header` describes, or None: not a header, damaged, or of another segment."""
    if len(header) != HEADER_SIZE:
        return None
    body = bytes(header[:-_SUM])
    if not body.startswith((_RECORD_MAGIC, _EARLIER_MAGIC)) or xxhash.xxh3_128_digest(body) != header[-_SUM:]:
        return None
    _, number, offset, length, key, parent, tenant, n_tokens, flags, checksum, end = _HEADER.unpack(body)
    if number != segment or offset % ALIGN:
        return None
    above = ChunkKey(parent) if flags & _HAS_PARENT else None
    return Record(
        segment, offset, length, ChunkKey(key), above, tenant, n_tokens, checksum, end or None, bool(flags & _HEAD)
    )


def encode_index(segment: int, records: Sequence[Record]) -> bytes:
    """The file beside a sealed segment: the headers of its records, in their order."""
    return _with_sum([_LIST.pack(_INDEX_MAGIC, segment, len(records)), *map(encode_header, records)])


def index_size(n_records: int) -> int:
    """Bytes of it."""
    return _LIST.size + n_records * HEADER_SIZE + _SUM


def decode_index(data: bytes, segment: int) -> list[Record] | None:
    """The records, one behind the other in the segment; None where the file is not whole, or another segment's."""
    items = _items(data, _INDEX_MAGIC, segment, HEADER_SIZE)
    if items is None:
        return None
    records, end = [], 0
    for item in items:
        record = decode_header(item, segment)
        if record is None or record.offset < end:
            return None
        records.append(record)
        end = record.offset + record.extent
    return records


def encode_order(places: Sequence[tuple[ChunkKey, float | None]]) -> bytes:
    """Keys, the one longest unused first, and when each ends."""
    packed = [_PLACE.pack(key, end or 0.0) for key, end in places]
    return _with_sum([_LIST.pack(_ORDER_MAGIC, 0, len(places)), *packed])


def decode_order(data: bytes) -> list[tuple[ChunkKey, float | None]]:
    """The same; nothing where the file is not whole."""
    places = map(_PLACE.unpack, _items(data, _ORDER_MAGIC, 0, PLACE_SIZE) or ())
    return [(ChunkKey(key), end or None) for key, end in places]


def _with_sum(parts: Sequence[bytes]) -> bytes:
    body = b"".join(parts)
    return body + xxhash.xxh3_128_digest(body)


def _items(data: bytes, magic: bytes, segment: int, size: int) -> list[memoryview] | None:
    """The equally long items of a list with header and checksum; None where anything is wrong."""
    body = memoryview(data)[:-_SUM]
    if len(body) < _LIST.size or xxhash.xxh3_128_digest(body) != data[-_SUM:]:
        return None
    found, number, count = _LIST.unpack_from(body)
    if found != magic or number != segment or len(body) != _LIST.size + count * size:
        return None
    return [body[at : at + size] for at in range(_LIST.size, len(body), size)]
