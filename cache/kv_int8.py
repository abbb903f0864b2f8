"""KV as signed bytes: each head's vector of a token divided by its own scale, symmetric around zero.

A block becomes `[layer][K|V][token][head]` scales (float32) and then `[layer][K|V][token][head][dim]` bytes. A number
comes back within half a scale, 1/254 of the largest in its vector, besides the rounding of its own type; for numbers
of a normal distribution that is 0.7% of their root mean square. Text may therefore differ from text without restoring:
it is off unless asked for. Needs numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from cache.kv_keys import Codec, Dtype, Geometry
from cache.store import Buffer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Bits = NDArray[np.uint32]

_LARGEST: Final = {Dtype.BF16: 3.3895313892515355e38, Dtype.FP16: 65_504.0, Dtype.FP32: 3.4028234663852886e38}
"""The largest finite number of each type."""

_TINY: Final = 2.0**-100
"""A vector of smaller numbers comes back as zeros: its scale could not be inverted in float32."""

_TILE: Final = 1 << 16
"""Numbers that are worked on at once: what is made of them on the way stays in a core's cache, and every step takes
long beside what it costs to begin one."""

_HALF_BIAS: Final = 2.0**112
"""Between fp16 and float32 whose exponents have the same bits."""


class NotFiniteError(ValueError):
    """Numbers of the pool, or scales of a frame, are infinite or none."""


def quantize_block(geometry: Geometry, block: Buffer, target: memoryview) -> None:
    """Write the block of the pool into `target`, a block of a frame. Raises NotFiniteError, and ValueError for sizes
    that differ and types other than bf16, fp16 and fp32.
    """
    import numpy as np  # noqa: PLC0415 - comes with the worker, not needed otherwise

    _sizes(geometry, block, target)
    numbers = np.frombuffer(block, _bits_type(geometry.dtype)).reshape(-1, geometry.head_dim)
    scales = np.frombuffer(target, "<f4", geometry.vectors)
    values = np.frombuffer(target, np.int8, offset=scales.nbytes).reshape(numbers.shape)
    room = np.empty((2, _tile_rows(geometry), geometry.head_dim), np.uint32)
    for tile in _tiles(geometry):
        bits = room[:, : len(numbers[tile])]
        vectors = _floats(geometry.dtype, numbers[tile], bits[0])
        largest = _largest(vectors, bits[1])
        if not (largest <= np.float32(_LARGEST[geometry.dtype])).all():
            raise NotFiniteError("KV that is not finite cannot be quantised")
        largest[largest < _TINY] = 0
        np.divide(largest, np.float32(127), out=scales[tile])
        factors = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
        scaled = np.multiply(vectors, factors[:, None], out=bits[1].view(np.float32))
        values[tile] = np.rint(scaled, out=scaled)


def restore_block(geometry: Geometry, source: Buffer, block: memoryview) -> None:
    """Write a frame's block into `block` of the pool; raises as `quantize_block` does."""
    import numpy as np  # noqa: PLC0415 - comes with the worker, not needed otherwise

    _sizes(geometry, block, source)
    scales = np.frombuffer(source, "<f4", geometry.vectors)
    if not np.isfinite(scales).all():
        raise NotFiniteError("a scale is not finite")
    numbers = np.frombuffer(block, _bits_type(geometry.dtype)).reshape(-1, geometry.head_dim)
    values = np.frombuffer(source, np.int8, offset=scales.nbytes).reshape(numbers.shape)
    largest = _LARGEST[geometry.dtype]
    may_exceed = 128 * float(np.abs(scales).max()) > largest
    room = np.empty((2, _tile_rows(geometry), geometry.head_dim), np.uint32)
    for tile in _tiles(geometry):
        bits = room[:, : len(numbers[tile])]
        vectors = bits[0].view(np.float32)
        with np.errstate(over="ignore"):
            np.multiply(values[tile], scales[tile, None], out=vectors, dtype=np.float32)
        if may_exceed:
            # What rounds up beyond the type's largest number stays that: the pool has to be finite.
            np.clip(vectors, np.float32(-largest), np.float32(largest), out=vectors)
        numbers[tile] = _stored(geometry.dtype, vectors, bits[1])


def _tile_rows(geometry: Geometry) -> int:
    return max(1, min(geometry.vectors, _TILE // geometry.head_dim))


def _tiles(geometry: Geometry) -> Iterator[slice]:
    step = _tile_rows(geometry)
    return (slice(start, start + step) for start in range(0, geometry.vectors, step))


def _sizes(geometry: Geometry, block: Buffer, coded: Buffer) -> None:
    if geometry.codec is not Codec.INT8 or geometry.dtype not in _LARGEST:
        raise ValueError(f"int8 is not the codec of this geometry, or not for {geometry.dtype}")
    if (len(block), len(coded)) != (geometry.pool_bytes, geometry.block_bytes):
        raise ValueError(f"a block is {geometry.pool_bytes} bytes, and {geometry.block_bytes} in a frame")


def _bits_type(dtype: Dtype) -> str:
    """The type of its bits: numpy has no bf16, and converts fp16 one by one."""
    return f"<u{dtype.itemsize}"


def _largest(vectors: Floats, room: Bits) -> Floats:
    """The largest magnitude in each; of what is no number, something not less than infinity, or NaN.

    Of floats without a sign the bits are in the order of the numbers, and integers are compared faster.
    """
    import numpy as np  # noqa: PLC0415 - comes with the worker, not needed otherwise

    n_vectors, length = vectors.shape
    magnitudes = np.bitwise_and(vectors.view(np.uint32), np.uint32(0x7FFF_FFFF), out=room).view(np.int32)
    found: NDArray[Any] = np.maximum.reduceat(magnitudes.reshape(-1), np.arange(0, n_vectors * length, length))
    return found.view(np.float32)


def _floats(dtype: Dtype, bits: NDArray[Any], room: Bits) -> Floats:
    """As float32, in `room` or where they are; of that, bf16 is the upper half. Infinity as fp16 is beyond its largest
    number.
    """
    import numpy as np  # noqa: PLC0415 - comes with the worker, not needed otherwise

    if dtype is Dtype.FP32:
        return bits.view(np.float32)
    if dtype is Dtype.BF16:
        room[:] = bits
        return np.left_shift(room, np.uint32(16), out=room).view(np.float32)
    # The sign becomes the upper 17 bits, of which the shift and the mask leave one.
    room.view(np.int32)[:] = bits.view(np.int16)
    np.left_shift(room, np.uint32(13), out=room)
    np.bitwise_and(room, np.uint32(0x8FFF_E000), out=room)
    floats = room.view(np.float32)
    return np.multiply(floats, np.float32(_HALF_BIAS), out=floats)


def _stored(dtype: Dtype, numbers: Floats, room: Bits) -> Bits:
    """The bits that the pool has, rounded to the nearest, ties away from zero; overwrites the numbers, which are
    finite as that type.
    """
    import numpy as np  # noqa: PLC0415 - comes with the worker, not needed otherwise

    bits: Bits = numbers.view(np.uint32)
    if dtype is Dtype.BF16:
        bits += np.uint32(0x8000)
        bits >>= np.uint32(16)
    elif dtype is Dtype.FP16:
        numbers *= np.float32(1 / _HALF_BIAS)
        bits += np.uint32(0x1000)
        bits >>= np.uint32(13)
        # Three zeros are between the sign and the rest.
        np.right_shift(bits, np.uint32(3), out=room)
        np.bitwise_and(room, np.uint32(0x8000), out=room)
        bits |= room
    return bits
