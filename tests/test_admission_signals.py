"""How fast the queue empties, and what batch work yields to."""

from __future__ import annotations

from math import inf

import pytest

from policies.drain_rate import DrainRate
from policies.latency_pressure import LatencyPressure, SloPressure


def test_the_rate_is_what_left_while_something_waited() -> None:
    drain = DrainRate()
    assert drain.rate is None
    drain.queued(0.0)
    for step in range(1, 101):
        drain.left(500.0, step * 0.1, 5)
    assert drain.rate == pytest.approx(5_000.0)


def test_time_without_a_queue_does_not_count() -> None:
    drain = DrainRate()
    drain.queued(0.0)
    drain.left(1_000.0, 1.0, 0)
    drain.left(1_000.0, 50.0, 0)  # nothing waited: no telling how fast it would have been
    assert drain.rate == pytest.approx(1_000.0)
    drain.queued(100.0)
    drain.queued(100.5)
    drain.left(1_000.0, 101.0, 0)
    assert drain.rate == pytest.approx(1_000.0)


def test_what_leaves_as_soon_as_it_comes_tells_nothing() -> None:
    """Were it counted, it would be tokens in no time, and the first queue after a quiet hour over in an instant."""
    drain = DrainRate()
    for request in range(1_000):
        drain.queued(float(request))
        drain.left(1_000.0, float(request), 0)
    drain.queued(2_000.0)
    for step in range(1, 11):
        drain.left(100.0, 2_000.0 + step, 5)
        drain.left(100.0, 2_000.0 + step, 5)
    assert drain.rate == pytest.approx(200.0, rel=0.05)


def test_time_in_which_what_waits_is_held_back_does_not_count() -> None:
    drain = DrainRate()
    drain.queued(0.0)
    drain.left(1_000.0, 1.0, 1)
    for request in range(2, 100):
        drain.idle()
        drain.queued(float(request))
        drain.left(50.0, float(request), 1)
    assert drain.rate == pytest.approx(1_000.0)


def test_a_change_is_known_soon() -> None:
    drain = DrainRate()
    drain.queued(0.0)
    for step in range(1, 101):
        drain.left(1_000.0, float(step), 5)
    for step in range(101, 161):
        drain.left(100.0, float(step), 5)
    assert drain.rate == pytest.approx(100.0, rel=0.6)


def test_what_is_given_up_takes_time_and_yields_nothing() -> None:
    drain = DrainRate()
    drain.queued(0.0)
    drain.left(0.0, 1.0, 3)
    drain.left(1_000.0, 2.0, 3)
    assert drain.rate == pytest.approx(500.0, rel=0.05)


def test_pressure_is_the_recent_95th_percentile() -> None:
    pressure = LatencyPressure()
    said = [pressure.observe(ratio / 20, 0.1) for ratio in range(1, 21)]
    assert said[0] == 0.05
    assert said[-1] == 1.0
    later = [pressure.observe(0.2, 5.0) for _ in range(63)]
    assert later[-1] == 0.2  # of the last 64 only one was slow


def test_what_is_old_does_not_count() -> None:
    pressure = LatencyPressure()
    pressure.observe(3.0, 0.0)
    assert pressure.observe(0.1, 9.9) == 3.0
    assert pressure.observe(0.1, 10.1) == 0.1


def test_what_was_told_is_not_repeated_as_news() -> None:
    """One slow answer counts for ten seconds, whatever is told after it."""
    pressure = SloPressure()
    pressure.per_token(3.0, 0.0)
    assert pressure.per_token(0.1, 9.0) == 3.0
    assert pressure.first_token(0.2, 1.0, 12.0) == 0.2


def test_where_long_waits_are_promised_what_was_told_counts_for_longer() -> None:
    pressure = SloPressure()
    assert pressure.first_token(12.0, 15.0, 100.0) == 0.8
    assert pressure.first_token(0.2, 2.0, 120.0) == 0.8
    assert pressure.fades_at == 130.0, "in the order in which they fade, not in which they came"
    assert pressure.at(144.9) == 0.8
    assert pressure.ends_at == 145.0
    assert pressure.at(145.1) == 0.0
    assert pressure.ends_at == -inf


def test_pressure_fades_though_nothing_is_told() -> None:
    pressure = SloPressure()
    assert (pressure.at(0.0), pressure.fades_at) == (0.0, inf)
    pressure.first_token(3.0, 1.0, 1.0)
    pressure.first_token(0.1, 1.0, 9.0)
    assert (pressure.at(10.9), pressure.fades_at) == (3.0, 11.0)
    assert (pressure.at(11.1), pressure.fades_at) == (0.1, 19.0)
    assert (pressure.at(30.0), pressure.fades_at) == (0.0, inf)


def test_the_larger_of_both_objectives_counts_while_it_is_recent() -> None:
    pressure = SloPressure()
    assert pressure.per_token(0.5, 0.0) == 0.5
    assert pressure.first_token(0.3, 1.0, 1.0) == 0.5
    assert pressure.first_token(0.8, 1.0, 2.0) == 0.8
    assert pressure.per_token(0.9, 3.0) == 0.9
    assert pressure.first_token(0.2, 1.0, 13.5) == 0.2
