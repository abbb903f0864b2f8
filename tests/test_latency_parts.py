"""The parts of the latency model: least squares that stay non-negative, corrections, margins, judges."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.latency_calibration import Correction, Errors, Margin
from policies.latency_fit import Fit, SharedFit
from policies.latency_load import Load
from policies.latency_path import Judges, PrefillPath
from policies.latency_room import RoomWaits
from policies.latency_steps import Fills, Served


def test_the_fit_finds_what_made_the_data() -> None:
    fit = Fit(SharedFit([1.0, 1.0, 1.0]))
    rng = random.Random(5)
    for _ in range(600):
        terms = (1.0, rng.uniform(0, 1_000), rng.uniform(0, 10))
        seconds = 0.5 + 0.01 * terms[1]
        fit.observe(terms, seconds, seconds)
    assert fit.coefficients == pytest.approx([0.5, 0.01, 0.0], rel=0.05, abs=0.02)


def test_no_coefficient_is_below_0() -> None:
    """Time falls with the second term: that is no physics, so it counts for nothing."""
    fit = Fit(SharedFit([0.1, 0.1]))
    for i in range(400):
        fit.observe((1.0, i % 10), 10.0 - i % 10 / 2, 5.0)
    assert fit.coefficients[1] == 0.0
    assert 5.0 < fit.coefficients[0] < 10.0


def test_what_is_not_told_apart_stays_as_it_was() -> None:
    fit = Fit(SharedFit([1.0, 7.0]))
    for _ in range(100):
        fit.observe((1.0, 0.0), 2.0, 2.0)
    assert fit.coefficients == pytest.approx([2.0, 7.0], rel=0.01)


def test_a_correction_is_the_median_and_bounded() -> None:
    correction = Correction()
    for i in range(300):
        correction.observe(2.0 if i % 10 else 1e9)
    assert correction.factor == pytest.approx(2.0, rel=0.1)
    for _ in range(300):
        correction.observe(1e9)
    assert correction.factor == pytest.approx(3.0, rel=0.1)


def test_a_new_correction_and_margin_are_the_fleets() -> None:
    fleet, margins = Correction(), Margin()
    known, narrow = Correction(fleet), Margin(margins)
    for _ in range(200):
        known.observe(1.5)
        narrow.observe(1.02, missed=False)
    assert Correction(fleet).factor == pytest.approx(1.5, rel=0.02)
    assert Margin(margins).factor < 1.05 < Margin().factor
    own = Correction(fleet)
    for _ in range(100):
        own.observe(0.8)
    assert own.factor == pytest.approx(0.8, rel=0.1)


def test_errors_are_means_of_late() -> None:
    errors = Errors()
    errors.observe(1.1, 2.0, 1.0)
    errors.observe(0.7, 0.9, 1.0)
    assert (errors.count, errors.coverage) == (2, 0.5)
    assert errors.mape == pytest.approx(0.2)


def test_judges_follow_who_is_right() -> None:
    judges = Judges()
    assert judges.blend(1.0, 4.0) == pytest.approx(2.0)
    for _ in range(100):
        judges.observe(1.0, 4.0, 3.9)
    assert judges.blend(1.0, 4.0) == pytest.approx(4.0, rel=0.01)


def path() -> PrefillPath:
    return PrefillPath(SharedFit((0.01, 1e-4, 0.0, 0.001, 0.0)), Fills(), RoomWaits(), 8_192.0)


def test_the_last_step_is_shared_with_what_usually_comes() -> None:
    fills = Fills()
    known = PrefillPath(SharedFit((0.01, 1e-4, 0.0, 0.0, 0.0)), fills, RoomWaits(), 8_192.0)
    alone = known.estimate(Load(), 8_192.0 + 1_192.0, 0.0)
    assert alone.seconds == pytest.approx(0.02 + 0.9384)
    for _ in range(400):
        fills.observe(alone.bucket, 0.5)
    assert known.estimate(Load(), 8_192.0 + 1_192.0, 0.0).seconds == pytest.approx(alone.seconds + 0.35, rel=1e-3)
    assert known.estimate(Load(), 100.0, 0.0).seconds == pytest.approx(0.02), "its only step begins at once"
    assert [Fills.bucket(steps) for steps in (0.0, 0.3, 0.7, 1.5, 3.0, 99.0)] == [0, 1, 2, 3, 4, 5]


def test_what_shares_a_step_is_the_median() -> None:
    """Either nobody comes, or as many as fill it: the mean of that is what never happens."""
    fills = Fills()
    for i in range(400):
        fills.observe(1, 1.0 if i % 3 else 0.0)
        fills.observe(2, 0.0 if i % 3 else 1.0)
        fills.observe(3, 0.4)
    assert fills.shares[1] > 0.9
    assert fills.shares[2] < 0.1
    assert fills.shares[3] == pytest.approx(0.4)


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0.0, 1.0)), max_size=200))
def test_a_share_is_a_share(observed: list[tuple[int, float]]) -> None:
    fills = Fills()
    for bucket, share in observed:
        fills.observe(bucket, share)
    for bucket, share in enumerate(fills.shares):
        assert 0.0 <= share <= max([seen for each, seen in observed if each == bucket], default=0.0)


def stretch(seconds: float, tokens: float = 1_000.0) -> Served:
    return Served(seconds, (1.0, tokens, 0.0, 0.0, 0.0), running=3, running_tokens=40_000)


def test_the_pace_is_the_median_of_the_last_stretches() -> None:
    worker = path()
    for i in range(11):
        worker.served(stretch(0.22 if i % 3 else 50.0))
    assert worker.speed.seconds((1.0, 1_000.0, 0.0, 0.0, 0.0)) == pytest.approx(0.22, rel=0.02)


def test_a_stretch_that_waited_for_room_is_not_slow() -> None:
    worker = path()
    full = stretch(5.0)._replace(room=50_000.0, waiting_tokens=20_000.0)
    for _ in range(10):
        worker.served(full)
    assert worker.pace == 1.0
    for _ in range(30):
        worker.served(full)
    assert worker.pace > 2.0, "if all are, it is slow all the same"
