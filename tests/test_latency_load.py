"""A worker's load as the gateway sees it: what is under way, what came after, what was done of late."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from policies.latency_load import Load, Served, WorkerLoad
from policies.restore_speed import attended

TPOT = 0.01


def test_nothing() -> None:
    assert WorkerLoad().load(5.0, TPOT) == Load()


def test_what_comes_while_a_step_is_under_way_is_behind_it() -> None:
    worker = WorkerLoad()
    worker.sent(1, 100, 1_000, 10.0)
    worker.sent(2, 200, 0, 10.0)
    worker.sent(3, 300, 50, 10.2)
    load = worker.load(10.5, TPOT)
    assert (load.step_tokens, load.behind_tokens, load.waiting, load.elapsed_s) == (300, 300, 3, 0.5)
    assert load.step_pairs == attended(100, 1_000) + attended(200, 0)
    assert load.behind_pairs == attended(300, 50)
    assert load.waiting_tokens == 1_100 + 200 + 350


def test_a_first_token_begins_the_next_step_with_all_that_waits() -> None:
    worker = WorkerLoad()
    worker.sent(1, 100, 1_000, 10.0)
    worker.sent(2, 200, 0, 10.2)
    assert worker.first_token(1, 11.0, TPOT) is None
    load = worker.load(11.5, TPOT)
    assert (load.step_tokens, load.behind_tokens, load.elapsed_s) == (200, 0, 0.5)
    assert (load.waiting, load.running, load.running_tokens) == (1, 1, 1_100 + 50)


def test_a_stretch_is_told_when_the_next_one_ends() -> None:
    worker = WorkerLoad()
    for ticket, tokens in ((1, 100), (2, 200), (3, 400)):
        worker.sent(ticket, tokens, 0, 10.0)
    assert worker.first_token(1, 11.0, TPOT) is None
    assert worker.first_token(2, 11.0, TPOT) is None, "the same step"
    assert worker.first_token(3, 13.0, TPOT) == Served(1.0, 300, attended(100, 0) + attended(200, 0), 0, 100, 600)


def test_a_unary_request_is_over_when_a_later_one_answers() -> None:
    worker = WorkerLoad()
    worker.sent(1, 500, 0, 0.0, streams=False)
    worker.sent(2, 100, 0, 0.0)
    worker.first_token(2, 1.0, TPOT)
    assert worker.load(1.0, TPOT)[5:7] == (0, 2)


def test_a_head_that_goes_away_lets_the_next_begin() -> None:
    worker = WorkerLoad()
    worker.sent(1, 5_000, 0, 0.0)
    worker.sent(2, 100, 0, 1.0)
    worker.ended(1, 0, 3.0)
    load = worker.load(3.5, TPOT)
    assert (load.step_tokens, load.behind_tokens, load.elapsed_s, load.waiting) == (100, 0, 0.5, 1)


def test_an_answer_that_ends_shows_the_end_of_a_step() -> None:
    """What waits was not in that step, as it has no first token: it is in the next one, together."""
    worker = WorkerLoad(budget=1_000)
    worker.sent(1, 10, 0, 0.0)
    worker.first_token(1, 0.1, TPOT)
    worker.sent(2, 300, 0, 1.0)
    worker.sent(3, 200, 0, 1.01)
    assert worker.load(1.02, TPOT).behind_tokens == 200
    worker.ended(1, 5, 1.02)
    load = worker.load(1.03, TPOT)
    assert (load.step_tokens, load.behind_tokens) == (500, 0)
    assert load.elapsed_s == load.since_step_s == pytest.approx(0.01)


def test_a_prompt_of_several_steps_keeps_its_progress() -> None:
    worker = WorkerLoad(budget=1_000)
    worker.sent(1, 10, 0, 0.0)
    worker.first_token(1, 0.1, TPOT)
    worker.sent(2, 3_000, 0, 1.0)
    worker.ended(1, 5, 1.5)
    load = worker.load(2.0, TPOT)
    assert (load.elapsed_s, load.since_step_s) == (1.0, 0.5)


@pytest.mark.parametrize("end_first", [False, True])
def test_what_a_step_tells_may_come_in_any_order(*, end_first: bool) -> None:
    worker = WorkerLoad()
    worker.sent(1, 10, 0, 0.0)
    worker.first_token(1, 0.1, TPOT)
    worker.sent(2, 300, 0, 1.0)
    if end_first:
        worker.ended(1, 5, 2.0)
    worker.first_token(2, 2.0, TPOT)
    worker.ended(1, 5, 2.0)
    worker.sent(3, 10, 0, 5.0)
    served = worker.first_token(3, 6.0, TPOT)
    assert served is not None
    assert (served.seconds, served.tokens) == (1.0, 300)


def test_rates_of_late() -> None:
    worker = WorkerLoad(budget=1_000)
    for i in range(400):
        worker.sent(i, 500, 0, float(i))
        worker.first_token(i, i + 0.25, TPOT)
        worker.ended(i, 100, i + 0.5)
    load = worker.load(400.0, TPOT)
    assert load.prefill_rate == pytest.approx(500, rel=0.03)
    assert load.step_rate == pytest.approx(1, rel=0.03)
    assert load.release_rate == pytest.approx(600, rel=0.03)
    assert worker.load(1e6, TPOT).release_rate == pytest.approx(0.0)


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order, the sums are those of who is there."""

    def __init__(self) -> None:
        super().__init__()
        self.worker = WorkerLoad()
        self.now = 0.0
        self.waiting: dict[int, tuple[int, int]] = {}
        self.running: set[int] = set()
        self.unary: set[int] = set()
        self.ticket = 0

    @rule(uncached=st.integers(1, 10_000), context=st.integers(0, 10_000), streams=st.booleans())
    def send(self, uncached: int, context: int, streams: bool) -> None:
        self.ticket += 1
        self.worker.sent(self.ticket, uncached, context, self.now, streams=streams)
        self.waiting[self.ticket] = (uncached, context)
        if not streams:
            self.unary.add(self.ticket)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.waiting)))
        if ticket in self.unary:
            return
        self.worker.first_token(ticket, self.now, TPOT)
        for over in [each for each in self.waiting if each == ticket or (each in self.unary and each < ticket)]:
            del self.waiting[over]
            self.running.add(over)

    @rule(ticket=st.integers(0, 40))
    def end(self, ticket: int) -> None:
        self.worker.ended(ticket, 10, self.now)
        self.waiting.pop(ticket, None)
        self.running.discard(ticket)

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def sums_agree(self) -> None:
        load = self.worker.load(self.now, TPOT)
        tokens = sum(uncached for uncached, _ in self.waiting.values())
        assert load.step_tokens + load.behind_tokens == pytest.approx(tokens)
        assert load.step_pairs + load.behind_pairs == pytest.approx(
            sum(attended(*each) for each in self.waiting.values())
        )
        assert load.waiting_tokens == pytest.approx(sum(map(sum, self.waiting.values())))
        assert (load.waiting, load.running) == (len(self.waiting), len(self.running))
        assert all(value >= -1e-6 for value in load)


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyOrder = AnyOrder.TestCase
