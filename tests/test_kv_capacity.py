"""Workers without events: what is predicted of them is kept as an engine of that capacity would keep it."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.kv_events import BlockStored, EngineHash
from cache.prefix_index import PrefixIndex
from policies.types import BlockHash, TokenIds, WorkerId

if TYPE_CHECKING:
    from collections.abc import Sequence

A, B = WorkerId("a"), WorkerId("b")


def chain(*tokens: int) -> list[BlockHash]:
    """Blocks of one token each."""
    return extend_chain(root_hash(ChainKey("m", 1)), TokenIds(array("I", tokens).tobytes()), 1)


def index_of(capacity: int | None, *, max_blocks: int = 1000) -> PrefixIndex:
    index = PrefixIndex(max_blocks=max_blocks)
    index.add_worker(A, model="m", block_size=1, capacity=capacity)
    return index


def depth(index: PrefixIndex, *tokens: int) -> int:
    index.check_integrity()
    return index.match(chain(*tokens)).get(A, 0)


def use(index: PrefixIndex, *tokens: int, now: float, start: int = 0) -> Sequence[BlockHash]:
    return index.predict(A, chain(*tokens), start=start, now=now, ttl=5.0)


def test_the_least_recently_used_prompt_goes_from_its_end() -> None:
    index = index_of(6)
    use(index, 1, 2, 3, now=1.0)
    use(index, 4, 5, 6, now=2.0)
    use(index, 7, 8, now=3.0)
    assert (depth(index, 1, 2, 3), depth(index, 4, 5, 6), depth(index, 7, 8), len(index)) == (1, 3, 2, 6)
    use(index, 1, now=4.0)
    use(index, 9, now=5.0)
    assert (depth(index, 1, 2, 3), depth(index, 4, 5, 6), depth(index, 7, 8), depth(index, 9)) == (1, 2, 2, 1)


def test_a_shared_prefix_is_as_recent_as_its_last_use() -> None:
    index = index_of(5)
    use(index, 1, 2, 3, 4, now=1.0)
    use(index, 1, 2, 9, now=2.0)
    assert (depth(index, 1, 2, 3, 4), depth(index, 1, 2, 9)) == (4, 3)
    use(index, 1, 2, 8, now=3.0)
    assert (depth(index, 1, 2, 3, 4), depth(index, 1, 2, 9), depth(index, 1, 2, 8)) == (3, 3, 3)


def test_what_comes_before_the_start_is_used_as_well() -> None:
    index = index_of(4)
    use(index, 1, 2, now=1.0)
    use(index, 5, 6, now=2.0)
    assert use(index, 1, 2, 3, now=3.0, start=2) == chain(1, 2, 3)[2:]
    assert (depth(index, 1, 2, 3), depth(index, 5, 6)) == (3, 1)


def test_a_prompt_larger_than_the_cache_keeps_its_leading_blocks() -> None:
    index = index_of(3)
    assert list(use(index, *range(10), now=1.0)) == chain(0, 1, 2)
    assert depth(index, *range(10)) == 3


def test_time_does_not_expire_them_and_the_quarter_does_not_bound_them() -> None:
    index = index_of(50, max_blocks=60)
    use(index, *range(40), now=1.0)
    assert index.expire(1e9) == 0
    assert (depth(index, *range(40)), index._predictions.n_queued) == (40, 0)
    index.add_worker(B, model="m", block_size=1)
    index.predict(B, chain(*range(40)), start=0, now=2.0, ttl=5.0)
    # The other worker's are still guesses with a deadline: a quarter of the index.
    assert index.match(chain(*range(40))) == {A: 40, B: 15}
    assert index.expire(1e10) == 15
    index.check_integrity()


def test_an_index_that_is_full_makes_room_with_the_least_recently_used() -> None:
    index = index_of(50, max_blocks=10)
    for at in range(4):
        use(index, 10 * at, 10 * at + 1, 10 * at + 2, now=float(at))
    assert [depth(index, 10 * at, 10 * at + 1, 10 * at + 2) for at in range(4)] == [1, 3, 3, 3]
    assert (len(index), index.stats.evicted) == (10, 2)


def test_capacities_are_set_later() -> None:
    index = index_of(None)
    use(index, 1, 2, 3, now=1.0)
    index.set_capacity(B, 5)
    index.set_capacity(A, 5)
    assert (len(index), depth(index, 1, 2, 3)) == (0, 0)
    use(index, 1, 2, 3, now=2.0)
    use(index, 7, 8, now=3.0)
    index.set_capacity(A, 5)
    index.set_capacity(A, 4)
    assert (depth(index, 1, 2, 3), depth(index, 7, 8)) == (2, 2)
    index.set_capacity(A, 6)
    use(index, 9, now=4.0)
    assert (depth(index, 1, 2, 3), depth(index, 7, 8), depth(index, 9)) == (2, 2, 1)
    index.set_capacity(A, None)
    assert len(index) == 0
    use(index, 1, 2, 3, now=5.0)
    assert index.expire(10.0) == 3
    for capacity in (0, -1):
        with pytest.raises(ValueError, match="capacity"):
            index.set_capacity(A, capacity)
        with pytest.raises(ValueError, match="capacity"):
            index.add_worker(B, model="m", capacity=capacity)


def test_clearing_keeps_the_capacity() -> None:
    for clear_at_once in (0, 100):
        index = PrefixIndex(max_blocks=100, clear_at_once=clear_at_once)
        index.add_worker(A, model="m", block_size=1, capacity=2)
        use(index, 1, 2, now=1.0)
        index.clear(A)
        assert len(index) == 0
        use(index, 1, 2, 3, now=2.0)
        assert (depth(index, 1, 2, 3), index.expire(100.0)) == (2, 0)


def test_an_event_confirms_one_all_the_same() -> None:
    index = index_of(3)
    use(index, 1, 2, 3, now=1.0)
    index.apply(A, BlockStored((EngineHash(1),), None, TokenIds(array("I", [1]).tobytes()), 1))
    use(index, 1, 2, 3, 4, now=2.0)
    assert (depth(index, 1, 2, 3, 4), index.predicted_count, len(index)) == (3, 2, 3)


# --- against a naive model ---

paths = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple)


class CapacityAgainstModel(RuleBasedStateMachine):
    """The model keeps each block's last use and, when there are too many, drops the block that was used longest ago,
    of blocks used together the last."""

    def __init__(self) -> None:
        super().__init__()
        self.capacity = 8
        self.index = PrefixIndex(max_blocks=1000)
        self.index.add_worker(A, model="m", block_size=1, capacity=self.capacity)
        self.held: dict[tuple[int, ...], tuple[float, int]] = {}
        """Block, as the path that leads to it -> time of its last use, and how far it was from the start."""
        self.requests: list[Sequence[BlockHash]] = []
        self.now = 0.0

    def drop_excess(self) -> None:
        while len(self.held) > self.capacity:
            del self.held[min(self.held, key=lambda block: self.held[block])]

    def match(self, path: tuple[int, ...]) -> int:
        depth = 0
        while depth < len(path) and path[: depth + 1] in self.held:
            depth += 1
        return depth

    @rule(path=paths, from_match=st.booleans())
    def use(self, path: tuple[int, ...], *, from_match: bool) -> None:
        self.now += 1.0
        start = self.match(path) if from_match else 0
        fresh = self.index.predict(A, chain(*path), start=start, now=self.now, ttl=1.0)
        blocks = [path[: at + 1] for at in range(min(len(path), self.capacity))]
        if start >= len(blocks):
            # All of it is there already: nothing to predict, and so no use.
            assert list(fresh) == []
            return
        assert list(fresh) == [chain(*block)[-1] for block in blocks if block not in self.held]
        for block in blocks:
            self.held[block] = (self.now, -len(block))
        self.drop_excess()
        self.requests.append(fresh)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        fresh = data.draw(st.sampled_from(self.requests))
        gone = [block for block in self.held if chain(*block)[-1] in fresh]
        assert self.index.unpredict(A, fresh) == len(gone)
        for block in gone:
            del self.held[block]

    @rule(capacity=st.integers(1, 10))
    def resize(self, capacity: int) -> None:
        self.index.set_capacity(A, capacity)
        self.capacity = capacity
        self.drop_excess()

    @rule(path=paths)
    def matches(self, path: tuple[int, ...]) -> None:
        assert self.index.match(chain(*path)).get(A, 0) == self.match(path)

    @invariant()
    def agrees(self) -> None:
        self.index.check_integrity()
        assert self.index.block_count(A) == len(self.held) <= self.capacity


TestCapacityAgainstModel = CapacityAgainstModel.TestCase
TestCapacityAgainstModel.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
