"""Bytes that lie in several pieces: how long they are together, and how they are copied without being joined."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from cache.store import Buffer

_UNLOCKED: Final = 1 << 16
"""From this many bytes on, a copy lets other threads run: giving up the interpreter's lock costs about a microsecond,
and as long as 64 KiB take to copy."""


def total_bytes(pieces: Iterable[Buffer]) -> int:
    """Bytes of all `pieces`; each holds bytes (format B)."""
    return sum(map(len, pieces))


def paired(targets: Sequence[memoryview], sources: Sequence[Buffer]) -> Iterator[tuple[memoryview, memoryview]]:
    """Parts of `targets` and `sources` of equal length, in order, as far as both go; none is empty."""
    ours = iter(targets)
    target = memoryview(b"")
    for source in sources:
        rest = memoryview(source)
        while rest:
            while not target:
                following = next(ours, None)
                if following is None:
                    return
                target = following
            length = min(len(rest), len(target))
            yield target[:length], rest[:length]
            rest, target = rest[length:], target[length:]


def copy_pieces(targets: Sequence[memoryview], sources: Sequence[Buffer]) -> None:
    """Fill `targets`, one after the other, with `sources`, as far as both go."""
    for target, source in paired(targets, sources):
        _copy(target, source)


def _copy(target: memoryview, source: memoryview) -> None:
    """`target` becomes equal to `source`, which is as long."""
    length = len(target)
    if length < _UNLOCKED or source.readonly:
        target[:] = source
        return
    to, origin = ctypes.c_char.from_buffer(target), ctypes.c_char.from_buffer(source)
    ctypes.memmove(ctypes.addressof(to), ctypes.addressof(origin), length)
