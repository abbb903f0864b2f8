"""The host memory tier: the contract of stores, and what is its own."""

from __future__ import annotations

import random
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.eviction_news import Evicted
from cache.extents import Extent, Extents
from cache.memory_store import ENTRY_BYTES, EXTENT_BYTES, PAGE_BYTES, MemoryStore
from cache.store import ChunkKey, FrameInfo, Lender, StoreError
from policies.eviction import EVICTION_POLICIES, make_eviction
from tests.local_store_contract import LocalStoreContract, NewLocal
from tests.store_contract import NewStore, StoreContract, chunk_key, cut, frame_of, in_threads, is_whole

PAGE = PAGE_BYTES + ENTRY_BYTES + EXTENT_BYTES
"""Of the capacity, for each page of the arena."""


class TestMemoryStore(StoreContract):
    has_quotas = True

    @pytest.fixture(params=sorted(EVICTION_POLICIES))
    def new_store(self, request: pytest.FixtureRequest) -> NewStore:
        def new(capacity: int, tenant_bytes: int | None = None) -> MemoryStore:
            policy = make_eviction(request.param, default_quota=tenant_bytes)
            return MemoryStore(capacity, policy=policy, tenant_bytes=tenant_bytes, page_bytes=4_096)

        return new


class TestMemoryStoreOfOneMachine(LocalStoreContract):
    @pytest.fixture(params=sorted(EVICTION_POLICIES))
    def new_local(self, request: pytest.FixtureRequest) -> NewLocal:
        def new(
            capacity: int,
            *,
            tenant_bytes: int | None = None,
            evicted: Evicted | None = None,
            wall: Callable[[], float] = time.time,
        ) -> MemoryStore:
            policy = make_eviction(request.param, default_quota=tenant_bytes)
            return MemoryStore(
                capacity, policy=policy, tenant_bytes=tenant_bytes, evicted=evicted, page_bytes=4_096, wall=wall
            )

        return new


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    store = MemoryStore(64 * PAGE)
    yield store
    store.close()


def put(store: MemoryStore, name: object, n_pages: int = 1, parent: ChunkKey | None = None) -> ChunkKey:
    key = chunk_key(name)
    assert store.write(key, [frame_of(key, n_pages * PAGE_BYTES)], FrameInfo(parent=parent, n_tokens=16)) is True
    return key


class Reading:
    """A read that stands still while it fills its pieces, as one on a slow core would."""

    def __init__(self, store: MemoryStore, key: ChunkKey, size: int) -> None:
        self.target = bytearray(size)
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._read, args=(store, key), daemon=True)
        self.found: bool | None = None
        self.thread.start()
        assert self.begun.wait(10)

    def _read(self, store: MemoryStore, key: ChunkKey) -> None:
        self.found = store.read_into(key, Slow([memoryview(self.target)], self))

    def end(self) -> bytes:
        self.go_on.set()
        self.thread.join(10)
        assert self.found is True
        return bytes(self.target)


class Slow(list[memoryview]):
    """Pieces that say when the copy begins (they are walked a second time), and wait."""

    def __init__(self, pieces: list[memoryview], reading: Reading) -> None:
        super().__init__(pieces)
        self.reading = reading
        self.walks = 0

    def __iter__(self) -> Iterator[memoryview]:
        self.walks += 1
        if self.walks == 2:
            self.reading.begun.set()
            assert self.reading.go_on.wait(10)
        return super().__iter__()


def test_the_bytes_of_a_frame_that_is_read_are_not_used_again(store: MemoryStore) -> None:
    key = put(store, "read", 4)
    reading = Reading(store, key, 4 * PAGE_BYTES)
    for number in range(200):
        put(store, number)
    assert store.contains([key]) == 1, "it is not evicted either"
    assert store.remove(key) is True
    assert store.contains([key]) == 0
    held = store.stats().bytes
    for number in range(200, 400):
        put(store, number)
    assert reading.end() == frame_of(key, 4 * PAGE_BYTES)
    assert store.stats().bytes == held - 4 * PAGE_BYTES - ENTRY_BYTES - EXTENT_BYTES


def test_a_removed_frame_that_is_read_may_be_written_anew(store: MemoryStore) -> None:
    key = put(store, "read", 4)
    reading = Reading(store, key, 4 * PAGE_BYTES)
    assert store.remove(key) is True
    anew = frame_of(key, 4 * PAGE_BYTES, variant=1)
    assert store.write(key, [anew], FrameInfo()) is True
    assert reading.end() == frame_of(key, 4 * PAGE_BYTES)
    target = bytearray(len(anew))
    assert store.read_into(key, [memoryview(target)]) is True
    assert target == anew
    for number in range(200):
        put(store, number)
    assert store.contains([key]) == 0, "no pin is left"


def test_nothing_is_evicted_where_it_would_not_make_room(store: MemoryStore) -> None:
    small = put(store, "small")
    first = put(store, "big", 40)
    reading = Reading(store, first, 40 * PAGE_BYTES)
    big = chunk_key("bigger")
    assert store.write(big, [bytes(40 * PAGE_BYTES)], FrameInfo()) is False
    assert store.contains([small]) == store.contains([first]) == 1
    assert reading.end() == frame_of(first, 40 * PAGE_BYTES)
    assert store.write(big, [bytes(40 * PAGE_BYTES)], FrameInfo()) is True


def ask_until_closed(store: MemoryStore, key: ChunkKey) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        store.contains([key])


def test_close_waits_for_what_is_read(store: MemoryStore) -> None:
    key = put(store, "read", 4)
    reading = Reading(store, key, 4 * PAGE_BYTES)
    closing = threading.Thread(target=store.close, daemon=True)
    closing.start()
    with pytest.raises(StoreError):
        ask_until_closed(store, key)
    assert closing.is_alive()
    assert reading.end() == frame_of(key, 4 * PAGE_BYTES)
    closing.join(10)
    assert not closing.is_alive()
    assert store.stats().bytes == 0


def test_the_frame_before_one_that_is_written_stays() -> None:
    # Room for two: what has to go for the third is not its own parent.
    store = MemoryStore(2 * PAGE)
    head, other = put(store, "head"), put(store, "other")
    tail = put(store, "tail", parent=head)
    assert [store.contains([key]) for key in (head, other, tail)] == [1, 0, 1]
    store.close()


def test_a_write_that_fails_leaves_nothing(store: MemoryStore) -> None:
    class Bad(list[bytes]):
        def __init__(self) -> None:
            super().__init__([bytes(PAGE_BYTES)])
            self.walks = 0

        def __iter__(self) -> Iterator[bytes]:
            self.walks += 1
            if self.walks == 2:
                raise BufferError("the pool is gone")
            return super().__iter__()

    key = chunk_key("bad")
    empty = store.stats()
    with pytest.raises(BufferError):
        store.write(key, Bad(), FrameInfo())
    assert store.stats() == empty
    assert store.write(key, [b"good"], FrameInfo()) is True


def test_every_page_can_be_used_however_scattered() -> None:
    store = MemoryStore(64 * PAGE)
    pages = [put(store, number) for number in range(64)]
    for key in pages[::2]:
        assert store.remove(key) is True
    big = put(store, "in 32 runs", 32)
    assert store.stats().evictions == 0
    target = bytearray(32 * PAGE_BYTES)
    assert store.read_into(big, cut(target, [256, 100_000])) is True
    assert target == frame_of(big, len(target))
    assert store.stats().bytes == 64 * PAGE_BYTES + 33 * ENTRY_BYTES + 64 * EXTENT_BYTES <= store.capacity
    store.close()


def test_what_it_keeps_besides_frames_is_within_what_it_counts() -> None:
    n_frames = 2_000
    tracemalloc.start()
    store = MemoryStore(n_frames * (4_096 + ENTRY_BYTES + EXTENT_BYTES), page_bytes=4_096, prefault=False)
    before = tracemalloc.get_traced_memory()[0]
    parent = None
    for number in range(n_frames):
        key = chunk_key(number)
        assert store.write(key, [b"x"], FrameInfo(parent=parent, n_tokens=16)) is True
        parent = None if number % 8 == 7 else key
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert store.stats().entries == n_frames
    assert grown < store.stats().bytes - n_frames * 4_096
    store.close()


def test_a_store_of_less_than_a_page_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least 66752 bytes: 66751"):
        MemoryStore(PAGE - 1)


def test_memory_that_cannot_be_had_is_an_error_of_the_store() -> None:
    with pytest.raises(StoreError, match="no memory"):
        MemoryStore(1 << 62)


@pytest.mark.parametrize("options", [{"hugepages": True}, {"prefault": False}, {"hugepages": True, "prefault": False}])
def test_memory_is_asked_for_in_several_ways(options: dict[str, bool]) -> None:
    store = MemoryStore(4 << 20, **options)  # type: ignore[arg-type]  # only flags are given
    key = put(store, "any", 8)
    target = bytearray(8 * PAGE_BYTES)
    assert store.read_into(key, [memoryview(target)]) is True
    assert target == frame_of(key, len(target))
    store.close()


# --- frames that are lent ----------------------------------------------------------------------------------


def test_a_frame_is_read_where_it_lies() -> None:
    store, key = MemoryStore(64 * PAGE), chunk_key("lent")
    pages = [put(store, number) for number in range(64)]
    for page in pages[::2]:
        store.remove(page)
    content = frame_of(key, 5 * PAGE_BYTES + 17)
    assert store.write(key, [content], FrameInfo()) is True
    before = store.stats()
    with store.lend(key) as lent, store.lend(key) as again:
        assert lent is not None
        assert again is not None
        assert b"".join(lent) == b"".join(again) == content
        assert len(lent) == 6, "one for each run"
        assert all(piece.readonly and piece.format == "B" for piece in lent)
    assert store.stats() == before, "neither a hit nor a use"
    with store.lend(chunk_key("nobody's")) as missing:
        assert missing is None
    assert store.stats() == before
    with pytest.raises(ValueError, match="released"):
        bytes(lent[0])
    assert isinstance(store, Lender)
    store.close()
    with pytest.raises(StoreError), store.lend(key):
        pass


def test_lending_is_no_use() -> None:
    store = MemoryStore(3 * PAGE)
    first, second, third = (put(store, number) for number in range(3))
    with store.lend(first):
        pass
    put(store, "more")
    assert [store.contains([key]) for key in (first, second, third)] == [0, 1, 1]
    store.close()


def test_a_frame_that_is_lent_stays_as_it_is(store: MemoryStore) -> None:
    head = put(store, "head")
    key = put(store, "lent", 4, parent=head)
    with store.lend(key) as lent:
        assert lent is not None
        for number in range(200):
            put(store, number)
        assert store.contains([head, key]) == 2, "nothing of its chain is evicted"
        assert store.remove(key) is True
        assert store.remove(key) is False
        anew = frame_of(key, 4 * PAGE_BYTES, variant=1)
        assert store.write(key, [anew], FrameInfo(parent=head)) is True
        for number in range(200, 400):
            put(store, number)
        assert b"".join(lent) == frame_of(key, 4 * PAGE_BYTES)
        held = store.stats().bytes
    assert store.stats().bytes == held - 4 * PAGE_BYTES - ENTRY_BYTES - EXTENT_BYTES
    for number in range(400, 600):
        put(store, number)
    assert store.contains([head]) == 0, "no pin is left"
    assert store.stats().entries == 64


def test_a_frame_that_is_being_written_is_not_lent(store: MemoryStore) -> None:
    key = chunk_key("half")

    class Asking(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            with store.lend(key) as lent:
                assert lent is None
            return super().__iter__()

    assert store.write(key, Asking([bytes(2 * PAGE_BYTES)]), FrameInfo()) is True
    with store.lend(key) as lent:
        assert lent is not None


def test_close_waits_for_what_is_lent(store: MemoryStore) -> None:
    key = put(store, "lent", 4)
    with store.lend(key) as lent:
        assert lent is not None
        closing = threading.Thread(target=store.close, daemon=True)
        closing.start()
        with pytest.raises(StoreError):
            ask_until_closed(store, key)
        assert closing.is_alive()
        assert b"".join(lent) == frame_of(key, 4 * PAGE_BYTES)
    closing.join(10)
    assert not closing.is_alive()


def test_close_does_not_wait_for_ever(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cache.memory_store._CLOSE_SECONDS", 0.01)
    key = put(store, "lent", 4)
    with store.lend(key) as lent:
        assert lent is not None
        store.close()
        assert b"".join(lent) == frame_of(key, 4 * PAGE_BYTES)
        kept = memoryview(lent[0])
    store.close()
    assert kept == frame_of(key, 4 * PAGE_BYTES), "whoever keeps a view keeps the memory"


def test_a_borrower_that_fails_gives_it_back(store: MemoryStore) -> None:
    key = put(store, "lent")
    with pytest.raises(KeyError), store.lend(key):
        raise KeyError
    for number in range(200):
        put(store, number)
    assert store.contains([key]) == 0


def test_lent_frames_are_whole_whatever_else_happens(store: MemoryStore) -> None:
    keys = [chunk_key(("shared", number)) for number in range(40)]

    def work(number: int) -> None:
        choose = random.Random(number)
        for turn in range(400):
            key = choose.choice(keys)
            if choose.random() < 0.1:
                store.remove(key)
                continue
            with store.lend(key) as lent:
                if lent is not None:
                    assert is_whole(key, b"".join(lent))
                else:
                    size = choose.randrange(64, 4 * PAGE_BYTES)
                    store.write(key, [frame_of(key, size, variant=number * 400 + turn)], FrameInfo())

    in_threads(work)
    assert store.stats().evictions > 0


# --- pages -------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12), st.integers(0, 30)), max_size=80))
def test_no_page_is_given_twice_and_none_is_lost(operations: list[tuple[bool, int, int]]) -> None:
    extents, taken = Extents(40), list[list[Extent]]()
    for take, n_pages, at in operations:
        if take:
            got = extents.take(n_pages)
            assert (got is None) == (n_pages > 40 - sum(run.n_pages for runs in taken for run in runs))
            if got is not None:
                assert sum(run.n_pages for run in got) == n_pages
                taken.append(got)
        elif taken:
            extents.give_back(taken.pop(at % len(taken)))
        used = [page for runs in taken for run in runs for page in range(run.start, run.start + run.n_pages)]
        assert len(used) == len(set(used)) == 40 - extents.n_free
        free = sorted(set(range(40)) - set(used))
        holes = sum(1 for page in free if page - 1 not in free)
        assert extents.n_holes == holes, "runs that touch are one"
    for runs in taken:
        extents.give_back(runs)
    assert extents.take(40) == [Extent(0, 40)]


def test_the_smallest_run_that_fits_is_taken() -> None:
    extents = Extents(20)
    runs = [extents.take(n) for n in (5, 1, 3, 1, 10)]
    for at in (0, 2, 4):
        extents.give_back(runs[at] or [])
    assert extents.take(3) == [Extent(6, 3)]
    assert extents.take(4) == [Extent(0, 4)]
    assert extents.take(11) == [Extent(10, 10), Extent(4, 1)]
    assert extents.take(1) is None
