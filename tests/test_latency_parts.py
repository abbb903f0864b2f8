"""The parts of the latency model: least squares that stay non-negative, corrections, margins, judges."""

from __future__ import annotations

import random

import pytest

from policies.latency_calibration import Correction, Errors, Margin
from policies.latency_fit import Fit, SharedFit
from policies.latency_load import Load, Served
from policies.latency_path import Judges, PrefillPath, Situation


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


def path(kv_tokens: float) -> PrefillPath:
    shared = SharedFit((0.01, 1e-4, 0.0, 0.0, 0.0))
    return PrefillPath(shared, (Judges(), Judges()), 8_192.0, kv_tokens)


def test_a_full_cache_waits_for_those_that_finish() -> None:
    """Until it is known whether what does not fit waits, half-way between both answers."""
    load = Load(running=10, running_tokens=99_000.0, release_rate=1_000.0)
    alone = path(1e6).estimate(load, 1_000.0, 9_000.0)
    full = path(1e5)
    estimate = full.estimate(load, 1_000.0, 9_000.0)
    assert (alone.situation, estimate.situation) == (Situation.IDLE, Situation.ROOM)
    assert estimate.if_full_s == pytest.approx(9.0 + alone.seconds)
    assert estimate.seconds == pytest.approx((alone.seconds * estimate.if_full_s) ** 0.5)
    for _ in range(60):
        full.observe(full.estimate(load, 1_000.0, 9_000.0), 9.0)
    assert full.estimate(load, 1_000.0, 9_000.0).seconds == pytest.approx(9.0, rel=0.05)


def test_what_ran_fits_and_what_waited_without_cause_did_not() -> None:
    unknown = path(float("inf"))
    unknown.served(Served(5.0, 100, 0, running=3, running_tokens=40_000, waiting_tokens=9_000))
    assert unknown.room == 40_000
    unknown.served(Served(0.02, 100, 0, running=3, running_tokens=60_000, waiting_tokens=0))
    assert unknown.room == 60_000
    known = path(50_000)
    known.served(Served(5.0, 100, 0, running=3, running_tokens=40_000, waiting_tokens=9_000))
    assert known.room == 50_000
