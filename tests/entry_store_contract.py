"""What stores promise besides `StoreContract` to those who do not know how long a frame is, or want to find it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pytest

from cache.store import EntryStore, StoreError
from tests.store_contract import ALONE, chunk_key, frame_of, in_threads, is_whole


class NewEntries(Protocol):
    def __call__(self, capacity: int) -> EntryStore: ...


class EntryStoreContract:
    """One test for each promise. A subclass has `new_entries`."""

    @pytest.fixture
    def new_entries(self) -> NewEntries:
        raise NotImplementedError

    @pytest.fixture
    def entries(self, new_entries: NewEntries) -> Iterator[EntryStore]:
        store = new_entries(4 << 20)
        yield store
        store.close()

    @pytest.mark.parametrize("size", [1, 63, 4_096, 70_000, 1 << 20])
    def test_a_frame_of_any_length_is_read(self, entries: EntryStore, size: int) -> None:
        key = chunk_key(size)
        content = frame_of(key, size)
        assert entries.read(key) is None
        assert entries.write(key, [content[:10], content[10:]], ALONE) is True
        assert entries.read(key) == content
        assert (entries.stats().hits, entries.stats().misses) == (1, 1)

    def test_its_beginning_is_read_and_is_no_use(self, entries: EntryStore) -> None:
        key = chunk_key("head")
        content = frame_of(key, 10_000)
        assert entries.read(key, 100) is None
        assert entries.write(key, [content], ALONE) is True
        assert entries.read(key, 100) == content[:100]
        assert entries.read(key, 20_000) == content
        assert (entries.stats().hits, entries.stats().misses) == (0, 0)

    def test_all_keys_are_found_by_their_beginning(self, entries: EntryStore) -> None:
        keys = {chunk_key(number) for number in range(300)}
        assert set(entries.keys()) == set()
        for key in keys:
            assert entries.write(key, [frame_of(key, 100)], ALONE) is True
        assert set(entries.keys()) == keys
        for first in range(256):
            assert set(entries.keys(bytes([first]))) == {key for key in keys if key[0] == first}
        assert set(entries.keys(min(keys))) == {min(keys)}
        for key in entries.keys():  # noqa: SIM118 - it is no dict
            assert entries.remove(key) is True
        assert set(entries.keys()) == set()

    def test_a_removed_frame_is_not_read(self, entries: EntryStore) -> None:
        key = chunk_key("gone")
        assert entries.write(key, [b"once"], ALONE) is True
        assert entries.remove(key) is True
        assert entries.read(key) is None
        assert entries.read(key, 4) is None
        assert entries.write(key, [b"more than once"], ALONE) is True
        assert entries.read(key) == b"more than once"

    def test_threads_read_whole_frames(self, entries: EntryStore) -> None:
        keys = [chunk_key(number) for number in range(6)]

        def work(number: int) -> None:
            for turn in range(60):
                key = keys[turn % len(keys)]
                if number % 2:
                    entries.write(key, [frame_of(key, 1_000 + 37 * turn, turn)], ALONE)
                    if turn % 3 == 0:
                        entries.remove(key)
                elif (content := entries.read(key)) is not None:
                    assert is_whole(key, content)

        in_threads(work)

    def test_a_closed_one_says_so(self, entries: EntryStore) -> None:
        entries.close()
        with pytest.raises(StoreError):
            entries.read(chunk_key("closed"))
        with pytest.raises(StoreError):
            entries.read(chunk_key("closed"), 10)
        with pytest.raises(StoreError):
            list(entries.keys())
