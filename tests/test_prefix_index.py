"""The prefix index: each rule by hand, then random histories against a naive model of the truth."""

from __future__ import annotations

import itertools
import tracemalloc
from array import array
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash
from cache.prefix_index import PrefixIndex, blocks_by_tier
from policies.types import BlockHash, Tier, TokenIds, WorkerId

if TYPE_CHECKING:
    from collections.abc import Sequence

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
SIZE = 4
"""Tokens in a block."""


def ids(first: int, n_blocks: int = 1) -> TokenIds:
    """`n_blocks` blocks of tokens, those of block `first` and its successors."""
    return TokenIds(array("I", range(SIZE * first, SIZE * (first + n_blocks))).tobytes())


def chain(n_blocks: int, **key: Any) -> list[BlockHash]:
    return extend_chain(root_hash(ChainKey("m", SIZE, **key)), ids(0, n_blocks), SIZE)


def stored(first: int, n_blocks: int = 1, *, base: int = 0, **fields: Any) -> BlockStored:
    """Blocks `first`... of one chain; the engine calls block i `base + i + 1`."""
    return BlockStored(
        **{
            "block_hashes": tuple(EngineHash(base + at + 1) for at in range(first, first + n_blocks)),
            "parent": EngineHash(base + first) if first else None,
            "token_ids": ids(first, n_blocks),
            "block_size": SIZE,
            **fields,
        }
    )


def removed(*blocks: int, base: int = 0, medium: str | None = None, group: int | None = None) -> BlockRemoved:
    return BlockRemoved(tuple(EngineHash(base + at + 1) for at in blocks), medium, group)


def index_of(*workers: WorkerId, max_blocks: int = 1000) -> PrefixIndex:
    index = PrefixIndex(max_blocks=max_blocks)
    for worker in workers:
        index.add_worker(worker, model="m", block_size=SIZE)
    return index


def test_nothing_is_known_at_first() -> None:
    index = index_of(A, B)
    assert index.match(chain(3)) == {}
    assert index.match([]) == {}
    assert index.match_tiers(chain(3)) == {}
    assert (len(index), index.block_count(A), index.block_count(C)) == (0, 0, 0)


def test_another_bound() -> None:
    index = index_of(A, B, max_blocks=1000)
    index.apply(A, stored(0, 600))
    index.apply(B, stored(0, 300))
    for bound in (900, 400, 1, 2000):
        index.resize(bound)
        assert len(index) + index.stale_count <= bound
        index.check_integrity()
    index.apply(B, stored(0, 300))
    assert index.match(chain(300))[B] == 300
    with pytest.raises(ValueError, match="positive"):
        index.resize(0)


def test_match_is_the_longest_run_of_leading_blocks() -> None:
    index = index_of(A, B, C)
    index.apply(A, stored(0, 5))
    index.apply(B, stored(0, 3, base=100))
    index.apply(C, stored(0, 5, base=200))
    index.apply(C, removed(0, base=200))
    assert index.match(chain(10)) == {A: 5, B: 3}
    assert index.match(chain(2)) == {A: 2, B: 2}
    index.apply(A, removed(1))
    assert index.match(chain(10)) == {A: 1, B: 3}
    assert (len(index), index.block_count(A), index.block_count(B), index.block_count(C)) == (11, 4, 3, 4)
    index.check_integrity()


def test_engine_hashes_are_each_workers_own() -> None:
    index = index_of(A, B)
    index.apply(A, stored(0, 2))
    index.apply(B, stored(0, 2))
    index.apply(A, removed(0, 1))
    assert index.match(chain(2)) == {B: 2}


def test_a_block_after_an_unknown_parent_is_not_cached() -> None:
    index = index_of(A)
    index.apply(A, stored(1, 3))
    assert (len(index), index.stats.unknown_parent) == (0, 3)
    index.apply(A, stored(0, 1))
    index.apply(A, stored(1, 3))
    assert index.match(chain(9)) == {A: 4}


def test_storing_again_changes_nothing() -> None:
    index = index_of(A)
    index.apply(A, stored(0, 3))
    index.apply(A, stored(0, 3))
    assert len(index) == 3
    index.apply(A, removed(0, 1, 2, 2))
    assert (len(index), index.match(chain(3))) == (0, {})
    index.check_integrity()


def test_several_engine_hashes_of_one_block() -> None:
    index = index_of(A)
    index.apply(A, stored(0, 2))
    index.apply(A, stored(0, 2, base=100))
    index.apply(A, stored(0, 2, base=200))
    assert len(index) == 6
    index.apply(A, removed(0, 1))
    index.apply(A, removed(0, 1, base=200))
    assert index.match(chain(2)) == {A: 2}
    index.check_integrity()
    index.apply(A, removed(1, base=100))
    assert index.match(chain(2)) == {A: 1}
    index.check_integrity()


def test_an_engine_hash_that_means_another_block_now() -> None:
    index = index_of(A)
    index.apply(A, stored(0, 2))
    index.apply(A, BlockStored((EngineHash(1),), None, ids(50), SIZE))
    assert index.match(chain(2)) == {}
    assert len(index) == 2
    index.check_integrity()


def test_adapter_and_salt_are_part_of_the_chain() -> None:
    index = index_of(A)
    index.apply(A, stored(0, 3, adapter="alice"))
    index.apply(A, stored(0, 2, base=100, salt="s"))
    index.apply(A, stored(2, 1, base=100))
    index.apply(A, stored(0, 1, base=200))
    assert index.match(chain(5, adapter="alice")) == {A: 3}
    assert index.match(chain(5, salt="s")) == {A: 3}
    assert index.match(chain(5)) == {A: 1}
    assert index.match(chain(5, salt="t")) == {}


def test_blocks_from_an_image_on_are_left_out() -> None:
    index = index_of(A)
    index.apply(A, stored(0, 3, n_plain=1))
    index.apply(A, stored(3, 1))
    assert index.match(chain(4)) == {A: 1}
    assert (index.stats.not_plain, index.stats.unknown_parent) == (2, 1)


def test_block_size_is_the_workers() -> None:
    index = PrefixIndex(max_blocks=100)
    index.add_worker(A, model="m")
    index.apply(A, stored(0, 2))
    index.apply(A, BlockStored((EngineHash(50),), None, ids(0, 2), 2 * SIZE))
    assert (len(index), index.stats.foreign_block_size) == (2, 1)
    index.clear(A)
    index.apply(A, BlockStored((EngineHash(50),), None, ids(0, 2), 2 * SIZE))
    assert len(index) == 1


def test_tiers() -> None:
    index = index_of(A, B)
    index.apply(A, stored(0, 4, medium="GPU"))
    index.apply(A, stored(2, 3, medium="CPU"))
    index.apply(A, removed(2, 3, medium="GPU"))
    index.apply(A, stored(5, 1, medium="Disk"))
    index.apply(B, stored(0, 2))
    index.apply(B, stored(3, 1, base=100, medium="CPU"))
    assert index.match(chain(9)) == {A: 2, B: 2}
    assert index.match_tiers(chain(9)) == {
        A: {Tier.DEVICE: 2, Tier.HOST: 3, Tier.DISK: 1},
        B: {Tier.DEVICE: 2},
    }
    index.apply(A, removed(2, medium="CPU"))
    assert index.match_tiers(chain(9))[A] == {Tier.DEVICE: 2}
    index.check_integrity()
    index.clear(A)
    assert (index.match_tiers(chain(9)), len(index)) == ({B: {Tier.DEVICE: 2}}, 2)


def test_an_unknown_medium_is_not_cached() -> None:
    index = index_of(A)
    index.apply(A, stored(0, 2, medium="TAPE"))
    index.apply(A, stored(0, 2))
    index.apply(A, removed(0, medium="TAPE"))
    assert index.match(chain(2)) == {A: 2}
    assert index.stats.unknown_medium == 3


def test_only_full_attention_groups_count() -> None:
    index = index_of(A)
    index.apply(A, stored(0, 3, group=1, group_kind="sliding_window"))
    assert len(index) == 0
    index.apply(A, stored(0, 3, group=0, group_kind="full_attention"))
    index.apply(A, stored(0, 3, group=2, group_kind="mla_attention"))
    assert len(index) == 3
    # The window moves on: that says nothing of the full-attention group.
    index.apply(A, removed(0, 1, group=1))
    assert index.match(chain(3)) == {A: 3}
    # Without all of its full-attention groups a block is of no use.
    index.apply(A, removed(2, group=2))
    assert index.match(chain(3)) == {A: 2}
    index.apply(A, removed(1, group=0))
    assert index.match(chain(3)) == {A: 1}
    # A group that never stored anything, and an event without a group.
    index.apply(A, removed(0, group=7))
    assert (len(index), index.stats.ignored_group) == (0, 6)
    index.apply(A, stored(0, 3, group_kind="mamba"))
    assert len(index) == 0


def test_ranks_hold_blocks_of_their_own() -> None:
    index = index_of(A)
    index.apply(A, stored(0, 3), rank=0)
    index.apply(A, stored(0, 2), rank=1)
    index.apply(A, removed(0, 1, 2), rank=0)
    assert index.match(chain(3)) == {A: 2}
    index.apply(A, stored(0, 3), rank=0)
    index.apply(A, AllBlocksCleared(), rank=1)
    assert index.match(chain(3)) == {A: 3}
    index.clear(A, rank=0)
    assert (index.match(chain(3)), len(index)) == ({}, 0)


def test_all_blocks_cleared_clears_one_worker() -> None:
    index = index_of(A, B)
    index.apply(A, stored(0, 3))
    index.apply(B, stored(0, 2))
    index.predict(A, chain(5), start=3, now=0.0, ttl=5.0)
    index.apply(A, AllBlocksCleared())
    assert (index.match(chain(5)), len(index)) == ({B: 2}, 2)
    index.check_integrity()


def test_workers_come_and_go() -> None:
    index = index_of(A, B)
    index.apply(A, stored(0, 3))
    index.apply(B, stored(0, 3))
    index.remove_worker(A)
    index.remove_worker(A)
    index.apply(A, stored(0, 3))
    assert index.match(chain(3)) == {B: 3}
    # The slot of A is used again, and nothing of A is left in it.
    index.add_worker(C, model="m")
    assert index.match(chain(3)) == {B: 3}
    index.add_worker(B, model="another")
    assert (index.match(chain(3)), len(index)) == ({}, 0)
    index.apply(B, stored(0, 3))
    assert index.match(chain(3)) == {}
    index.check_integrity()


def test_many_workers() -> None:
    workers = [WorkerId(f"w{at}") for at in range(200)]
    index = index_of(*workers, max_blocks=100_000)
    for at, worker in enumerate(workers):
        index.apply(worker, stored(0, at + 1, base=1000 * at))
    assert index.match(chain(200)) == {worker: at + 1 for at, worker in enumerate(workers)}


# --- predictions ---


def test_a_prediction_matches_at_once_and_expires() -> None:
    index = index_of(A)
    index.apply(A, stored(0, 2))
    index.predict(A, chain(5), start=1, now=10.0, ttl=5.0)
    assert index.match(chain(9)) == {A: 5}
    # Block 1 was exact and is no prediction.
    assert (len(index), index.predicted_count) == (5, 3)
    assert index.expire(14.9) == 0
    assert index.expire(15.0) == 3
    assert index.match(chain(9)) == {A: 2}
    assert index.stats.expired == 3


def test_an_event_confirms_a_prediction() -> None:
    index = index_of(A)
    index.predict(A, chain(5), start=0, now=10.0, ttl=5.0)
    index.apply(A, stored(0, 3))
    assert (len(index), index.predicted_count) == (5, 2)
    assert index.expire(100.0) == 2
    assert index.match(chain(5)) == {A: 3}
    index.apply(A, removed(2))
    assert index.match(chain(5)) == {A: 2}
    index.check_integrity()


def test_a_block_on_another_tier_confirms_nothing() -> None:
    index = index_of(A)
    index.predict(A, chain(1), start=0, now=0.0, ttl=5.0)
    index.apply(A, stored(0, 1, medium="CPU"))
    assert index.expire(5.0) == 1
    assert (index.match(chain(1)), index.match_tiers(chain(1))) == ({}, {A: {Tier.HOST: 1}})


def test_predicting_again_prolongs() -> None:
    index = index_of(A)
    index.predict(A, chain(3), start=0, now=0.0, ttl=5.0)
    index.predict(A, chain(4), start=0, now=3.0, ttl=5.0)
    index.predict(A, chain(4), start=0, now=3.0, ttl=1.0)
    assert len(index) == 4
    assert index.expire(7.0) == 0
    assert index.expire(8.0) == 4
    index.check_integrity()


def test_only_predictions_speak_for_a_salt_that_events_do_not_tell() -> None:
    index = index_of(A)
    index.predict(A, chain(3, salt="s"), start=0, now=0.0, ttl=5.0)
    index.apply(A, stored(0, 3))
    assert index.match(chain(3, salt="s")) == {A: 3}
    index.expire(5.0)
    assert index.match(chain(3, salt="s")) == {}


def test_predictions_of_unknown_workers_and_of_nothing() -> None:
    index = index_of(A)
    index.predict(C, chain(3), start=0, now=0.0, ttl=5.0)
    index.predict(A, chain(3), start=3, now=0.0, ttl=5.0)
    assert (len(index), index._predictions.queue) == (0, [])


def test_predictions_take_at_most_a_quarter() -> None:
    index = index_of(A, max_blocks=40)
    index.predict(A, chain(8), start=0, now=0.0, ttl=5.0)
    index.predict(A, chain(8, salt="s"), start=0, now=0.0, ttl=9.0)
    # Those that would expire first have made room.
    assert (index.match(chain(8)), index.match(chain(8, salt="s"))) == ({}, {A: 8})
    index.predict(A, chain(30, salt="t"), start=0, now=0.0, ttl=5.0)
    assert index.match(chain(30, salt="t")) == {A: 10}
    index.check_integrity()


def test_the_queue_of_predictions_is_bounded() -> None:
    index = index_of(A, max_blocks=400)
    for step in range(1000):
        index.predict(A, chain(20), start=0, now=step / 1000, ttl=5.0)
        assert index._predictions.n_queued <= 200
    assert index.match(chain(20)) == {A: 20}
    index.check_integrity()


def test_a_failed_request_takes_back_what_it_predicted() -> None:
    index = index_of(A)
    index.apply(A, stored(0, 2))
    fresh = index.predict(A, chain(5), start=0, now=0.0, ttl=5.0)
    assert fresh == chain(5)[2:]
    index.apply(A, stored(2, 1))
    # Block 2 is exact by now and stays.
    assert index.unpredict(A, fresh) == 2
    assert (index.match(chain(5)), index.predicted_count) == ({A: 3}, 0)
    assert (index.unpredict(A, fresh), index.unpredict(C, fresh), index.expire(9.0)) == (0, 0, 0)
    index.check_integrity()


def test_a_failed_request_leaves_what_it_only_prolonged() -> None:
    index = index_of(A)
    assert index.predict(A, chain(3), start=0, now=0.0, ttl=5.0) == chain(3)
    fresh = index.predict(A, chain(5), start=0, now=1.0, ttl=5.0)
    assert fresh == chain(5)[3:]
    assert index.unpredict(A, fresh) == 2
    assert index.match(chain(5)) == {A: 3}
    # The early return of a prompt known to the end.
    assert index.predict(A, chain(3), start=0, now=1.0, ttl=5.0) == ()
    index.check_integrity()


def test_a_hole_left_by_a_failed_request_is_filled_by_the_next() -> None:
    index = index_of(A)
    index.predict(A, chain(2), start=0, now=0.0, ttl=5.0)
    failing = index.predict(A, chain(4), start=0, now=0.0, ttl=5.0)
    index.predict(A, chain(6), start=0, now=0.0, ttl=5.0)
    index.unpredict(A, failing)
    assert index.match(chain(6)) == {A: 2}
    assert index.predict(A, chain(6), start=0, now=0.0, ttl=5.0) == chain(6)[2:4]
    assert index.match(chain(6)) == {A: 6}
    index.check_integrity()


# --- clearing in steps ---


def test_a_big_worker_is_cleared_at_once_and_swept_in_steps() -> None:
    index = PrefixIndex(max_blocks=100, clear_at_once=5)
    for worker in (A, B):
        index.add_worker(worker, model="m", block_size=SIZE)
        index.apply(worker, stored(0, 20))
    index.predict(A, chain(30), start=20, now=0.0, ttl=5.0)
    index.clear(A)
    assert (index.match(chain(30)), index.match_tiers(chain(30))) == ({B: 20}, {B: {Tier.DEVICE: 20}})
    assert (len(index), index.block_count(A), index.predicted_count, index.stale_count) == (20, 0, 0, 30)
    index.check_integrity()
    # What is stored now is of the new bit, whatever is swept of the old one.
    index.apply(A, stored(0, 3))
    assert index.sweep(12) == 18
    assert index.match(chain(30)) == {A: 3, B: 20}
    index.check_integrity()
    # A slot is not used again before it is clean.
    index.add_worker(C, model="m", block_size=SIZE)
    assert index.match(chain(30)) == {A: 3, B: 20}
    assert (index.sweep(18), index.sweep(18)) == (0, 0)
    assert index._slots.free == [0]
    index.check_integrity()
    assert index.match(chain(30)) == {A: 3, B: 20}
    # The predictions that went with the clearing do not expire a second time.
    assert index.expire(5.0) == 0


def test_what_is_to_be_swept_makes_room_first() -> None:
    index = PrefixIndex(max_blocks=20, clear_at_once=5)
    index.add_worker(A, model="m", block_size=SIZE)
    index.add_worker(B, model="m", block_size=SIZE)
    index.apply(A, stored(0, 10))
    index.apply(B, stored(0, 8))
    index.remove_worker(A)
    index.apply(B, stored(8, 6))
    assert (len(index), index.stale_count, index.stats.evicted) == (14, 6, 0)
    index.apply(B, stored(14, 10))
    assert (len(index), index.stale_count, index.stats.evicted) == (20, 0, 4)
    index.check_integrity()


def test_clearing_over_and_over_takes_no_more_than_the_bound() -> None:
    index = PrefixIndex(max_blocks=50, clear_at_once=5)
    index.add_worker(A, model="m", block_size=SIZE)
    for _ in range(30):
        index.apply(A, stored(0, 10))
        index.clear(A)
        index.check_integrity()
    assert len(index._slots.owners) == 6


# --- bounds ---


def test_a_full_index_evicts_the_oldest_of_the_worker_with_most() -> None:
    index = index_of(A, B, max_blocks=10)
    index.apply(B, stored(0, 3))
    index.apply(A, stored(0, 7))
    index.apply(B, stored(3, 2))
    assert (len(index), index.block_count(A), index.block_count(B)) == (10, 5, 5)
    assert index.match(chain(9)) == {B: 5}
    assert index.stats.evicted == 2
    index.check_integrity()


def test_an_event_larger_than_the_index_keeps_its_leading_blocks() -> None:
    index = index_of(A, max_blocks=10)
    index.apply(A, stored(0, 25))
    assert (len(index), index.match(chain(25))) == (10, {A: 10})


def test_evicted_parents_leave_orphans_that_never_match() -> None:
    index = index_of(A, max_blocks=4)
    index.apply(A, stored(0, 4))
    index.apply(A, stored(4, 1))
    assert (len(index), index.match(chain(5))) == (4, {})
    index.apply(A, removed(1, 2, 3, 4))
    assert len(index) == 0


def test_max_blocks_is_positive() -> None:
    with pytest.raises(ValueError, match="max_blocks"):
        PrefixIndex(max_blocks=0)


def test_memory_stays_flat_over_many_unique_prefixes() -> None:
    """Ten times the bound fills it; ten times more must not take more."""
    bound = 1_000
    index = index_of(A, B, max_blocks=bound)

    def churn(first: int, n_prompts: int) -> None:
        for prompt in range(first, first + n_prompts):
            worker = (A, B)[prompt % 2]
            event = stored(0, 4, base=10 * prompt, token_ids=TokenIds(array("I", range(prompt, prompt + 16)).tobytes()))
            index.apply(worker, event)
            index.predict(worker, [BlockHash(prompt * 2654435761 + at) for at in range(2)], start=0, now=prompt, ttl=50)

    churn(0, 2_500)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    churn(2_500, 10_000)
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(index) <= bound
    index.check_integrity()
    # 200 bytes for each of the bound's entries replace as many that were there untraced.
    assert after - before < 400 * bound
    assert peak - before < 600 * bound


# --- against a naive model ---

WORKERS = [WorkerId(f"w{at}") for at in range(3)]
SALTS = ["", "s"]
TOKENS = [0, 1]
"""Blocks are one token; prompts are paths in a binary tree, so chains share and diverge often."""


class Model:
    """One worker's truth: what each engine block is, as a path of tokens under a salt, and what is
    predicted."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, Tier, int], tuple[str, tuple[int, ...]]] = {}
        self.predicted: dict[tuple[str, tuple[int, ...]], float] = {}
        self.stores: dict[Tier, str] = {}

    def on(self, tier: Tier) -> set[tuple[str, tuple[int, ...]]]:
        held = {block for key, block in self.held.items() if key[1] is tier}
        return held | self.predicted.keys() if tier is Tier.DEVICE else held


paths = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=5).map(tuple)
workers = st.sampled_from(WORKERS)
salts = st.sampled_from(SALTS)
ranks = st.integers(0, 1)
tiers = st.sampled_from([Tier.DEVICE, Tier.DEVICE, Tier.HOST, Tier.REDIS])
MEDIA = {Tier.DEVICE: "GPU", Tier.HOST: "CPU", Tier.REDIS: "REDIS"}


def path_hashes(salt: str, path: tuple[int, ...]) -> list[BlockHash]:
    return extend_chain(root_hash(ChainKey("m", 1, salt=salt)), TokenIds(array("I", path).tobytes()), 1)


class IndexAgainstModel(RuleBasedStateMachine):
    """Every rule is done to both. Without an eviction both must agree; with one the index may only know
    less."""

    max_blocks = 10_000
    clear_at_once = 1024

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(max_blocks=self.max_blocks, clear_at_once=self.clear_at_once)
        self.models: dict[WorkerId, Model] = {}
        self.requests: list[tuple[WorkerId, Sequence[BlockHash], list[tuple[str, tuple[int, ...]]]]] = []
        """What each prediction said it added, and the model's view of that."""
        self.now = 0.0

    @rule(worker=workers)
    def add(self, worker: WorkerId) -> None:
        self.index.add_worker(worker, model="m", block_size=1)
        self.models[worker] = Model()

    @rule(worker=workers, stores=st.dictionaries(st.sampled_from(list(Tier)), st.sampled_from(["", "s", "t"])))
    def share(self, worker: WorkerId, stores: dict[Tier, str]) -> None:
        self.index.set_stores(worker, stores)
        if worker in self.models:
            shared: dict[Tier, str] = {
                tier: store for tier, store in stores.items() if store and tier is not Tier.DEVICE
            }
            self.models[worker].stores = shared

    @rule(worker=workers)
    def remove(self, worker: WorkerId) -> None:
        self.index.remove_worker(worker)
        self.models.pop(worker, None)

    @rule(
        worker=workers,
        salt=salts,
        path=paths,
        cut=st.integers(0, 4),
        alias=st.integers(0, 1),
        rank=ranks,
        tier=tiers,
    )
    def store(
        self,
        *,
        worker: WorkerId,
        salt: str,
        path: tuple[int, ...],
        cut: int,
        alias: int,
        rank: int,
        tier: Tier,
    ) -> None:
        """Store the blocks of `path` after the first `cut`, as an engine that calls a block by path and
        alias."""
        cut = min(cut, len(path) - 1)
        names = [engine_name(salt, path[: at + 1], alias) for at in range(len(path))]
        parent = EngineHash(names[cut - 1]) if cut else None
        event = BlockStored(
            tuple(map(EngineHash, names[cut:])),
            parent,
            TokenIds(array("I", path[cut:]).tobytes()),
            1,
            medium=MEDIA[tier],
            salt=None if cut else salt,
        )
        self.index.apply(worker, event, rank=rank)
        model = self.models.get(worker)
        if model is None or (cut and not any((rank, at, names[cut - 1]) in model.held for at in Tier)):
            return
        for at in range(cut, len(path)):
            model.held[rank, tier, names[at]] = (salt, path[: at + 1])
            if tier is Tier.DEVICE:
                model.predicted.pop((salt, path[: at + 1]), None)

    @rule(worker=workers, salt=salts, path=paths, alias=st.integers(0, 1), rank=ranks, tier=tiers)
    def drop(self, *, worker: WorkerId, salt: str, path: tuple[int, ...], alias: int, rank: int, tier: Tier) -> None:
        name = engine_name(salt, path, alias)
        self.index.apply(worker, BlockRemoved((EngineHash(name),), MEDIA[tier]), rank=rank)
        if worker in self.models:
            self.models[worker].held.pop((rank, tier, name), None)

    @rule(worker=workers, rank=ranks)
    def clear(self, worker: WorkerId, rank: int) -> None:
        self.index.apply(worker, AllBlocksCleared(), rank=rank)
        if worker in self.models:
            model = self.models[worker]
            model.held = {key: value for key, value in model.held.items() if key[0] != rank}
            model.predicted.clear()

    @rule(worker=workers, salt=salts, path=paths, start=st.integers(0, 3), ttl=st.sampled_from([1.0, 5.0]))
    def predict(self, worker: WorkerId, salt: str, path: tuple[int, ...], start: int, ttl: float) -> None:
        hashes = path_hashes(salt, path)
        fresh = self.index.predict(worker, hashes, start=start, now=self.now, ttl=ttl)
        self._expire_models()
        model = self.models.get(worker)
        added = []
        for at in range(start, len(path) if model is not None else 0):
            assert model is not None
            block = (salt, path[: at + 1])
            exact = any(key[1] is Tier.DEVICE and held == block for key, held in model.held.items())
            if not exact:
                if block not in model.predicted:
                    added.append(block)
                model.predicted[block] = max(self.now + ttl, model.predicted.get(block, 0.0))

        if self.max_blocks > 1000:
            assert list(fresh) == [hashes[len(block) - 1] for _, block in added]
        self.requests.append((worker, fresh, added))

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def unpredict(self, data: st.DataObject) -> None:
        """A request of before fails, or one that failed already is told to have failed again."""
        worker, fresh, added = data.draw(st.sampled_from(self.requests))
        n_taken_back = self.index.unpredict(worker, fresh)
        model = self.models.get(worker)
        # An index that is full may have taken fewer in.
        there = [block for block in added if path_hashes(*block)[-1] in fresh]
        gone = [block for block in there if model is not None and model.predicted.pop(block, None) is not None]
        if self.max_blocks > 1000:
            assert n_taken_back == len(gone)

    @rule(n_blocks=st.integers(0, 4))
    def sweep(self, n_blocks: int) -> None:
        before = self.index.stale_count
        assert self.index.sweep(n_blocks) == max(0, before - n_blocks) == self.index.stale_count

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.index.expire(self.now)
        self._expire_models()

    def _expire_models(self) -> None:
        for model in self.models.values():
            model.predicted = {block: at for block, at in model.predicted.items() if at > self.now}

    @rule(salt=salts, path=paths)
    def matches(self, salt: str, path: tuple[int, ...]) -> None:
        hashes = path_hashes(salt, path)
        device, tiers = self.index.match(hashes), self.index.match_tiers(hashes)
        expected = {worker: self._depth(model, salt, path) for worker, model in self.models.items()}
        by_tier = {worker: self._by_tier(model, salt, path) for worker, model in self.models.items()}
        self.agree(device, {worker: depth for worker, depth in expected.items() if depth})
        runs = self.index.match_runs(hashes)
        assert {worker: blocks_by_tier(found) for worker, found in runs.items()} == tiers
        for worker, parts in runs.items():
            assert all(one.tier is not other.tier for one, other in itertools.pairwise(parts))
            held = parts[0].blocks if parts[0].tier is Tier.DEVICE else 0
            assert held == device.get(worker, 0)
        for worker, found in tiers.items():
            assert found.get(Tier.DEVICE, 0) >= device.get(worker, 0)
            assert sum(found.values()) <= sum(by_tier[worker].values())
        if self.max_blocks > 1000:
            assert tiers == {worker: found for worker, found in by_tier.items() if found}

    def agree(self, found: dict[WorkerId, int], expected: dict[WorkerId, int]) -> None:
        assert found == expected

    @staticmethod
    def _depth(model: Model, salt: str, path: tuple[int, ...]) -> int:
        held = model.on(Tier.DEVICE)
        depth = 0
        while depth < len(path) and (salt, path[: depth + 1]) in held:
            depth += 1
        return depth

    def _by_tier(self, model: Model, salt: str, path: tuple[int, ...]) -> dict[Tier, int]:
        """By looking at everybody who shares a store, for each block and tier."""
        found: dict[Tier, int] = {}
        for at in range(len(path)):
            block = (salt, path[: at + 1])
            for tier in Tier:
                store = model.stores.get(tier)
                sharing = [other for other in self.models.values() if store and other.stores.get(tier) == store]
                if any(block in other.on(tier) for other in (model, *sharing)):
                    found[tier] = found.get(tier, 0) + 1
                    break
            else:
                break
        return found

    @invariant()
    def consistent(self) -> None:
        self.index.check_integrity()

    @precondition(lambda self: self.max_blocks > 1000)
    @invariant()
    def sizes(self) -> None:
        for worker, model in self.models.items():
            assert self.index.block_count(worker) == len(model.held) + len(model.predicted)


def engine_name(salt: str, path: tuple[int, ...], alias: int) -> int:
    name = 1
    for token in (SALTS.index(salt), alias, *path):
        name = 2 * name + token
    return name


class FullIndexAgainstModel(IndexAgainstModel):
    """An index so small that it always evicts: what it claims is true, but not all that is true is
    claimed."""

    max_blocks = 6

    def agree(self, found: dict[WorkerId, int], expected: dict[WorkerId, int]) -> None:
        for worker, depth in found.items():
            assert depth <= expected.get(worker, 0)


class SweptIndexAgainstModel(IndexAgainstModel):
    """Every clearing leaves something to sweep."""

    clear_at_once = 0


class FullSweptIndexAgainstModel(FullIndexAgainstModel):
    """The same in an index that always evicts."""

    clear_at_once = 0


limits = settings(
    max_examples=60,
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestIndexAgainstModel = IndexAgainstModel.TestCase
TestIndexAgainstModel.settings = limits
TestFullIndexAgainstModel = FullIndexAgainstModel.TestCase
TestFullIndexAgainstModel.settings = limits
TestSweptIndexAgainstModel = SweptIndexAgainstModel.TestCase
TestSweptIndexAgainstModel.settings = limits
TestFullSweptIndexAgainstModel = FullSweptIndexAgainstModel.TestCase
TestFullSweptIndexAgainstModel.settings = limits


def test_making_room_for_a_prompt_may_take_its_own_predictions() -> None:
    """Those come back with the new ones, and the bound holds all the same."""
    index = PrefixIndex(max_blocks=8)
    workers = [WorkerId(f"w{i}") for i in range(8)]
    for worker in workers:
        index.add_worker(worker, model="m", block_size=16)
    index.predict(workers[0], [BlockHash(1)], start=0, now=0.0, ttl=5.0)
    for number, worker in enumerate(workers[1:], 100):
        ids = TokenIds(number.to_bytes(4, "little") * 16)
        index.apply(worker, BlockStored((EngineHash(number),), None, ids, 16))
    assert len(index) == 8
    index.predict(workers[0], [BlockHash(1), BlockHash(2)], start=0, now=1.0, ttl=9.0)
    index.check_integrity()
    assert len(index) <= 8
    assert index.match([BlockHash(1), BlockHash(2)]) == {workers[0]: 2}
