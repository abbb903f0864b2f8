"""Waiting for room in a full KV cache: what is looked up, of which kind, and how it is learnt."""

from __future__ import annotations

from math import isfinite
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.latency_fit import SharedFit
from policies.latency_load import Load
from policies.latency_path import PrefillPath, Situation
from policies.latency_room import RoomWaits
from policies.latency_steps import Fills

FULL = Load(running=10, used_tokens=99_000.0, room_tokens=100_000.0, release_rate=2_000.0)
SECONDS = st.floats(1e-4, 1e6)


def path() -> PrefillPath:
    return PrefillPath(SharedFit((0.01, 1e-4, 0.0, 0.001, 0.0)), Fills(), RoomWaits(), 8_192.0)


def test_a_full_cache_waits_for_what_is_given_back() -> None:
    """Between the time that it takes with room and that with all that is missing, until it is known what kind it is."""
    full = path()
    alone = full.estimate(FULL._replace(used_tokens=0.0), 5_000.0, 0.0)
    estimate = full.estimate(FULL, 5_000.0, 0.0)
    assert (alone.situation, estimate.situation) == (Situation.IDLE, Situation.ROOM)
    missing_s = 4_000 / 2_000
    assert estimate.seconds == pytest.approx((alone.seconds * (alone.seconds + missing_s)) ** 0.5)
    assert full.estimate(FULL._replace(release_rate=0.0), 5_000.0, 0.0).seconds == pytest.approx(alone.seconds)
    for _ in range(100):
        full.observe(full.estimate(FULL, 5_000.0, 0.0), 3.0)
    assert full.estimate(FULL, 5_000.0, 0.0).seconds == pytest.approx(3.0, rel=0.05)
    assert full.estimate(FULL._replace(used_tokens=0.0), 5_000.0, 0.0).seconds == alone.seconds, "only of its kind"


def test_cached_tokens_that_cannot_be_free_are_in_use() -> None:
    assert path().estimate(FULL, 500.0, 900.0).situation is Situation.ROOM
    assert path().estimate(FULL._replace(reused_tokens=5_000.0), 500.0, 0.0).situation is Situation.ROOM
    assert path().estimate(FULL, 500.0, 50_000.0).situation is Situation.IDLE


def test_who_is_behind_one_that_is_late_for_want_of_room_waits_too() -> None:
    load = FULL._replace(used_tokens=90_000.0, waiting=1, rest_s=-0.5)
    assert path().estimate(load, 500.0, 0.0).situation is Situation.ROOM
    assert path().estimate(load._replace(rest_s=0.1), 500.0, 0.0).situation is not Situation.ROOM
    assert path().estimate(load._replace(used_tokens=40_000.0), 500.0, 0.0).situation is not Situation.ROOM


def test_the_kinds_are_by_how_much_of_the_time_is_the_wait_and_by_who_is_late() -> None:
    shares = (0.0, 0.3, 0.7, 1.5, 3.0, 99.0)
    assert [RoomWaits.kind(2.0, 2.0 * share, late=False) for share in shares] == [0, 1, 2, 3, 4, 5]
    assert [RoomWaits.kind(2.0, 2.0 * share, late=True) for share in shares] == [6, 7, 8, 9, 10, 11]


def test_a_wait_that_comes_or_does_not_is_what_it_is_more_often() -> None:
    waits = RoomWaits()
    for i in range(400):
        waits.observe(3, 8.0 if i % 4 == 0 else 1.0)
        waits.observe(9, 1.0 if i % 4 == 0 else 8.0)
    assert waits.factors[3] == pytest.approx(1.0, rel=0.5)
    assert waits.factors[9] == pytest.approx(8.0, rel=0.5)
    assert waits.factors[4] == 1.0


@given(SECONDS, SECONDS, SECONDS, st.booleans())
def test_missing_more_takes_no_less_before_anything_is_learnt(
    seconds: float, room_s: float, more: float, late: bool
) -> None:
    base = RoomWaits.base(seconds, room_s)
    assert seconds * (1 - 1e-9) <= base <= RoomWaits.base(seconds, room_s + more)
    assert RoomWaits.kind(seconds, room_s, late=late) <= RoomWaits.kind(seconds, room_s + more, late=late)


@given(st.lists(st.floats(1e-10, 1e10), min_size=1, max_size=200), st.integers(0, 11))
def test_what_is_learnt_stays_between_what_was_measured(ratios: list[float], kind: int) -> None:
    waits = RoomWaits()
    for ratio in ratios:
        waits.observe(kind, ratio)
    assert all(isfinite(factor) and factor > 0.0 for factor in waits.factors)
    seen = [min(max(ratio, 0.049), 20.1) for ratio in ratios]
    assert min(1.0, *seen, median(seen)) * 0.99 <= waits.factors[kind] <= max(1.0, *seen, median(seen)) * 1.01
