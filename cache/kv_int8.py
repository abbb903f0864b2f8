"""KV as signed bytes: each head's vector of a token divided by its own scale, symmetric around zero.

A block becomes `[layer][K|V][token][head]` scales (float32) and then `[layer][K|V][token][head][dim]` bytes. A number
comes back within half a scale, 1/254 of the largest in its vector, besides the rounding of its own type. Text may
therefore differ from text without restoring: it is off unless asked for. Needs numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cache.kv_keys import Codec, Dtype, Geometry
from cache.store import Buffer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

_LARGEST: Final = {Dtype.BF16: 3.3895313892515355e38, Dtype.FP16: 65_504.0, Dtype.FP32: 3.4028234663852886e38}
"""The largest finite number of each type."""


def quantize_block(geometry: Geometry, block: Buffer, target: memoryview) -> None:
    """Write the block of the pool into `target`, a block of a frame; raises ValueError for numbers that are not
    finite, sizes that differ, and types other than bf16, fp16 and fp32.
    """
    import numpy as np  # noqa: PLC0415 - comes with the worker, not needed otherwise

    _sizes(geometry, block, target)
    vectors = _floats(geometry, block).reshape(geometry.vectors, geometry.head_dim)
    largest = np.abs(vectors).max(axis=1)
    if not np.isfinite(largest).all():
        raise ValueError("KV that is not finite cannot be quantised")
    scales = (largest / np.float32(127)).astype(np.float32)
    # A vector of zeros, or of numbers too small to be divided by 127, has the scale zero and comes back as zeros.
    divisors = np.where(scales > 0, scales, np.float32(np.inf))
    values = np.clip(np.rint(vectors / divisors[:, None]), -127, 127).astype(np.int8)
    at = scales.nbytes
    target[:at] = memoryview(scales.astype("<f4")).cast("B")
    target[at:] = memoryview(values).cast("B")


def restore_block(geometry: Geometry, source: Buffer, block: memoryview) -> None:
    """Write a frame's block into `block` of the pool; raises ValueError as `quantize_block` does."""
    import numpy as np  # noqa: PLC0415 - comes with the worker, not needed otherwise

    _sizes(geometry, block, source)
    scales = np.frombuffer(source, "<f4", geometry.vectors)
    if not np.isfinite(scales).all():
        raise ValueError("a scale is not finite")
    values = np.frombuffer(source, np.int8, offset=scales.nbytes).reshape(geometry.vectors, geometry.head_dim)
    with np.errstate(over="ignore"):  # the largest number may round up beyond what float32 holds
        numbers = values * scales[:, None]
    block[:] = memoryview(_stored(geometry.dtype, numbers)).cast("B")


def _sizes(geometry: Geometry, block: Buffer, coded: Buffer) -> None:
    if geometry.codec is not Codec.INT8 or geometry.dtype not in _LARGEST:
        raise ValueError(f"int8 is not the codec of this geometry, or not for {geometry.dtype}")
    if (len(block), len(coded)) != (geometry.pool_bytes, geometry.block_bytes):
        raise ValueError(f"a block is {geometry.pool_bytes} bytes, and {geometry.block_bytes} in a frame")


def _floats(geometry: Geometry, block: Buffer) -> Floats:
    import numpy as np  # noqa: PLC0415 - comes with the worker, not needed otherwise

    if geometry.dtype is Dtype.BF16:
        # The upper half of a float32.
        return (np.frombuffer(block, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.frombuffer(block, "<f2" if geometry.dtype is Dtype.FP16 else "<f4").astype(np.float32)


def _stored(dtype: Dtype, numbers: Floats) -> NDArray[Any]:
    import numpy as np  # noqa: PLC0415 - comes with the worker, not needed otherwise

    # What rounds up beyond the type's largest number stays that: the pool has to be finite.
    largest = _LARGEST[dtype]
    numbers = np.clip(numbers, -largest, largest, dtype=np.float32)
    if dtype is not Dtype.BF16:
        return numbers.astype("<f2" if dtype is Dtype.FP16 else "<f4")
    bits = numbers.view(np.uint32)
    # To the nearest, ties to even.
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")
