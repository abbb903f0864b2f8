"""KV as int8: how far numbers may be off, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cache.kv_int8 import quantize_block, restore_block
from cache.kv_keys import Codec, Dtype, Geometry

GEOMETRY = Geometry(n_layers=2, kv_heads=2, head_dim=8, block_size=4, dtype=Dtype.FP32, codec=Codec.INT8)
ROUNDING = {Dtype.FP32: 2.0**-23, Dtype.FP16: 2.0**-11, Dtype.BF16: 2.0**-8}
FLOATING = sorted(ROUNDING)


def stored(dtype: Dtype, numbers: NDArray[np.float32]) -> bytes:
    if dtype is Dtype.BF16:
        return (numbers.astype("<f4").view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()
    return numbers.astype("<f2" if dtype is Dtype.FP16 else "<f4").tobytes()


def numbers_of(dtype: Dtype, block: bytes | bytearray) -> NDArray[np.float64]:
    if dtype is Dtype.BF16:
        return (np.frombuffer(block, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return np.frombuffer(block, "<f2" if dtype is Dtype.FP16 else "<f4").astype(np.float64)


def there_and_back(geometry: Geometry, block: bytes) -> bytearray:
    coded, back = bytearray(geometry.block_bytes), bytearray(geometry.pool_bytes)
    quantize_block(geometry, block, memoryview(coded))
    restore_block(geometry, coded, memoryview(back))
    return back


@pytest.mark.parametrize("dtype", FLOATING)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1e-3, 1.0, 300.0, 60_000.0]))
def test_each_number_comes_back_within_half_a_scale(dtype: Dtype, seed: int, size: float) -> None:
    geometry = replace(GEOMETRY, dtype=dtype)
    random = np.random.default_rng(seed)
    block = stored(dtype, random.uniform(-size, size, geometry.vectors * 8).astype(np.float32))
    before = numbers_of(dtype, block).reshape(-1, 8)
    after = numbers_of(dtype, there_and_back(geometry, block)).reshape(-1, 8)
    largest = np.abs(before).max(axis=1, keepdims=True)
    # The smallest fp16 numbers are no finer than 2**-24.
    assert (np.abs(after - before) <= largest / 254 * (1 + 1e-5) + largest * ROUNDING[dtype] + 2.0**-24).all()


def nearest(dtype: Dtype, numbers: NDArray[np.float32]) -> NDArray[np.float64]:
    """As the type has them, by another way than the codec's."""
    if dtype is Dtype.BF16:
        bits = numbers.view(np.uint32).astype(np.uint64)
        low = (bits & np.uint64(0xFFFF_0000)).astype(np.uint32).view(np.float32).astype(np.float64)
        high = ((bits | np.uint64(0xFFFF)) + np.uint64(1)).astype(np.uint32).view(np.float32).astype(np.float64)
        return np.where(np.abs(numbers - low) <= np.abs(high - numbers), low, high)
    return numbers.astype("<f2" if dtype is Dtype.FP16 else "<f4").astype(np.float64)


@pytest.mark.parametrize("dtype", FLOATING)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1e-7, 1e-5, 1e-3, 1.0, 300.0, 60_000.0]))
def test_bytes_and_numbers_are_the_nearest(dtype: Dtype, seed: int, size: float) -> None:
    geometry = replace(GEOMETRY, dtype=dtype)
    random = np.random.default_rng(seed)
    block = stored(dtype, random.uniform(-size, size, geometry.vectors * 8).astype(np.float32))
    coded, back = bytearray(geometry.block_bytes), bytearray(geometry.pool_bytes)
    quantize_block(geometry, block, memoryview(coded))
    scales = np.frombuffer(coded, "<f4", geometry.vectors)[:, None]
    values = np.frombuffer(coded, np.int8, offset=scales.nbytes).reshape(-1, 8)
    before = numbers_of(dtype, block).reshape(-1, 8)
    assert scales.ravel() == pytest.approx(np.abs(before).max(axis=1) / 127, rel=1e-6)
    steps = np.divide(before, scales, out=np.zeros_like(before), where=scales > 0)
    assert (np.abs(values - steps) <= 0.5 + 1e-4).all()
    restore_block(geometry, coded, memoryview(back))
    exact = (values.astype(np.float32) * scales).astype(np.float32)
    after = numbers_of(dtype, back).reshape(-1, 8)
    # Of two that are as near, either.
    assert (np.abs(after - exact) == np.abs(nearest(dtype, exact) - exact)).all()


@pytest.mark.parametrize("head_dim", [1, 3, 64, 2_000, 70_000])
def test_any_length_of_vectors_is_cut_into_tiles(head_dim: int) -> None:
    geometry = replace(GEOMETRY, head_dim=head_dim, n_layers=9)
    random = np.random.default_rng(head_dim)
    vectors = random.normal(size=(geometry.vectors, head_dim)).astype("<f4")
    back = numbers_of(Dtype.FP32, there_and_back(geometry, vectors.tobytes())).reshape(vectors.shape)
    assert (np.abs(back - vectors) <= np.abs(vectors).max(axis=1, keepdims=True) / 254 * 1.0001).all()


@pytest.mark.parametrize("dtype", FLOATING)
def test_what_needs_no_rounding_comes_back_exactly(dtype: Dtype) -> None:
    geometry = replace(GEOMETRY, dtype=dtype)
    vectors = np.zeros((geometry.vectors, 8), np.float32)
    vectors[1] = [127, -127, 1, -1, 64, 0, -3, 100]
    vectors[2:] = [254, -2, 4, 0, 0, 8, 16, -254]
    block = stored(dtype, vectors)
    assert there_and_back(geometry, block) == block


@pytest.mark.parametrize("dtype", FLOATING)
def test_the_largest_numbers_stay_finite(dtype: Dtype) -> None:
    geometry = replace(GEOMETRY, dtype=dtype)
    largest = {Dtype.FP32: 3.4028235e38, Dtype.FP16: 65_504.0, Dtype.BF16: 3.3895314e38}[dtype]
    block = stored(dtype, np.full(geometry.vectors * 8, -largest, np.float32))
    assert np.isfinite(numbers_of(dtype, there_and_back(geometry, block))).all()


def test_the_layout_is_scales_then_bytes() -> None:
    vectors = np.zeros((GEOMETRY.vectors, 8), np.float32)
    vectors[5] = [12.7, 0.1, -12.7, 0, 0, 0, 0, 6.3]
    coded = bytearray(GEOMETRY.block_bytes)
    quantize_block(GEOMETRY, vectors.tobytes(), memoryview(coded))
    scales = np.frombuffer(coded, "<f4", GEOMETRY.vectors)
    assert scales[5] == pytest.approx(0.1)
    assert np.count_nonzero(scales) == 1
    assert coded[4 * GEOMETRY.vectors + 40 :][:8] == bytes([127, 1, 129, 0, 0, 0, 0, 63])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    numbers = np.zeros(GEOMETRY.vectors * 8, np.float32)
    numbers[77] = bad
    with pytest.raises(ValueError, match="not finite"):
        quantize_block(GEOMETRY, numbers.tobytes(), memoryview(bytearray(GEOMETRY.block_bytes)))
    coded = bytearray(GEOMETRY.block_bytes)
    coded[8:12] = np.float32(bad).tobytes()
    with pytest.raises(ValueError, match="not finite"):
        restore_block(GEOMETRY, coded, memoryview(bytearray(GEOMETRY.pool_bytes)))


def test_sizes_and_types_are_checked() -> None:
    block, coded = bytes(GEOMETRY.pool_bytes), memoryview(bytearray(GEOMETRY.block_bytes))
    with pytest.raises(ValueError, match="a block is"):
        quantize_block(GEOMETRY, block[1:], coded)
    for geometry in (replace(GEOMETRY, codec=Codec.RAW), replace(GEOMETRY, dtype=Dtype.FP8_E4M3)):
        with pytest.raises(ValueError, match="not the codec"):
            quantize_block(geometry, block, coded)
