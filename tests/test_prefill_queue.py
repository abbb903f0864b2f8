"""What a worker still has to prefill, and how fast it is, from first bytes alone."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from policies.prefill_queue import FleetRate, PrefillQueue


def known(rate: float = 1_000.0) -> PrefillQueue:
    """A queue whose worker is believed to prefill so many tokens a second."""
    return PrefillQueue(hint=rate)


def test_nothing_queued() -> None:
    queue = known()
    assert (len(queue), queue.total, queue.remaining(5.0), queue.seconds(5.0)) == (0, 0.0, 0.0, 0.0)


def test_the_head_is_worked_on_and_only_the_head() -> None:
    queue = known()
    queue.push(1, 1_000, 10.0, streams=True)
    queue.push(2, 500, 10.2, streams=True)
    assert queue.total == 1_500
    assert queue.remaining(10.0) == 1_500
    assert queue.remaining(10.5) == 1_000
    assert queue.remaining(11.0) == 500
    assert queue.remaining(99.0) == 500, "the head is late; those behind it have not begun"
    assert queue.seconds(10.5) == 1.0


def test_an_answer_takes_its_request_off_and_starts_the_next() -> None:
    queue = known()
    queue.push(1, 100, 0.0, streams=True)
    queue.push(2, 300, 0.0, streams=True)
    queue.answered(1, 1.0)
    assert queue.total == 300
    assert queue.remaining(1.1) == pytest.approx(200)


def test_out_of_order_answers_leave_the_head() -> None:
    queue = known()
    queue.push(1, 100, 0.0, streams=True)
    queue.push(2, 300, 0.0, streams=True)
    queue.answered(2, 1.0)
    assert queue.total == 100
    queue.answered(2, 2.0)  # twice, or unknown: nothing happens
    queue.answered(7, 2.0)
    queue.drop(7, 2.0)
    assert queue.total == 100


def test_dropping_the_head_starts_the_next_now() -> None:
    queue = known()
    queue.push(1, 1_000, 0.0, streams=True)
    queue.push(2, 400, 0.0, streams=True)
    queue.drop(1, 0.9)
    assert queue.remaining(0.9) == 400
    queue.push(3, 50, 0.9, streams=True)
    queue.drop(3, 1.0)
    assert queue.remaining(1.1) == pytest.approx(200), "one that waited did not hold the head up"


def test_a_request_that_lacks_nothing_counts_as_one_token() -> None:
    queue = known()
    queue.push(1, 0, 0.0, streams=True)
    assert queue.total == 1.0


def test_an_unknown_rate_takes_nothing_off() -> None:
    queue = PrefillQueue()
    assert queue.rate is None
    queue.push(1, 1_000, 0.0, streams=True)
    assert queue.remaining(100.0) == 1_000
    assert queue.seconds(100.0) == 0.0


# Unary requests: their first byte is their last, so it tells nothing about prefill


def test_unary_requests_are_presumed_done_in_turn() -> None:
    queue = known()
    for ticket in (1, 2, 3):
        queue.push(ticket, 1_000, 0.0, streams=False)
    assert queue.remaining(0.5) == 2_500
    assert queue.remaining(1.5) == 1_500
    assert len(queue) == 2
    assert queue.remaining(2.75) == 250
    assert queue.remaining(3.0) == 0
    assert (len(queue), queue.total) == (0, 0)


def test_a_stream_stops_the_presuming() -> None:
    queue = known()
    queue.push(1, 1_000, 0.0, streams=False)
    queue.push(2, 1_000, 0.0, streams=True)
    queue.push(3, 1_000, 0.0, streams=False)
    assert queue.remaining(10.0) == 1_000, "the stream is late, and the unary behind it has not begun"
    assert len(queue) == 2


def test_a_streams_first_byte_tells_of_unary_ones_before_it() -> None:
    fleet = FleetRate()
    queue = PrefillQueue(fleet)
    queue.push(1, 1_000, 0.0, streams=False)
    queue.push(2, 3_000, 0.0, streams=True)
    queue.push(3, 500, 0.0, streams=False)
    queue.answered(2, 2.0)
    assert queue.total == 500
    assert fleet.rate == 2_000, "4,000 tokens in two seconds"


def test_a_unary_answer_teaches_nothing() -> None:
    fleet = FleetRate()
    queue = PrefillQueue(fleet)
    queue.push(1, 10_000, 0.0, streams=False)
    queue.answered(1, 60.0)
    assert fleet.rate is None
    assert queue.total == 0


# Rates


def test_a_rate_is_learnt_from_streams() -> None:
    fleet = FleetRate()
    queue = PrefillQueue(fleet)
    queue.push(1, 2_000, 0.0, streams=True)
    queue.answered(1, 1.0)
    assert fleet.rate == 2_000
    assert queue.rate == 2_000


def test_small_requests_tell_nothing() -> None:
    fleet = FleetRate()
    queue = PrefillQueue(fleet)
    queue.push(1, 511, 0.0, streams=True)
    queue.answered(1, 9.0)
    assert fleet.rate is None
    queue.push(2, 512, 10.0, streams=True)
    queue.answered(2, 10.5)
    assert fleet.rate == 1_024


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_first_bytes_of_one_step_share_its_time(order: tuple[int, ...]) -> None:
    """Whichever comes first: a large prompt behind small ones was not computed in no time."""
    fleet = FleetRate()
    queue = PrefillQueue(fleet)
    for ticket, tokens in ((1, 100), (2, 300), (3, 1_600)):
        queue.push(ticket, tokens, 0.0, streams=True)
    for place, ticket in enumerate(order):
        queue.answered(ticket, 0.5 + 0.001 * place)
    assert fleet.rate == pytest.approx(4_000, rel=0.03)


def test_small_prompts_that_are_answered_together_tell_what_a_large_one_would() -> None:
    fleet = FleetRate()
    queue = PrefillQueue(fleet)
    for ticket in range(1, 7):
        queue.push(ticket, 100, 0.0, streams=True)
    for ticket in range(1, 6):
        queue.answered(ticket, 0.25)
    assert fleet.rate is None
    queue.answered(6, 0.25)
    assert fleet.rate == pytest.approx(2_400)
    queue.push(7, 500, 5.0, streams=True)
    queue.answered(7, 5.001)
    assert fleet.rate == pytest.approx(2_400), "what was idle before it is of no step"


def test_time_without_work_is_not_counted() -> None:
    fleet = FleetRate()
    queue = PrefillQueue(fleet)
    for start in (0.0, 1_000.0):
        queue.push(int(start) + 1, 1_000, start, streams=True)
        queue.answered(int(start) + 1, start + 1.0)
    assert fleet.rate == pytest.approx(1_000)


def test_a_worker_is_believed_to_be_like_the_fleet_until_it_has_shown_itself() -> None:
    fleet = FleetRate()
    slow, fast, new = PrefillQueue(fleet), PrefillQueue(fleet), PrefillQueue(fleet)
    slow.push(1, 1_000, 0.0, streams=True)
    slow.answered(1, 1.0)
    assert new.rate == 1_000
    fast.push(1, 3_000, 0.0, streams=True)
    fast.answered(1, 1.0)
    assert fleet.rate == pytest.approx((1_000 * 0.98 + 3_000) / (0.98 + 1))
    assert new.rate == fleet.rate
    assert slow.rate is not None
    assert fast.rate is not None
    assert 1_000 < slow.rate < new.rate < fast.rate < 3_000
    for i in range(2, 600):
        slow.push(i, 1_000, i, streams=True)
        slow.answered(i, i + 1.0)
    assert slow.rate == pytest.approx(1_000, rel=0.02)


def test_a_hint_takes_the_place_of_the_fleets_rate() -> None:
    fleet = FleetRate()
    fleet.observe(1_000, 1.0)
    assert PrefillQueue(fleet, 5_000.0).rate == 5_000
    queue = PrefillQueue(fleet, 5_000.0)
    queue.push(1, 5_000, 0.0, streams=True)
    queue.answered(1, 5.0)
    assert queue.rate == 3_000, "five seconds of its own weigh as much as the hint"


def test_an_instant_answer_does_not_divide_by_zero() -> None:
    queue = PrefillQueue()
    queue.push(1, 1_000, 5.0, streams=True)
    queue.answered(1, 5.0)
    assert queue.rate is not None
    assert queue.rate > 0


def test_what_was_accepted_of_late_fades() -> None:
    queue = known()
    queue.push(1, 1_000, 0.0, streams=True)
    assert queue.recent(0.0) == 1_000
    assert queue.recent(60.0) == pytest.approx(1_000 / math.e)
    queue.push(2, 500, 60.0, streams=True)
    assert queue.recent(60.0) == pytest.approx(1_000 / math.e + 500)
    queue.drop(1, 60.0)
    queue.answered(2, 61.0)
    assert queue.recent(6_000.0) == pytest.approx(0, abs=1e-9)


def test_what_restores_is_work_and_io_but_not_in_the_queue() -> None:
    queue = known()
    queue.push(1, 200, 0.0, streams=True, restore_s=2.0)
    assert (len(queue), queue.total, queue.remaining(1.0), queue.restoring(1.5)) == (1, 200, 200, 0.5)
    queue.push(2, 1_000, 1.0, streams=True)
    assert queue.remaining(1.5) == 700, "the engine is at work for the other one"
    queue.push(3, 100, 1.5, streams=True, restore_s=1.5)
    assert queue.restoring(1.5) == 1.5
    queue.answered(1, 1.9)
    assert (queue.total, queue.restoring(2.0)) == (1_100, 1.0)
    queue.drop(3, 2.0)
    assert (queue.total, queue.restoring(2.0)) == (1_000, 0.0)
    assert queue.recent(2.0) > 1_200, "and all of it was given to the worker"


def test_a_restore_teaches_no_speed() -> None:
    queue = PrefillQueue()
    queue.push(1, 1_000, 0.0, streams=True, restore_s=5.0)
    queue.answered(1, 6.0)
    assert queue.rate is None, "five of six seconds were a transfer"
    queue.push(2, 1_000, 10.0, streams=True, restore_s=5.0)
    queue.push(3, 2_000, 11.0, streams=True)
    queue.answered(3, 12.0)
    assert queue.rate == pytest.approx(2_000), "measured from when there was something to compute"


def test_what_was_computed_for_those_that_restored_counts_in_the_time_it_took() -> None:
    queue = PrefillQueue()
    queue.push(1, 3_000, 0.0, streams=True)
    queue.push(2, 1_000, 0.0, streams=True, restore_s=0.5)
    queue.answered(2, 1.5)
    queue.answered(1, 2.0)
    assert queue.rate == pytest.approx(2_000)
    queue.push(3, 4_000, 5.0, streams=True)
    queue.answered(3, 7.0)
    assert queue.rate == pytest.approx(2_000), "and only there"


def test_a_unary_restore_is_presumed_done_after_its_transfer_and_its_rest() -> None:
    queue = known()
    queue.push(1, 500, 0.0, streams=False, restore_s=1.0)
    assert queue.remaining(1.4) == 500
    assert queue.remaining(1.5) == 0
    assert (len(queue), queue.total) == (0, 0.0)


class Queues(RuleBasedStateMachine):
    """Any history: the total is the sum, nothing is negative, and what remains is at most the total."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = PrefillQueue()
        self.now = 0.0
        self.ticket = 0
        self.sent: dict[int, int] = {}

    @rule(tokens=st.integers(0, 100_000), streams=st.booleans(), restore_s=st.sampled_from([0.0, 0.0, 0.5, 7.0]))
    def push(self, tokens: int, streams: bool, restore_s: float) -> None:
        self.ticket += 1
        self.queue.push(self.ticket, tokens, self.now, streams=streams, restore_s=restore_s)
        self.sent[self.ticket] = max(tokens, 1)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def answered(self, data: st.DataObject) -> None:
        self.queue.answered(data.draw(st.sampled_from(sorted(self.sent))), self.now)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.sent)))
        self.queue.drop(ticket, self.now)
        assert ticket not in self.queue._tokens
        assert ticket not in self.queue._restoring
        del self.sent[ticket]

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def look(self) -> None:
        remaining = self.queue.remaining(self.now)
        assert 0 <= remaining <= self.queue.total
        assert self.queue.remaining(self.now) == remaining, "looking changes nothing"
        assert self.queue.seconds(self.now) >= 0
        assert self.queue.recent(self.now) >= 0
        self.now += 0.5
        assert self.queue.remaining(self.now) <= remaining, "time only takes off"

    @invariant()
    def adds_up(self) -> None:
        queue = self.queue
        assert queue.total == sum(queue._tokens.values()) + sum(each.tokens for each in queue._restoring.values())
        assert len(queue) == len(queue._tokens) + len(queue._restoring) <= len(self.sent)
        assert queue._unary_restoring <= queue._restoring.keys() <= self.sent.keys() - queue._tokens.keys()
        assert queue.restoring(self.now) >= 0.0
        assert queue._unary <= queue._tokens.keys() <= self.sent.keys()
        assert all(queue._tokens[ticket] == self.sent[ticket] for ticket in queue._tokens)
        assert queue.rate is None or queue.rate > 0


TestQueues = Queues.TestCase
TestQueues.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
