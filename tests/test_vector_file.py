"""The file of vectors: whatever a crash or a bad disk leaves opens, with all whole records and nothing removed."""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cache import vector_slots as fmt
from cache.store import StoreError
from cache.vector_file import NAME, VectorFile
from cache.vector_keeper import VectorKeeper, slots_within
from cache.vector_rows import GONE
from cache.vector_slots import HEADER_SIZE, Record

LAYOUT = fmt.layout(8, 9, "an embedder")
SLOT = LAYOUT.slot_size
RECORDS = [
    Record(
        number, bytes([number]) * (16 + 16 * (number % 2)), bytes([number]) * 32, b"meta %d" % number, bytes(range(16))
    )
    for number in range(1, 6)
]


def read(directory: Path) -> dict[int, Record]:
    file = VectorFile(directory, LAYOUT, max_slots=100)
    try:
        return dict(file.records())
    finally:
        file.close()


def written(directory: Path) -> Path:
    file = VectorFile(directory, LAYOUT, max_slots=100)
    assert [*file.records()] == []
    assert [file.write(record) for record in RECORDS] == [*range(len(RECORDS))]
    file.close()
    return directory / NAME


def test_it_reads_what_was_written(tmp_path: Path) -> None:
    path = written(tmp_path / "new")
    assert read(path.parent) == dict(enumerate(RECORDS))
    assert path.stat().st_size == HEADER_SIZE + len(RECORDS) * SLOT
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_it_is_cut_off_at_any_byte(tmp_path: Path) -> None:
    path = written(tmp_path)
    content = path.read_bytes()
    for length in (*range(0, HEADER_SIZE, 131), *range(HEADER_SIZE - 1, len(content) + 1)):
        path.write_bytes(content[:length])
        whole = max(length - HEADER_SIZE, 0) // SLOT
        assert read(tmp_path) == dict(enumerate(RECORDS[:whole])), length
        assert path.stat().st_size == HEADER_SIZE + whole * SLOT


def test_any_byte_of_a_record_is_flipped(tmp_path: Path) -> None:
    path = written(tmp_path)
    content = path.read_bytes()
    for at in range(HEADER_SIZE + SLOT, HEADER_SIZE + 2 * SLOT):
        path.write_bytes(flipped(content, at))
        found = read(tmp_path)
        if 0 <= at - HEADER_SIZE - SLOT - fmt.USED_AT < 8:  # the order of use: nothing else depends on it
            used = found[1].used
            assert used != RECORDS[1].used
            assert found == {**dict(enumerate(RECORDS)), 1: replace(RECORDS[1], used=used)}
        else:
            assert found == {slot: record for slot, record in enumerate(RECORDS) if slot != 1}, at
            assert path.read_bytes()[HEADER_SIZE + SLOT : HEADER_SIZE + 2 * SLOT] == bytes(SLOT)


def test_any_byte_of_the_header_is_flipped(tmp_path: Path) -> None:
    path = written(tmp_path)
    content = path.read_bytes()
    for at in (*range(100), *range(HEADER_SIZE // 2, HEADER_SIZE // 2 + 100)):
        path.write_bytes(flipped(content, at))
        assert read(tmp_path) == dict(enumerate(RECORDS)), at
        assert path.read_bytes() == content


def test_a_record_in_another_place_is_none(tmp_path: Path) -> None:
    path = written(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: HEADER_SIZE + SLOT] + content[HEADER_SIZE : HEADER_SIZE + SLOT])
    assert read(tmp_path) == {0: RECORDS[0]}


def test_a_removed_record_is_overwritten_whatever_else_is_damaged(tmp_path: Path) -> None:
    path = written(tmp_path)
    file = VectorFile(tmp_path, LAYOUT, max_slots=100)
    assert len([*file.records()]) == 5
    file.clear([1, 3])
    file.close()
    content = path.read_bytes()
    for removed in RECORDS[1], RECORDS[3]:
        assert removed.id not in content
        assert removed.partition not in content
        assert removed.meta not in content
    for at in range(HEADER_SIZE, len(content)):
        path.write_bytes(flipped(content, at))
        assert read(tmp_path).keys() <= {0, 2, 4}


def test_free_slots_are_used_again_and_cut_off_at_the_end(tmp_path: Path) -> None:
    path = written(tmp_path)
    file = VectorFile(tmp_path, LAYOUT, max_slots=6)
    assert len([*file.records()]) == 5
    file.clear([3, 0])
    assert [file.write(record) for record in (RECORDS[3], RECORDS[0], RECORDS[1], RECORDS[2])] == [0, 3, 5, None]
    file.clear([0, 4, 5])
    assert file.size == path.stat().st_size == HEADER_SIZE + 4 * SLOT
    assert file.write(RECORDS[4]) == 0
    assert file.write(RECORDS[4]) == 4
    file.clear([*range(5)])
    assert path.stat().st_size == HEADER_SIZE
    assert file.write(RECORDS[4]) == 0
    file.close()
    assert read(tmp_path) == {0: RECORDS[4]}


def test_no_history_loses_or_invents_a_slot(tmp_path: Path) -> None:
    file = VectorFile(tmp_path, LAYOUT, max_slots=7)
    assert [*file.records()] == []
    here: dict[int, Record] = {}
    for turn in range(3_000):
        if turn * 7_919 % 13 < 7:
            record = RECORDS[turn % 5]
            slot = file.write(record)
            assert (slot is None) is (len(here) == 7)
            if slot is not None:
                assert slot not in here
                here[slot] = record
        elif here:
            slot = sorted(here)[turn * 31 % len(here)]
            file.clear([slot])
            del here[slot]
        assert len(file._free) <= 14
    file.close()
    assert read(tmp_path) == here


def test_what_no_longer_fits_is_thrown_away(tmp_path: Path) -> None:
    path = written(tmp_path)
    file = VectorFile(tmp_path, LAYOUT, max_slots=3)
    assert dict(file.records()) == dict(enumerate(RECORDS[:3]))
    assert file.write(RECORDS[3]) is None
    file.close()
    assert path.stat().st_size == HEADER_SIZE + 3 * SLOT


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        (fmt.layout(8, 9, "another"), "it is of another embedder"),
        (fmt.layout(9, 9, "an embedder"), "its vectors or metadata differ in size"),
        (fmt.layout(8, 10, "an embedder"), "its vectors or metadata differ in size"),
    ],
)
def test_another_layout_begins_anew_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, layout: fmt.Layout, why: str
) -> None:
    path = written(tmp_path)
    for expected in [f"vectors in {tmp_path} are thrown away: {why}"], []:
        caplog.clear()
        keeper = VectorKeeper()
        assert [*keeper.open(tmp_path, layout, max_slots=10)] == []
        keeper.close()
        assert [record.getMessage() for record in caplog.records] == expected
    assert path.read_bytes() == fmt.encode_header(layout)


def test_what_is_no_file_of_vectors_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / NAME).write_bytes(b"something else" * 1_000)
    keeper = VectorKeeper()
    assert [*keeper.open(tmp_path, LAYOUT, max_slots=10)] == []
    assert keeper.write(RECORDS[0]) == 0
    keeper.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"vectors in {tmp_path} are thrown away: it has no whole header of this version"
    ]
    assert read(tmp_path) == {0: RECORDS[0]}


def test_damage_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path)
    path.write_bytes(flipped(flipped(path.read_bytes(), HEADER_SIZE + 50), HEADER_SIZE + SLOT + 50))
    for expected in [f"2 damaged vectors in {tmp_path} are thrown away"], []:
        caplog.clear()
        keeper = VectorKeeper()
        assert len([*keeper.open(tmp_path, LAYOUT, max_slots=10)]) == 3
        keeper.close()
        assert [record.getMessage() for record in caplog.records] == expected


def test_only_one_has_it_open(tmp_path: Path) -> None:
    keeper = opened(tmp_path)
    with pytest.raises(StoreError, match="in use"):
        [*VectorKeeper().open(tmp_path, LAYOUT, max_slots=10)]
    keeper.close()
    opened(tmp_path).close()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="cannot be opened"):
        [*VectorKeeper().open(tmp_path / "file", LAYOUT, max_slots=10)]
    with pytest.raises(StoreError, match="too few bytes"):
        [*VectorKeeper().open(tmp_path, LAYOUT, max_slots=slots_within(LAYOUT, HEADER_SIZE + SLOT - 1))]


# --- a disk that fails -------------------------------------------------------------------------------------


def test_a_full_disk_costs_what_was_to_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keeper = opened(tmp_path)
    assert keeper.write(RECORDS[0]) == 0
    for expected in [f"vectors cannot be written to {tmp_path}: File too large"], []:
        caplog.clear()
        with file_size_limit(HEADER_SIZE + SLOT + SLOT // 2):
            assert keeper.write(RECORDS[1]) == GONE
            assert keeper.write(RECORDS[2]) == GONE
        assert [record.getMessage() for record in caplog.records] == expected
    assert keeper.write(RECORDS[3]) == 1
    keeper.close()
    assert read(tmp_path) == {0: RECORDS[0], 1: RECORDS[3]}


def test_a_file_that_cannot_be_written_to_is_deleted_when_something_must_be_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = opened(tmp_path)
    slots = [keeper.write(record) for record in RECORDS]
    make_read_only(keeper, tmp_path)
    keeper.used(slots[0], 9)
    keeper.clear(slots[:1])
    assert keeper.bytes == 0
    assert keeper.write(RECORDS[0]) == GONE
    keeper.clear(slots[1:])
    keeper.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"vectors cannot be written to {tmp_path}: Bad file descriptor",
        f"vectors are no longer kept in {tmp_path}, and what was there is deleted: Bad file descriptor",
    ]
    assert read(tmp_path) == {}


def test_one_that_cannot_be_deleted_either_is_told(tmp_path: Path) -> None:
    keeper = opened(tmp_path)
    keeper.write(RECORDS[0])
    make_read_only(keeper, tmp_path)
    assert keeper._file is not None
    # Where its name is that of a directory, it cannot be unlinked.
    (tmp_path / "elsewhere" / NAME).mkdir(parents=True)
    elsewhere = os.open(tmp_path / "elsewhere", os.O_RDONLY)
    os.dup2(elsewhere, keeper._file._directory._fd)
    os.close(elsewhere)
    with pytest.raises(StoreError, match="holds vectors that should be gone"):
        keeper.clear([0])
    keeper.clear([0])
    keeper.close()


def opened(directory: Path) -> VectorKeeper:
    keeper = VectorKeeper()
    for _ in keeper.open(directory, LAYOUT, max_slots=10):
        pass
    return keeper


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :]


@contextmanager
def file_size_limit(n_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def make_read_only(keeper: VectorKeeper, directory: Path) -> None:
    """From now on the system refuses each write."""
    assert keeper._file is not None
    os.close(keeper._file._fd)
    keeper._file._fd = os.open(directory / NAME, os.O_RDONLY)


def test_nothing_of_a_record_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    keeper = opened(tmp_path)
    keeper.write(RECORDS[0])
    make_read_only(keeper, tmp_path)
    keeper.write(RECORDS[1])
    keeper.clear([0])
    assert caplog.records
    assert all("meta" not in record.getMessage() for record in caplog.records)
