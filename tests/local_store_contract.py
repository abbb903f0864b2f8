"""What the stores of one machine promise besides `StoreContract`: who is told of evictions, quotas and pins.

A subclass has `new_local`, parametrized by policies where it likes.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
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

    # --- pins ----------------------------------------------------------------------------------------------

    def test_a_pinned_frame_stays_until_it_is_unpinned(self, make: NewLocal) -> None:
        store = make(self.small)
        key = chunk_key("pinned")
        assert store.pin(key) is False, "it is not here"
        store.unpin(key)
        assert store.write(key, [frame_of(key, 20_000)], ALONE) is True
        assert store.pin(key) is True
        assert store.pin(key) is True
        churn(store, 60)
        store.unpin(key)
        churn(store, 60)
        assert read(store, key, 20_000) == frame_of(key, 20_000)
        store.unpin(key)
        store.unpin(key)
        assert_nothing_is_pinned(store)

    def test_what_comes_before_a_pinned_frame_stays_too(self, make: NewLocal) -> None:
        store = make(self.small)
        chain = write_chain(store, 6)
        assert store.pin(chain[3]) is True
        churn(store, 200)
        assert store.contains(chain) >= 4
        assert store.remove(chain[3]) is True, "whoever asks for it is obeyed"
        store.unpin(chain[3])
        assert_nothing_is_pinned(store)

    def test_no_more_than_half_of_it_is_pinned(self, make: NewLocal) -> None:
        store = make(self.small)
        chain = write_chain(store, 30)
        assert store.pin(chain[-1]) is False, "it would pin all of the chain"
        pinned = [key for key in chain if store.pin(key)]
        assert self.small / 4 < 20_000 * len(pinned) <= self.small / 2
        assert pinned == chain[: len(pinned)]
        churn(store, 100)
        assert store.contains(pinned) == len(pinned)
        alone = chunk_key("alone")
        assert store.write(alone, [frame_of(alone, 20_000)], ALONE) is True
        assert store.pin(alone) is False
        assert store.remove(pinned[-1]) is True
        assert store.pin(alone) is True, "what is removed is pinned no longer"
        churn(store, 100)
        assert store.contains([alone, *pinned[:-1]]) == len(pinned)
        for key in (alone, *pinned):
            store.unpin(key)
        assert_nothing_is_pinned(store)

    def test_what_comes_late_before_a_pinned_frame_counts(self, make: NewLocal) -> None:
        store = make(self.small)
        keys = [chunk_key(number) for number in range(30)]
        assert store.write(keys[0], [frame_of(keys[0], 20_000)], FrameInfo(parent=keys[1])) is True
        assert store.pin(keys[0]) is True
        late = [
            key
            for key, parent in itertools.pairwise(keys)
            if store.write(key, [frame_of(key, 20_000)], FrameInfo(parent=parent))
        ]
        # The first one that may not come: what is behind it is nobody's ancestor yet.
        held = next(at for at, key in enumerate(keys[1:]) if key not in late)
        assert self.small / 4 < 20_000 * (held + 1) <= self.small / 2
        churn(store, 100)
        assert store.contains(keys[: held + 1]) == held + 1

    def test_no_history_evicts_what_is_pinned(self, make: NewLocal) -> None:
        @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
        @given(PINNING)
        def holds(history: list[tuple[str, int, int, int]]) -> None:
            store = make(self.small // 4)
            pinned = Pinned(store)
            for name, number, size, before in history:
                pinned.do(name, number, size, before)
                held = pinned.held()
                assert store.contains(held) == len(held)
                assert sum(pinned.sizes[key] for key in held) <= self.small // 8
            pinned.end()
            assert_nothing_is_pinned(store)
            store.close()

        holds()


PINNING = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "pin", "pin", "unpin", "remove"]),
        st.integers(0, 19),
        st.sampled_from([64, 4_096, 20_000, 50_001]),
        st.integers(-5, 18),
    ),
    max_size=80,
)


class Pinned:
    """A store, and what must be in it for somebody wants it to."""

    def __init__(self, store: LocalStore) -> None:
        self.store = store
        self.keys = [chunk_key(number) for number in range(20)]
        self.sizes: dict[ChunkKey, int] = {}
        self.parents: dict[ChunkKey, ChunkKey | None] = {}
        self.pins: Counter[ChunkKey] = Counter()

    def do(self, name: str, number: int, size: int, before: int) -> None:
        key = self.keys[number]
        if name == "write":
            parent = self.keys[before] if 0 <= before < number else None
            if self.store.write(key, [frame_of(key, size)], FrameInfo(parent=parent)):
                self.sizes[key], self.parents[key] = size, parent
        elif name == "pin":
            self.pins[key] += self.store.pin(key)
        elif name == "unpin":
            self.store.unpin(key)
            self.pins[key] -= self.pins[key] > 0
        elif self.store.remove(key):
            del self.pins[key]

    def held(self) -> list[ChunkKey]:
        """All that are pinned, and what is here before them."""
        held = set(self.pins.elements())
        for key in list(held):
            above = self.parents[key]
            while above is not None and self.store.contains([above]):
                held.add(above)
                above = self.parents[above]
        return sorted(held)

    def end(self) -> None:
        for key in self.pins.elements():
            self.store.unpin(key)


def write_chain(store: LocalStore, length: int) -> list[ChunkKey]:
    keys = [chunk_key(("chain", number)) for number in range(length)]
    for parent, key in zip([None, *keys], keys, strict=False):
        assert store.write(key, [frame_of(key, 20_000)], FrameInfo(parent=parent, n_tokens=16)) is True
    return keys


def churn(store: LocalStore, n_frames: int) -> None:
    """Frames that want room; each is read twice, lest a policy takes them for less than what is here."""
    for number in range(n_frames):
        key = chunk_key(("churn", number))
        store.remove(key)
        assert store.write(key, [frame_of(key, 20_000)], FrameInfo(n_tokens=100)) is True
        for _ in range(2):
            assert read(store, key, 20_000) is not None


def assert_nothing_is_pinned(store: LocalStore) -> None:
    pins = store._pins if isinstance(store, MemoryStore) else store._room._pins
    assert (pins.bytes, pins._held, pins._pins) == (0, {}, {})
    assert len(store._policy.victims(1 << 40, 1e12)) == store.stats().entries
