"""Disk store: whatever a crash or a bad disk leaves, it opens, answers right, and loses only what was hit."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache import disk_segment as fmt
from cache.disk_segment import ALIGN, HEADER_SIZE, Record
from cache.disk_store import DiskStore
from cache.store import ChunkKey, FrameInfo, StoreError
from tests.store_contract import chunk_key, frame_of, read

SIZES = (10, 700, 4_500, 0, ALIGN - HEADER_SIZE, 300)
KEYS = [chunk_key(("crash", number)) for number in range(len(SIZES))]
OFFSETS = [0, *itertools.accumulate(map(fmt.extent, SIZES))]
ENDS = [offset + HEADER_SIZE + size for offset, size in zip(OFFSETS, SIZES, strict=False)]
CAPACITY = 1 << 20


def crash(store: DiskStore) -> None:
    """End it as a killed process does: what is in the files stays as it is, and the lock is free."""
    for segment in store._log.segments.values():
        if segment.fd >= 0:
            os.close(segment.fd)
    store._directory.close()
    store._closed = True


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """A segment of six records in a store that was killed."""
    path = tmp_path / "store"
    store = DiskStore(path, capacity=CAPACITY)
    for number, (key, size) in enumerate(zip(KEYS, SIZES, strict=True)):
        parent = KEYS[number - 1] if number else None
        assert store.write(key, [frame_of(key, size)], FrameInfo(parent=parent, n_tokens=number))
    crash(store)
    [one] = path.glob("*.seg")
    return one


def found(path: Path) -> list[bool | None]:
    """Of each frame: it is there, it is not, or (None) it was there and is damaged. It is never a wrong one."""
    store = DiskStore(path, capacity=CAPACITY)
    answers: list[bool | None] = []
    for key, size in zip(KEYS, SIZES, strict=True):
        here = store.contains([key]) == 1
        try:
            content = read(store, key, size)
        except StoreError:
            answers.append(None)
            assert store.contains([key]) == 0
            continue
        assert content == (frame_of(key, size) if here else None)
        answers.append(here)
    store._log.check()
    assert store.stats().entries == answers.count(True)
    crash(store)
    return answers


def fresh(segment: Path, content: bytes, index: bytes | None = None) -> Path:
    for one in segment.parent.iterdir():
        one.unlink()
    segment.write_bytes(content)
    if index is not None:
        segment.with_suffix(".idx").write_bytes(index)
    return segment.parent


def indexed(segment: Path) -> bytes:
    """The index beside it, as the store writes one."""
    assert found(segment.parent) == [True] * len(KEYS)
    return segment.with_suffix(".idx").read_bytes()


@pytest.mark.timeout(300)  # it is opened six thousand times
@pytest.mark.parametrize("with_index", [pytest.param(False, marks=pytest.mark.slow), True])
def test_it_is_cut_off_at_any_byte(segment: Path, *, with_index: bool) -> None:
    content = segment.read_bytes()
    index = indexed(segment) if with_index else None
    step = 7 if with_index else 1
    for offset, end in zip(OFFSETS, ENDS, strict=False):
        for length in (*range(offset, end, step), end):
            path = fresh(segment, content[:length], index)
            assert found(path) == [one <= length for one in ENDS], length
            assert segment.exists() is (length >= ENDS[0])
            assert not segment.exists() or segment.stat().st_size == max(one for one in ENDS if one <= length)


def test_an_index_is_cut_off_at_any_byte(segment: Path) -> None:
    content, index = segment.read_bytes(), indexed(segment)
    for length in range(len(index)):
        assert found(fresh(segment, content, index[:length])) == [True] * len(KEYS)
        assert segment.with_suffix(".idx").read_bytes() == index


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :]


def test_any_byte_of_a_header_is_flipped(segment: Path) -> None:
    content, index = segment.read_bytes(), indexed(segment)
    for number, offset in enumerate(OFFSETS[:-1]):
        for at in range(offset, offset + HEADER_SIZE):
            damaged = flipped(content, at)
            assert found(fresh(segment, damaged)) == [other != number for other in range(len(KEYS))], at
        # With an index nothing depends on it.
        assert found(fresh(segment, flipped(content, offset + 77), index)) == [True] * len(KEYS)


@pytest.mark.parametrize("with_index", [False, True])
def test_a_byte_of_a_frame_is_flipped(segment: Path, *, with_index: bool) -> None:
    content = segment.read_bytes()
    index = indexed(segment) if with_index else None
    for number, (offset, end) in enumerate(zip(OFFSETS, ENDS, strict=False)):
        for at in {*range(offset + HEADER_SIZE, end, 41), *range(max(offset + HEADER_SIZE, end - 3), end)}:
            path = fresh(segment, flipped(content, at), index)
            assert found(path) == [None if other == number else True for other in range(len(KEYS))], at


def test_any_byte_of_an_index_is_flipped(segment: Path) -> None:
    content, index = segment.read_bytes(), indexed(segment)
    for at in range(len(index)):
        assert found(fresh(segment, content, flipped(index, at))) == [True] * len(KEYS)


def test_blocks_are_lost_anywhere(segment: Path) -> None:
    # After a power cut any block that was not synced may read as zeros.
    content = segment.read_bytes()
    content += bytes(-len(content) % ALIGN)
    n_blocks = len(content) // ALIGN
    index = indexed(segment)
    for lost, beside in itertools.product(itertools.product([False, True], repeat=n_blocks), [None, index]):
        damaged = b"".join(
            bytes(ALIGN) if gone else content[at * ALIGN : (at + 1) * ALIGN] for at, gone in enumerate(lost)
        )
        hit = [any(lost[a // ALIGN : -(-b // ALIGN)]) for a, b in zip(OFFSETS, ENDS, strict=False)]
        answers = found(fresh(segment, damaged, beside))
        for size, answer, gone in zip(SIZES, answers, hit, strict=True):
            # With an index a frame can do without its header, and an empty one has nothing else.
            assert (answer is not True) is gone or (gone and not size and beside is not None)


def test_garbage_between_and_behind_records(segment: Path) -> None:
    content = segment.read_bytes()
    choose = random.Random(3)
    for _ in range(100):
        start = choose.randrange(len(OFFSETS) - 2)
        stop = choose.randrange(start + 1, len(OFFSETS) - 1)
        begin, end = OFFSETS[start], OFFSETS[stop]
        damaged = (
            content[:begin] + choose.randbytes(end - begin) + content[end:] + choose.randbytes(choose.randrange(9_000))
        )
        assert found(fresh(segment, damaged)) == [not start <= number < stop for number in range(len(KEYS))]


def test_a_record_counts_only_where_it_was_written(segment: Path) -> None:
    content = segment.read_bytes()
    # The same bytes elsewhere in the file, in another segment's file, and as another frame's content.
    assert found(fresh(segment, bytes(ALIGN) + content)) == [False] * len(KEYS)
    path = fresh(segment, content)
    segment.rename(segment.with_name(f"{2:016x}.seg"))
    assert found(path) == [False] * len(KEYS)
    path = fresh(segment, content)
    outer = chunk_key("outer")
    store = DiskStore(path, capacity=CAPACITY)
    assert store.write(outer, [bytes(ALIGN - HEADER_SIZE), content], FrameInfo()) is True
    crash(store)
    [second] = [one for one in path.glob("*.seg") if one != segment]
    # The header around them is lost: all of the frame is looked through.
    second.write_bytes(flipped(second.read_bytes(), 0))
    segment.unlink()
    segment.with_suffix(".idx").unlink()
    assert found(path) == [False] * len(KEYS)


def test_of_two_records_of_one_key_the_later_one_counts(segment: Path) -> None:
    path = segment.parent
    content = segment.read_bytes()
    store = DiskStore(path, capacity=CAPACITY)
    assert store.remove(KEYS[2]) is True
    assert store.write(KEYS[2], [frame_of(KEYS[2], 9_000, 5)], FrameInfo()) is True
    crash(store)
    segment.write_bytes(content)  # the removal was not synced
    store = DiskStore(path, capacity=CAPACITY)
    assert read(store, KEYS[2], 9_000) == frame_of(KEYS[2], 9_000, 5)
    assert store.stats().entries == len(KEYS)
    store._log.check()
    crash(store)


# --- the format --------------------------------------------------------------------------------------------

RECORDS = st.builds(
    Record,
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**52 - 1).map(lambda n: n * ALIGN),
    st.integers(0, 2**64 - 1),
    st.binary(min_size=32, max_size=32).map(ChunkKey),
    st.none() | st.binary(min_size=32, max_size=32).map(ChunkKey),
    st.binary(min_size=16, max_size=16),
    st.integers(0, fmt.MAX_TOKENS),
    st.binary(min_size=16, max_size=16),
)


@given(RECORDS)
def test_a_header_says_what_went_into_it(record: Record) -> None:
    header = fmt.encode_header(record)
    assert len(header) == HEADER_SIZE
    assert fmt.decode_header(header, record.segment) == record
    assert fmt.decode_header(header, record.segment ^ 1) is None


@given(st.binary(max_size=400), st.integers(0, 3))
def test_noise_is_nothing(data: bytes, segment: int) -> None:
    assert fmt.decode_header(data, segment) is None
    assert fmt.decode_index(data, segment) is None
    assert fmt.decode_order(data) == []


def row(sizes: Sequence[int]) -> list[Record]:
    offsets = itertools.accumulate(map(fmt.extent, sizes), initial=0)
    return [
        Record(7, offset, size, chunk_key(offset), None, bytes(16), 1, bytes(16))
        for offset, size in zip(offsets, sizes, strict=False)
    ]


@given(st.lists(st.integers(0, 100_000), max_size=20))
def test_an_index_says_what_went_into_it(sizes: list[int]) -> None:
    records = row(sizes)
    data = fmt.encode_index(7, records)
    assert len(data) == fmt.index_size(len(records))
    assert fmt.decode_index(data, 7) == records
    assert fmt.decode_index(data, 8) is None
    assert fmt.decode_index(fmt.encode_index(7, records[::-1]), 7) == (None if len(records) > 1 else records)


@given(st.lists(st.integers(), max_size=20))
def test_an_order_says_what_went_into_it(names: list[int]) -> None:
    places = [(chunk_key(name), abs(name) % 1e9 or None) for name in names]
    data = fmt.encode_order(places)
    assert fmt.decode_order(data) == places
    assert fmt.decode_order(data[:-1]) == []
