"""Between blocks of the pool and frames, with as few copies as each codec allows.

plain         the frame is a header and the blocks themselves: no copy, whether written or read
sealed        encrypted from the blocks into a scratch; read into the blocks and decrypted there
int8          quantised into a scratch; read into a scratch, and into the blocks from there
int8, sealed  the same, encrypted and decrypted in the scratch
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final, Protocol

from cache.kv_codec import HEADER_BYTES, FrameError, FrameFault, FrameKeys, FrameSpec, check, encode_header
from cache.kv_int8 import NotFiniteError, quantize_block, restore_block
from cache.kv_keys import Codec
from cache.store import Buffer

SCRATCHES_KEPT: Final = 4
"""Scratches that stay while nobody uses them: each is as large as a frame, some megabytes."""


class Reading:
    """A frame on its way from a store into blocks."""

    __slots__ = ("_open", "_whole", "pieces")

    def __init__(self, pieces: Sequence[memoryview], open_frame: Callable[[], None]) -> None:
        self.pieces = pieces
        """A store fills them with the whole frame."""
        self._open = open_frame
        self._whole = False

    def finish(self) -> None:
        """Once `pieces` are filled: check the frame, and leave its KV in the blocks. Raises FrameError, and then the
        blocks may be anything, and no numbers either. Doing it again does nothing.
        """
        if not self._whole:
            self._open()
            self._whole = True


class Framing(Protocol):
    """One way from blocks to frames and back. Safe to be used by several threads.

    `blocks` are the frame's, in its order, each `pool_bytes` long. What is given out is valid until the context is
    left, and nobody may change the blocks meanwhile. Raises ValueError for blocks or a codec that are not the spec's.
    """

    def encode(self, spec: FrameSpec, blocks: Sequence[memoryview]) -> AbstractContextManager[Sequence[Buffer]]:
        """The frame, in pieces. Raises FrameError (`numbers`) for KV that this codec cannot represent, because it is
        not finite: such a chunk is not to be stored.
        """
        ...

    def reading(self, spec: FrameSpec, blocks: Sequence[memoryview]) -> AbstractContextManager[Reading]:
        """What a store can read the frame into."""
        ...


def make_framing(*, keys: FrameKeys | None, int8: bool = False, scratches_kept: int = SCRATCHES_KEPT) -> Framing:
    """`keys` for stores that are not trusted with the bytes; None: frames are checked only. `int8` for geometries of
    that codec. Memory: as many scratches as are used at once, and `scratches_kept` when none is.
    """
    scratches = Scratches(scratches_kept)
    if int8:
        return _Int8(keys, scratches)
    return _Plain() if keys is None else _Sealed(keys, scratches)


class Scratches:
    """Buffers that are used again: memory that was just used is in caches, and needs no clearing by the kernel."""

    def __init__(self, most_kept: int) -> None:
        self._most_kept = most_kept
        self._idle: list[bytearray] = []
        self._lock = threading.Lock()

    @property
    def n_idle(self) -> int:
        """Buffers that nobody uses."""
        return len(self._idle)

    @contextmanager
    def take(self, n_bytes: int) -> Iterator[memoryview]:
        """So many bytes, whatever they are; they cannot be reached any more once the context is left."""
        buffer = self._pick(n_bytes)
        view = memoryview(buffer)[:n_bytes]
        try:
            yield view
        finally:
            with suppress(BufferError):  # an exception's traceback may still hold an array over it
                view.release()
            self._give_back(buffer)

    def _pick(self, n_bytes: int) -> bytearray:
        with self._lock:
            for at in reversed(range(len(self._idle))):
                if len(self._idle[at]) >= n_bytes:
                    return self._idle.pop(at)
        return bytearray(n_bytes)

    def _give_back(self, buffer: bytearray) -> None:
        with self._lock:
            self._idle.append(buffer)
            if len(self._idle) > self._most_kept:
                sizes = [*map(len, self._idle)]
                del self._idle[sizes.index(min(sizes))]


class _Plain:
    @contextmanager
    def encode(self, spec: FrameSpec, blocks: Sequence[memoryview]) -> Iterator[Sequence[Buffer]]:
        _fit(spec, blocks, Codec.RAW)
        yield [encode_header(spec, blocks), *blocks]

    @contextmanager
    def reading(self, spec: FrameSpec, blocks: Sequence[memoryview]) -> Iterator[Reading]:
        _fit(spec, blocks, Codec.RAW)
        header = _header()
        yield Reading([header, *blocks], lambda: check(header, blocks, spec))


class _Sealed:
    def __init__(self, keys: FrameKeys, scratches: Scratches) -> None:
        self._keys = keys
        self._scratches = scratches

    @contextmanager
    def encode(self, spec: FrameSpec, blocks: Sequence[memoryview]) -> Iterator[Sequence[Buffer]]:
        _fit(spec, blocks, Codec.RAW)
        with self._scratches.take(spec.frame_bytes) as frame:
            frame[:HEADER_BYTES] = self._keys.encrypt_into([frame[HEADER_BYTES:]], spec, blocks)
            yield [frame]

    @contextmanager
    def reading(self, spec: FrameSpec, blocks: Sequence[memoryview]) -> Iterator[Reading]:
        _fit(spec, blocks, Codec.RAW)
        header = _header()
        yield Reading([header, *blocks], lambda: self._keys.decrypt_into(blocks, header, blocks, spec))


class _Int8:
    """Checked or sealed: it needs a scratch either way."""

    def __init__(self, keys: FrameKeys | None, scratches: Scratches) -> None:
        self._keys = keys
        self._scratches = scratches

    @contextmanager
    def encode(self, spec: FrameSpec, blocks: Sequence[memoryview]) -> Iterator[Sequence[Buffer]]:
        _fit(spec, blocks, Codec.INT8)
        with self._scratches.take(spec.frame_bytes) as frame:
            payload = frame[HEADER_BYTES:]
            try:
                for block, coded in zip(blocks, _coded(spec, payload), strict=True):
                    quantize_block(spec.geometry, block, coded)
            except NotFiniteError:
                raise FrameError(FrameFault.NUMBERS) from None
            if self._keys is None:
                frame[:HEADER_BYTES] = encode_header(spec, [payload])
            else:
                frame[:HEADER_BYTES] = self._keys.encrypt_into([payload], spec, [payload])
            yield [frame]

    @contextmanager
    def reading(self, spec: FrameSpec, blocks: Sequence[memoryview]) -> Iterator[Reading]:
        _fit(spec, blocks, Codec.INT8)
        with self._scratches.take(spec.frame_bytes) as frame:
            yield Reading([frame], lambda: self._open(spec, frame, blocks))

    def _open(self, spec: FrameSpec, frame: memoryview, blocks: Sequence[memoryview]) -> None:
        header, payload = frame[:HEADER_BYTES], frame[HEADER_BYTES:]
        if self._keys is None:
            check(header, [payload], spec)
        else:
            self._keys.decrypt_into([payload], header, [payload], spec)
        _restore(spec, payload, blocks)


def _restore(spec: FrameSpec, payload: memoryview, blocks: Sequence[memoryview]) -> None:
    try:
        for coded, block in zip(_coded(spec, payload), blocks, strict=True):
            restore_block(spec.geometry, coded, block)
    except NotFiniteError:
        raise FrameError(FrameFault.NUMBERS) from None


def _coded(spec: FrameSpec, payload: memoryview) -> list[memoryview]:
    """The frame's blocks."""
    size = spec.geometry.block_bytes
    return [payload[start : start + size] for start in range(0, len(payload), size)]


def _header() -> memoryview:
    return memoryview(bytearray(HEADER_BYTES))


def _fit(spec: FrameSpec, blocks: Sequence[memoryview], codec: Codec) -> None:
    geometry = spec.geometry
    if geometry.codec is not codec:
        raise ValueError(f"this framing is for {codec}, the frame for {geometry.codec}")
    if len(blocks) != spec.n_blocks or any(len(block) != geometry.pool_bytes for block in blocks):
        raise ValueError(f"the frame is {spec.n_blocks} blocks of {geometry.pool_bytes} bytes in the pool")
