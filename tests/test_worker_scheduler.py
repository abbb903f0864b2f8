"""The worker's scheduler: exact plans, exact outputs, each transition of a sequence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from backends.worker.engine.scheduler import RequestRefusedError, Scheduler
from backends.worker.engine.sequence import Sequence, Status
from backends.worker.messages import EngineStats, FinishReason, TokenLogprobs, TokensOut
from cache.kv_events import AllBlocksCleared
from tests.worker_core_fixtures import ShadowPool, ask, engine, planned, run_dry, step

ANY = 7
"""A token that ends nothing."""


def advance(scheduler: Scheduler, token: int = ANY) -> list[tuple[str, int, int, bool]]:
    """One step in which everybody samples `token`; what it computed."""
    plan = scheduler.schedule()
    items = planned(plan)
    assert plan is not None
    scheduler.commit(plan, [(token, None) for item in plan.items if item.samples])
    scheduler.check_integrity()
    return items


def running(scheduler: Scheduler) -> list[str]:
    return [each.id for each in scheduler._running]


def waiting(scheduler: Scheduler) -> list[str]:
    return [each.id for each in scheduler._waiting]


def sequence(scheduler: Scheduler, name: str) -> Sequence:
    return scheduler._sequences[name]


# --- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs and max_waiting must be positive"),
        ({"max_waiting": 0}, "max_num_seqs and max_waiting must be positive"),
        ({"max_model_len": 1}, "max_model_len must leave room"),
        ({"max_num_batched_tokens": 7}, "max_num_batched_tokens must be at least max_num_seqs"),
        ({"max_num_batched_tokens": 47, "enable_chunked_prefill": False}, "must be at least max_model_len"),
    ],
)
def test_limits_under_which_something_could_never_run_are_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        engine(64, 4, **changes)  # type: ignore[arg-type]  # any of the config's fields


@pytest.mark.parametrize(
    ("length", "max_tokens", "param", "reason"),
    [
        (0, 1, "prompt", "the prompt holds no token"),
        (3, 0, "max_tokens", "max_tokens must be at least 1"),
        (48, 1, "prompt", "the prompt has 48 tokens; at most 47 leave room for one output token"),
        (41, 1, "prompt", "41 tokens may have to be kept; the KV pool holds 40"),
        (20, 22, "max_tokens", "41 tokens may have to be kept; the KV pool holds 40"),
        (20, 500, "max_tokens", "47 tokens may have to be kept; the KV pool holds 40"),
    ],
)
def test_what_can_never_fit_is_refused_with_its_reason(length: int, max_tokens: int, param: str, reason: str) -> None:
    scheduler = engine(10)
    with pytest.raises(RequestRefusedError) as caught:
        scheduler.add(ask("a", range(length), max_tokens))
    assert (caught.value.param, caught.value.reason, str(caught.value)) == (param, reason, reason)
    assert not scheduler.has_work
    assert scheduler.schedule() is None


def test_what_just_fits_is_taken() -> None:
    scheduler = engine(10)
    scheduler.add(ask("a", range(40), 1))
    scheduler.add(ask("b", range(20), 21))
    outputs = run_dry(scheduler)
    assert [out.id for out in outputs] == ["a", *["b"] * 21]


def test_a_full_queue_and_an_id_in_use_are_the_engine_s_fault() -> None:
    scheduler = engine(max_waiting=2)
    scheduler.add(ask("a", range(4)))
    with pytest.raises(RequestRefusedError, match="a request with this id is in progress") as caught:
        scheduler.add(ask("a", range(9)))
    assert caught.value.param is None
    scheduler.add(ask("b", range(4)))
    with pytest.raises(RequestRefusedError, match="the queue is full: 2 requests wait") as caught:
        scheduler.add(ask("c", range(4)))
    assert caught.value.param is None
    assert waiting(scheduler) == ["a", "b"]
    step(scheduler)
    scheduler.add(ask("a", range(4)))  # the id is free again


# --- the course of one sequence ----------------------------------------------------------------------------


def test_one_sequence_from_queue_to_end() -> None:
    scheduler = engine(4)
    scheduler.add(ask("a", range(5), 3, logprobs=0))
    one = sequence(scheduler, "a")
    assert (one.status, one.block_table, one.n_computed) == (Status.WAITING, [], 0)

    plan = scheduler.schedule()
    assert planned(plan) == [("a", 0, 5, True)]
    assert plan is not None
    assert (one.status, one.block_table, one.n_computed) == (Status.RUNNING, [0, 1], 0)
    told = TokenLogprobs(-0.5)
    assert scheduler.commit(plan, [(11, told)]) == [TokensOut("a", (11,), None, None, 0, (told,))]
    assert (one.n_computed, one.n_tokens, one.output_ids) == (5, 6, [11])

    assert advance(scheduler, 12) == [("a", 5, 1, True)]
    plan = scheduler.schedule()
    assert planned(plan) == [("a", 6, 1, True)]
    assert plan is not None
    assert scheduler.commit(plan, [(13, None)]) == [TokensOut("a", (13,), FinishReason.LENGTH)]
    assert (one.status, one.block_table, one.output_ids) == (Status.FINISHED, [], [11, 12, 13])
    assert not scheduler.has_work
    assert scheduler.schedule() is None
    assert scheduler.stats() == EngineStats(
        running=0, waiting=0, free_blocks=4, cached_blocks=1, steps=3, prompt_tokens=5, generation_tokens=3
    )


@pytest.mark.parametrize(
    ("params", "tokens", "reason"),
    [
        ({}, [ANY, 2], FinishReason.STOP),
        ({}, [3], FinishReason.STOP),
        ({"ignore_eos": True}, [2, 3, 2, 3], FinishReason.LENGTH),
        ({"stop_token_ids": (5, 6)}, [ANY, 6], FinishReason.STOP),
        ({"stop_token_ids": (5, 2), "ignore_eos": True}, [3, 2], FinishReason.STOP),
        ({"min_tokens": 3}, [2, 2, 2], FinishReason.STOP),
        ({"min_tokens": 3, "stop_token_ids": (5,)}, [5, 5, 5], FinishReason.STOP),
        ({"min_tokens": 4, "max_tokens": 4}, [ANY, ANY, ANY, 2], FinishReason.STOP),
        ({"max_tokens": 1}, [ANY], FinishReason.LENGTH),
        ({"max_tokens": 1}, [2], FinishReason.STOP),
        ({"max_tokens": 9}, [ANY] * 6, FinishReason.LENGTH),  # max_model_len
    ],
)
def test_how_a_sequence_ends(params: dict[str, object], tokens: list[int], reason: FinishReason) -> None:
    scheduler = engine(eos_token_ids=frozenset({2, 3}), max_model_len=10)
    scheduler.add(ask("a", range(4), **{"max_tokens": 4, **params}))  # type: ignore[arg-type]  # its fields
    outputs: list[TokensOut] = []
    for token in tokens:
        plan = scheduler.schedule()
        assert plan is not None
        outputs += scheduler.commit(plan, [(token, None)])
    assert [out.finish_reason for out in outputs] == [*[None] * (len(tokens) - 1), reason]
    assert [out.stop_token for out in outputs[:-1]] == [None] * (len(tokens) - 1)
    assert outputs[-1].stop_token == (tokens[-1] if reason is FinishReason.STOP else None)
    assert not scheduler.has_work


# --- what a step computes ----------------------------------------------------------------------------------


def test_a_long_prompt_is_computed_in_chunks_beside_a_decoding_sequence() -> None:
    scheduler = engine(max_num_batched_tokens=8)
    scheduler.add(ask("a", range(100, 103), 4))
    assert advance(scheduler) == [("a", 0, 3, True)]
    scheduler.add(ask("b", range(20), 2))
    assert advance(scheduler) == [("a", 3, 1, True), ("b", 0, 7, False)]
    assert advance(scheduler) == [("a", 4, 1, True), ("b", 7, 7, False)]
    assert advance(scheduler) == [("a", 5, 1, True), ("b", 14, 6, True)]
    assert advance(scheduler) == [("b", 20, 1, True)]


def test_a_prompt_of_high_priority_does_not_stall_who_decodes() -> None:
    scheduler = engine(max_num_batched_tokens=8)
    scheduler.add(ask("low", range(100, 103), 4, priority=9))
    advance(scheduler)
    scheduler.add(ask("high", range(20), 2, priority=-9))
    assert advance(scheduler) == [("low", 3, 1, True), ("high", 0, 7, False)]
    assert advance(scheduler) == [("low", 4, 1, True), ("high", 7, 7, False)]


def test_without_chunks_a_prompt_waits_for_a_step_that_holds_it() -> None:
    scheduler = engine(max_num_batched_tokens=48, enable_chunked_prefill=False)
    for at, length in enumerate([30, 20, 5]):
        scheduler.add(ask("abc"[at], range(100 * at, 100 * at + length), 2))
    assert advance(scheduler) == [("a", 0, 30, True)]  # c does not overtake b
    assert advance(scheduler) == [("a", 30, 1, True), ("b", 0, 20, True), ("c", 0, 5, True)]


def test_no_more_than_max_num_seqs_run() -> None:
    scheduler = engine(max_num_seqs=2)
    for name in "abc":
        scheduler.add(ask(name, [ord(name)], 2))
    assert advance(scheduler) == [("a", 0, 1, True), ("b", 0, 1, True)]
    assert advance(scheduler) == [("a", 1, 1, True), ("b", 1, 1, True)]
    assert advance(scheduler) == [("c", 0, 1, True)]


def test_choices_of_one_prompt_share_its_prefill_in_one_step() -> None:
    scheduler = engine()
    for name in "abc":
        scheduler.add(ask(name, range(14), 2))
    assert advance(scheduler) == [("a", 0, 14, True), ("b", 12, 2, True), ("c", 12, 2, True)]
    tables = [sequence(scheduler, name).block_table for name in "abc"]
    assert tables == [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 5]]
    assert [out.cached_tokens for out in run_dry(scheduler)] == [0, 12, 12]
    stats = scheduler.stats()
    assert (stats.prompt_tokens, stats.cached_tokens) == (42, 24)


def test_choices_of_a_prompt_in_chunks_share_it_when_it_is_done() -> None:
    scheduler = engine(max_num_batched_tokens=10)
    for name in "ab":
        scheduler.add(ask(name, range(22), 2))
    assert advance(scheduler) == [("a", 0, 10, False)]
    assert advance(scheduler) == [("a", 10, 10, False)]
    assert advance(scheduler) == [("a", 20, 2, True), ("b", 20, 2, True)]


def test_without_prefix_caching_nothing_is_found_or_told() -> None:
    scheduler = engine(enable_prefix_caching=False)
    for name in "ab":
        scheduler.add(ask(name, range(14)))
    assert advance(scheduler) == [("a", 0, 14, True), ("b", 0, 14, True)]
    assert scheduler.take_events() == ()
    assert scheduler.stats().cached_blocks == 0


# --- who goes first ----------------------------------------------------------------------------------------


def test_the_queue_is_ordered_by_priority_then_arrival() -> None:
    scheduler = engine(max_num_seqs=1)
    for name, priority in [("a", 1), ("b", 0), ("c", 1), ("d", -1), ("e", 0)]:
        scheduler.add(ask(name, [ord(name)], priority=priority))
    assert waiting(scheduler) == ["d", "b", "e", "a", "c"]
    assert [out.id for out in run_dry(scheduler)] == ["d", "b", "e", "a", "c"]


def test_a_higher_priority_preempts_nobody() -> None:
    scheduler = engine(4, max_num_seqs=4)
    scheduler.add(ask("low", range(12), 4, priority=5))
    advance(scheduler)
    scheduler.add(ask("high", range(50, 58), 1, priority=-5))
    for _ in range(3):
        assert [item[0] for item in advance(scheduler)] == ["low"]
    assert advance(scheduler) == [("high", 0, 8, True)]
    assert scheduler.stats().preemptions == 0


def test_nobody_overtakes_the_head_of_the_queue() -> None:
    scheduler = engine(6)
    scheduler.add(ask("a", range(9), 4))
    advance(scheduler)
    scheduler.add(ask("large", range(50, 66), 1))
    scheduler.add(ask("small", [80], 1))
    for _ in range(3):
        assert [item[0] for item in advance(scheduler)] == ["a"]
    assert [item[0] for item in advance(scheduler)] == ["large", "small"]


def test_an_admission_leaves_room_for_those_that_run_to_grow() -> None:
    scheduler = engine(7)
    scheduler.add(ask("a", range(8), 20))
    advance(scheduler)
    # "a" takes its third of seven blocks and will want a fourth; "b" would take three and want a fourth.
    scheduler.add(ask("b", range(50, 62), 10))
    scheduler.add(ask("c", range(80, 84), 1))
    assert advance(scheduler) == [("a", 8, 1, True)]
    assert waiting(scheduler) == ["b", "c"]
    scheduler.cancel("b")
    # "c" takes one and never another.
    assert advance(scheduler) == [("a", 9, 1, True), ("c", 0, 4, True)]


# --- preemption --------------------------------------------------------------------------------------------


def test_the_last_admitted_is_preempted_and_found_again() -> None:
    scheduler = engine(6)
    shadow = ShadowPool(6, 4)
    scheduler.add(ask("a", range(4), 16))
    scheduler.add(ask("b", range(50, 54), 16))
    scheduler.add(ask("c", range(80, 84), 16))
    step(scheduler, shadow)
    assert running(scheduler) == ["a", "b", "c"]
    for _ in range(4):
        step(scheduler, shadow)
    # Each has two blocks, and these are full.
    last = sequence(scheduler, "c")
    assert [sequence(scheduler, name).block_table for name in "abc"] == [[0, 3], [1, 4], [2, 5]]
    plan = scheduler.schedule()
    assert planned(plan) == [("a", 8, 1, True), ("b", 8, 1, True)]
    assert plan is not None
    assert (last.status, last.n_computed, last.block_table, last.n_output) == (Status.WAITING, 0, [], 5)
    assert [sequence(scheduler, name).block_table for name in "ab"] == [[0, 3, 5], [1, 4, 2]]
    assert waiting(scheduler) == ["c"]
    assert scheduler.stats().preemptions == 1
    scheduler.abort(plan)
    assert waiting(scheduler) == ["a", "b", "c"]


def test_a_preempted_sequence_is_first_again_and_goes_on_where_it_was() -> None:
    scheduler = engine(6, max_num_seqs=2)
    shadow = ShadowPool(6, 4)
    scheduler.add(ask("a", range(7), 12))
    scheduler.add(ask("b", range(50, 57), 12))
    scheduler.add(ask("c", [99]))
    outputs: list[TokensOut] = []
    while sequence(scheduler, "b").status is not Status.WAITING or not outputs:
        outputs += step(scheduler, shadow)
    second = sequence(scheduler, "b")
    assert waiting(scheduler) == ["b", "c"]
    assert (second.n_tokens, second.n_output) == (13, 6)
    while second.status is Status.WAITING:
        outputs += step(scheduler, shadow)
    outputs += run_dry(scheduler, shadow)
    texts = {name: [out.token_ids[0] for out in outputs if out.id == name] for name in "abc"}
    alone = {}
    for name, ids in [("a", range(7)), ("b", range(50, 57)), ("c", [99])]:
        alone_scheduler = engine()
        alone_scheduler.add(ask(name, ids, 1 if name == "c" else 12))
        alone[name] = [out.token_ids[0] for out in run_dry(alone_scheduler)]
    assert texts == alone
    assert {out.cached_tokens for out in outputs} == {0}, "what a first admission found stays told"
    stats = scheduler.stats()
    assert (stats.preemptions, stats.prompt_tokens, stats.cached_tokens) == (1, 15, 0)


def test_the_lowest_priority_is_preempted_though_it_is_planned_already() -> None:
    scheduler = engine(11, 2, max_num_seqs=2, max_num_batched_tokens=3)
    scheduler.add(ask("low", range(2), 10, priority=1))
    advance(scheduler)
    scheduler.add(ask("high", range(50, 64), 2))
    for at in range(6):
        assert advance(scheduler) == [("low", 2 + at, 1, True), ("high", 2 * at, 2, False)]
    # "low" decodes and so goes first: it takes the last block, which "high" needs. What it leaves behind would do for
    # "tiny", but a step that preempts admits nobody.
    scheduler.add(ask("tiny", [99]))
    assert advance(scheduler) == [("high", 12, 2, True)]
    assert waiting(scheduler) == ["tiny", "low"]
    assert scheduler.stats().preemptions == 1


def test_an_aborted_step_leaves_nothing_found_and_is_computed_again() -> None:
    scheduler = engine(8, max_num_seqs=2)
    scheduler.add(ask("a", range(9), 3))
    scheduler.add(ask("b", range(9), 3))
    plan = scheduler.schedule()
    assert planned(plan) == [("a", 0, 9, True), ("b", 8, 1, True)]
    assert plan is not None
    scheduler.abort(plan)
    scheduler.check_integrity()
    assert (waiting(scheduler), scheduler.take_events(), scheduler.stats()) == (
        ["a", "b"],
        (),
        EngineStats(waiting=2, free_blocks=8),
    )
    assert advance(scheduler) == [("a", 0, 9, True), ("b", 8, 1, True)]
    assert [out.cached_tokens for out in step(scheduler)] == [0, 8]


# --- cancelling, clearing, misuse --------------------------------------------------------------------------


def test_cancelling_frees_the_blocks_in_every_state() -> None:
    scheduler = engine(16, max_num_seqs=2, max_num_batched_tokens=8)
    scheduler.add(ask("decoding", range(5), 9))
    scheduler.add(ask("chunked", range(50, 70), 9))
    scheduler.add(ask("queued", range(80, 84), 9))
    advance(scheduler)
    sequences = [sequence(scheduler, name) for name in ("decoding", "chunked", "queued")]
    assert [each.n_computed for each in sequences] == [5, 3, 0]
    for each in sequences:
        assert scheduler.cancel(each.id)
        assert not scheduler.cancel(each.id)
        assert (each.status, each.block_table) == (Status.FINISHED, [])
        scheduler.check_integrity()
    assert not scheduler.cancel("unknown")
    assert not scheduler.has_work
    assert scheduler.schedule() is None
    assert scheduler.stats().free_blocks == 16


def test_clearing_lets_running_sequences_go_on() -> None:
    scheduler = engine(8)
    shadow = ShadowPool(8, 4)
    scheduler.add(ask("a", range(9), 6))
    step(scheduler, shadow)
    scheduler.take_events()
    scheduler.clear_cache()
    assert scheduler.take_events() == (AllBlocksCleared(),)
    scheduler.add(ask("b", range(9), 1))
    outputs = run_dry(scheduler, shadow)
    assert [out.cached_tokens for out in outputs if out.id == "b"] == [0]
    assert len([out for out in outputs if out.id == "a"]) == 5
    # Found is what "b" computed, and nothing of "a".
    assert scheduler.stats().cached_blocks == 2


def test_a_step_under_way_allows_nothing_but_its_end_and_new_requests() -> None:
    scheduler = engine()
    scheduler.add(ask("a", range(5), 2))
    plan = scheduler.schedule()
    assert plan is not None
    too_early: list[Callable[[], object]] = [
        scheduler.schedule,
        scheduler.clear_cache,
        lambda: scheduler.cancel("a"),
    ]
    for misuse in too_early:
        with pytest.raises(RuntimeError, match="a step is under way"):
            misuse()
    with pytest.raises(ValueError, match="0 sampled tokens for 1 sequences"):
        scheduler.commit(plan, [])
    scheduler.add(ask("b", range(5)))
    assert len(scheduler.commit(plan, [(ANY, None)])) == 1
    too_late: list[Callable[[], object]] = [
        lambda: scheduler.commit(plan, [(ANY, None)]),
        lambda: scheduler.abort(plan),
    ]
    for misuse in too_late:
        with pytest.raises(RuntimeError, match="not the one under way"):
            misuse()
