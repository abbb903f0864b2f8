"""Token buckets against a model that remembers everything, and what clients are told of them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.rate_fields import duration, rate_fields, retry_fields
from policies.rate_limit import Bucket, Limited, RateLimiter, Refusal
from policies.tenant import NO_RATES, Rates

STEPS = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 60)), max_size=60)
"""Tenths of a second since the step before, and an amount."""


def level_by_hand(taken: list[tuple[Fraction, int]], limit: int, now: Fraction) -> Fraction:
    """From all that was ever taken: fill from the first on, never above the limit."""
    level, at = Fraction(limit), Fraction(0)
    for when, amount in taken:
        level = min(level + (when - at) * limit / 60, Fraction(limit)) - amount
        at = when
    return min(level + (now - at) * limit / 60, Fraction(limit))


@given(st.integers(1, 50), STEPS)
def test_a_bucket_gives_what_one_that_remembers_everything_would(limit: int, steps: list[tuple[int, int]]) -> None:
    bucket = Bucket(limit, 0.0)
    taken: list[tuple[Fraction, int]] = []
    now = Fraction(0)
    for tenths, amount in steps:
        now += Fraction(tenths, 10)
        level = level_by_hand(taken, limit, now)
        assert bucket.level(float(now)) == pytest.approx(float(level), abs=1e-6)
        lacking = min(amount, limit) - level
        wait = bucket.wait_s(amount, float(now))
        assert wait == pytest.approx(max(float(lacking) * 60 / limit, 0.0), abs=1e-6)
        if wait == 0:
            bucket.charge(amount, float(now))
            taken.append((now, amount))
    assert bucket.full_in_s(float(now)) == pytest.approx(
        float((limit - level_by_hand(taken, limit, now)) * 60 / limit), abs=1e-6
    )


@given(st.integers(1, 50), STEPS)
def test_no_window_holds_more_than_a_burst_and_what_flows_in(limit: int, steps: list[tuple[int, int]]) -> None:
    bucket = Bucket(limit, 0.0)
    times: list[float] = []
    now = 0.0
    for tenths, _ in steps:
        now += tenths / 10
        if not bucket.wait_s(1, now):
            bucket.charge(1, now)
            times.append(now)
    for first in range(len(times)):
        for last in range(first, len(times)):
            window = times[last] - times[first]
            assert last - first + 1 <= limit + window * limit / 60 + 1e-6


@given(st.integers(1, 50), st.lists(st.tuples(st.integers(0, 100), st.integers(1, 500)), min_size=1, max_size=40))
def test_whoever_waits_as_long_as_told_gets_it_and_in_the_long_run_the_rate_holds(
    limit: int, steps: list[tuple[int, int]]
) -> None:
    """Amounts beyond a whole bucket, too, and charges that are known only afterwards."""
    bucket = Bucket(limit, 0.0)
    now, total = 0.0, 0
    for estimate, amount in steps:
        now += bucket.wait_s(estimate, now)
        assert bucket.wait_s(estimate, now) == pytest.approx(0.0, abs=1e-6)
        bucket.charge(estimate, now)
        bucket.charge(amount - estimate, now)
        total += amount
    now += bucket.wait_s(limit, now)
    assert total <= limit + now * limit / 60 + 1e-3


def test_a_clock_that_goes_back_fills_nothing() -> None:
    bucket = Bucket(60, 100.0)
    bucket.charge(60, 100.0)
    assert bucket.level(50.0) == 0
    assert bucket.level(101.0) == 1


def test_another_rate_keeps_what_was_taken() -> None:
    bucket = Bucket(60, 0.0)
    bucket.charge(50, 0.0)
    bucket.configure(30, 0.0)
    assert bucket.level(0.0) == 0
    bucket.configure(600, 0.0)
    assert bucket.level(0.0) == 570
    for rate in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="a rate is a positive number"):
            Bucket(rate, 0.0)


def test_a_lower_rate_locks_nobody_out_for_what_was_within_the_other() -> None:
    """Half of a million tokens a minute are no debt of 34 days under a rate of ten."""
    bucket = Bucket(1_000_000, 0.0)
    bucket.charge(500_000, 0.0)
    bucket.configure(10, 0.0)
    assert bucket.wait_s(1, 0.0) == pytest.approx(6.0)
    bucket = Bucket(1_000_000, 0.0)
    bucket.charge(1_500_000, 0.0)
    waits = bucket.wait_s(0, 0.0)
    bucket.configure(10, 0.0)
    assert bucket.wait_s(0, 0.0) == pytest.approx(waits), "a debt takes as long to pay as it did"


def test_of_several_reasons_the_longest_is_told() -> None:
    limiter = RateLimiter(Rates(60, 600, 2), 0.0)
    assert limiter.refusal(600, 0.0) is None
    limiter.take(600, 0.0)
    assert limiter.refusal(10, 0.0) == Refusal(Limited.TOKENS, 600, 1.0)
    assert limiter.refusal(10, 1.0) is None
    limiter.take(10, 1.0)
    assert limiter.refusal(0, 1.0) == Refusal(Limited.CONCURRENT, 2, None)
    limiter.end(-600, 1.0)
    limiter.end(0, 1.0)
    for _ in range(60):
        limiter.take(0, 61.0)
    assert limiter.refusal(1, 61.0) == Refusal(Limited.REQUESTS, 60, 1.0)
    for _ in range(60):
        limiter.end(0, 61.0)
    with pytest.raises(ValueError, match="more requests have ended than begun"):
        limiter.end(0, 61.0)


def test_limits_can_be_taken_away_and_set_again_while_requests_run() -> None:
    limiter = RateLimiter(Rates(concurrent=1), 0.0)
    limiter.take(5, 0.0)
    limiter.configure(NO_RATES, 1.0)
    assert limiter.refusal(10**9, 1.0) is None
    limiter.take(5, 1.0)
    limiter.configure(Rates(60, 60, 2), 2.0)
    assert limiter.refusal(1, 2.0) == Refusal(Limited.CONCURRENT, 2, None)
    limiter.end(60, 2.0)
    assert limiter.refusal(1, 2.0) == Refusal(Limited.TOKENS, 60, 1.0)
    limiter.end(0, 2.0)
    assert limiter.running == 0


def test_what_clients_are_told() -> None:
    tenant, model = RateLimiter(Rates(60, 1000), 0.0), RateLimiter(Rates(tokens_per_minute=500), 0.0)
    for limiter in (tenant, model):
        limiter.take(200.5, 0.0)
    assert rate_fields([tenant, model], 0.0) == (
        b"\r\nx-ratelimit-limit-requests: 60\r\nx-ratelimit-remaining-requests: 59\r\nx-ratelimit-reset-requests: 1s"
        b"\r\nx-ratelimit-limit-tokens: 500\r\nx-ratelimit-remaining-tokens: 299\r\nx-ratelimit-reset-tokens: 24.1s"
    )
    assert rate_fields([RateLimiter(NO_RATES, 0.0)], 0.0) == b""
    model.take(1000, 0.0)
    assert b"remaining-tokens: 0\r\n" in rate_fields([model], 0.0)
    assert retry_fields(Refusal(Limited.TOKENS, 1, 1.25)) == b"\r\nretry-after: 2\r\nretry-after-ms: 1250"
    assert retry_fields(Refusal(Limited.TOKENS, 1, 1e-9)) == b"\r\nretry-after: 1\r\nretry-after-ms: 1"
    assert retry_fields(Refusal(Limited.CONCURRENT, 1, None)) == b"\r\nretry-after: 1\r\nretry-after-ms: 1000"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, b"0ms"), (0.0171, b"18ms"), (1, b"1s"), (1.42, b"1.5s"), (59.99, b"60s"), (360, b"6m0s"), (3723, b"1h2m3s")],
)
def test_a_time_is_written_as_openai_does(seconds: float, text: bytes) -> None:
    assert duration(seconds) == text
