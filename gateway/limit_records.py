"""Records of shared limits as bytes, MessagePack. Pure.

Another program writes them, perhaps another release: what is no record is None, and numbers that would spoil a
bucket for ever are none.
"""

from __future__ import annotations

from itertools import chain
from math import isfinite
from typing import Final

import msgspec

from policies.shared_limits import Record, Usage

VERSION: Final = "1"
"""Belongs into the key's name: another form is another key."""
_MOST_BYTES: Final = 4 << 20
_MOST: Final = 1e15
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
    numbers = chain((record.uptime_s, record.stamp_s), chain.from_iterable(map(_numbers, record.usages)))
    return record if all(isfinite(number) and abs(number) <= _MOST for number in numbers) else None


def _numbers(usage: Usage) -> tuple[float, ...]:
    return usage[1:] if usage.running >= 0 else (float("nan"),)
