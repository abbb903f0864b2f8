"""Predicted and reported cache hits: what counts as drift, what is rounding, and what is said of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache_drift import CacheDrift, Drift
from gateway.dialects.base import Usage
from gateway.request_record import Attempt, Observer, Outcome, RequestRecord
from policies.routing import RouteDecision
from policies.types import WorkerId

W, V = WorkerId("w"), WorkerId("v")


def block_size(worker: WorkerId) -> int:
    return {W: 16, V: 16}[worker]


def record(
    predicted: int,
    reported: int | None,
    *,
    tokens: int = 2000,
    told: int | None = 2000,
    worker: WorkerId = W,
    outcome: Outcome = Outcome.OK,
) -> RequestRecord:
    it = RequestRecord(b"1", b"POST", b"/v1/completions", 0.0)
    it.attempts.append(Attempt(worker, [], {}, RouteDecision(0, predicted), at=0.0))
    it.prompt_tokens, it.cached_tokens = tokens, predicted
    it.usage = Usage(told, 10, reported)
    it.outcome = outcome
    return it


@pytest.fixture
def drift(caplog: pytest.LogCaptureFixture) -> CacheDrift:
    caplog.set_level("INFO", "gateway.cache_drift")
    return CacheDrift(block_size)


def feed(observer: Observer, each: RequestRecord, times: int) -> None:
    for _ in range(times):
        observer.finished(each)


def test_what_agrees_does_not_drift(drift: CacheDrift, caplog: pytest.LogCaptureFixture) -> None:
    feed(drift, record(1600, 1600), 1000)
    assert drift.drift(W) == 0.0
    assert drift.of(W) == Drift(predicted=1_600_000, reported=1_600_000, compared=1000, prompt_tokens=2_000_000)
    assert caplog.messages == []


@pytest.mark.parametrize(("reported", "drifts"), [(0, 0.25), (500, 0.0), (1200, 0.0), (1700, 0.0), (2000, -0.15)])
def test_what_was_to_be_restored_is_no_drift_whether_it_was_or_not(
    drift: CacheDrift, reported: int, drifts: float
) -> None:
    it = record(500, reported)
    it.restored_tokens = 1200
    feed(drift, it, 1000)
    assert drift.drift(W) == pytest.approx(drifts)
    assert it.expected_cached(reported) == min(max(500, reported), 1700)


@pytest.mark.parametrize(("predicted", "reported", "tokens"), [(1999, 1984, 2000), (1984, 2000, 2000), (31, 16, 32)])
def test_rounding_to_blocks_is_no_drift(drift: CacheDrift, predicted: int, reported: int, tokens: int) -> None:
    feed(drift, record(predicted, reported, tokens=tokens, told=tokens), 1000)
    assert drift.drift(W) == 0.0
    assert drift.of(W).compared == 1000


@pytest.mark.parametrize(
    ("predicted", "reported", "side"), [(1600, 0, "less"), (0, 1600, "more")], ids=["over-claims", "overlooks"]
)
def test_drifting_apart_is_said_once_and_meeting_again_too(
    drift: CacheDrift, caplog: pytest.LogCaptureFixture, predicted: int, reported: int, side: str
) -> None:
    feed(drift, record(predicted, reported), 5)
    assert caplog.messages == [], "a few requests prove nothing"
    feed(drift, record(predicted, reported), 500)
    assert abs(drift.drift(W)) == pytest.approx(0.8, abs=0.01)
    assert (drift.drift(W) > 0) is (side == "less")
    assert len(caplog.messages) == 1
    assert f"worker w finds {side} in its cache than was predicted" in caplog.messages[0]
    feed(drift, record(1600, 1600), 500)
    assert abs(drift.drift(W)) < 0.01
    assert caplog.messages[1:] == ["worker w: what it finds in its cache is again what was predicted"]


def test_between_the_bounds_nothing_is_said_again(drift: CacheDrift, caplog: pytest.LogCaptureFixture) -> None:
    feed(drift, record(400, 0), 500)
    assert len(caplog.messages) == 1
    for _ in range(200):  # to and fro around the bound of 0.15
        feed(drift, record(240, 0), 10)
        feed(drift, record(360, 0), 10)
    assert len(caplog.messages) == 1


def test_long_prompts_weigh_more(drift: CacheDrift) -> None:
    feed(drift, record(90, 0, tokens=100, told=100), 100)
    feed(drift, record(20_000, 20_000, tokens=40_000, told=40_000), 1)
    assert drift.drift(W) < 0.07, "10,000 tokens that differ, 40,000 that agree"


@pytest.mark.parametrize(
    "each",
    [
        record(1600, None),
        record(1600, 0, outcome=Outcome.CUT),
        record(1600, 0, outcome=Outcome.CLIENT_GONE),
        record(1600, 0, tokens=0),
        record(1600, 0, worker=WorkerId("gone")),
        RequestRecord(b"1", b"GET", b"/v1/models", 0.0),
    ],
    ids=["not told", "cut", "client gone", "nobody counted", "worker gone", "no worker"],
)
def test_what_cannot_be_compared(drift: CacheDrift, each: RequestRecord) -> None:
    drift.finished(each)
    assert drift.workers() == ()
    assert drift.drift(W) == 0.0


def test_a_guessed_length_counts_in_shares(drift: CacheDrift) -> None:
    feed(drift, record(800, 1600, tokens=1000, told=2000), 100)
    assert drift.drift(W) == 0.0
    assert drift.of(W).predicted == 160_000
    feed(drift, record(800, 800, tokens=1000, told=None), 1)
    assert drift.drift(W) == 0.0


def test_workers_are_apart(drift: CacheDrift) -> None:
    feed(drift, record(1600, 0), 300)
    feed(drift, record(1600, 1600, worker=V), 300)
    assert drift.drift(W) > 0.7
    assert drift.drift(V) == 0.0
    assert set(drift.workers()) == {W, V}
    drift.forget(W)
    assert (drift.drift(W), drift.workers()) == (0.0, (V,))


@given(st.lists(st.tuples(*[st.integers(-(10**6), 10**6)] * 4)))
def test_no_numbers_lead_out_of_bounds(numbers: list[tuple[int, int, int, int]]) -> None:
    drift = CacheDrift(block_size)
    for predicted, reported, tokens, told in numbers:
        drift.finished(record(max(predicted, 0), reported, tokens=tokens, told=told))
        assert -1.0 <= drift.drift(W) <= 1.0
