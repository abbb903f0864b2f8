"""How much of the capacity batch may take, by how near interactive latency is to its objective."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.batch_yield import BatchYield


def test_everything_while_nothing_is_known() -> None:
    assert BatchYield(0.6, 0.9).share(0.0) == 1.0


@pytest.mark.parametrize(
    ("pressure", "share"), [(0.0, 1.0), (0.6, 1.0), (0.75, 0.5), (0.9, 0.0), (1.0, 0.0), (7.0, 0.0), (math.inf, 0.0)]
)
def test_it_falls_at_once_in_proportion(pressure: float, share: float) -> None:
    controller = BatchYield(0.6, 0.9)
    controller.observe(pressure, 5.0)
    assert controller.share(5.0) == pytest.approx(share)


def test_it_rises_slowly() -> None:
    controller = BatchYield(0.6, 0.9, band=0.1, recovery_s=10.0)
    controller.observe(1.0, 0.0)
    controller.observe(0.0, 3.0)
    assert controller.share(3.0) == 0.0, "the time under pressure does not count"
    assert controller.share(4.0) == pytest.approx(0.1)
    assert controller.share(8.0) == pytest.approx(0.5)
    assert controller.share(30.0) == 1.0


def test_it_rises_only_once_the_pressure_is_lower_by_the_band() -> None:
    controller = BatchYield(0.6, 0.9, band=0.1, recovery_s=1.0)
    controller.observe(0.75, 0.0)
    for now in range(1, 20):
        controller.observe(0.70, float(now))
    assert controller.share(20.0) == pytest.approx(0.5), "at the same share a band lower, it stays"
    for now in range(21, 40):
        controller.observe(0.65, float(now))
    assert controller.share(40.0) == pytest.approx(0.5)
    for now in range(41, 60):
        controller.observe(0.56, float(now))
    assert controller.share(60.0) == pytest.approx(0.8), "as if the pressure were 0.66"


def test_a_pressure_that_swings_within_the_band_moves_nothing() -> None:
    controller = BatchYield(0.6, 0.9, band=0.1, recovery_s=0.001)
    shares = set()
    for now in range(50):
        controller.observe(0.8 if now % 2 else 0.71, float(now))
        if now:
            shares.add(controller.share(float(now)))
    assert len(shares) == 1


def test_what_nobody_confirms_is_forgotten() -> None:
    controller = BatchYield(0.6, 0.9, recovery_s=5.0)
    controller.observe(1.0, 0.0)
    assert controller.share(9.9) == 0.0
    assert controller.share(10.0) == 0.0
    assert controller.share(12.5) == pytest.approx(0.5)
    assert controller.share(15.0) == 1.0


def test_what_counts_for_longer_is_yielded_to_for_longer() -> None:
    controller = BatchYield(0.6, 0.9, recovery_s=5.0)
    controller.observe(1.0, 0.0, until=100.0)
    assert controller.share(100.0) == 0.0
    assert controller.share(102.5) == pytest.approx(0.5)


def test_it_may_begin_to_yield_at_however_low_a_pressure() -> None:
    controller = BatchYield(0.02, 0.04)
    controller.observe(0.03, 0.0)
    assert controller.share(0.0) == pytest.approx(0.5)
    controller.observe(0.0, 1.0)
    assert controller.share(20.0) == 1.0


def test_other_thresholds_hold_from_now_on() -> None:
    controller = BatchYield(0.6, 0.9, recovery_s=5.0)
    controller.observe(0.9, 0.0)
    controller.configure(1.0, 2.0)
    assert controller.share(1.0) == pytest.approx(0.2), "it rises from where it was"
    controller.configure(0.3, 0.6)
    assert controller.share(1.0) == 0.0
    with pytest.raises(ValueError, match="no way to yield"):
        controller.configure(0.6, 0.3)


@pytest.mark.parametrize("pressure", [-0.1, math.nan])
def test_no_pressure(pressure: float) -> None:
    with pytest.raises(ValueError, match="no pressure"):
        BatchYield(0.6, 0.9).observe(pressure, 0.0)


@pytest.mark.parametrize(
    ("start", "stop", "band", "recovery_s"),
    [(0.0, 0.9, 0.1, 5), (0.9, 0.9, 0.1, 5), (0.6, math.inf, 0.1, 5), (0.6, 0.9, 0.6, 5), (0.6, 0.9, -0.1, 5),
     (0.6, 0.9, 0.1, 0)],
)  # fmt: skip
def test_settings_that_mean_nothing(start: float, stop: float, band: float, recovery_s: float) -> None:
    with pytest.raises(ValueError, match="no way to yield"):
        BatchYield(start, stop, band=band, recovery_s=recovery_s)


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 5)), max_size=40))
def test_any_history(history: list[tuple[float, float]]) -> None:
    controller = BatchYield(0.6, 0.9, band=0.1, recovery_s=5.0)
    now, before = 0.0, 1.0
    for pressure, seconds in history:
        now += seconds
        controller.observe(pressure, now)
        share = controller.share(now)
        assert 0 <= share <= 1
        assert share == controller.share(now), "looking changes nothing"
        assert share <= before + seconds / 5.0 + 1e-9, "never faster than it may recover"
        if pressure >= 0.9:
            assert share == 0
        if pressure > 0.6:
            assert share <= (0.9 - pressure) / 0.3 + 1e-9 or share == 0
        before = share
