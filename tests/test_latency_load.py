"""A worker's load as the gateway sees it: what is under way, what comes after, what its cache still takes."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from policies.latency_load import Load, WorkerLoad
from policies.latency_steps import Prompt, Speed
from policies.restore_speed import attended

TPOT = 0.01
SPEED = Speed(0.01, 1e-3, 0.0, 0.004)
"""A step takes 10 ms, a token one more, decoding beside it 4."""


def sent(worker: WorkerLoad, ticket: int, uncached: float, context: float, now: float, *, streams: bool = True) -> None:
    worker.sent(Prompt(ticket, uncached, context, now, streams=streams), SPEED, TPOT)


def load(worker: WorkerLoad, now: float) -> Load:
    return worker.load(now, SPEED, TPOT)


def test_nothing() -> None:
    assert load(WorkerLoad(), 5.0) == Load()


def test_what_comes_while_a_step_is_under_way_is_behind_it() -> None:
    worker = WorkerLoad(budget=1_000)
    sent(worker, 1, 100, 1_000, 10.0)
    sent(worker, 2, 200, 0, 10.0)
    sent(worker, 3, 300, 50, 10.2)
    now = load(worker, 10.3)
    assert (now.behind_tokens, now.behind_pairs, now.waiting) == (300, attended(300, 50), 3)
    assert now.rest_s == pytest.approx(0.01), "10 ms and 300 tokens from 10.0 on"
    assert (now.join_tokens, now.waiting_tokens) == (0, 1_100 + 200 + 350)


def test_a_prompt_joins_the_step_that_an_idle_worker_has_just_begun() -> None:
    worker = WorkerLoad(budget=1_000)
    sent(worker, 1, 300, 0, 10.0)
    assert load(worker, 10.0).join_tokens == 700
    assert load(worker, 10.1).join_tokens == 0


def test_a_long_prompt_passes_its_steps_by_what_they_should_take() -> None:
    worker = WorkerLoad(budget=1_000)
    sent(worker, 1, 2_500, 0, 10.0)
    assert [load(worker, at).behind_tokens for at in (10.5, 11.5, 12.1)] == [1_500, 500, 0]
    sent(worker, 2, 400, 0, 12.1)
    late = load(worker, 15.0)
    assert late.behind_tokens == 400, "the last one is not over before it answers"
    assert late.rest_s == pytest.approx(12.02 + 0.51 - 15.0)


def test_a_first_token_begins_the_next_step_with_all_that_waits() -> None:
    worker = WorkerLoad(budget=1_000)
    sent(worker, 1, 100, 1_000, 10.0)
    sent(worker, 2, 200, 0, 10.05)
    served = worker.first_token(1, 11.0, SPEED, TPOT)
    assert served is not None
    assert (served.seconds, served.terms) == (1.0, (1.0, 100, attended(100, 1_000), 0.0, 0.0))
    now = load(worker, 11.1)
    assert (now.behind_tokens, now.waiting, now.running) == (0, 1, 1)
    assert now.rest_s == pytest.approx(0.01 + 0.2 + 0.004 - 0.1)
    assert now.running_tokens == pytest.approx(1_100 + 10)


def test_those_of_one_step_are_one_stretch() -> None:
    worker = WorkerLoad(budget=1_000)
    for ticket, tokens in ((1, 100), (2, 200)):
        sent(worker, ticket, tokens, 0, 10.0)
    served = worker.first_token(1, 10.3, SPEED, TPOT)
    assert served is not None
    assert served.terms[:2] == (1.0, 300)
    assert worker.first_token(2, 10.304, SPEED, TPOT) is None


def test_who_was_thought_to_be_in_the_last_step_and_is_not_is_in_the_next() -> None:
    worker = WorkerLoad(budget=1_000)
    sent(worker, 1, 100, 0, 10.0)
    sent(worker, 2, 200, 0, 10.0)
    worker.first_token(1, 10.2, SPEED, TPOT)
    sent(worker, 3, 10, 0, 10.25)
    served = worker.first_token(2, 10.5, SPEED, TPOT)
    assert served is not None
    assert served.terms[1] == 210, "its own tokens, and those that were believed to go with them"


def test_a_prompt_that_got_further_than_was_believed() -> None:
    worker = WorkerLoad(budget=1_000)
    sent(worker, 1, 2_500, 0, 10.0)
    served = worker.first_token(1, 10.5, SPEED, TPOT)
    assert served is not None
    assert served.terms[:2] == (3.0, 2_500)
    assert load(worker, 10.6)[5:7] == (0, 1)


def test_one_that_overtakes_tells_nothing() -> None:
    worker = WorkerLoad(budget=1_000)
    sent(worker, 1, 900, 0, 10.0)
    sent(worker, 2, 900, 0, 10.0)
    assert worker.first_token(2, 10.5, SPEED, TPOT) is None
    assert load(worker, 10.6)[5:7] == (1, 1)
    assert worker.first_token(1, 10.7, SPEED, TPOT) is not None


def test_a_unary_request_is_over_when_it_must_be_or_a_later_one_answers() -> None:
    worker = WorkerLoad(budget=1_000)
    sent(worker, 1, 500, 0, 0.0, streams=False)
    assert load(worker, 0.5)[5:7] == (1, 0)
    assert load(worker, 0.6)[5:7] == (0, 1)
    sent(worker, 2, 500, 0, 1.0, streams=False)
    sent(worker, 3, 100, 0, 1.0)
    worker.first_token(3, 1.1, SPEED, TPOT)
    assert load(worker, 1.1)[5:7] == (0, 3)


def test_one_that_goes_away_leaves_its_place() -> None:
    worker = WorkerLoad(budget=1_000)
    sent(worker, 1, 5_000, 0, 0.0)
    sent(worker, 2, 100, 0, 1.0)
    worker.ended(1, 0, 1.5, SPEED, TPOT)
    now = load(worker, 3.5)
    assert (now.behind_tokens, now.waiting) == (0, 1)
    worker.ended(2, 0, 4.0, SPEED, TPOT)
    assert load(worker, 5.0)[:3] == (0.0, 0.0, 0.0)


def decoding(budget: float = 1_000) -> WorkerLoad:
    """One request that got its first token at 0.1."""
    worker = WorkerLoad(budget=budget)
    sent(worker, 1, 10, 0, 0.0)
    worker.first_token(1, 0.1, SPEED, TPOT)
    return worker


def test_the_step_that_decodes_is_waited_for() -> None:
    worker = decoding()
    assert load(worker, 0.101).rest_s == pytest.approx(0.003), "of 4 ms"
    assert load(worker, 5.0).rest_s == pytest.approx(0.002), "half of it, as nobody knows when it began"
    sent(worker, 2, 300, 0, 5.0)
    assert load(worker, 5.001).join_tokens == 1_000 - 1 - 300, "it has not begun"


def test_an_answer_that_ends_shows_the_end_of_a_step() -> None:
    worker = decoding()
    sent(worker, 2, 2_500, 0, 1.0)
    sent(worker, 3, 10, 0, 1.5)
    before = load(worker, 2.0)
    worker.ended(1, 5, 2.0, SPEED, TPOT)
    after = load(worker, 2.0)
    assert [before.rest_s, after.rest_s] == pytest.approx([0.015, 1.013])
    assert (before.behind_tokens, after.behind_tokens) == (1_511, 512)


@pytest.mark.parametrize("end_first", [False, True])
def test_what_a_step_tells_may_come_in_any_order(*, end_first: bool) -> None:
    worker = decoding()
    sent(worker, 2, 300, 0, 1.0)
    if end_first:
        worker.ended(1, 5, 2.0, SPEED, TPOT)
    served = worker.first_token(2, 2.0, SPEED, TPOT)
    worker.ended(1, 5, 2.0, SPEED, TPOT)
    assert served is not None
    assert (served.seconds, served.terms[1]) == (1.0, 300)
    assert load(worker, 2.0).waiting == 0


def test_rates_of_late() -> None:
    worker = WorkerLoad(budget=1_000)
    for i in range(400):
        sent(worker, i, 500, 0, float(i))
        worker.first_token(i, i + 0.25, SPEED, TPOT)
        worker.ended(i, 100, i + 0.5, SPEED, TPOT)
    now = load(worker, 400.0)
    assert now.prefill_rate == pytest.approx(500, rel=0.03)
    assert now.step_rate == pytest.approx(1, rel=0.03)
    assert now.release_rate == pytest.approx(600, rel=0.03)
    assert load(worker, 1e6).release_rate == pytest.approx(0.0)


def test_what_the_cache_holds_is_what_it_says_and_what_came_since() -> None:
    worker = WorkerLoad(budget=1_000)
    worker.room = 10_000.0
    for ticket in (1, 2):
        sent(worker, ticket, 500, 3_000, float(ticket))
        worker.first_token(ticket, ticket + 0.5, SPEED, TPOT)
    assert load(worker, 3.0).used_tokens == 7_000
    worker.told_used(4_000.0, 2, 3.0, SPEED, TPOT)
    assert load(worker, 3.0).used_tokens == 4_000, "they share most of it"
    sent(worker, 3, 700, 5_000, 4.0)
    sent(worker, 4, 700, 7_000, 4.0)
    assert load(worker, 4.0).needed_tokens == 1_400
    assert load(worker, 4.0).reused_tokens == 5_000, "more than is free must be in use already"
    worker.told_used(9_700.0, 3, 4.5, SPEED, TPOT)
    assert load(worker, 4.5).needed_tokens == 1_400 - 998, "of what is computed it spoke"
    worker.told_used(4_000.0, 2, 5.0, SPEED, TPOT)
    assert load(worker, 5.0)[12:14] == (4_000, 1_400), "it was put back"
    assert load(worker, 5.0).reused_tokens == 5_000
    for ticket in (1, 2, 3, 4):
        worker.ended(ticket, 0, 6.0, SPEED, TPOT)
    assert load(worker, 6.0)[12:14] == (0.0, 0.0)


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order, the sums are those of who is there."""

    def __init__(self) -> None:
        super().__init__()
        self.worker = WorkerLoad()
        self.worker.room = 50_000.0
        self.now = 0.0
        self.waiting: dict[int, tuple[int, int]] = {}
        self.unary: set[int] = set()
        self.ticket = 0

    @rule(uncached=st.integers(1, 20_000), context=st.integers(0, 10_000), streams=st.booleans())
    def send(self, uncached: int, context: int, streams: bool) -> None:
        self.ticket += 1
        sent(self.worker, self.ticket, uncached, context, self.now, streams=streams)
        self.waiting[self.ticket] = (uncached, context)
        if not streams:
            self.unary.add(self.ticket)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.waiting)))
        if ticket not in self.unary:
            served = self.worker.first_token(ticket, self.now, SPEED, TPOT)
            assert served is None or (served.seconds >= 0.0 and min(served.terms) >= 0.0)
            del self.waiting[ticket]

    @rule(ticket=st.integers(0, 40))
    def end(self, ticket: int) -> None:
        self.worker.ended(ticket, 10, self.now, SPEED, TPOT)
        self.waiting.pop(ticket, None)

    @rule(tokens=st.floats(0, 60_000), at_work=st.none() | st.integers(0, 50))
    def told(self, tokens: float, at_work: int | None) -> None:
        self.worker.told_used(tokens, at_work, self.now, SPEED, TPOT)

    @rule(seconds=st.sampled_from([0.0, 1e-4, 0.01, 0.3, 2.0, 50.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def sums_agree(self) -> None:
        now = load(self.worker, self.now)
        streaming = [each for ticket, each in self.waiting.items() if ticket not in self.unary]
        assert len(streaming) <= now.waiting <= len(self.waiting)
        tokens = sum(uncached for uncached, _ in self.waiting.values())
        assert -1e-3 <= now.behind_tokens <= tokens + 1e-3
        if not self.unary:
            assert now.waiting_tokens == pytest.approx(sum(map(sum, self.waiting.values())))
        assert all(value >= -1e-3 for value in now[1:])
        if not now.waiting:
            assert (now.behind_tokens, now.needed_tokens, now.reused_tokens) == (0.0, 0.0, 0.0)


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyOrder = AnyOrder.TestCase
