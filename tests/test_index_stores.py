"""The prefix index over several tiers: runs in order, and stores that workers share. `test_prefix_index` has random
histories of the same.
"""

from __future__ import annotations

from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.kv_events import EngineHash
from cache.prefix_index import PrefixIndex
from policies.types import Tier, TierRun, WorkerId
from tests.test_prefix_index import SIZE, A, B, C, chain, ids, index_of, removed, stored

DEVICE, HOST, REDIS = Tier.DEVICE, Tier.HOST, Tier.REDIS


def test_runs_come_in_order_and_the_fastest_tier_counts() -> None:
    index = index_of(A)
    index.apply(A, stored(0, 2))
    index.apply(A, stored(1, 5, medium="CPU"))
    index.apply(A, stored(4, 1))
    index.apply(A, stored(6, 3, medium="REDIS"))
    assert index.match_runs(chain(20)) == {
        A: [TierRun(DEVICE, 2), TierRun(HOST, 2), TierRun(DEVICE, 1), TierRun(HOST, 1), TierRun(REDIS, 3)]
    }
    assert index.match_runs(chain(3)) == {A: [TierRun(DEVICE, 2), TierRun(HOST, 1)]}
    assert index.match_runs([]) == {}


def test_what_one_has_in_a_store_all_have_who_read_it() -> None:
    index = index_of(A, B, C)
    for worker, store in ((A, "s"), (B, "s"), (C, "other")):
        index.set_stores(worker, {REDIS: store})
    index.apply(A, stored(0, 4))
    index.apply(A, stored(0, 4, medium="REDIS"))
    index.apply(B, stored(0, 1))
    assert index.match_runs(chain(9)) == {A: [TierRun(DEVICE, 4)], B: [TierRun(DEVICE, 1), TierRun(REDIS, 3)]}
    index.apply(B, stored(1, 4, medium="REDIS"))
    index.apply(A, removed(1, 2, 3, medium="REDIS"))
    assert index.match_runs(chain(9))[A] == [TierRun(DEVICE, 4), TierRun(REDIS, 1)], "it is there twice, or once"
    assert index.match_runs(chain(9))[B] == [TierRun(DEVICE, 1), TierRun(REDIS, 4)]
    assert index.match(chain(9)) == {A: 4, B: 1}, "a match is of devices"
    index.check_integrity()


def test_a_store_counts_on_its_own_tier_and_for_its_own_model() -> None:
    index = index_of(A, B)
    index.add_worker(C, model="another", block_size=SIZE)
    index.set_stores(A, {REDIS: "s", HOST: ""})
    index.set_stores(B, {Tier.DISK: "s", HOST: ""})
    index.set_stores(C, {REDIS: "s"})
    index.apply(A, stored(0, 1, medium="CPU"))
    index.apply(A, stored(1, 2, medium="REDIS"))
    assert index.match_runs(chain(9)) == {A: [TierRun(HOST, 1), TierRun(REDIS, 2)]}
    index.check_integrity()


def test_who_leaves_a_store_reads_it_no_longer() -> None:
    index = index_of(A, B)
    index.set_stores(A, {REDIS: "s"})
    index.set_stores(B, {REDIS: "s"})
    index.apply(A, stored(0, 2, medium="REDIS"))
    assert set(index.match_runs(chain(2))) == {A, B}
    index.set_stores(B, {})
    assert set(index.match_runs(chain(2))) == {A}
    index.set_stores(B, {REDIS: "s"})
    assert set(index.match_runs(chain(2))) == {A, B}
    index.set_stores(WorkerId("nobody"), {REDIS: "s"})
    index.remove_worker(A)
    assert index.match_runs(chain(2)) == {}
    index.check_integrity()


def test_a_worker_that_is_cleared_still_reads_its_store_and_one_added_anew_does_not() -> None:
    for clear_at_once in (0, 1000):
        index = PrefixIndex(max_blocks=1000, clear_at_once=clear_at_once)
        for worker in (A, B):
            index.add_worker(worker, model="m", block_size=SIZE)
            index.set_stores(worker, {REDIS: "s"})
        index.apply(A, stored(0, 2, medium="REDIS"))
        index.apply(B, stored(0, 1))
        index.clear(B)
        assert index.match_runs(chain(2))[B] == [TierRun(REDIS, 2)]
        index.add_worker(B, model="m", block_size=SIZE)
        assert B not in index.match_runs(chain(2))
        index.check_integrity()


def test_a_bit_that_is_swept_reads_nothing_and_its_next_owner_begins_alone() -> None:
    index = PrefixIndex(max_blocks=1000, clear_at_once=0)
    for worker in (A, B):
        index.add_worker(worker, model="m", block_size=SIZE)
        index.set_stores(worker, {REDIS: "s"})
    index.apply(A, stored(0, 3, medium="REDIS"))
    index.apply(B, stored(0, 1, medium="REDIS"))
    index.remove_worker(A)
    assert index.stale_count == 3
    assert index.match_runs(chain(3)) == {B: [TierRun(REDIS, 1)]}, "what A had went with it, swept or not"
    index.sweep(100)
    index.add_worker(C, model="m", block_size=SIZE)
    assert index.match_runs(chain(3)) == {B: [TierRun(REDIS, 1)]}
    index.set_stores(C, {REDIS: "s"})
    assert index.match_runs(chain(3)) == {B: [TierRun(REDIS, 1)], C: [TierRun(REDIS, 1)]}
    index.check_integrity()


def test_a_chain_that_changes_tier_all_the_time_ends_somewhere() -> None:
    index = index_of(A, B)
    hashes = extend_chain(root_hash(ChainKey("m", SIZE)), ids(0, 200), SIZE)
    index.apply(A, stored(0, 200, medium="CPU"))
    index.apply(B, stored(0, 200, medium="CPU"))
    for at in range(0, 200, 2):
        index.apply(A, stored(at))
    found = index.match_runs(hashes)
    assert [run.blocks for run in found[A]] == [1] * 64
    assert found[B] == [TierRun(HOST, 200)]


def test_an_engine_hash_of_any_tier_can_be_a_parent() -> None:
    index = index_of(A)
    index.apply(A, stored(0, 2, medium="REDIS"))
    index.apply(A, stored(2, 1, medium="CPU", parent=EngineHash(2)))
    index.apply(A, stored(3, 1))
    assert index.match_runs(chain(4)) == {A: [TierRun(REDIS, 2), TierRun(HOST, 1), TierRun(DEVICE, 1)]}
