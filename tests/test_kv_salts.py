"""Blocks of salted prompts: filed under their salt where that is known, and nowhere where it cannot be."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest

from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    EventBatch,
    decode_batch,
    encode_batch,
)
from cache.prefix_index import PrefixIndex
from policies.types import BlockHash, Tier, TokenIds, WorkerId

A = WorkerId("a")
SIZE = 4


def ids(first: int, n_blocks: int) -> TokenIds:
    return TokenIds(array("I", range(SIZE * first, SIZE * (first + n_blocks))).tobytes())


def chain(n_blocks: int, salt: str = "", adapter: str = "", tokens: TokenIds | None = None) -> list[BlockHash]:
    root = root_hash(ChainKey("m", SIZE, adapter=adapter, salt=salt))
    return extend_chain(root, ids(0, n_blocks) if tokens is None else tokens, SIZE)


def stored(n_blocks: int, *, base: int = 0, first: int = 0, **fields: Any) -> BlockStored:
    """As an engine publishes it that does not tell salts, unless `fields` do."""
    return BlockStored(
        **{
            "block_hashes": tuple(EngineHash(base + at + 1) for at in range(first, first + n_blocks)),
            "parent": EngineHash(base + first) if first else None,
            "token_ids": ids(first, n_blocks),
            "block_size": SIZE,
            **fields,
        }
    )


def index_of(*, salts_told: bool = False, clear_at_once: int = 1024) -> PrefixIndex:
    index = PrefixIndex(max_blocks=1000, clear_at_once=clear_at_once)
    index.add_worker(A, model="m", block_size=SIZE, salts_told=salts_told)
    return index


def predict(index: PrefixIndex, n_blocks: int, salt: str = "", *, now: float = 0.0, adapter: str = "") -> None:
    index.predict(A, chain(n_blocks, salt, adapter), start=0, now=now, ttl=5.0, salt=salt)


def depth(index: PrefixIndex, n_blocks: int, salt: str = "", adapter: str = "") -> int:
    return index.match(chain(n_blocks, salt, adapter)).get(A, 0)


def test_an_event_without_a_salt_is_its_whose_prediction_it_fulfils() -> None:
    index = index_of()
    predict(index, 3, "s")
    index.apply(A, stored(3))
    assert (depth(index, 3, "s"), depth(index, 3), index.predicted_count) == (3, 0, 0)
    index.apply(A, stored(1, first=3))
    index.expire(100.0)
    assert (depth(index, 4, "s"), depth(index, 4)) == (4, 0)
    index.apply(A, BlockRemoved((EngineHash(1),)))
    assert depth(index, 4, "s") == 0
    index.check_integrity()


def test_without_evidence_a_block_speaks_for_nobody_while_a_salted_request_is_under_way() -> None:
    index = index_of()
    index.predict(A, chain(2, "s", tokens=ids(50, 2)), start=0, now=0.0, ttl=5.0, salt="s")
    index.apply(A, stored(3))
    assert (depth(index, 3), depth(index, 3, "s"), index.stats.unknown_salt) == (0, 0, 3)
    # What follows such blocks has no known parent.
    index.apply(A, stored(1, first=3))
    assert index.stats.unknown_parent == 1
    # Once it cannot be under way any more, the engine is believed again.
    index.expire(5.0)
    index.apply(A, stored(3, base=100))
    assert depth(index, 3) == 3
    index.check_integrity()


def test_an_unsalted_request_is_evidence_too() -> None:
    index = index_of()
    index.predict(A, chain(2, "s", tokens=ids(50, 2)), start=0, now=0.0, ttl=5.0, salt="s")
    predict(index, 3)
    index.apply(A, stored(3))
    assert (depth(index, 3), depth(index, 3, "s"), index.predicted_count) == (3, 0, 2)


def test_one_prompt_under_two_salts_leaves_both_to_predictions() -> None:
    index = index_of()
    predict(index, 3, "s")
    predict(index, 3, "t")
    predict(index, 3)
    index.apply(A, stored(3))
    assert (index.predicted_count, index.stats.unknown_salt) == (9, 3)
    index.expire(5.0)
    assert (len(index), depth(index, 3), depth(index, 3, "s")) == (0, 0, 0)


def test_prompts_that_only_begin_alike_are_told_apart_by_their_ends() -> None:
    index = index_of()
    other = TokenIds(ids(0, 1) + ids(60, 2))
    predict(index, 3, "s")
    index.predict(A, chain(3, "t", tokens=other), start=0, now=0.0, ttl=5.0, salt="t")
    index.apply(A, stored(3, token_ids=other, base=100))
    assert index.match(chain(3, "t", tokens=other)) == {A: 3}
    assert (index.predicted_count, depth(index, 3, "s")) == (3, 3)
    index.apply(A, stored(3))
    assert (index.predicted_count, index.stats.unknown_salt) == (0, 0)


@pytest.mark.parametrize("later", [False, True])
def test_a_block_told_again_stays_whose_it_was(*, later: bool) -> None:
    index = index_of()
    predict(index, 2, "s")
    index.apply(A, stored(2))
    predict(index, 2, "t", now=6.0 if later else 1.0)
    # The same engine hash on another tier: it is the block of before, whatever is predicted by now.
    index.apply(A, stored(2, medium="CPU"))
    index.apply(A, BlockRemoved((EngineHash(1), EngineHash(2)), "GPU"))
    tiers = {} if later else {A: {Tier.HOST: 2}}
    assert (index.match_tiers(chain(2, "s")), index.stats.unknown_salt) == (tiers, 2 * later)
    assert index.match_tiers(chain(2, "t")) == {A: {Tier.DEVICE: 2}}


def test_adapters_are_told_apart_beside_salts() -> None:
    index = index_of()
    predict(index, 2, "s", adapter="alice")
    index.apply(A, stored(2, adapter="bob"))
    assert (len(index), index.stats.unknown_salt) == (2, 2)
    index.apply(A, stored(2, adapter="alice", base=10))
    assert (depth(index, 2, "s", "alice"), index.predicted_count) == (2, 0)


@pytest.mark.parametrize("learnt", [False, True])
def test_an_engine_that_tells_salts_is_believed_when_it_tells_none(*, learnt: bool) -> None:
    index = index_of(salts_told=not learnt)
    predict(index, 2, "s")
    if learnt:
        index.apply(A, stored(2, salt="s"))
        assert (depth(index, 2, "s"), index.predicted_count) == (2, 0)
    predict(index, 3, "t")
    index.apply(A, stored(3, base=10))
    assert (depth(index, 3), index.stats.unknown_salt, index.predicted_count) == (3, 0, 3 if learnt else 5)


@pytest.mark.parametrize("clear_at_once", [0, 1024])
def test_what_is_under_way_survives_a_clearing_and_what_was_learnt_does_not(clear_at_once: int) -> None:
    index = index_of(clear_at_once=clear_at_once)
    predict(index, 2, "s")
    index.apply(A, AllBlocksCleared())
    index.apply(A, stored(2))
    assert (len(index), index.stats.unknown_salt) == (0, 2)
    index.apply(A, stored(2, salt="s"))
    index.apply(A, AllBlocksCleared())
    predict(index, 2, "s")
    index.apply(A, stored(2))
    assert (depth(index, 2), depth(index, 2, "s"), index.predicted_count) == (0, 2, 0)


def test_the_salts_of_a_worker_are_bounded() -> None:
    index = index_of()
    for at in range(100):
        predict(index, 1, f"s{at}")
    assert len(index._workers[A].salts) == 64
    # The oldest salts are known no longer: nothing is claimed for them, nor for unsalted prompts.
    index.unpredict(A, [block for at in range(1, 100) for block in chain(1, f"s{at}")])
    index.apply(A, stored(1))
    assert (depth(index, 1), index.predicted_count, index.stats.unknown_salt) == (0, 1, 1)


@pytest.mark.parametrize("form", ["vllm", "sglang"])
def test_a_told_salt_arrives_by_the_wire(form: str) -> None:
    index = index_of()
    event = stored(3, salt="s")
    if form == "vllm":
        events = decode_batch(encode_batch(EventBatch(0.0, (event,)))).events
    else:
        wire = ["BlockStored", [1, 2, 3], None, list(range(12)), SIZE, None, "GPU", None, {"cache_salt": "s"}]
        events = decode_batch(msgspec.msgpack.encode([0.0, [wire]])).events
    for each in events:
        index.apply(A, each)
    assert (depth(index, 3, "s"), depth(index, 3), depth(index, 3, "t")) == (3, 0, 0)
