"""What every KV store promises, as tests: a subclass of `StoreContract` in a test module runs them on its store.

    class TestDiskStore(StoreContract):
        @pytest.fixture
        def new_store(self, tmp_path: Path) -> NewStore:
            numbers = itertools.count()
            return lambda capacity, tenant_bytes=None: DiskStore(tmp_path / str(next(numbers)), capacity=capacity)

`new_store` gives a new, empty store each time; the contract closes it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256, shake_128
from typing import ClassVar, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache.store import BlockStore, Buffer, ChunkKey, FrameInfo, StoreError

ALONE = FrameInfo(n_tokens=16)
"""A frame without a parent or a tenant."""


class NewStore(Protocol):
    def __call__(self, capacity: int, tenant_bytes: int | None = None) -> BlockStore:
        """A store of `capacity` bytes in which no tenant has more than `tenant_bytes`, where it knows quotas."""
        ...


def chunk_key(name: object) -> ChunkKey:
    return ChunkKey(sha256(repr(name).encode()).digest())


def frame_of(key: ChunkKey, size: int, variant: int = 0) -> bytes:
    """`size` bytes that no other key, size or variant has; from 64 bytes on they tell which they are (`is_whole`)."""
    head = key + size.to_bytes(8, "little") + variant.to_bytes(8, "little")
    return (head + shake_128(head).digest(size))[:size]


def is_whole(key: ChunkKey, content: bytes) -> bool:
    variant = int.from_bytes(content[40:48], "little")
    return content == frame_of(key, len(content), variant)


def read(store: BlockStore, key: ChunkKey, size: int) -> bytes | None:
    """The frame in one piece; None: a miss."""
    target = bytearray(size)
    return bytes(target) if store.read_into(key, [memoryview(target)]) else None


def cut(content: Buffer, sizes: Sequence[int]) -> list[memoryview]:
    """`content` in pieces of these sizes, then the rest."""
    view, pieces = memoryview(content), []
    for size in sizes:
        pieces.append(view[:size])
        view = view[size:]
    return [*pieces, view]


def in_threads(work: Callable[[int], None], n_threads: int = 4, deadline: float = 40.0) -> None:
    """Run work(0), work(1) … at the same time; what one raises is raised here."""
    failures: list[BaseException] = []
    start = threading.Barrier(n_threads)

    def run(number: int) -> None:
        try:
            start.wait(10)
            work(number)
        except BaseException as error:  # noqa: BLE001 - handed to the test below
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline)
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"


Operation = tuple[str, int, int]
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "read", "read", "remove", "contains"]),
        st.integers(0, 11),
        st.sampled_from([64, 65, 1_000, 4_096, 20_000, 50_001]),
    ),
    max_size=60,
)


class StoreContract:
    """One test for each promise. What a store cannot promise by its nature its subclass says in the flags."""

    bounded: ClassVar[bool] = True
    """It keeps to the capacity that it is given and evicts to make room."""
    tail_first: ClassVar[bool] = True
    """It evicts the tail of a chain before its head."""
    has_quotas: ClassVar[bool] = False
    """It knows `tenant_bytes`."""
    copies: ClassVar[bool] = False
    """It keeps some frames more than once: its sizes do not tell how many it has, and it may take one once more."""
    small: ClassVar[int] = 1 << 20
    """A capacity that is soon full: at least 16 times the frames of 20 to 50 KB that are written to it."""
    large: ClassVar[int] = 64 << 20
    """Room for eight frames of 4 MiB, whatever is kept besides."""
    examples: ClassVar[int] = 40
    """Random histories; fewer where an operation is slow."""
    rounds: ClassVar[int] = 400
    """Operations of each of the threads that hammer on it."""

    @pytest.fixture
    def new_store(self) -> NewStore:
        raise NotImplementedError

    @pytest.fixture
    def make(self, new_store: NewStore) -> Iterator[NewStore]:
        """`new_store`, and everything closed afterwards."""
        stores: list[BlockStore] = []

        def make(capacity: int, tenant_bytes: int | None = None) -> BlockStore:
            stores.append(new_store(capacity, tenant_bytes))
            return stores[-1]

        yield make
        for store in stores:
            store.close()

    @pytest.fixture
    def store(self, make: NewStore) -> BlockStore:
        return make(self.small)

    # --- one frame -----------------------------------------------------------------------------------------

    def test_an_empty_store_misses(self, store: BlockStore) -> None:
        key = chunk_key("nobody wrote this")
        assert store.contains([key]) == 0
        assert read(store, key, 100) is None
        assert store.remove(key) is False
        assert (store.stats().entries, store.stats().hits, store.stats().misses) == (0, 0, 1)

    def test_what_is_written_is_read(self, store: BlockStore) -> None:
        contents = {chunk_key(size): frame_of(chunk_key(size), size) for size in (1, 2, 63, 64, 4_095, 4_097, 50_001)}
        for key, content in contents.items():
            assert store.write(key, [content], ALONE) is True
            assert store.contains([key]) == 1
        for key, content in contents.items():
            assert read(store, key, len(content)) == content
            assert read(store, key, len(content)) == content, "a second time too"

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_every_kind_of_buffer_is_written(self, store: BlockStore, kind: Callable[[bytes], Buffer]) -> None:
        key = chunk_key(kind)
        content = frame_of(key, 30_000)
        assert store.write(key, [kind(content[:10]), kind(content[10:])], ALONE) is True
        assert read(store, key, len(content)) == content

    @pytest.mark.parametrize("written", [[], [0], [1] * 50, [256, 4_096, 0, 0, 4_096], [0, 0, 19_999], [20_000]])
    @pytest.mark.parametrize("wanted", [[], [0, 7, 0], [3] * 100, [256, 16_384], [0, 19_999], [20_000, 0]])
    def test_pieces_are_cut_as_each_side_likes(self, store: BlockStore, written: list[int], wanted: list[int]) -> None:
        key = chunk_key((tuple(written), tuple(wanted)))
        content, target = frame_of(key, 20_000), bytearray(20_000)
        assert store.write(key, cut(content, written), ALONE) is True
        assert store.read_into(key, cut(target, wanted)) is True
        assert target == content

    def test_many_small_pieces(self, make: NewStore) -> None:
        # More than one call of writev or sendmsg takes (IOV_MAX is 1,024).
        store, key = make(self.large), chunk_key("many")
        content, target = frame_of(key, 9_000), bytearray(9_000)
        assert store.write(key, cut(content, [3] * 2_999), ALONE) is True
        assert store.read_into(key, cut(target, [2] * 4_499)) is True
        assert target == content

    def test_pieces_lie_anywhere_in_a_larger_buffer(self, store: BlockStore) -> None:
        key = chunk_key("pool")
        content = frame_of(key, 8_192)
        pool = bytearray(b"\xee" * 40_000)
        blocks = [memoryview(pool)[at : at + 4_096] for at in (30_001, 5)]
        assert store.write(key, [content], ALONE) is True
        assert store.read_into(key, blocks) is True
        assert b"".join(blocks) == content
        assert pool[:5] + pool[4_101:30_001] + pool[34_097:] == b"\xee" * (40_000 - 8_192)

    def test_pieces_may_be_changed_once_they_are_written(self, store: BlockStore) -> None:
        key = chunk_key("changed")
        content = frame_of(key, 30_000)
        source = bytearray(content)
        assert store.write(key, [source], ALONE) is True
        source[:] = bytes(30_000)
        assert read(store, key, 30_000) == content

    @pytest.mark.parametrize("length", [0, 1, 9_999, 10_001, 20_000, 200_000])
    def test_a_wrong_length_is_a_miss_and_does_no_harm(self, store: BlockStore, length: int) -> None:
        key = chunk_key("length")
        content = frame_of(key, 10_000)
        assert store.write(key, [content], ALONE) is True
        before = store.stats()
        assert read(store, key, length) is None
        assert (store.stats().hits, store.stats().misses) == (before.hits, before.misses + 1)
        assert read(store, key, 10_000) == content

    def test_an_empty_frame_is_kept_or_refused(self, store: BlockStore) -> None:
        key = chunk_key("empty")
        assert store.write(key, [b"", b""], ALONE) is (store.contains([key]) == 1)
        assert store.read_into(key, [memoryview(bytearray(0))]) is (store.contains([key]) == 1)

    @pytest.mark.parametrize("size", [2 << 20, (4 << 20) + 256])
    def test_frames_of_some_megabytes(self, make: NewStore, size: int) -> None:
        store = make(self.large)
        keys = [chunk_key(n) for n in range(4)]
        blocks = [256, *[114_688] * 18]
        for key in keys:
            assert store.write(key, cut(frame_of(key, size), blocks), ALONE) is True
        assert store.contains(keys) == 4
        for key in keys:
            target = bytearray(size)
            assert store.read_into(key, cut(target, blocks)) is True
            assert target == frame_of(key, size)

    # --- keys ----------------------------------------------------------------------------------------------

    def test_contains_counts_the_leading_ones(self, store: BlockStore) -> None:
        a, b, c, missing = map(chunk_key, "abcx")
        for key in (a, b, c):
            assert store.write(key, [frame_of(key, 100)], ALONE) is True
        assert store.contains([]) == 0
        assert store.contains([a, b, c]) == 3
        assert store.contains([a, b, missing, c]) == 2
        assert store.contains([missing, a, b]) == 0
        assert store.contains([a, a, missing]) == 2
        assert store.contains((c, b, a, missing)) == 3

    def test_a_frame_is_never_replaced(self, store: BlockStore) -> None:
        key = chunk_key("twice")
        first = frame_of(key, 10_000, 1)
        assert store.write(key, [first], ALONE) is True
        for other in (first, frame_of(key, 10_000, 2), frame_of(key, 500), frame_of(key, 40_000)):
            assert store.write(key, [other], ALONE) is False
            assert read(store, key, 10_000) == first
        assert store.stats().writes == 1
        assert self.copies or store.stats().entries == 1

    def test_a_removed_frame_is_gone_and_may_be_written_anew(self, store: BlockStore) -> None:
        key, other = chunk_key("forget"), chunk_key("stays")
        for name in (key, other):
            assert store.write(name, [frame_of(name, 5_000)], ALONE) is True
        assert store.remove(key) is True
        assert store.remove(key) is False
        assert store.contains([key]) == 0
        assert read(store, key, 5_000) is None
        anew = frame_of(key, 7_000, 9)
        assert store.write(key, [anew], ALONE) is True
        assert read(store, key, 7_000) == anew
        assert read(store, other, 5_000) == frame_of(other, 5_000)

    def test_what_is_removed_makes_room(self, store: BlockStore) -> None:
        # Far more than fits, but never much at once: nothing has to be evicted.
        for number in range(200):
            key = chunk_key(number)
            assert store.write(key, [frame_of(key, 20_000)], ALONE) is True
            assert store.remove(key) is True
        assert store.stats().entries == 0

    # --- bounds --------------------------------------------------------------------------------------------

    def test_too_large_a_frame_is_refused_and_drives_nobody_out(self, store: BlockStore) -> None:
        if not self.bounded:
            pytest.skip("has no bound of its own")
        key, huge = chunk_key("small"), chunk_key("huge")
        assert store.write(key, [frame_of(key, 1_000)], ALONE) is True
        assert store.write(huge, [bytes(self.small), b"x"], ALONE) is False
        assert store.contains([huge]) == 0
        assert read(store, key, 1_000) == frame_of(key, 1_000)

    def settle(self, store: BlockStore) -> None:
        """Wait until nothing is under way in it."""

    def test_a_full_store_makes_room_within_its_bound(self, store: BlockStore) -> None:
        if not self.bounded:
            pytest.skip("has no bound of its own")
        assert store.stats().capacity == self.small
        sizes = random.Random(5)
        lengths: dict[ChunkKey, int] = {}
        for number in range(300):
            key = chunk_key(number)
            lengths[key] = sizes.choice([300, 5_000, 20_000, 50_001])
            assert store.write(key, [frame_of(key, lengths[key])], ALONE) is True
            assert read(store, key, lengths[key]) == frame_of(key, lengths[key])
            assert store.stats().bytes <= self.small
        self.settle(store)
        kept = [key for key in lengths if store.contains([key])]
        held = sum(lengths[key] for key in kept)
        assert self.small / 4 < held <= store.stats().bytes, "a good part of it is frames"
        assert self.copies or store.stats().entries == len(kept)
        assert self.copies or store.stats().evictions == 300 - len(kept) > 0
        for key in kept:
            assert read(store, key, lengths[key]) == frame_of(key, lengths[key])

    def test_the_tail_of_a_chain_goes_before_its_head(self, store: BlockStore) -> None:
        if not (self.bounded and self.tail_first):
            pytest.skip("does not evict by chains")
        chains = [[chunk_key((chain, place)) for place in range(6)] for chain in range(20)]
        for chain in chains:
            parent = None
            for key in chain:
                info = FrameInfo(parent=parent, n_tokens=16)
                assert store.write(key, [frame_of(key, 20_000)], info) is True
                parent = key
                for other in chains:
                    present = [store.contains([one]) for one in other]
                    assert present == sorted(present, reverse=True), "a part without what comes before it"
        assert store.stats().evictions > 0

    def test_a_tenant_stays_within_its_quota_and_harms_nobody(self, make: NewStore) -> None:
        if not self.has_quotas:
            pytest.skip("knows no quotas")
        store = make(self.small, 200_000)
        theirs = [chunk_key(("theirs", number)) for number in range(5)]
        for key in theirs:
            assert store.write(key, [frame_of(key, 20_000)], FrameInfo(tenant="b")) is True
        mine = [chunk_key(("mine", number)) for number in range(100)]
        for key in mine:
            store.write(key, [frame_of(key, 20_000)], FrameInfo(tenant="a"))
            assert sum(store.contains([one]) for one in mine) <= 10
        assert store.contains(theirs) == 5
        assert store.contains(mine[-1:]) == 1, "the newest is worth more to it than its own oldest"
        huge = chunk_key("more than the quota")
        assert store.write(huge, [bytes(200_001)], FrameInfo(tenant="a")) is False
        assert sum(store.contains([one]) for one in mine) > 4

    # --- histories -----------------------------------------------------------------------------------------

    def test_any_history_agrees_with_a_dict(self, make: NewStore) -> None:
        if self.copies:
            pytest.skip("counts more than a dict")

        @settings(
            max_examples=self.examples, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
        )
        @given(OPERATIONS)
        def agrees(operations: list[Operation]) -> None:
            store = make(self.small // 4)
            try:
                check_history(store, operations, bounded=self.bounded)
            finally:
                store.close()

        agrees()

    def test_counters_are_true(self, store: BlockStore) -> None:
        a, b = chunk_key("a"), chunk_key("b")
        empty = store.stats()
        assert (empty.entries, empty.hits, empty.misses, empty.writes, empty.evictions, empty.errors) == (0,) * 6
        store.write(a, [frame_of(a, 10_000)], ALONE)
        store.write(a, [frame_of(a, 10_000)], ALONE)
        store.write(b, [frame_of(b, 20_000)], ALONE)
        full = store.stats()
        assert (full.entries, full.writes) == (2, 2)
        assert full.bytes >= empty.bytes + 30_000
        for size in (10_000, 10_000, 10_001):
            read(store, a, size)
        read(store, chunk_key("c"), 10)
        store.remove(b)
        now = store.stats()
        assert (now.entries, now.hits, now.misses, now.writes, now.evictions, now.errors) == (1, 2, 2, 2, 0, 0)

    # --- threads -------------------------------------------------------------------------------------------

    def test_threads_never_see_a_torn_frame(self, make: NewStore) -> None:
        store = make(self.small)
        keys = [chunk_key(("shared", number)) for number in range(40)]
        sizes = [20_000 + 777 * number for number in range(40)]

        def hammer(number: int) -> None:
            choose = random.Random(number)
            for turn in range(self.rounds):
                at = choose.randrange(40)
                key, size = keys[at], sizes[at]
                action = choose.random()
                if action < 0.45:
                    target = bytearray(size)
                    if store.read_into(key, cut(target, [100, size // 2])):
                        assert is_whole(key, bytes(target)), "torn"
                elif action < 0.85:
                    content = frame_of(key, size, variant=number * self.rounds + turn)
                    store.write(key, cut(content, [48, size // 3]), ALONE)
                elif action < 0.95:
                    store.remove(key)
                else:
                    assert 0 <= store.contains(keys[at:]) <= 40 - at
                assert not self.bounded or store.stats().bytes <= self.small

        in_threads(hammer)
        kept = [at for at in range(40) if store.contains([keys[at]])]
        assert self.copies or store.stats().entries == len(kept)
        for at in kept:
            content = read(store, keys[at], sizes[at])
            assert content is not None
            assert is_whole(keys[at], content)

    def test_of_many_writers_of_one_frame_one_is_kept(self, make: NewStore) -> None:
        store = make(self.large)
        kept: list[list[tuple[ChunkKey, int]]] = [[] for _ in range(4)]

        def write(number: int) -> None:
            for turn in range(40):
                key = chunk_key(turn)
                if store.write(key, [frame_of(key, 20_000, variant=number)], ALONE):
                    kept[number].append((key, number))

        in_threads(write)
        winners = [pair for of_one in kept for pair in of_one]
        assert len(winners) == len(dict(winners)) == 40
        for key, number in winners:
            assert read(store, key, 20_000) == frame_of(key, 20_000, variant=number)
        assert store.stats().writes == 40

    # --- the end -------------------------------------------------------------------------------------------

    def test_a_closed_store_says_so(self, store: BlockStore) -> None:
        key = chunk_key("closed")
        store.write(key, [frame_of(key, 100)], ALONE)
        store.close()
        with pytest.raises(StoreError):
            store.contains([key])
        with pytest.raises(StoreError):
            store.read_into(key, [memoryview(bytearray(100))])
        with pytest.raises(StoreError):
            store.write(chunk_key("more"), [b"x"], ALONE)
        with pytest.raises(StoreError):
            store.remove(key)
        assert store.stats().writes == 1
        store.close()

    def test_a_store_is_closed_while_others_use_it(self, make: NewStore) -> None:
        store = make(self.small)

        def use(number: int) -> None:
            if number == 0:
                while store.stats().writes < 30:
                    time.sleep(0.001)
                store.close()
                return
            try:
                for turn in range(100_000):
                    key = chunk_key((number, turn % 20))
                    if (content := read(store, key, 20_000)) is not None:
                        assert is_whole(key, content)
                    else:
                        store.write(key, [frame_of(key, 20_000)], ALONE)
            except StoreError:
                return
            raise AssertionError("the store was never closed")

        in_threads(use)


def check_history(store: BlockStore, operations: list[Operation], *, bounded: bool) -> None:
    """Apply them, and hold each answer against a dict of what was written and has not been seen to be gone."""
    model: dict[ChunkKey, bytes] = {}
    keys = [chunk_key(number) for number in range(12)]
    removed = written = 0
    for turn, (name, number, size) in enumerate(operations):
        key = keys[number]
        here = store.contains([key]) == 1
        if not here:
            model.pop(key, None)
        assert here == (key in model)
        if name == "write":
            content = frame_of(key, size, turn)
            assert store.write(key, cut(content, [size // 3]), ALONE) is not here
            model.setdefault(key, content)
            written += not here
            assert store.contains([key]) == 1
        elif name == "read":
            wanted = len(model[key]) if here else size
            assert read(store, key, wanted) == model.get(key)
        elif name == "remove":
            assert store.remove(key) is here
            model.pop(key, None)
            removed += here
        else:
            present = [store.contains([one]) == 1 for one in keys]
            assert store.contains(keys) == [*present, False].index(False)
        stats = store.stats()
        assert not bounded or stats.bytes <= stats.capacity
        assert stats.writes == written
        assert stats.entries == sum(store.contains([one]) for one in keys)
        assert stats.evictions == written - removed - stats.entries
    for key in keys:
        if store.contains([key]):
            assert read(store, key, len(model[key])) == model[key]
