"""What the stores of one machine promise besides `StoreContract`: who is told of evictions, and quotas, in any history.

A subclass has `new_local`, parametrized by policies where it likes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import ClassVar, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache.disk_store import DiskStore
from cache.eviction_news import Evicted
from cache.memory_store import MemoryStore
from cache.store import ChunkKey, FrameInfo
from tests.store_contract import ALONE, chunk_key, frame_of, in_threads, read

LocalStore = MemoryStore | DiskStore


class NewLocal(Protocol):
    def __call__(
        self, capacity: int, *, tenant_bytes: int | None = None, evicted: Evicted | None = None
    ) -> LocalStore: ...


HISTORY = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "write", "read", "remove"]),
        st.integers(0, 14),
        st.sampled_from([64, 4_096, 20_000, 50_001]),
        st.integers(-3, 13),
    ),
    max_size=60,
)


class LocalStoreContract:
    """One test for each promise."""

    small: ClassVar[int] = 1 << 20
    """Room for about forty frames of 20,000 bytes."""

    @pytest.fixture
    def new_local(self) -> NewLocal:
        raise NotImplementedError

    @pytest.fixture
    def make(self, new_local: NewLocal) -> Iterator[NewLocal]:
        stores: list[LocalStore] = []

        def make(capacity: int, *, tenant_bytes: int | None = None, evicted: Evicted | None = None) -> LocalStore:
            stores.append(new_local(capacity, tenant_bytes=tenant_bytes, evicted=evicted))
            return stores[-1]

        yield make
        for store in stores:
            store.close()

    # --- who is told ---------------------------------------------------------------------------------------

    def test_each_evicted_frame_is_told_once(self, make: NewLocal) -> None:
        told: list[ChunkKey] = []
        store = make(self.small, evicted=told.append)
        keys = [chunk_key(number) for number in range(150)]
        for key in keys:
            assert store.write(key, [frame_of(key, 20_000)], ALONE) is True
            gone = [one for one in keys[: keys.index(key)] if not store.contains([one])]
            assert sorted(told) == sorted(gone)
        assert len(told) == store.stats().evictions > 50

    def test_what_was_removed_is_not_told(self, make: NewLocal) -> None:
        told: list[ChunkKey] = []
        store = make(self.small, evicted=told.append)
        for number in range(10):
            key = chunk_key(number)
            store.write(key, [frame_of(key, 20_000)], ALONE)
            assert store.remove(key) is True
        huge = chunk_key("huge")
        assert store.write(huge, [bytes(self.small + 1)], ALONE) is False
        store.close()
        assert told == []

    def test_who_is_told_may_use_the_store_on_the_thread_that_evicted(self, make: NewLocal) -> None:
        seen: list[tuple[bool, int, bytes | None]] = []
        writing = threading.get_ident()

        def look(key: ChunkKey) -> None:
            seen.append((threading.get_ident() == writing, store.contains([key]), read(store, key, 20_000)))
            store.remove(chunk_key("another"))

        store = make(self.small, evicted=look)
        for number in range(100):
            key = chunk_key(number)
            assert store.write(key, [frame_of(key, 20_000)], ALONE) is True
        assert set(seen) == {(True, 0, None)}

    def test_a_listener_that_fails_breaks_nothing(self, make: NewLocal, caplog: pytest.LogCaptureFixture) -> None:
        told: list[ChunkKey] = []

        def fail(key: ChunkKey) -> None:
            told.append(key)
            raise LookupError(key.hex())

        store = make(self.small, evicted=fail)
        keys = [chunk_key(number) for number in range(100)]
        for key in keys:
            assert store.write(key, [frame_of(key, 20_000)], ALONE) is True
        assert len(told) == store.stats().evictions > 1
        assert store.stats().errors == 0
        assert [record.getMessage() for record in caplog.records] == [
            "who is told of evicted frames failed: LookupError"
        ]

    def test_many_writers_leave_nobody_untold(self, make: NewLocal) -> None:
        told: list[tuple[int, ChunkKey]] = []
        store = make(self.small, evicted=lambda key: told.append((threading.get_ident(), key)))
        threads: set[int] = set()

        def work(number: int) -> None:
            threads.add(threading.get_ident())
            for turn in range(60):
                key = chunk_key((number, turn))
                store.write(key, [frame_of(key, 20_000)], ALONE)

        in_threads(work)
        keys = [chunk_key((number, turn)) for number in range(4) for turn in range(60)]
        gone = {key for _, key in told}
        assert len(gone) == len(told) == store.stats().evictions
        assert gone.isdisjoint(key for key in keys if store.contains([key]))
        assert {thread for thread, _ in told} <= threads

    # --- quotas --------------------------------------------------------------------------------------------

    def test_no_history_takes_a_tenant_above_its_quota(self, make: NewLocal) -> None:
        @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
        @given(HISTORY)
        def holds(history: list[tuple[str, int, int, int]]) -> None:
            told: list[ChunkKey] = []
            store = make(self.small // 4, tenant_bytes=120_000, evicted=told.append)
            keys = [chunk_key(number) for number in range(15)]
            sizes: dict[ChunkKey, int] = {}
            for name, number, size, near in history:
                key, tenant = keys[number], "abc"[number % 3]
                before = near - (near - number) % 3  # of the same tenant
                parent = keys[before] if 0 <= before < number else None
                told.clear()
                if name == "write":
                    here = store.contains([key]) == 1
                    info = FrameInfo(parent=parent, tenant=tenant, n_tokens=16)
                    kept = store.write(key, [frame_of(key, size)], info)
                    if kept:
                        sizes[key] = size
                    assert kept is not here
                elif name == "read":
                    read(store, key, sizes.get(key, size))
                elif store.remove(key):
                    del sizes[key]
                for gone in told:
                    del sizes[gone]
                assert [one for one in keys if store.contains([one])] == [one for one in keys if one in sizes]
                for place in range(3):
                    assert sum(sizes.get(one, 0) for one in keys[place::3]) <= 120_000
            store.close()

        holds()

    def test_a_tenant_at_its_quota_costs_nobody_else(self, make: NewLocal) -> None:
        told: list[ChunkKey] = []
        # The others' frames were used before its own were: they are the next to go, if anybody's are.
        store = make(self.small, tenant_bytes=300_000, evicted=told.append)
        theirs = [chunk_key(("theirs", number)) for number in range(12)]
        mine = [chunk_key(("mine", number)) for number in range(60)]
        for key in theirs:
            assert store.write(key, [frame_of(key, 20_000)], FrameInfo(tenant="b")) is True
        for key in mine:
            assert store.write(key, [frame_of(key, 20_000)], FrameInfo(tenant="a")) is True
        assert store.contains(theirs) == 12
        assert set(told) < set(mine)
