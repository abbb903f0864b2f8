"""What the stores of one machine promise besides `StoreContract`: who is told of evictions; quotas, pins, and times.

A subclass has `new_local`, parametrized by policies where it likes.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ClassVar, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache.disk_store import DiskStore
from cache.eviction_news import Evicted
from cache.memory_store import MemoryStore
from cache.store import ChunkKey, FrameInfo
from policies.kv_policy import KvPolicy
from tests.store_contract import ALONE, chunk_key, frame_of, in_threads, read

LocalStore = MemoryStore | DiskStore


class NewLocal(Protocol):
    def __call__(
        self,
        capacity: int,
        *,
        tenant_bytes: int | None = None,
        evicted: Evicted | None = None,
        wall: Callable[[], float] = ...,
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

        def make(
            capacity: int,
            *,
            tenant_bytes: int | None = None,
            evicted: Evicted | None = None,
            wall: Callable[[], float] = time.time,
        ) -> LocalStore:
            stores.append(new_local(capacity, tenant_bytes=tenant_bytes, evicted=evicted, wall=wall))
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

    # --- what a tenant's policy says ----------------------------------------------------------------------------

    def test_a_tenant_has_no_more_than_its_own_policy_says(self, make: NewLocal) -> None:
        store = make(self.small, tenant_bytes=600_000)
        others = write_chain(store, 6)
        for number in range(40):
            put(store, ("mine", number), limited(130_000))
            assert sum(20_000 for at in range(40) if store.contains([chunk_key(("mine", at))])) <= 130_000
        assert store.contains([chunk_key(("mine", 39))]) == 1
        assert store.contains(others) == 6, "nobody else goes for it"
        for number in range(40):
            put(store, ("theirs", number), FrameInfo(tenant="t", n_tokens=16))
        held = [at for at in range(40) if store.contains([chunk_key(("theirs", at))])]
        assert 200_000 < 20_000 * len(held) <= 600_000, "who is told of no quota has the store's"

    def test_a_quota_that_changes_holds_from_the_next_write_on(self, make: NewLocal) -> None:
        store = make(self.small, tenant_bytes=600_000)
        keys = [chunk_key(number) for number in range(40)]

        def kept(quota: int | None) -> int:
            put(store, ("once more", quota, sum(store.contains([key]) for key in keys)), limited(quota))
            return sum(store.contains([key]) for key in keys)

        for number in range(12):
            put(store, number, limited(None))
        assert kept(None) == 12
        assert kept(125_000) <= 5
        assert store.write(chunk_key("large"), [bytes(125_001)], limited(125_000)) is False
        assert store.write(chunk_key("nothing at all"), [b"x"], limited(0)) is False
        for number in range(20, 30):
            put(store, number, limited(None))
        assert store.contains(keys[20:30]) == 10

    def test_a_frame_is_gone_when_its_time_is_over(self, make: NewLocal) -> None:
        told: list[ChunkKey] = []
        wall = Wall()
        store = make(self.small, evicted=told.append, wall=wall)
        stays, goes = put(store, "stays", ALONE), put(store, "goes", until(wall() + 10))
        wall.now += 9.99
        assert store.contains([goes, stays]) == 2
        wall.now += 0.01
        assert store.contains([stays, goes]) == 1
        assert read(store, goes, 20_000) is None
        assert told == [goes]
        now = store.stats()
        assert (now.entries, now.expired, now.evictions, now.misses, now.errors) == (1, 1, 0, 1, 0)
        assert store.remove(goes) is False
        assert put(store, "goes", until(wall() + 1)) == goes
        assert read(store, goes, 20_000) == frame_of(goes, 20_000)
        wall.now += 1
        assert read(store, goes, 20_000) is None, "found by nobody before it was read"
        assert (store.stats().expired, told) == (2, [goes, goes])
        assert store.write(goes, [frame_of(goes, 20_000)], until(wall())) is False, "it is over already"
        put(store, "goes", until(wall() + 1))
        wall.now += 1
        put(store, "goes", until(wall() + 1))  # what is over stands in nobody's way

    def test_a_use_moves_the_end(self, make: NewLocal) -> None:
        wall = Wall()
        store = make(self.small, wall=wall)
        key = put(store, "used", until(wall() + 10))
        wall.now += 9
        assert store.read_into(key, [memoryview(bytearray(20_000))], expires=wall() + 10) is True
        wall.now += 9
        assert store.contains([key]) == 1
        store.renew(key, until(wall() + 20))
        wall.now += 19
        assert read(store, key, 20_000) is not None, "a use that tells no end leaves it"
        store.renew(key, until(wall() + 0.5))
        store.renew(chunk_key("nobody"), until(wall() + 5))
        wall.now += 0.5
        assert store.contains([key]) == 0, "it may come sooner, too"
        always = put(store, "always", ALONE)
        assert store.read_into(always, [memoryview(bytearray(20_000))], expires=wall() + 1) is True
        wall.now += 1
        assert store.contains([always]) == 0, "one that had none gets one"

    def test_what_is_over_goes_before_anybody_is_evicted(self, make: NewLocal) -> None:
        told: list[ChunkKey] = []
        wall = Wall()
        store = make(self.small, evicted=told.append, wall=wall)
        stay = [put(store, ("stays", number), ALONE) for number in range(28)]
        over = [put(store, ("over", number), until(wall() + 10)) for number in range(10)]
        for key in over:  # they were used last
            assert read(store, key, 20_000) is not None
        wall.now += 10
        fresh = [put(store, ("fresh", number), ALONE) for number in range(10)]
        assert store.contains([*stay, *fresh]) == 38
        assert sorted(told) == sorted(over)
        assert (store.stats().expired, store.stats().evictions) == (10, 0)

    def test_they_are_dropped_though_nobody_asks_for_them(self, make: NewLocal) -> None:
        wall = Wall()
        store = make(self.small, wall=wall)
        keys = [put(store, number, until(wall() + number)) for number in range(1, 21)]
        wall.now += 10
        assert [store.expire(4), store.expire(4), store.expire(4), store.expire(4)] == [4, 4, 2, 0]
        assert (store.stats().entries, store.stats().expired) == (10, 10)
        assert store.contains(keys[10:]) == 10

    def test_no_history_gives_out_what_is_over(self, make: NewLocal) -> None:
        @settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
        @given(TIMES)
        def holds(history: list[tuple[str, int, int]]) -> None:
            wall = Wall()
            store = make(self.small, wall=wall)
            ends: dict[ChunkKey, float] = {}
            for name, number, seconds in history:
                key, end = chunk_key(number), wall() + seconds
                here = ends.get(key, 0.0) > wall()
                if name == "write":
                    assert store.write(key, [frame_of(key, 9_000)], until(end)) is (not here and seconds > 0)
                    ends[key] = end if not here else ends[key]
                elif name == "read":
                    assert store.read_into(key, [memoryview(bytearray(9_000))], expires=end) is here
                    ends[key] = end if here else 0.0
                elif name == "renew":
                    store.renew(key, until(end))
                    ends[key] = end if here else 0.0
                elif name == "wait":
                    wall.now += seconds
                elif name == "expire":
                    store.expire(seconds)
                else:
                    assert store.remove(key) is here or not here
                    ends.pop(key, None)
                for one in range(8):
                    assert store.contains([chunk_key(one)]) == (ends.get(chunk_key(one), 0.0) > wall())
            wall.now += 1e6
            store.expire(1_000)
            assert store.stats().entries == 0
            expiry = store._expiry if isinstance(store, MemoryStore) else store._room._expiry
            assert len(expiry) == 0, "something is kept of what is gone"
            store.close()

        holds()

    def test_beginnings_of_a_tenant_that_pins_stay(self, make: NewLocal) -> None:
        store = make(self.small)
        chain = write_chain(store, 6, pinning())
        unpinned = write_chain(store, 6, FrameInfo(tenant="u", n_tokens=16), "unpinned")
        churn(store, 80)
        assert store.contains(chain) == 3, "of one chain a quarter of a quarter"
        assert store.contains(unpinned) == 0
        for key in chain[:3]:
            assert store.remove(key) is True
        assert_nothing_is_pinned(store)

    def test_those_used_last_are_pinned_and_no_more_than_is_allowed(self, make: NewLocal) -> None:
        store = make(self.small)
        chains = [write_chain(store, 2, pinning(), number) for number in range(12)]
        for number in (1, 3):  # which would be among the first to go
            for key in chains[number]:
                store.renew(key, pinning())
        churn(store, 80)
        kept = [number for number, chain in enumerate(chains) if store.contains(chain[:1])]
        assert 100_000 < 20_000 * sum(store.contains(chain) for chain in chains) <= self.small / 4
        assert {1, 3} <= {*kept}
        assert kept[-1] == 11
        small = make(self.small)
        for number in range(12):
            put(small, number, pinning(quota=90_000))
        churn(small, 80)
        kept = [number for number in range(12) if small.contains([chunk_key(number)])]
        assert kept == [*range(12 - len(kept), 12)]
        assert 1 <= len(kept) <= 4, "no more than its quota"

    def test_pins_are_against_others_alone(self, make: NewLocal) -> None:
        store = make(self.small)
        for number in range(60):
            key = put(store, number, pinning(quota=130_000))
            assert store.contains([key]) == 1
        held = [number for number in range(60) if store.contains([chunk_key(number)])]
        assert 20_000 * len(held) <= 130_000

    def test_a_frame_that_is_pinned_goes_when_its_time_is_over(self, make: NewLocal) -> None:
        wall = Wall()
        store = make(self.small, wall=wall)
        info = FrameInfo(tenant="p", n_tokens=16, expires=wall() + 10, policy=KvPolicy(owner="p", ttl=10, pin=True))
        key = put(store, "pinned", info)
        churn(store, 100)
        assert store.contains([key]) == 1
        wall.now += 10
        churn(store, 1)
        assert store.stats().expired == 1
        assert_nothing_is_pinned(store)

    def test_many_tenants_that_pin_leave_half_to_the_others(self, make: NewLocal) -> None:
        store = make(self.small)
        for number in range(60):
            put(store, number, pinning(f"tenant {number % 6}"))
        for number in range(40):
            put(store, ("others", number), FrameInfo(n_tokens=16))
        others = [number for number in range(40) if store.contains([chunk_key(("others", number))])]
        assert 20_000 * len(others) > self.small / 4


class Wall:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def put(store: LocalStore, name: object, info: FrameInfo) -> ChunkKey:
    key = chunk_key(name)
    assert store.write(key, [frame_of(key, 20_000)], info) is True
    return key


def until(end: float) -> FrameInfo:
    return FrameInfo(tenant="t", n_tokens=16, expires=end, policy=KvPolicy(owner="t", ttl=1.0))


def limited(quota: int | None) -> FrameInfo:
    return FrameInfo(tenant="m", n_tokens=16, policy=KvPolicy(owner="m", host=quota, disk=quota))


def pinning(tenant: str = "p", quota: int | None = None) -> FrameInfo:
    return FrameInfo(tenant=tenant, n_tokens=16, policy=KvPolicy(owner=tenant, host=quota, disk=quota, pin=True))


TIMES = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "read", "renew", "wait", "wait", "expire", "remove"]),
        st.integers(0, 7),
        st.integers(0, 12),
    ),
    max_size=50,
)

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


def write_chain(store: LocalStore, length: int, info: FrameInfo = ALONE, name: object = "chain") -> list[ChunkKey]:
    keys = [chunk_key((name, number)) for number in range(length)]
    for parent, key in zip([None, *keys], keys, strict=False):
        assert store.write(key, [frame_of(key, 20_000)], replace(info, parent=parent)) is True
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
