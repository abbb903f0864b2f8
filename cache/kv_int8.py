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

_LARGEST: Final = {Dtype.BF16: 3.3895313892515355e38, Dtype.FP16: 65_504.0, Dtype.FP32: 3.4028234663852886e38}
"""The largest finite number of each type."""

_TINY: Final = 2.0**-100
"""A vector of smaller numbers comes back as zeros: its scale could not be inverted in float32."""

_TILE: Final = 1 << 15
"""Numbers that are worked on at once: all that is made of them on the way stays in a core's cache."""


class NotFiniteError(ValueError):
    """Numbers of the pool, or scales of a frame, are infinite or none."""


def quantize_block(geometry: Geometry, block: Buffer, target: memoryview) -> None:
    """Write the block of the pool into `target`, a block of a frame. Raises NotFiniteError, and ValueError for sizes
    that differ and types other than bf16, fp16 and fp32.
    """
    import numpy as np  # noqa: PLC0415 - comes with the worker, not needed otherwise

    _sizes(geometry, block, target)
    numbers = np.frombuffer(block, _stored_type(geometry.dtype)).reshape(-1, geometry.head_dim)
    scales = np.frombuffer(target, "<f4", geometry.vectors)
    values = np.frombuffer(target, np.int8, offset=scales.nbytes).reshape(numbers.shape)
    for tile in _tiles(geometry):
        vectors = _floats(geometry.dtype, numbers[tile])
        largest = np.abs(vectors).max(axis=1)
        if not np.isfinite(largest).all():
            raise NotFiniteError("KV that is not finite cannot be quantised")
        largest[largest < _TINY] = 0
        np.divide(largest, np.float32(127), out=scales[tile])
        factors = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
        np.multiply(vectors, factors[:, None], out=vectors)
        values[tile] = np.rint(vectors, out=vectors)


def restore_block(geometry: Geometry, source: Buffer, block: memoryview) -> None:
    """Write a frame's block into `block` of the pool; raises as `quantize_block` does."""
    import numpy as np  # noqa: PLC0415 - comes with the worker, not needed otherwise

    _sizes(geometry, block, source)
    scales = np.frombuffer(source, "<f4", geometry.vectors)
    if not np.isfinite(scales).all():
        raise NotFiniteError("a scale is not finite")
    numbers = np.frombuffer(block, _stored_type(geometry.dtype)).reshape(-1, geometry.head_dim)
    values = np.frombuffer(source, np.int8, offset=scales.nbytes).reshape(numbers.shape)
    largest = np.float32(_LARGEST[geometry.dtype])
    for tile in _tiles(geometry):
        with np.errstate(over="ignore"):
            vectors = np.multiply(values[tile], scales[tile, None], dtype=np.float32)
        # What rounds up beyond the type's largest number stays that: the pool has to be finite.
        np.clip(vectors, -largest, largest, out=vectors)
        numbers[tile] = _stored(geometry.dtype, vectors)


def _tiles(geometry: Geometry) -> Iterator[slice]:
    step = max(1, _TILE // geometry.head_dim)
    return (slice(start, start + step) for start in range(0, geometry.vectors, step))


def _sizes(geometry: Geometry, block: Buffer, coded: Buffer) -> None:
    if geometry.codec is not Codec.INT8 or geometry.dtype not in _LARGEST:
        raise ValueError(f"int8 is not the codec of this geometry, or not for {geometry.dtype}")
    if (len(block), len(coded)) != (geometry.pool_bytes, geometry.block_bytes):
        raise ValueError(f"a block is {geometry.pool_bytes} bytes, and {geometry.block_bytes} in a frame")


def _stored_type(dtype: Dtype) -> str:
    """What stands for it in numpy, which has no bf16: its bits."""
    return {Dtype.BF16: "<u2", Dtype.FP16: "<f2", Dtype.FP32: "<f4"}[dtype]


def _floats(dtype: Dtype, numbers: NDArray[Any]) -> Floats:
    """A copy as float32; of that, bf16 is the upper half."""
    import numpy as np  # noqa: PLC0415 - comes with the worker, not needed otherwise

    if dtype is not Dtype.BF16:
        return numbers.astype(np.float32)
    bits = numbers.astype(np.uint32)
    return np.left_shift(bits, np.uint32(16), out=bits).view(np.float32)


def _stored(dtype: Dtype, numbers: Floats) -> NDArray[Any]:
    """As the pool has them, rounded to the nearest, ties to even; may overwrite them."""
    import numpy as np  # noqa: PLC0415 - comes with the worker, not needed otherwise

    if dtype is not Dtype.BF16:
        return numbers
    bits = numbers.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    bits += np.uint32(0x7FFF)
    bits += odd
    bits >>= np.uint32(16)
    return bits
