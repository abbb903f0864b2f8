"""The worker's blocks: exact order of use, exact matches whatever the hash, exact events."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable

import msgspec
import pytest

from backends.worker.engine.block_manager import BlockManager
from backends.worker.engine.sequence import Sequence, Status
from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, KvEvent
from cache.prefix_index import PrefixIndex
from policies.kv_policy import KvPolicy
from policies.types import BlockHash, TokenIds, WorkerId
from tests.worker_core_fixtures import MODEL, ask, token_ids


def sequence(ids: Iterable[int], *, salt: str = "", name: str = "a") -> Sequence:
    return Sequence(ask(name, ids, salt=salt))


def constant(parent: BlockHash, ids: TokenIds, block_size: int) -> list[BlockHash]:
    """The worst hash there is."""
    return [BlockHash(7)] * (len(ids) // (4 * block_size))


def by_content(parent: BlockHash, ids: TokenIds, block_size: int) -> list[BlockHash]:
    """Forgets what came before: equal tokens have equal hashes wherever they stand."""
    root = BlockHash(0)
    step = 4 * block_size
    return [
        extend_chain(root, TokenIds(ids[at : at + step]), block_size)[0] for at in range(0, len(ids) - step + 1, step)
    ]


def compute(manager: BlockManager, each: Sequence) -> list[int]:
    """What a step that computes the whole sequence does; the blocks it found."""
    matched = manager.match(each)
    assert manager.allocate(each, each.n_tokens, matched)
    manager.register(each, each.n_tokens)
    manager.commit()
    return matched


def cached(manager: BlockManager, ids: Iterable[int], *, salt: str = "") -> list[int]:
    """The table of a sequence that was computed and has ended."""
    each = sequence(ids, salt=salt)
    compute(manager, each)
    table = list(each.block_table)
    manager.free(each)
    manager.check_integrity([])
    return table


def found(manager: BlockManager, ids: Iterable[int], *, salt: str = "") -> list[int]:
    return manager.match(sequence(ids, salt=salt))


def hashes(ids: Iterable[int], *, salt: str = "", block_size: int = 4) -> tuple[EngineHash, ...]:
    root = root_hash(ChainKey(MODEL, block_size, salt=salt))
    return tuple(map(EngineHash, extend_chain(root, token_ids(ids), block_size)))


def findable(manager: BlockManager) -> set[EngineHash]:
    return set(map(EngineHash, manager.cached_hashes))


def stored(ids: Iterable[int], parent: EngineHash | None = None, *, of: int = 0, salt: str | None = None) -> KvEvent:
    """Blocks `of:` of the prompt `ids`."""
    ids = list(ids)
    return BlockStored(hashes(ids, salt=salt or "")[of:], parent, token_ids(ids[4 * of :]), 4, medium="GPU", salt=salt)


# --- sequences ---------------------------------------------------------------------------------------------


def test_a_sequence_keeps_its_tokens_as_they_are_hashed() -> None:
    each = sequence([1, 2, 3, 70_000])
    assert (each.n_prompt, each.n_tokens, each.n_output, each.output_ids) == (4, 4, 0, [])
    assert each.status is Status.WAITING
    each.append(5)
    each.append(2**32 - 1)
    assert (each.n_prompt, each.n_tokens, each.n_output) == (4, 6, 2)
    assert each.output_ids == [5, 2**32 - 1]
    assert each.ids(3, 5) == array("I", [70_000, 5])
    assert each.token_bytes(0, 6) == token_ids([1, 2, 3, 70_000, 5, 2**32 - 1])
    with pytest.raises(OverflowError):
        each.append(-1)


def test_ends_are_barred_until_there_are_enough_tokens() -> None:
    each = Sequence(ask("a", [1], 5, min_tokens=2))
    assert each.bars_stops
    each.append(9)
    assert each.bars_stops
    each.append(9)
    assert not each.bars_stops


# --- the order of use --------------------------------------------------------------------------------------


def test_blocks_are_taken_in_order_and_the_unused_ones_first() -> None:
    manager = BlockManager(6, 4, MODEL)
    assert cached(manager, range(8)) == [0, 1]
    assert cached(manager, range(100, 110)) == [2, 3, 4]
    assert (manager.free_blocks, manager.cached_blocks) == (6, 4)
    # Block 4, which is not full, holds nothing to find; then 5, never used; then, of the first to end, the tail.
    each = sequence(range(200, 224))
    assert manager.allocate(each, 24)
    assert each.block_table == [4, 5, 1, 0, 3, 2]
    assert (manager.free_blocks, manager.cached_blocks) == (0, 0)
    manager.check_integrity([each])


def test_blocks_found_again_are_the_last_to_go() -> None:
    manager = BlockManager(5, 4, MODEL)
    assert cached(manager, range(8)) == [0, 1]
    assert cached(manager, range(100, 108)) == [2, 3]
    assert cached(manager, range(9)) == [0, 1, 4]
    each = sequence(range(200, 220))
    assert manager.allocate(each, 20)
    assert each.block_table == [4, 3, 2, 1, 0]


def test_nothing_changes_when_too_few_blocks_are_free() -> None:
    manager = BlockManager(4, 4, MODEL)
    cached(manager, range(8))
    each = sequence(range(20))
    matched = manager.match(each)
    assert matched == [0, 1]
    # Four are free, but two of them are the matched ones.
    assert not manager.allocate(each, 20, matched)
    assert each.block_table == []
    assert manager.free_blocks == 4
    manager.check_integrity([])
    assert manager.allocate(each, 16, matched)
    assert each.block_table == [0, 1, 2, 3]
    assert manager.allocate(each, 13), "they are held already"
    assert not manager.allocate(each, 17)
    assert each.block_table == [0, 1, 2, 3]


def test_a_pool_needs_a_size() -> None:
    for sizes in [(0, 4), (4, 0)]:
        with pytest.raises(ValueError, match="must be positive"):
            BlockManager(*sizes, MODEL)


# --- what is found -----------------------------------------------------------------------------------------


def test_full_blocks_are_found_and_the_last_token_is_left_to_compute() -> None:
    manager = BlockManager(8, 4, MODEL)
    assert cached(manager, range(10)) == [0, 1, 2]
    for n_tokens, blocks in [(12, [0, 1]), (9, [0, 1]), (8, [0]), (5, [0]), (4, []), (1, [])]:
        assert found(manager, range(n_tokens)) == blocks
    assert found(manager, [0, 1, 2, 3, 4, 5, 6, 99, 8]) == [0]
    assert found(manager, [99, 1, 2, 3, 4, 5, 6, 7, 8]) == []


def test_salts_share_nothing() -> None:
    manager = BlockManager(8, 4, MODEL)
    assert cached(manager, range(8), salt="ours") == [0, 1]
    assert found(manager, range(9)) == []
    assert found(manager, range(9), salt="theirs") == []
    assert found(manager, range(9), salt="ours") == [0, 1]


def test_hashes_are_the_gateway_s() -> None:
    manager = BlockManager(8, 4, MODEL)
    cached(manager, range(13))
    cached(manager, range(13), salt="s")
    assert findable(manager) == {*hashes(range(13)), *hashes(range(13), salt="s")}


def test_generated_tokens_fill_blocks_that_are_found() -> None:
    manager = BlockManager(8, 4, MODEL)
    each = sequence(range(6))
    compute(manager, each)
    for token in (6, 7, 8):
        each.append(token)
        assert manager.allocate(each, each.n_tokens)
        manager.register(each, each.n_tokens)
        manager.commit()
    assert found(manager, range(20)) == each.block_table[:2]
    assert manager.take_events() == (stored(range(4)), stored(range(8), hashes(range(4))[0], of=1))


@pytest.mark.parametrize("hash_blocks", [constant, by_content])
@pytest.mark.parametrize("salt", ["", "s"])
def test_equal_hashes_of_other_tokens_select_nothing(hash_blocks: object, salt: str) -> None:
    manager = BlockManager(8, 4, MODEL, hash_blocks=hash_blocks)  # type: ignore[arg-type]  # one of the two above
    assert cached(manager, range(4), salt=salt) == [0]
    assert found(manager, range(5), salt=salt) == [0]
    assert found(manager, [9, 9, 9, 9, 9], salt=salt) == [], "other tokens"
    assert found(manager, range(5), salt=salt + "x") == [], "another salt"
    assert found(manager, [*range(4), *range(4), 0], salt=salt) == [0], "another predecessor"


def test_of_two_prefixes_with_one_hash_the_first_is_kept() -> None:
    manager = BlockManager(6, 4, MODEL, hash_blocks=constant)
    first, second = sequence(range(5)), sequence(range(10, 23))
    compute(manager, first)
    compute(manager, second)
    assert found(manager, range(5)) == [0]
    assert found(manager, range(10, 23)) == []
    assert manager.cached_blocks == 1
    manager.check_integrity([first, second])
    manager.free(first)
    other = sequence(range(60, 68), name="c")
    assert manager.allocate(other, 8)
    assert other.block_table == [1, 0]
    # The hash is free again, but what follows a block that is not found is not found either.
    for token in range(4):
        second.append(token)
    assert manager.allocate(second, 17) is False
    manager.free(other)
    assert manager.allocate(second, 17)
    manager.register(second, 17)
    assert manager.cached_blocks == 0
    manager.check_integrity([second])
    manager.free(second)
    assert cached(manager, range(10, 15))[:1] == found(manager, range(10, 15))
    events = manager.take_events()
    assert [type(event) for event in events] == [BlockStored, BlockRemoved, BlockStored]


def test_a_block_used_again_is_not_its_former_prefix() -> None:
    manager = BlockManager(2, 4, MODEL, hash_blocks=by_content)
    cached(manager, [*[1] * 4, *[2] * 4])
    assert found(manager, [*[1] * 4, *[2] * 4, 0]) == [0, 1]
    # The same blocks under the same hashes, but the second one now stands first.
    cached(manager, [*[2] * 4, *[1] * 4])
    assert found(manager, [*[1] * 4, *[2] * 4, 0]) == []
    assert len(found(manager, [*[2] * 4, *[1] * 4, 0])) == 2


def test_two_blocks_of_one_prefix_are_one_until_the_last_is_gone() -> None:
    manager = BlockManager(4, 4, MODEL)
    first, second = sequence(range(4)), sequence(range(4), name="b")
    for each in (first, second):
        assert compute(manager, each) == [], "the last token is always computed"
    assert (first.block_table, second.block_table) == ([0], [1])
    assert manager.cached_blocks == 1
    assert manager.take_events() == (stored(range(4)),)
    manager.free(first)
    other = sequence(range(50, 62))
    assert manager.allocate(other, 12)
    assert other.block_table == [2, 3, 0]
    manager.commit()
    assert manager.take_events() == (), "the second block holds it still"
    assert found(manager, range(5)) == [1]
    manager.free(second)
    assert manager.allocate(other, 16)
    manager.commit()
    assert manager.take_events() == (BlockRemoved(hashes(range(4)), medium="GPU"),)
    manager.check_integrity([other])


def test_an_orphan_s_first_holder_may_end_first() -> None:
    """The block that a chain was entered with goes; a copy of it keeps the chain whole."""
    manager = BlockManager(6, 4, MODEL)
    first, second = sequence(range(4)), sequence(range(4), name="b")
    compute(manager, first)
    compute(manager, second)
    for token in range(4, 8):
        second.append(token)
    assert manager.allocate(second, 8)
    manager.register(second, 8)
    manager.free(first)
    taker = sequence(range(50, 70))
    assert manager.allocate(taker, 16)
    assert 0 in taker.block_table
    manager.check_integrity([second, taker])
    assert found(manager, range(9)) == second.block_table


# --- copies into and out of the pool -----------------------------------------------------------------------


def test_what_restored_blocks_are_to_follow_is_not_taken_for_them() -> None:
    manager = BlockManager(8, 4, MODEL)
    first, second = sequence(range(12)), sequence(range(16), name="b")
    for each in (first, second):  # as in one step: none finds what the other computes
        assert manager.allocate(each, each.n_tokens)
        manager.register(each, each.n_tokens)
    manager.commit()
    manager.free(first)
    manager.free(second)
    after = found(manager, range(17))
    assert after == [0, 1, 2, 6], "the last block's own head is a copy of the three before it"
    assert manager.reserve(5, after=after) is None
    manager.check_integrity([])
    blocks = manager.reserve(3, after=after)
    assert blocks is not None
    assert not {*blocks} & {*after}
    taker = sequence(range(50, 54))
    assert manager.allocate(taker, 4), "of the copies the last is taken"
    manager.check_integrity([taker])
    assert found(manager, range(17)) == after
    manager.let_go(blocks)
    manager.let_go(after)
    manager.check_integrity([taker])


@pytest.mark.parametrize("seed", range(20))
def test_no_prefix_outlives_its_parent_whoever_copies(seed: int) -> None:
    """Sequences come and go, others keep what these computed, and fill blocks with what they restored."""
    chance = random.Random(seed)
    manager = BlockManager(16, 4, MODEL)
    running: list[Sequence] = []
    copies: list[tuple[Sequence, list[int], list[int]]] = []
    for number in range(2_000):
        n_tokens = chance.randrange(5, 30)
        n_shared = chance.randrange(n_tokens)
        each = sequence([*range(n_shared), *[number % 4] * (n_tokens - n_shared)])
        matched, what = manager.match(each), chance.randrange(8)
        if what == 1:
            matched = []  # as in a step in which another computes the same
        if what < 2 and manager.allocate(each, n_tokens, matched):
            manager.register(each, n_tokens)
            manager.commit()
            running.append(each)
        elif what in (2, 3) and running:
            manager.free(running.pop(chance.randrange(len(running))))
        elif what == 4:
            manager.hold(matched)
            copies.append((each, matched, []))
        elif what == 5 and (blocks := manager.reserve(n_tokens // 4 - len(matched), after=matched)):
            copies.append((each, matched, blocks))
        elif what > 5 and copies:
            each, after, blocks = copies.pop(chance.randrange(len(copies)))
            manager.adopt(each, len(after), blocks, after=after[-1] if after else None)
            manager.let_go(blocks)
            manager.let_go(after)
        manager.check_integrity(running)


# --- a step under way --------------------------------------------------------------------------------------


def test_what_a_step_computes_is_found_at_once_and_told_when_it_is_done() -> None:
    manager = BlockManager(8, 4, MODEL)
    first, second = sequence(range(9)), sequence(range(9), name="b")
    assert manager.allocate(first, 9, manager.match(first))
    manager.register(first, 9)
    assert manager.match(second) == [0, 1]
    assert manager.allocate(second, 9, [0, 1])
    assert manager.free_blocks == 4
    manager.register(second, 9)
    assert manager.take_events() == ()
    manager.commit()
    assert manager.take_events() == (stored(range(8)),)
    assert manager.take_events() == ()


def test_a_step_that_failed_leaves_nothing_but_what_it_evicted() -> None:
    manager = BlockManager(4, 4, MODEL)
    cached(manager, range(4))
    cached(manager, range(50, 62))
    manager.take_events()
    each = sequence([*range(4), *range(80, 85)])
    assert manager.allocate(each, 9, manager.match(each))
    manager.register(each, 9)
    assert found(manager, [*range(4), *range(80, 85)]) == each.block_table[:2]
    manager.abort()
    manager.check_integrity([each])
    assert found(manager, [*range(4), *range(80, 85)]) == [0]
    gone = (hashes(range(50, 62))[2], hashes(range(50, 62))[1])
    assert manager.take_events() == (BlockRemoved(gone, medium="GPU"),)
    manager.free(each)
    manager.check_integrity([])
    assert findable(manager) == {*hashes(range(4)), hashes(range(50, 62))[0]}


def test_a_failed_step_keeps_what_another_block_holds() -> None:
    manager = BlockManager(4, 4, MODEL)
    first, second = sequence(range(4)), sequence(range(4), name="b")
    compute(manager, first)
    assert manager.allocate(second, 4)
    manager.register(second, 4)
    manager.abort()
    assert found(manager, range(5)) == first.block_table
    assert manager.take_events() == (stored(range(4)),)
    manager.check_integrity([first, second])


# --- events ------------------------------------------------------------------------------------------------


def test_one_event_for_each_run_of_blocks() -> None:
    manager = BlockManager(8, 4, MODEL)
    cached(manager, range(8), salt="s")
    cached(manager, [*range(4), *range(90, 98)], salt="s")
    assert manager.take_events() == (
        stored(range(8), salt="s"),
        BlockStored(
            hashes([*range(4), *range(90, 98)], salt="s")[1:],
            hashes(range(4), salt="s")[0],
            token_ids(range(90, 98)),
            4,
            medium="GPU",
        ),
    )


def test_blocks_that_do_not_follow_each_other_are_told_apart() -> None:
    manager = BlockManager(8, 4, MODEL)
    for each in (sequence(range(8)), sequence(range(50, 58), name="b")):
        assert manager.allocate(each, 8)
        manager.register(each, 8)
    manager.commit()
    assert manager.take_events() == (stored(range(8)), stored(range(50, 58)))


def test_evictions_and_stores_are_told_in_their_order() -> None:
    manager = BlockManager(2, 4, MODEL)
    cached(manager, range(8))
    cached(manager, range(50, 58))
    assert manager.take_events() == (
        stored(range(8)),
        BlockRemoved(hashes(range(8))[::-1], medium="GPU"),
        stored(range(50, 58)),
    )


def test_a_prefix_index_can_follow_the_events() -> None:
    manager = BlockManager(16, 4, MODEL)
    worker = WorkerId("w")
    index = PrefixIndex(max_blocks=1_000)
    index.add_worker(worker, model=MODEL, block_size=4)
    prompts = [range(12), range(40), [*range(8), *range(200, 230)], range(9), range(20), [*range(8), *range(300, 340)]]
    for at, prompt in enumerate(prompts):
        salt = "s" if at % 2 else ""
        cached(manager, prompt, salt=salt)
        for event in manager.take_events():
            index.apply(worker, event)
        assert index.block_count(worker) == manager.cached_blocks
        for known in prompts:
            for each in ("", "s"):
                depth = index.match([BlockHash(value) for value in hashes(known, salt=each)]).get(worker, 0)
                # One token more, so that the last block is not left to compute.
                assert depth == len(found(manager, [*known, 0], salt=each))
    assert index.stats.unknown_parent == 0


# --- clearing ----------------------------------------------------------------------------------------------


def test_what_is_in_use_at_a_clear_is_never_found() -> None:
    manager = BlockManager(8, 4, MODEL)
    cached(manager, range(50, 58))
    running, short = sequence(range(6)), sequence(range(20, 22), name="b")
    compute(manager, running)
    compute(manager, short)
    manager.take_events()
    manager.clear([running, short])
    assert manager.take_events() == (AllBlocksCleared(),)
    assert (manager.free_blocks, manager.cached_blocks) == (5, 0)
    for each in (running, short):
        for token in range(6):
            each.append(token)
        assert manager.allocate(each, each.n_tokens)
        manager.register(each, each.n_tokens)
    manager.commit()
    manager.check_integrity([running, short])
    assert (manager.cached_blocks, manager.take_events()) == (0, ())
    # Preempted, they are computed anew.
    manager.free(short)
    compute(manager, short)
    assert manager.cached_blocks == 2


# --- the integrity check sees what is wrong ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("manager._references[0] += 1", "reference counts"),
        ("manager._cached_free.popitem()", "free"),
        ("manager._empty.append(0)", "free"),
        ("manager._empty.append(manager._cached_free.popitem()[0])", "passes for empty"),
        ("manager._cached_free[manager._empty.pop()] = None", "passes for cached"),
        ("manager._cache._by_hash.popitem()", "disagree"),
        ("next(iter(manager._cache._by_hash.values())).blocks.append(0)", "twice"),
        ("manager._cache._drop(1); manager._empty.append(1); del manager._cached_free[1]", "outlived"),
    ],
)
def test_damage_is_seen(damage: str, says: str) -> None:
    manager = BlockManager(6, 4, MODEL)
    cached(manager, range(50, 54))
    cached(manager, range(8))
    exec(damage, {"manager": manager})
    with pytest.raises(AssertionError, match=says):
        manager.check_integrity([])


def timed(ids: Iterable[int], came: float, ttl: float | None, *, salt: str = "s") -> Sequence:
    request = ask("a", ids, salt=salt)
    return Sequence(request if ttl is None else msgspec.structs.replace(request, kv=KvPolicy(ttl=ttl)), came=came)


def ended(manager: BlockManager, each: Sequence) -> int:
    """Blocks that a sequence found, which was computed and has ended."""
    matched = compute(manager, each)
    manager.free(each)
    manager.check_integrity([])
    return len(matched)


def test_blocks_are_not_used_when_their_time_is_over() -> None:
    manager = BlockManager(8, 4, MODEL)
    prompt = range(13)
    assert ended(manager, timed(prompt, 100.0, 10.0)) == 0
    assert len(manager.match(timed(prompt, 109.9, 10.0))) == 3
    assert manager.match(timed(prompt, 110.0, 10.0)) == manager.match(timed(prompt, 110.0, None)) == []
    assert ended(manager, timed(prompt, 109.0, 10.0)) == 3, "a use moves the end"
    assert len(manager.match(timed(prompt, 118.9, None))) == 3
    assert ended(manager, timed(prompt, 119.0, 10.0)) == 0, "computed anew, so it counts anew"
    assert ended(manager, timed(prompt, 128.0, None)) == 3
    assert manager.match(timed(prompt, 129.0, None)) == [], "who has no time to live moves nothing"
    assert ended(manager, timed(prompt, 130.0, None)) == 0
    assert len(manager.match(timed(prompt, 1e9, None))) == 3, "but makes it anew for as long as it lasts"


def test_of_a_chain_what_was_used_is_found() -> None:
    manager = BlockManager(8, 4, MODEL)
    assert ended(manager, timed(range(17), 0.0, 10.0)) == 0
    assert ended(manager, timed(range(9), 5.0, 10.0)) == 2
    assert len(manager.match(timed(range(17), 12.0, 10.0))) == 2
    assert ended(manager, timed(range(17), 14.0, 10.0)) == 2
    assert len(manager.match(timed(range(17), 23.0, 10.0))) == 4


def test_what_may_not_be_kept_is_found_by_nobody() -> None:
    manager = BlockManager(8, 4, MODEL)
    assert ended(manager, timed(range(9), 1.0, 0.0)) == 0
    assert manager.match(timed(range(9), 1.0, 0.0)) == manager.match(timed(range(9), 1.0, None)) == []
    assert ended(manager, timed(range(9), 1.0, None)) == 0
    assert ended(manager, timed(range(9), 2.0, None)) == 2
