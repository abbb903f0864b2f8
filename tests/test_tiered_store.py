"""Several stores as one: the contract, what goes where and when, and what happens when one of them fails."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.disk_store import DiskStore
from cache.eviction_news import EvictionNews
from cache.memory_store import MemoryStore
from cache.redis_settings import RedisSettings
from cache.redis_store import RedisStore
from cache.store import BlockStore, Buffer, ChunkKey, FrameInfo, Lender, StoreError
from cache.tier_told import Told
from cache.tiered_store import TieredStore
from policies.kv_policy import KvPolicy
from policies.types import Tier
from policies.write_behind import WriteRules
from tests.local_store_contract import Wall
from tests.redis_fixtures import needs_redis, redis_server, wait_for
from tests.store_contract import ALONE, NewStore, StoreContract, chunk_key, frame_of, in_threads, is_whole, read
from tests.tiered_fixtures import SIZE, Clock, Lending, Movements, Watched, in_memory, write

NEVER = WriteRules(uses=1 << 30)
ALWAYS = WriteRules(uses=1)
HOST, DISK, REDIS = Tier.HOST, Tier.DISK, Tier.REDIS
A, B, C, D = map(chunk_key, "abcd")
LONG = 30.0
"""Seconds that nothing here takes."""


# --- the contract ----------------------------------------------------------------------------------------------


def memory(capacity: int, tenant_bytes: int | None = None) -> MemoryStore:
    return MemoryStore(capacity, tenant_bytes=tenant_bytes, page_bytes=4_096)


class TestOfMemoryAlone(StoreContract):
    has_quotas = True

    @pytest.fixture
    def new_store(self) -> NewStore:
        return lambda capacity, tenant_bytes=None: TieredStore([memory(capacity, tenant_bytes)])


class DiskContract(StoreContract):
    examples: ClassVar[int] = 20
    rounds: ClassVar[int] = 200
    rules: ClassVar[WriteRules] = NEVER

    @pytest.fixture
    def new_store(self, tmp_path: Path) -> NewStore:
        numbers = itertools.count()

        def new(capacity: int, tenant_bytes: int | None = None) -> TieredStore:
            disk = DiskStore(tmp_path / str(next(numbers)), capacity=capacity // 2)
            return TieredStore([memory(capacity // 2), disk], rules=self.rules)

        return new


class TestOfMemoryBeforeDisk(DiskContract):
    """Nothing goes behind."""


class TestOfMemoryAndDisk(DiskContract):
    """Everything goes behind."""

    rules = ALWAYS
    copies = True

    def settle(self, store: BlockStore) -> None:
        assert isinstance(store, TieredStore)
        assert store.flush(LONG)


class TestOfDiskBehindMemoryThatRefuses(DiskContract):
    has_quotas = True

    @pytest.fixture
    def new_store(self, tmp_path: Path) -> NewStore:
        numbers = itertools.count()

        def new(capacity: int, tenant_bytes: int | None = None) -> TieredStore:
            full = memory(10_000, 0)
            disk = DiskStore(tmp_path / str(next(numbers)), capacity=capacity - 10_000, tenant_bytes=tenant_bytes)
            return TieredStore([full, disk])

        return new


del DiskContract  # it is no test by itself


# --- what goes where -------------------------------------------------------------------------------------------


class Three:
    """Host, disk and Redis in this process's memory, watched, and a tiered store over them."""

    def __init__(self, rules: WriteRules, host: Watched | None = None) -> None:
        self.clock, self.moved = Clock(), Movements()
        self.host, self.disk, self.redis = host or in_memory(), in_memory(DISK), in_memory(REDIS)
        self.all = [self.host, self.disk, self.redis]
        self.store = TieredStore(self.all, rules=rules, clock=self.clock, moved=self.moved)

    def where(self, key: ChunkKey) -> list[Tier]:
        return [one.tier for one in self.all if one.store.contains([key])]

    def drained(self) -> bool:
        """Has the thread nothing to do at the moment?"""
        writer = self.store._writer
        with writer._turn:
            return writer._under_way is None and not any(
                slot.backlog.has_work(everything=writer._everything) and slot.tier.ready_to_write()
                for slot in writer._slots
            )

    def settle(self) -> None:
        wait_for(self.drained, "all that is due is written")

    def end(self) -> None:
        for one in self.all:
            one.go_on.set()
        self.store.close()


@pytest.fixture
def new_three() -> Iterator[Callable[..., Three]]:
    made: list[Three] = []

    def new(rules: WriteRules = WriteRules(), host: Watched | None = None) -> Three:  # noqa: B008 - it is frozen
        made.append(Three(rules, host))
        return made[-1]

    yield new
    for three in made:
        three.end()


@pytest.fixture
def three(new_three: Callable[..., Three]) -> Three:
    return new_three()


def test_the_fastest_gets_it_at_once_and_the_others_at_the_second_use(three: Three) -> None:
    assert write(three.store, A) is True
    three.settle()
    assert three.where(A) == [HOST]
    assert write(three.store, A) is False
    wait_for(lambda: three.where(A) == [HOST, DISK, REDIS], "it was used again")
    three.settle()
    assert three.store.counts == {"written behind": 2}
    assert [read(one.store, A, SIZE) for one in three.all] == [frame_of(A, SIZE)] * 3
    assert three.store.tier is HOST


def test_a_frame_that_was_read_and_good_is_a_use(three: Three) -> None:
    write(three.store, A)
    write(three.store, B)
    target = bytearray(SIZE)
    assert three.store.read_from(HOST, A, [memoryview(target)]) is True
    three.settle()
    assert three.where(A) == [HOST], "to be read is none: it might be bad"
    assert three.store.note(A, SIZE, ALONE) is True
    wait_for(lambda: three.where(A) == [HOST, DISK, REDIS], "it was used")
    assert three.where(B) == [HOST]


def test_what_somebody_comes_back_for_goes_to_all(three: Three) -> None:
    write(three.store, A)
    write(three.store, B, parent=A, wanted=True)
    wait_for(lambda: three.where(B) == [HOST, DISK, REDIS], "it is wanted")
    assert three.where(A) == [HOST, DISK, REDIS], "and of no use without this one"
    assert three.disk.written() == three.redis.written() == [A, B]


def test_a_chain_is_written_from_its_head(new_three: Callable[..., Three]) -> None:
    three = new_three()
    chain = [chunk_key(n) for n in range(8)]
    for parent, key in zip([None, *chain], chain, strict=False):
        write(three.store, key, parent=parent)
    write(three.store, chain[5], parent=chain[4])
    wait_for(lambda: three.where(chain[5]) == [HOST, DISK, REDIS], "it was used again")
    three.settle()
    assert three.disk.written() == three.redis.written() == chain[:6]
    assert three.store.flush(LONG) is True
    assert three.disk.written() == chain


def test_what_is_held_back_is_written_while_it_is_quiet(three: Three) -> None:
    keys = [chunk_key(n) for n in range(5)]
    for key in keys:
        write(three.store, key)
    three.settle()
    assert three.disk.written() == []
    three.store.quiet(True)
    wait_for(lambda: three.where(keys[-1]) == [HOST, DISK, REDIS], "nothing else is to be done")
    assert three.disk.written() == three.redis.written() == keys, "oldest first"
    three.settle()
    three.store.quiet(quiet=False)
    write(three.store, A)
    three.settle()
    assert three.where(A) == [HOST]


def test_flush_writes_everything(three: Three) -> None:
    assert three.store.flush(0.0) is True, "there is nothing to write"
    keys = [chunk_key(n) for n in range(20)]
    for key in keys:
        write(three.store, key)
    assert three.store.flush(LONG) is True
    assert all(three.where(key) == [HOST, DISK, REDIS] for key in keys)
    write(three.store, A)
    three.settle()
    assert three.where(A) == [HOST], "from then on the rules hold again"


def test_flush_ends_when_its_time_is_over(three: Three) -> None:
    three.disk.go_on.clear()
    write(three.store, A)
    assert three.store.flush(0.05) is False
    assert three.disk.held.wait(LONG)
    three.disk.go_on.set()
    assert three.store.flush(LONG) is True
    assert three.where(A) == [HOST, DISK, REDIS]


def test_flush_does_not_wait_for_a_tier_that_rests_for_longer(three: Three) -> None:
    three.redis.breaks()
    write(three.store, A, wanted=True)
    for n_rests in range(1, 8):
        wait_for(lambda n=n_rests: three.store.counts["rests: redis"] == n, "it rests twice as long")  # type: ignore[misc]  # n is given
        three.clock.now += 100.0 if n_rests < 7 else 0.0
    flushed: list[bool] = []
    flushing = threading.Thread(target=lambda: flushed.append(three.store.flush(59.0)))
    flushing.start()
    flushing.join(40.0)
    assert flushed == [False], "of a rest of a minute nothing is over"
    assert three.where(A) == [HOST, DISK]


def test_tiers_take_turns(three: Three) -> None:
    three.disk.go_on.clear()
    for key in (A, B, C):
        write(three.store, key, wanted=True)
    assert three.disk.held.wait(LONG)
    three.disk.go_on.set()
    assert three.store.flush(LONG) is True
    behind = [(tier, key) for tier, key, _ in three.moved.all if tier is not HOST]
    assert behind == [(tier, key) for key in (A, B, C) for tier in (DISK, REDIS)]


def test_who_is_known_to_have_it_is_not_asked_again(three: Three) -> None:
    write(three.store, A, wanted=True)
    assert three.store.flush(LONG) is True
    three.redis.asked.clear()
    for _ in range(3):
        write(three.store, A, wanted=True)
    assert three.store.flush(LONG) is True
    assert three.redis.asked == []
    three.store.lost(REDIS, A)
    write(three.store, A, wanted=True)
    assert three.store.flush(LONG) is True
    assert three.redis.asked == [("contains", A)]


def test_what_the_fastest_refuses_goes_to_the_next_at_once(new_three: Callable[..., Three]) -> None:
    three = new_three(host=in_memory(capacity=10_000))
    assert write(three.store, A) is True
    assert three.where(A) == [DISK]
    assert three.moved.all == [(DISK, A, True)]
    assert write(three.store, A) is False
    wait_for(lambda: three.where(A) == [DISK, REDIS], "from the fastest that has it")
    three.disk.breaks("write")
    assert write(three.store, B) is True
    assert three.where(B) == [REDIS]


def test_a_frame_that_nobody_takes(new_three: Callable[..., Three]) -> None:
    three = new_three(ALWAYS)
    assert three.store.write(A, [bytes(9 << 20)], ALONE) is False
    assert three.where(A) == []
    assert three.store.flush(LONG) is True
    assert three.store.counts == {}
    assert three.store.stats().writes == 0


def test_a_tier_that_has_it_is_not_written(three: Three) -> None:
    write(three.disk, A)
    three.disk.asked.clear()
    write(three.store, A, wanted=True)
    three.settle()
    assert three.where(A) == [HOST, DISK, REDIS]
    assert three.disk.asked == [("contains", A)]
    assert (DISK, A) in three.moved.known()


def test_what_was_evicted_before_its_turn_is_skipped(three: Three) -> None:
    write(three.store, A)
    write(three.store, B)
    assert three.host.store.remove(A) is True
    assert three.store.flush(LONG) is True
    assert (three.where(A), three.where(B)) == ([], [HOST, DISK, REDIS])
    assert three.store.counts == {"evicted before": 2, "written behind": 2}


def test_of_a_chain_with_a_gap_the_rest_is_not_written(three: Three) -> None:
    write(three.store, A, wanted=True)
    write(three.store, B, parent=A)
    wait_for(lambda: three.where(A) == [HOST, DISK, REDIS], "it is wanted")
    three.settle()
    assert three.redis.store.remove(A) is True
    assert three.store.flush(LONG) is True
    assert three.where(B) == [HOST, DISK]
    assert three.store.counts["orphaned behind"] == 1
    assert (REDIS, A) not in three.moved.known()


def test_a_tier_that_has_lost_everything_gets_it_again(three: Three) -> None:
    chain = [chunk_key(n) for n in range(6)]
    pairs = list(zip([None, *chain], chain, strict=False))
    for parent, key in pairs[:5]:
        write(three.store, key, parent=parent, wanted=True)
    assert three.store.flush(LONG) is True
    for key in chain:
        three.redis.store.remove(key)
    three.redis.asked.clear()
    # Only the last one is looked for; of the others nobody has noticed anything.
    write(three.store, chain[5], parent=chain[4], wanted=True)
    assert three.store.flush(LONG) is True
    assert three.redis.written() == []
    for _ in range(2):
        for parent, key in pairs:
            write(three.store, key, parent=parent)
    assert three.store.flush(LONG) is True
    assert three.redis.written() == chain


def test_what_is_pending_is_bounded(new_three: Callable[..., Three]) -> None:
    three = new_three(WriteRules(most_pending=3))
    keys = [chunk_key(n) for n in range(5)]
    for key in keys:
        write(three.store, key)
    assert three.store.counts == {"dropped behind": 4}
    assert three.store.flush(LONG) is True
    assert three.disk.written() == three.redis.written() == keys[2:]


def test_a_store_that_lends_is_not_copied_from() -> None:
    host, disk = Lending(in_memory()), in_memory(DISK)
    assert isinstance(host, Lender)
    store = TieredStore([host, disk], rules=ALWAYS)
    write(store, A)
    assert store.flush(LONG) is True
    assert read(disk.store, A, SIZE) == frame_of(A, SIZE)
    assert ("read_into", A) not in host.asked
    assert host.n_lent == host.n_returned == 1
    write(store, B)
    host.store.remove(B)
    store.flush(LONG)
    assert disk.store.contains([B]) == 0
    store.close()


def test_frames_of_all_lengths_share_the_scratch_room(new_three: Callable[..., Three]) -> None:
    three = new_three(ALWAYS)
    lengths = {chunk_key(n): n for n in (1, 50_000, 7, 200_000, 64, 199_999)}
    for key, length in lengths.items():
        assert three.store.write(key, [frame_of(key, length)], ALONE) is True
    assert three.store.flush(LONG) is True
    for key, length in lengths.items():
        assert read(three.redis.store, key, length) == frame_of(key, length)


# --- what is where ---------------------------------------------------------------------------------------------


def test_what_came_from_a_slow_tier_is_written_to_the_fastest(three: Three) -> None:
    write(three.redis, A)
    assert three.store.locate([A, B]) == [REDIS]
    target = bytearray(SIZE)
    assert three.store.read_from(HOST, A, [memoryview(target)]) is False
    assert three.store.read_from(REDIS, A, [memoryview(target)]) is True
    assert three.store.note(A, SIZE, ALONE) is False
    assert three.where(A) == [REDIS]
    assert three.store.write(A, [target], ALONE) is True
    assert three.where(A) == [HOST, REDIS]
    assert three.store.locate([A]) == [HOST]
    assert three.store.note(A, SIZE, ALONE) is True
    wait_for(lambda: three.where(A) == [HOST, DISK, REDIS], "it was used twice")
    three.settle()
    assert three.store.counts == {"written behind": 1}
    assert [tier for tier, _, _ in three.moved.all] == [REDIS, HOST, DISK]


def test_the_fastest_that_delivers(three: Three) -> None:
    write(three.disk, A)
    write(three.redis, A)
    three.disk.breaks("read_into")
    assert read(three.store, A, SIZE) == frame_of(A, SIZE)
    assert [name for one in three.all for name, _ in one.asked if name == "read_into"] == ["read_into"] * 3
    assert read(three.store, B, SIZE) is None
    assert (three.store.stats().hits, three.store.stats().misses) == (1, 1)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sets(st.sampled_from([HOST, DISK, REDIS])), max_size=12), st.sets(st.sampled_from([HOST, DISK, REDIS]))
)
def test_locate_names_the_fastest_for_each(places: list[set[Tier]], broken: set[Tier]) -> None:
    stores = {tier: in_memory(tier, 400_000) for tier in (HOST, DISK, REDIS)}
    keys = [chunk_key(n) for n in range(len(places))]
    for key, tiers in zip(keys, places, strict=True):
        for tier in tiers:
            assert stores[tier].write(key, [b"x"], ALONE) is True
    for tier in broken:
        stores[tier].breaks()
    moved = Movements()
    store = TieredStore(list(stores.values()), moved=moved)
    expected = []
    for tiers in places:
        usable = [tier for tier in (HOST, DISK, REDIS) if tier in tiers - broken]
        if not usable:
            break
        expected.append(usable[0])
    assert store.locate(keys) == store.locate(tuple(keys)) == expected
    assert store.contains(keys) == len(expected)
    assert moved.known() >= set(zip(expected, keys, strict=False))
    assert all(tier in places[keys.index(key)] - broken for tier, key in moved.known())
    store.close()


def test_each_tier_is_asked_once_where_there_are_no_gaps(three: Three) -> None:
    keys = [chunk_key(n) for n in range(9)]
    for key in keys[:3]:
        write(three.host, key)
    for key in keys[:6]:
        write(three.redis, key)
    for one in three.all:
        one.asked.clear()
    assert three.store.locate(keys) == [HOST] * 3 + [REDIS] * 3
    assert [name for name, _ in three.redis.asked] == ["contains"]
    assert three.store.locate(keys[:3]) == [HOST] * 3
    assert [name for name, _ in three.redis.asked] == ["contains"], "nobody needs it"


def test_only_changes_are_told(three: Three) -> None:
    write(three.store, A, wanted=True)
    write(three.store, A)
    three.settle()
    assert three.moved.all == [(HOST, A, True), (DISK, A, True), (REDIS, A, True)]
    three.moved.all.clear()
    assert three.store.locate([A]) == [HOST]
    three.store.lost(DISK, A)
    three.store.lost(DISK, A)
    three.store.lost(DISK, B)
    assert three.moved.all == [(DISK, A, False)]
    three.moved.all.clear()
    three.store.remove(A)
    assert three.moved.all == [(REDIS, A, False), (HOST, A, False)]


@pytest.mark.parametrize("tier", [HOST, REDIS])
@pytest.mark.parametrize("how", ["locate", "read_from", "read_into"])
def test_what_a_tier_has_lost_is_noticed(three: Three, how: str, tier: Tier) -> None:
    one = three.host if tier is HOST else three.redis
    write(one, A)
    assert three.store.locate([A]) == [tier]
    one.store.remove(A)
    target = [memoryview(bytearray(SIZE))]
    if how == "locate":
        assert three.store.locate([A]) == []
    elif how == "read_from":
        assert three.store.read_from(tier, A, target) is False
    else:
        assert three.store.read_into(A, target) is False
    assert three.moved.all == [(tier, A, True), (tier, A, False)]


def test_a_frame_that_is_evicted_before_it_is_told_is_not_told_for_long() -> None:
    class Forgetful(Watched):
        def write(self, key: ChunkKey, pieces: Sequence[Buffer], info: FrameInfo) -> bool:
            kept = super().write(key, pieces, info)
            self.store.remove(key)
            tiered.lost(HOST, key)
            return kept

    moved = Movements()
    tiered = TieredStore([Forgetful(memory(1 << 20)), in_memory(DISK)], moved=moved)
    write(tiered, A)
    assert moved.known() == set()
    tiered.close()


def test_what_was_told_after_a_store_was_asked_outweighs_its_answer() -> None:
    moved = Movements()
    told = Told([HOST, DISK], moved)
    before = told.mark()
    assert told.here(HOST, [A], told.mark()) == []
    told.missing(HOST, A, before)
    assert moved.known() == {(HOST, A)}
    told.lost(HOST, A)
    assert told.here(HOST, [A, B], before) == [A, B], "to be looked for again"
    assert told.here(HOST, [C], told.mark()) == told.here(DISK, [A], before) == []
    told.missing(HOST, A, told.mark())
    assert moved.known() == {(HOST, B), (HOST, C), (DISK, A)}


def test_where_a_frame_has_vanished_the_others_are_in_doubt_until_they_are_found() -> None:
    moved = Movements()
    told = Told([HOST, DISK], moved)
    for key in (A, B, C):
        told.here(HOST, [key], told.mark())
    told.here(DISK, [A], told.mark())
    told.missing(HOST, A, told.mark())
    assert told.knows(HOST, B), "somebody removed the other"
    told.vanished(HOST, A, told.mark())
    assert told.knows(HOST, B), "that was no news"
    told.vanished(HOST, C, told.mark())
    assert [told.knows(tier, key) for tier, key in ((HOST, B), (DISK, A), (DISK, B))] == [False, True, False]
    assert moved.known() == {(HOST, B), (DISK, A)}, "a doubt is nothing to tell"
    told.here(HOST, [B], told.mark())
    assert told.knows(HOST, B)


def test_what_is_told_is_bounded() -> None:
    moved = Movements()
    told = Told([HOST], moved, most=3)
    for key in (A, B, C):
        told.here(HOST, [key], told.mark())
    told.here(HOST, [A], told.mark())
    told.here(HOST, [D], told.mark())
    assert moved.known() == {(HOST, A), (HOST, C), (HOST, D)}


def test_who_is_told_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    def moved(tier: Tier, key: ChunkKey, here: bool) -> None:
        raise RuntimeError("no ear")

    store = TieredStore([in_memory(), in_memory(DISK)], rules=ALWAYS, moved=moved)
    for key in (A, B):
        assert write(store, key) is True
    assert store.flush(LONG) is True
    assert [record.message for record in caplog.records] == ["whoever is told of frames fails"]
    store.close()


# --- removal ---------------------------------------------------------------------------------------------------


def test_what_is_removed_is_nowhere(three: Three) -> None:
    write(three.store, A, wanted=True)
    three.settle()
    write(three.store, B)
    assert three.store.remove(A) is True
    assert three.store.remove(B) is True
    assert three.store.remove(A) is False
    assert three.store.flush(LONG) is True
    assert (three.where(A), three.where(B)) == ([], [])
    assert three.moved.known() == set()


def test_what_is_on_its_way_does_not_come_back(three: Three) -> None:
    three.disk.go_on.clear()
    write(three.store, A, wanted=True)
    assert three.disk.held.wait(LONG)
    removed: list[bool] = []
    removing = threading.Thread(target=lambda: removed.append(three.store.remove(A)))
    removing.start()
    wait_for(lambda: three.store._writer._under_way and three.store._writer._under_way.forgotten, "it is being removed")
    assert removed == [], "it waits"
    three.disk.go_on.set()
    removing.join(LONG)
    assert removed == [True]
    assert three.where(A) == []
    three.settle()
    assert three.where(A) == []
    assert three.moved.known() == set()


def test_what_is_being_written_by_a_caller_does_not_come_back(three: Three) -> None:
    three.host.go_on.clear()
    written: list[bool] = []
    writing = threading.Thread(target=lambda: written.append(write(three.store, A, wanted=True)))
    writing.start()
    assert three.host.held.wait(LONG)
    assert write(three.store, A) is False, "somebody does"
    removing = threading.Thread(target=three.store.remove, args=(A,))
    removing.start()
    wait_for(lambda: three.store._writes[A].removed, "it is being removed")
    three.host.go_on.set()
    writing.join(LONG)
    removing.join(LONG)
    assert written == [False]
    assert three.store.flush(LONG) is True
    assert three.where(A) == []
    assert three.moved.known() == set()


def test_a_tier_that_cannot_remove_is_counted(three: Three) -> None:
    write(three.store, A, wanted=True)
    three.settle()
    three.redis.breaks("remove")
    assert three.store.remove(A) is True
    assert three.where(A) == [REDIS]
    assert three.store.counts["not removed: redis"] == 1


# --- failures --------------------------------------------------------------------------------------------------


def test_a_tier_that_keeps_failing_rests(three: Three, caplog: pytest.LogCaptureFixture) -> None:
    write(three.redis, A)
    three.redis.breaks()
    target = [memoryview(bytearray(SIZE))]
    for _ in range(5):
        assert three.store.read_from(REDIS, A, target) is False
    assert len(three.redis.asked) == 1 + 3
    assert three.store.counts == {"failed: redis": 3, "rests: redis": 1}
    assert three.store.locate([A]) == []
    three.clock.now += 1.0
    assert [three.store.read_from(REDIS, A, target) for _ in range(3)] == [False] * 3
    assert len(three.redis.asked) == 1 + 4, "one tries"
    three.clock.now += 1.0
    assert three.store.locate([A]) == []
    assert len(three.redis.asked) == 1 + 4, "it rests twice as long"
    three.redis.fails.clear()
    three.clock.now += 1.0
    assert three.store.locate([A]) == [REDIS]
    assert three.store.read_from(REDIS, A, target) is True
    assert three.store.counts == {"failed: redis": 4, "rests: redis": 2}
    assert [record.levelname for record in caplog.records] == ["WARNING"], "one line, not one for each"


def test_while_the_fastest_rests_the_next_gets_it(three: Three) -> None:
    three.host.breaks()
    for key in (A, B, C, D):
        assert write(three.store, key) is True
    assert len(three.host.written()) == 3
    assert three.disk.written() == [A, B, C, D]
    three.host.fails.clear()
    three.clock.now += 1.0
    last = chunk_key("last")
    assert write(three.store, last) is True
    assert three.where(last) == [HOST]


def test_what_a_resting_tier_should_have_got_is_held_back(three: Three) -> None:
    three.redis.breaks()
    keys = [chunk_key(n) for n in range(6)]
    for parent, key in zip([None, *keys], keys, strict=False):
        write(three.store, key, parent=parent, wanted=True)
    wait_for(lambda: three.store.counts["rests: redis"], "it has failed")
    three.settle()
    assert three.disk.written() == keys, "the other goes on"
    assert three.store.flush(0.5) is False, "it rests for a second"
    assert three.redis.written() == []
    three.redis.fails.clear()
    three.clock.now += 1.0
    assert three.store.flush(LONG) is True
    assert three.redis.written() == keys


def test_a_tier_that_is_full_is_read_all_the_same(three: Three) -> None:
    write(three.redis, A)
    three.redis.breaks("write")
    write(three.store, B, wanted=True)
    wait_for(lambda: three.store.counts["rests: redis"], "it cannot be written")
    assert three.store.locate([A]) == [REDIS]
    assert three.store.read_from(REDIS, A, [memoryview(bytearray(SIZE))]) is True
    n_asked = len(three.redis.written())
    three.settle()
    assert len(three.redis.written()) == n_asked == 1 + 3
    three.redis.fails.clear()
    three.clock.now += 1.0
    assert three.store.flush(LONG) is True
    assert three.where(B) == [HOST, DISK, REDIS]


def test_a_frame_that_a_tier_never_takes_does_not_stop_the_others(new_three: Callable[..., Three]) -> None:
    three = new_three(WriteRules(attempts=4))
    three.redis.breaks("write")
    write(three.store, A, wanted=True)
    wait_for(lambda: three.store.counts["failed: redis"] == 3, "three times in a row")
    three.clock.now += 1.0
    wait_for(lambda: three.store.counts["dropped behind"], "the fourth is the last")
    three.redis.fails.clear()
    three.clock.now += 2.0
    write(three.store, B, wanted=True)
    assert three.store.flush(LONG) is True
    assert (three.where(A), three.where(B)) == ([HOST, DISK], [HOST, DISK, REDIS])


def test_a_bug_in_a_store_does_not_end_the_thread(
    new_three: Callable[..., Three], caplog: pytest.LogCaptureFixture
) -> None:
    three = new_three(WriteRules(attempts=1))
    three.disk.breaks("write", error=ZeroDivisionError("a bug"))
    for key in (A, B):
        write(three.store, key, wanted=True)
    wait_for(lambda: three.store.counts["dropped behind"] == 2, "both were tried")
    three.disk.fails.clear()
    write(three.store, C, wanted=True)
    assert three.store.flush(LONG) is True
    assert three.where(C) == [HOST, DISK, REDIS]
    assert three.store.counts["broken behind"] == three.store.counts["failed: disk"] == 2
    assert [record.message for record in caplog.records] == ["a frame could not be written to the disk tier"]


def test_while_a_tier_rests_its_sizes_are_those_of_before(three: Three) -> None:
    write(three.redis, A)
    assert three.store.stats_of(REDIS).entries == 1
    three.redis.breaks("contains")
    for _ in range(3):
        three.store.locate([A])
    write(three.redis, B)
    assert three.store.stats_of(REDIS).entries == 1
    assert three.store.stats().entries == 1


# --- the end ---------------------------------------------------------------------------------------------------


def test_close_ends_the_thread_and_the_stores(three: Three) -> None:
    write(three.store, A)
    three.store.close()
    assert not three.store._writer._thread.is_alive()
    with pytest.raises(StoreError):
        three.store.locate([A])
    with pytest.raises(StoreError):
        three.host.store.contains([A])
    assert three.store.read_from(HOST, A, [memoryview(bytearray(SIZE))]) is False
    assert three.store.note(A, SIZE, ALONE) is False
    assert three.store.flush(LONG) is False, "it was not written, and nobody will"
    three.store.quiet(True)
    three.store.close()


def test_close_waits_for_the_frame_that_is_under_way(three: Three) -> None:
    three.disk.go_on.clear()
    write(three.store, A, wanted=True)
    assert three.disk.held.wait(LONG)
    closing = threading.Thread(target=three.store.close)
    closing.start()
    wait_for(lambda: three.store._closed, "it is being closed")
    three.disk.go_on.set()
    closing.join(LONG)
    assert not closing.is_alive()
    assert three.disk.stats().writes == 1


def test_close_does_not_wait_for_a_store_that_hangs(three: Three) -> None:
    three.disk.go_on.clear()
    write(three.store, A, wanted=True)
    assert three.disk.held.wait(LONG)
    three.store.close()
    assert three.store._writer._thread.is_alive()
    three.disk.go_on.set()
    three.store._writer._thread.join(LONG)
    assert not three.store._writer._thread.is_alive()


def test_a_program_that_forgets_to_close_ends_all_the_same() -> None:
    program = (
        "from cache.memory_store import MemoryStore\n"
        "from cache.tiered_store import TieredStore\n"
        "from tests.tiered_fixtures import in_memory\n"
        "from policies.types import Tier\n"
        "store = TieredStore([in_memory(), in_memory(Tier.DISK)])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[1], timeout=100, check=False)
    assert ended.returncode == 0


@pytest.mark.parametrize("tiers", [[], [HOST, HOST], [HOST, DISK, HOST]])
def test_stores_of_which_none_is_a_tier_of_its_own(tiers: list[Tier]) -> None:
    stores = [in_memory(tier, 100_000) for tier in tiers]
    with pytest.raises(ValueError, match="at least one store"):
        TieredStore(stores)
    for store in stores:
        store.close()


def test_a_frame_before_itself_is_a_mistake(three: Three) -> None:
    with pytest.raises(ValueError, match="before itself"):
        write(three.store, A, parent=A)


# --- many at once ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lends", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_is_read_was_written(tmp_path: Path, seed: int, lends: bool) -> None:
    inner = MemoryStore(600_000, page_bytes=4_096)
    host = Lending(inner) if lends else Watched(inner)
    disk = DiskStore(tmp_path / "kv", capacity=1_000_000)
    moved = Movements()
    store = TieredStore([host, disk], rules=WriteRules(uses=1, most_pending=30), moved=moved)
    keys = [chunk_key(n) for n in range(60)]
    parents = [None if n % 6 == 0 else keys[n - 1] for n in range(60)]

    def work(number: int) -> None:
        drawn = random.Random(100 * seed + number)
        for _ in range(400):
            n = drawn.randrange(60)
            key, info = keys[n], FrameInfo(parent=parents[n], n_tokens=16)
            target = bytearray(SIZE)
            what = drawn.random()
            if what < 0.4:
                store.write(key, [frame_of(key, SIZE)], info)
            elif what < 0.8:
                for name, tier in zip(keys[n : n + 6], store.locate(keys[n : n + 6]), strict=False):
                    if store.read_from(tier, name, [memoryview(target)]):
                        assert is_whole(name, bytes(target))
                        again = FrameInfo(parent=parents[keys.index(name)])
                        if not store.note(name, SIZE, again):
                            store.write(name, [target], again)
            elif what < 0.9:
                store.remove(key)
            elif what < 0.95:
                store.lost(drawn.choice([HOST, DISK]), key)
            else:
                store.quiet(drawn.random() < 0.5)

    in_threads(work)
    assert store.flush(LONG) is True
    assert store.counts["written behind"] > 0
    assert not {"failed: host", "failed: disk", "broken behind"} & set(store.counts)
    assert store._writes == {}
    assert store._writer._under_way is None
    for key in keys:
        store.remove(key)
    assert (host.stats().entries, inner.stats().bytes, disk.stats().entries) == (0, 0, 0), "no frame is still lent"
    assert moved.known() == set()
    store.close()
    assert not store._writer._thread.is_alive()


def test_a_removed_frame_stays_away_whatever_is_under_way(new_three: Callable[..., Three]) -> None:
    three = new_three(ALWAYS)

    def work(number: int) -> None:
        mine = [chunk_key((number, n)) for n in range(50)]
        for key in mine:
            write(three.store, key)
            assert three.store.remove(key) is True
            assert three.where(key) == []
        assert [key for key in mine if three.where(key)] == []

    in_threads(work)
    assert three.store.flush(LONG) is True
    assert [one.stats().entries for one in three.all] == [0, 0, 0]


# --- a real Redis ----------------------------------------------------------------------------------------------


@needs_redis
def test_a_redis_that_is_killed_and_started_again() -> None:
    with redis_server() as server:
        clock, moved = Clock(), Movements()
        redis = RedisStore(RedisSettings(url=server.url, timeout=5.0, max_rest=0.05))
        stores: list[BlockStore] = [MemoryStore(8 << 20, prefault=False), redis]
        store = TieredStore(stores, clock=clock, moved=moved)
        keys = [chunk_key(n) for n in range(30)]
        for key in keys[:10]:
            assert write(store, key, wanted=True) is True
        assert store.flush(LONG) is True
        assert redis.contains(keys[:10]) == 10
        server.kill()
        for key in keys[10:20]:
            assert write(store, key, wanted=True) is True
            assert read(store, key, SIZE) == frame_of(key, SIZE)
        wait_for(lambda: store.counts["rests: redis"], "it is away")
        assert store.flush(0.5) is False
        assert store.locate(keys) == [HOST] * 20
        server.start()

        def flushed() -> bool:
            clock.now += 100.0
            return store.flush(1.0)

        wait_for(flushed, "it is back")
        assert redis.contains(keys[10:20]) == 10, "nothing was forgotten"
        assert redis.contains(keys[:10]) == 0, "it has no disk"
        # Somebody else's worker, with nothing in its memory.
        beside = TieredStore([MemoryStore(8 << 20, prefault=False), RedisStore(RedisSettings(url=server.url))])
        assert beside.locate(keys[10:20]) == [REDIS] * 10
        assert read(beside, keys[15], SIZE) == frame_of(keys[15], SIZE)
        beside.close()
        assert store.read_from(REDIS, keys[0], [memoryview(bytearray(SIZE))]) is False
        assert (REDIS, keys[0]) not in moved.known()
        assert {key for tier, key in moved.known() if tier is REDIS} >= set(keys[10:20])
        store.close()


# --- what a tenant's policy says ---------------------------------------------------------------------------------


def test_a_tenants_time_and_quota_go_with_its_frames(tmp_path: Path) -> None:
    wall = Wall()
    host = MemoryStore(8 << 20, page_bytes=4_096, wall=wall)
    disk = DiskStore(tmp_path / "kv", capacity=8 << 20, wall=wall)
    moved: list[tuple[Tier, ChunkKey, bool]] = []
    store = TieredStore([host, disk], rules=ALWAYS, moved=lambda *news: moved.append(news))
    host._news = EvictionNews(lambda key: store.lost(HOST, key))
    disk._news = EvictionNews(lambda key: store.lost(DISK, key))

    def info(parent: ChunkKey | None = None) -> FrameInfo:
        policy = KvPolicy(owner="t", ttl=10.0, disk=30_000)
        return FrameInfo(parent=parent, tenant="t", n_tokens=16, expires=policy.expires(wall()), policy=policy)

    try:
        for key, parent in ((A, None), (B, A)):
            assert store.write(key, [frame_of(key, 20_000)], info(parent)) is True
        assert store.flush(LONG) is True
        assert [host.contains([key]) + disk.contains([key]) for key in (A, B)] == [2, 1], "its quota on disk is for one"
        wall.now += 6
        assert store.note(A, 20_000, info()) is True
        assert store.read_from(DISK, A, [memoryview(bytearray(20_000))], expires=wall() + 2) is True
        wall.now += 4
        assert store.locate([A, B]) == [HOST], "there it was used, here it was not"
        assert disk.contains([A]) == 0
        moved.clear()
        wall.now += 6
        assert store.expire() == 1
        assert moved == [(HOST, A, False)]
        assert store.contains([A]) == 0
        assert store.stats().expired == 3
    finally:
        store.close()
