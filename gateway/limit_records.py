"""Records of shared limits as bytes, MessagePack. Pure.

Another program writes them, perhaps another release: what is no record is None, and numbers that would spoil a
bucket for ever are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, Final

import msgspec

from policies.shared_limits import Record, Usage

VERSION: Final = "1"
"""Belongs into the key's name: another form is another key."""
_MOST_BYTES: Final = 4 << 20
_MOST: Final = 1e15
_NONE: Final[tuple[Sequence[Any], ...]] = ((),) * len(Usage._fields)
_DECODER: Final = msgspec.msgpack.Decoder(Record)
_ENCODER: Final = msgspec.msgpack.Encoder()


def encode(record: Record) -> bytes:
    """A record as others read it."""
    return _ENCODER.encode(record)


def decode(data: bytes) -> Record | None:
    """What somebody wrote; None where it is no record."""
    if len(data) > _MOST_BYTES:
        return None
    try:
        record = _DECODER.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return None
    _, epochs, requests, tokens, running, *lacking = zip(*record.usages, strict=True) if record.usages else _NONE
    columns = ((record.uptime_s, record.stamp_s), epochs, requests, tokens, running, *lacking)
    return record if all(map(_sane, columns)) and min(running, default=0) >= 0 else None


def _sane(numbers: Sequence[float]) -> bool:
    """With a NaN or an infinity there is no finite sum."""
    return not numbers or (isfinite(sum(numbers)) and min(numbers) >= -_MOST and max(numbers) <= _MOST)
