"""Blocks that become frames and blocks again, in every codec: the same, or refused."""

from __future__ import annotations

import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.worker.kv.framing import Framing, Scratches, make_framing
from cache.byte_pieces import copy_pieces
from cache.kv_codec import HEADER_BYTES, FrameError, FrameFault, FrameKeys, FrameSpec, encode_header
from cache.kv_int8 import quantize_block, restore_block
from cache.kv_keys import Codec, Dtype, Geometry, chunk_keys
from cache.memory_store import MemoryStore
from cache.store import Buffer, ChunkKey, FrameInfo
from policies.types import TokenIds
from tests.frame_fixtures import mutated
from tests.store_contract import cut, in_threads

KEYS = FrameKeys(sha256(b"master").digest())
OTHER_KEYS = FrameKeys(sha256(b"another").digest())
SPEC = FrameSpec(
    key=ChunkKey(sha256(b"key").digest()),
    parent=ChunkKey(sha256(b"parent").digest()),
    fingerprint=sha256(b"weights").digest(),
    geometry=Geometry(n_layers=2, kv_heads=1, head_dim=4, block_size=2, dtype=Dtype.BF16),
    first_token=6,
    n_tokens=4,
    salt=b"tenant a",
)
OTHER = ChunkKey(sha256(b"other").digest())
DTYPES = [Dtype.BF16, Dtype.FP16, Dtype.FP32]


@dataclass(frozen=True)
class Variant:
    """One framing, and the frames it is for."""

    name: str
    keys: FrameKeys | None
    int8: bool

    def make(self, **more: Any) -> Framing:
        return make_framing(keys=self.keys, int8=self.int8, **more)

    def spec(self, dtype: Dtype = Dtype.BF16, **changes: Any) -> FrameSpec:
        codec = Codec.INT8 if self.int8 else Codec.RAW
        return replace(SPEC, **{"geometry": replace(SPEC.geometry, dtype=dtype, codec=codec)} | changes)


PLAIN, SEALED = Variant("plain", None, int8=False), Variant("sealed", KEYS, int8=False)
INT8, INT8_SEALED = Variant("int8", None, int8=True), Variant("int8-sealed", KEYS, int8=True)
VARIANTS = [PLAIN, SEALED, INT8, INT8_SEALED]
every = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def block_of(geometry: Geometry, seed: int) -> memoryview:
    """Finite numbers."""
    numbers = np.random.default_rng(seed).normal(size=geometry.vectors * geometry.head_dim).astype("<f4")
    if geometry.dtype is Dtype.BF16:
        return memoryview(bytearray((numbers.view("<u4") >> np.uint32(16)).astype("<u2")))
    return memoryview(bytearray(numbers.astype("<f2" if geometry.dtype is Dtype.FP16 else "<f4")))


def numbers_of(dtype: Dtype, blocks: Sequence[memoryview]) -> np.ndarray[Any, np.dtype[Any]]:
    content = b"".join(blocks)
    if dtype is Dtype.BF16:
        return (np.frombuffer(content, "<u2").astype("<u4") << np.uint32(16)).view("<f4")
    return np.frombuffer(content, "<f2" if dtype is Dtype.FP16 else "<f4")


def blocks_of(spec: FrameSpec, seed: int = 1) -> list[memoryview]:
    return [block_of(spec.geometry, seed + number) for number in range(spec.n_blocks)]


def empty(spec: FrameSpec) -> list[memoryview]:
    return [memoryview(bytearray(b"\xaa" * spec.geometry.pool_bytes)) for _ in range(spec.n_blocks)]


def restored(spec: FrameSpec, blocks: Sequence[memoryview]) -> list[memoryview]:
    """What should come back."""
    if spec.geometry.codec is Codec.RAW:
        return list(blocks)
    back = empty(spec)
    coded = memoryview(bytearray(spec.geometry.block_bytes))
    for block, target in zip(blocks, back, strict=True):
        quantize_block(spec.geometry, block, coded)
        restore_block(spec.geometry, coded, target)
    return back


def written(framing: Framing, spec: FrameSpec, blocks: Sequence[memoryview]) -> bytes:
    with framing.encode(spec, blocks) as pieces:
        return b"".join(pieces)


def read(framing: Framing, spec: FrameSpec, frame: bytes) -> list[memoryview]:
    """Raises FrameError; the frame is of the right length, as stores see to."""
    blocks = empty(spec)
    with framing.reading(spec, blocks) as reading:
        assert sum(map(len, reading.pieces)) == spec.frame_bytes
        copy_pieces(reading.pieces, [frame])
        reading.finish()
    return blocks


def fault(framing: Framing, spec: FrameSpec, frame: bytes) -> FrameFault | None:
    try:
        read(framing, spec, frame)
    except FrameError as error:
        return error.reason
    return None


# --- there and back ----------------------------------------------------------------------------------------


@every
@every_dtype
def test_round_trip(variant: Variant, dtype: Dtype) -> None:
    framing, spec = variant.make(), variant.spec(dtype)
    blocks = blocks_of(spec)
    before = [bytes(block) for block in blocks]
    frame = written(framing, spec, blocks)
    assert blocks == before, "encoding changed the pool"
    assert len(frame) == spec.frame_bytes
    assert read(framing, spec, frame) == restored(spec, blocks)
    assert (b"".join(blocks) in frame) is (variant is PLAIN)


GEOMETRIES = st.builds(
    Geometry,
    n_layers=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    head_dim=st.integers(1, 9),
    block_size=st.just(2),
    dtype=st.sampled_from(DTYPES),
)


CHANGES = st.fixed_dictionaries(
    {
        "n_tokens": st.integers(1, 4).map(lambda n_blocks: 2 * n_blocks),
        "parent": st.sampled_from([None, SPEC.parent]),
        "salt": st.binary(max_size=9),
    }
)


@every
@given(GEOMETRIES, CHANGES)
@settings(max_examples=60)
def test_round_trip_of_any_geometry(variant: Variant, geometry: Geometry, changes: dict[str, Any]) -> None:
    geometry = replace(geometry, codec=variant.spec().geometry.codec)
    spec = variant.spec(geometry=geometry, **changes)
    blocks = blocks_of(spec, spec.n_tokens)
    framing = variant.make()
    assert read(framing, spec, written(framing, spec, blocks)) == restored(spec, blocks)


@every
def test_from_one_pool_through_a_store_into_another(variant: Variant) -> None:
    framing, spec = variant.make(), variant.spec()
    size = spec.geometry.pool_bytes
    pool, other = memoryview(bytearray(10 * size)), memoryview(bytearray(10 * size))
    source = [pool[at * size :][:size] for at in (7, 2)]
    copy_pieces(source, blocks_of(spec))
    target = [other[at * size :][:size] for at in (1, 9)]
    store = MemoryStore(1 << 20)
    try:
        with framing.encode(spec, source) as pieces:
            assert store.write(spec.key, pieces, FrameInfo())
        with framing.reading(spec, target) as reading:
            assert store.read_into(spec.key, reading.pieces)
            reading.finish()
    finally:
        store.close()
    assert target == restored(spec, source)
    assert not any(b"".join(other[at * size :][:size] for at in (0, *range(2, 9))))


@every
def test_finishing_again_changes_nothing(variant: Variant) -> None:
    framing, spec = variant.make(), variant.spec()
    blocks, back = blocks_of(spec), empty(spec)
    frame = written(framing, spec, blocks)
    with framing.reading(spec, back) as reading:
        copy_pieces(reading.pieces, [frame])
        reading.finish()
        reading.finish()
    assert back == restored(spec, blocks)


def test_a_sealed_frame_is_never_the_same_twice() -> None:
    for variant in (SEALED, INT8_SEALED):
        framing, spec = variant.make(), variant.spec()
        blocks = blocks_of(spec)
        assert len({written(framing, spec, blocks) for _ in range(50)}) == 50
    for variant in (PLAIN, INT8):
        framing, spec = variant.make(), variant.spec()
        blocks = blocks_of(spec)
        assert len({written(framing, spec, blocks) for _ in range(50)}) == 1


# --- what is refused ---------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_every_changed_byte_is_refused(variant: Variant, flip: int) -> None:
    framing, spec = variant.make(), variant.spec()
    frame = bytearray(written(framing, spec, blocks_of(spec)))
    for at in range(len(frame)):
        frame[at] ^= flip
        assert fault(framing, spec, bytes(frame)) is not None, at
        frame[at] ^= flip
    assert fault(framing, spec, bytes(frame)) is None


FOREIGN: list[tuple[dict[str, Any], FrameFault]] = [
    ({"salt": b"tenant b"}, FrameFault.SALT),
    ({"salt": b""}, FrameFault.SALT),
    ({"fingerprint": OTHER}, FrameFault.FINGERPRINT),
    ({"key": OTHER}, FrameFault.KEY),
    ({"parent": OTHER}, FrameFault.PARENT),
    ({"parent": None}, FrameFault.PARENT),
    ({"first_token": 4}, FrameFault.RANGE),
]


@every
@pytest.mark.parametrize(("changes", "reason"), FOREIGN, ids=lambda value: str(value)[:30])
def test_another_chunk_is_refused_by_name(variant: Variant, changes: dict[str, Any], reason: FrameFault) -> None:
    framing, spec = variant.make(), variant.spec()
    frame = written(framing, spec, blocks_of(spec))
    assert fault(framing, replace(spec, **changes), frame) is reason


@every
def test_another_geometry_is_refused_by_name(variant: Variant) -> None:
    framing, spec = variant.make(), variant.spec()
    frame = written(framing, spec, blocks_of(spec))
    for n_layers, kv_heads, block_size in ((1, 2, 2), (4, 1, 1)):
        shape: dict[str, Any] = {"n_layers": n_layers, "kv_heads": kv_heads, "block_size": block_size}
        wanted = replace(spec, geometry=replace(spec.geometry, **shape))
        same_length = frame.ljust(wanted.frame_bytes, b"\0")
        assert fault(framing, wanted, same_length) is FrameFault.GEOMETRY
    wanted = replace(spec, geometry=replace(spec.geometry, dtype=Dtype.FP16))
    assert fault(framing, wanted, frame) is FrameFault.DTYPE


@pytest.mark.parametrize("int8", [False, True])
def test_another_key_and_another_seal_are_refused(int8: bool) -> None:
    plain, sealed = make_framing(keys=None, int8=int8), make_framing(keys=KEYS, int8=int8)
    spec = (INT8 if int8 else PLAIN).spec()
    blocks = blocks_of(spec)
    assert fault(sealed, spec, written(plain, spec, blocks)) is FrameFault.SEAL
    assert fault(plain, spec, written(sealed, spec, blocks)) is FrameFault.SEAL
    assert fault(make_framing(keys=OTHER_KEYS, int8=int8), spec, written(sealed, spec, blocks)) is FrameFault.TAG


@pytest.mark.parametrize("keys", [None, KEYS])
def test_frames_of_two_codecs_never_meet(keys: FrameKeys | None) -> None:
    raw, int8 = PLAIN.spec(Dtype.FP32), INT8.spec(Dtype.FP32)
    tokens = TokenIds(bytes(4 * 8))
    of_raw, of_int8 = (
        set(chunk_keys(spec.fingerprint, spec.geometry, spec.salt, tokens, chunk_tokens=4)) for spec in (raw, int8)
    )
    assert len(of_raw) == len(of_int8) == 2
    assert not of_raw & of_int8
    # Nor where somebody puts one in the other's place.
    frames = [written(make_framing(keys=keys, int8=spec is int8), spec, blocks_of(spec)) for spec in (raw, int8)]
    for spec, frame in ((int8, frames[0]), (raw, frames[1])):
        framing = make_framing(keys=keys, int8=spec is int8)
        assert fault(framing, spec, frame.ljust(spec.frame_bytes, b"\0")[: spec.frame_bytes]) is FrameFault.CODEC


@every
def test_25_000_mutated_frames_are_refused(variant: Variant) -> None:
    choose = random.Random(3)
    framing, spec = variant.make(), variant.spec()
    blocks = blocks_of(spec)
    frame = written(framing, spec, blocks)
    sealed_otherwise = make_framing(keys=KEYS if variant.keys is None else None, int8=variant.int8)
    others = [
        written(framing, replace(spec, key=OTHER), blocks),
        written(framing, replace(spec, salt=b"b"), blocks),
        written(sealed_otherwise, spec, blocks),
    ]
    back = empty(spec)
    refused = 0
    while refused < 25_000:
        # A store gives back as many bytes as it is asked for, or says that it has none.
        changed = mutated(frame, choose.choice(others), choose).ljust(len(frame), b"\0")[: len(frame)]
        if changed == frame:
            continue
        with framing.reading(spec, back) as reading:
            copy_pieces(reading.pieces, [changed])
            with pytest.raises(FrameError):
                reading.finish()
        refused += 1


# --- int8 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", [INT8, INT8_SEALED], ids=lambda variant: variant.name)
@every_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_makes_no_frame(variant: Variant, dtype: Dtype, bad: float) -> None:
    framing, spec = variant.make(), variant.spec(dtype)
    blocks = blocks_of(spec)
    size = dtype.itemsize
    kind = "<f2" if dtype is Dtype.FP16 else "<f4"
    blocks[1][5 * size : 6 * size] = np.array(bad, kind).tobytes()[-size:]
    with pytest.raises(FrameError) as caught, framing.encode(spec, blocks):
        pytest.fail("a frame was made")
    assert caught.value.reason is FrameFault.NUMBERS
    blocks = blocks_of(spec)  # and the framing still works
    assert read(framing, spec, written(framing, spec, blocks)) == restored(spec, blocks)


@every_dtype
@given(
    payload=st.binary(min_size=INT8.spec().payload_bytes, max_size=INT8.spec().payload_bytes),
    largest=st.sampled_from([None, 3.4028235e38, 1e36, 500.0, -3e38]),
)
@settings(max_examples=80)
def test_what_int8_restores_is_finite_whatever_was_stored(dtype: Dtype, payload: bytes, largest: float | None) -> None:
    # A frame that is as somebody wrote it, who is no worker.
    spec = INT8.spec(dtype)
    coded = bytearray(payload)
    if largest is not None:
        n_scales = 4 * spec.geometry.vectors
        for start in range(0, len(coded), spec.geometry.block_bytes):
            coded[start : start + n_scales] = np.full(spec.geometry.vectors, largest, "<f4").tobytes()
    scales = [
        np.frombuffer(coded, "<f4", spec.geometry.vectors, offset=start)
        for start in range(0, len(coded), spec.geometry.block_bytes)
    ]
    frame = encode_header(spec, [coded]) + bytes(coded)
    if all(np.isfinite(each).all() for each in scales):
        assert np.isfinite(numbers_of(dtype, read(INT8.make(), spec, frame))).all()
    else:
        assert fault(INT8.make(), spec, frame) is FrameFault.NUMBERS


def test_int8_comes_back_close() -> None:
    spec = INT8_SEALED.spec(Dtype.FP32)
    framing, blocks = INT8_SEALED.make(), blocks_of(spec)
    before = numbers_of(Dtype.FP32, blocks).reshape(-1, spec.geometry.head_dim)
    after = numbers_of(Dtype.FP32, read(framing, spec, written(framing, spec, blocks))).reshape(before.shape)
    assert (np.abs(after - before) <= np.abs(before).max(axis=1, keepdims=True) / 254 * 1.0001).all()
    assert len(written(framing, spec, blocks)) < HEADER_BYTES + sum(map(len, blocks)) // 1.9


# --- memory ------------------------------------------------------------------------------------------------


def test_plain_frames_are_the_blocks() -> None:
    spec = PLAIN.spec()
    blocks = blocks_of(spec)
    with PLAIN.make().encode(spec, blocks) as pieces:
        assert all(piece is block for piece, block in zip(pieces[1:], blocks, strict=True))
    for variant in (PLAIN, SEALED):
        with variant.make().reading(spec, blocks) as reading:
            assert all(piece is block for piece, block in zip(reading.pieces[1:], blocks, strict=True))


@every
def test_frames_are_not_allocated_one_by_one(variant: Variant) -> None:
    geometry = replace(variant.spec().geometry, n_layers=16, kv_heads=8, head_dim=64, block_size=64)
    spec = variant.spec(geometry=geometry, first_token=0, n_tokens=128)
    framing, blocks, back = variant.make(), blocks_of(spec), empty(spec)

    def there_and_back() -> None:
        with framing.encode(spec, blocks) as pieces, framing.reading(spec, back) as reading:
            copy_pieces(reading.pieces, pieces)
            reading.finish()

    there_and_back()
    tracemalloc.start()
    try:
        there_and_back()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert spec.frame_bytes > 2_000_000
    assert peak < spec.frame_bytes / 2
    assert back == restored(spec, blocks)


def test_scratches_are_used_again_and_bounded() -> None:
    scratches = Scratches(2)
    for _ in range(5):
        with scratches.take(1000) as view:
            view[:4] = b"mine"
        assert scratches.n_idle == 1
    with scratches.take(10) as view:
        assert len(view) == 10
        assert bytes(view[:4]) == b"mine"
    with ExitStack() as stack:
        views = [stack.enter_context(scratches.take(size)) for size in (1000, 7, 2000, 30, 500)]
        assert [*map(len, views)] == [1000, 7, 2000, 30, 500]
        for number, view in enumerate(views):
            view[:] = bytes([number]) * len(view)
        assert [view[0] for view in views] == [0, 1, 2, 3, 4], "two share their bytes"
        assert scratches.n_idle == 0
    assert scratches.n_idle == 2
    # The largest are what stays: they serve all.
    with scratches.take(1500), scratches.take(900):
        assert scratches.n_idle == 0
    none_kept = Scratches(0)
    with none_kept.take(100) as view:
        assert len(view) == 100
    assert none_kept.n_idle == 0


@pytest.mark.parametrize("variant", [SEALED, INT8, INT8_SEALED], ids=lambda variant: variant.name)
def test_what_was_given_out_cannot_be_used_afterwards(variant: Variant) -> None:
    framing, spec = variant.make(), variant.spec()
    blocks = blocks_of(spec)
    with framing.encode(spec, blocks) as pieces:
        frame = b"".join(pieces)
    with framing.reading(spec, blocks) as reading:
        copy_pieces(reading.pieces, [frame])
        reading.finish()
    for view in (*pieces, *(() if variant is SEALED else reading.pieces)):  # the sealed one reads into the blocks
        with pytest.raises(ValueError, match="released"):
            bytes(view)


@every
def test_several_threads_share_one(variant: Variant) -> None:
    framing = variant.make(scratches_kept=2)
    specs = [variant.spec(key=ChunkKey(sha256(b"%d" % number).digest())) for number in range(4)]

    def work(number: int) -> None:
        spec = specs[number]
        for turn in range(60):
            blocks, back = blocks_of(spec, 100 * number + turn), empty(spec)
            with framing.encode(spec, blocks) as pieces, framing.reading(spec, back) as reading:
                copy_pieces(reading.pieces, pieces)
                reading.finish()
            assert back == restored(spec, blocks)

    in_threads(work)
    scratches = getattr(framing, "_scratches", None)
    assert (scratches is None) is (variant is PLAIN)
    assert scratches is None or 1 <= scratches.n_idle <= 2


# --- mistakes of the caller --------------------------------------------------------------------------------


@every
def test_blocks_and_codecs_that_do_not_fit_are_a_mistake(variant: Variant) -> None:
    framing, spec = variant.make(), variant.spec()
    blocks = blocks_of(spec)
    of_other_codec = VARIANTS[(VARIANTS.index(variant) + 2) % 4].spec()
    wrong: list[tuple[FrameSpec, Sequence[memoryview], str]] = [
        (spec, blocks[:1], "2 blocks of"),
        (spec, [*blocks, blocks[0]], "2 blocks of"),
        (spec, [blocks[0][1:], blocks[1]], "2 blocks of"),
        (spec, cut(b"".join(blocks), [1]), "2 blocks of"),
        (of_other_codec, blocks, "this framing is for"),
    ]
    calls: list[Callable[[FrameSpec, Sequence[memoryview]], Any]] = [framing.encode, framing.reading]
    for changed, pieces, message in wrong:
        for call in calls:
            with pytest.raises(ValueError, match=message), call(changed, pieces):
                pytest.fail("it was taken")


def test_checked_frames_need_neither_torch_nor_cryptography_nor_numpy() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'cryptography', 'numpy'): sys.modules[name] = None\n"
        "import backends.worker.kv.framing as framing, backends.worker.kv.key_file\n"
        "framing.make_framing(keys=None); print('imported')\n"
    )
    root = Path(__file__).parent.parent
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=50, check=True)
    assert run.stdout == "imported\n"


def frame_in_pieces(frame: bytes) -> list[Buffer]:
    return [frame[at : at + 1] for at in range(len(frame))]


@every
def test_a_frame_that_arrives_one_byte_at_a_time(variant: Variant) -> None:
    framing, spec = variant.make(), variant.spec()
    blocks, back = blocks_of(spec), empty(spec)
    frame = written(framing, spec, blocks)
    with framing.reading(spec, back) as reading:
        copy_pieces(reading.pieces, frame_in_pieces(frame))
        reading.finish()
    assert back == restored(spec, blocks)
