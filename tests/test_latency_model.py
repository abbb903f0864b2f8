"""Predicted times: what is believed at first, what is learnt, and what nothing may break."""

from __future__ import annotations

from math import inf, isfinite, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.latency_model import (
    FleetLatency,
    LatencyModel,
    LatencyPrior,
    Load,
    Prediction,
    Situation,
    WorkerLatency,
)

PRIOR = LatencyPrior(tokens_per_second=10_000.0, step_s=0.01, tpot_s=0.02, step_tokens=8_192)
SIZES = st.floats(0.0, 1e7)
LOADS = st.builds(
    Load,
    rest_s=st.floats(-1e4, 1e4),
    join_tokens=st.just(0.0),
    behind_tokens=SIZES,
    behind_pairs=SIZES,
    budget=st.floats(1.0, 1e5),
    waiting=st.integers(0, 10_000),
    running=st.integers(0, 10_000),
    running_tokens=SIZES,
    waiting_tokens=SIZES,
    release_rate=SIZES,
    prefill_rate=SIZES,
    step_rate=st.floats(0.0, 1e4),
    used_tokens=SIZES,
    needed_tokens=SIZES,
    reused_tokens=SIZES,
    room_tokens=st.just(inf) | SIZES,
)
GROWING = ("rest_s", "behind_tokens", "behind_pairs")


def taught(n: int = 200, factor: float = 1.0, fleet: FleetLatency | None = None) -> WorkerLatency:
    """A worker that takes 5 ms and 50 µs a token, one request after the other, and 10 ms for each token it makes."""
    worker = WorkerLatency(fleet or FleetLatency(PRIOR))
    go_on(worker, n, factor)
    return worker


def go_on(worker: WorkerLatency, n: int, factor: float = 1.0, start: int = 0, at: float = 0.0) -> float:
    """`n` more, from `at`; when the last one ended."""
    for i in range(start, start + n):
        tokens = 200 + 977 * i % 5_000
        predicted = worker.predict(at, tokens)
        worker.sent(i, predicted, at)
        at += factor * (0.005 + 50e-6 * tokens)
        worker.first_token(i, at)
        at += factor * 0.01 * 9
        worker.ended(i, at, 10)
        at += 0.5
    return at


def test_cold_is_what_the_prior_says() -> None:
    predicted = LatencyModel(FleetLatency(PRIOR)).predict(Load(), 1_000.0, restore_s=0.25)
    assert predicted.ttft_s == pytest.approx(0.01 + 1_000 / 10_000 + 0.25)
    assert predicted.tpot_s == pytest.approx(0.02)
    assert predicted.situation is Situation.IDLE
    assert predicted.ttft_s < predicted.ttft_p90_s < 3 * predicted.ttft_s


def test_what_is_ahead_adds_up() -> None:
    model = LatencyModel(FleetLatency(PRIOR))
    ahead = Load(rest_s=0.3, behind_tokens=8_192.0 - 1_000.0, waiting=2)
    assert model.predict(ahead, 1_000.0).ttft_s == pytest.approx(0.3 + 0.01 + 0.02 + 0.8192), "in one step"
    assert model.predict(ahead, 1_001.0).ttft_s == pytest.approx(0.3 + 2 * 0.03 + 0.8193), "in two, of which the first"
    late = model.predict(ahead._replace(rest_s=-99.0), 1_000.0).ttft_s
    assert late == pytest.approx(0.5 * 0.02 + 0.03 + 0.8192), "what is overdue cannot be negative"


def test_what_comes_together_shares_a_step() -> None:
    model = LatencyModel(FleetLatency(PRIOR))
    together = model.predict(Load(rest_s=0.11, join_tokens=7_192.0, waiting=1), 500.0)
    assert together.ttft_s == pytest.approx(0.11 + 0.05)
    longer = model.predict(Load(rest_s=0.11, join_tokens=7_192.0, waiting=1), 8_000.0)
    assert longer.ttft_s == pytest.approx(0.11 + 0.8 + 0.03), "the rest takes one step more"


def test_it_learns_its_worker() -> None:
    worker = taught()
    for tokens in (300, 2_000, 5_000):
        predicted = worker.predict(1e4, tokens)
        assert predicted.ttft_s == pytest.approx(0.005 + 50e-6 * tokens, rel=0.05)
        assert predicted.tpot_s == pytest.approx(0.01, rel=0.15)
    assert worker.model.ttft_errors.mape < 0.05
    assert worker.model.tpot_errors.mape < 0.15
    assert worker.model.ttft_errors.count == 200


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_worker_that_changes_is_known_within_tens_of_requests(factor: float) -> None:
    worker = taught()
    go_on(worker, 30, factor, start=200, at=1e4)
    for tokens in (300, 2_000, 5_000):
        expected = factor * (0.005 + 50e-6 * tokens)
        assert worker.predict(1e5, tokens).ttft_s == pytest.approx(expected, rel=0.2)


def test_one_stall_moves_little() -> None:
    worker = taught()
    before = worker.predict(1e4, 2_000)
    worker.sent(999, before, 1e4)
    worker.first_token(999, 1e4 + 1_000.0)
    worker.ended(999, 1e4 + 2_000.0, 10)
    after = worker.predict(2e4, 2_000)
    assert after.ttft_s == pytest.approx(before.ttft_s, rel=0.1)
    assert after.tpot_s == pytest.approx(before.tpot_s, rel=0.25)
    end = go_on(worker, 1, start=1_000, at=2e4)  # it is told of only now, with the next stretch
    go_on(worker, 1, start=1_001, at=end)
    assert worker.predict(1e5, 2_000).ttft_s == pytest.approx(before.ttft_s, rel=0.5)
    go_on(worker, 20, start=1_002, at=1e5)
    assert worker.predict(2e5, 2_000).ttft_s == pytest.approx(before.ttft_s, rel=0.1)


def test_a_new_worker_begins_with_what_the_fleet_knows_and_its_own_outweighs() -> None:
    fleet = FleetLatency(PRIOR)
    taught(fleet=fleet)
    new = WorkerLatency(fleet)
    assert new.predict(0.0, 2_000).ttft_s == pytest.approx(0.105, rel=0.1)
    assert new.predict(0.0, 2_000).tpot_s == pytest.approx(0.01, rel=0.15)
    go_on(new, 60, factor=3.0)
    assert new.predict(1e4, 2_000).ttft_s == pytest.approx(0.315, rel=0.15)
    strangers = WorkerLatency(FleetLatency(PRIOR))
    assert strangers.predict(0.0, 2_000).ttft_s > 0.2, "another class knows nothing of it"


def test_the_upper_quantile_covers_nine_in_ten() -> None:
    """Of times that vary by a factor of up to two, in a fixed order that repeats."""
    model = LatencyModel(FleetLatency(PRIOR))
    covered = []
    for i in range(3_000):
        predicted = model.predict(Load(), 1_000.0)
        measured = 0.1 * 2 ** (i * 0.618 % 1.0)
        covered.append(measured <= predicted.ttft_p90_s)
        model.observe_ttft(predicted, measured)
    assert sum(covered[500:]) / 2_500 == pytest.approx(0.9, abs=0.02)
    assert model.ttft_errors.coverage == pytest.approx(0.9, abs=0.06)


def test_unary_requests_teach_the_total_only_and_leave_the_queue() -> None:
    worker = WorkerLatency(FleetLatency(PRIOR))
    worker.sent(1, worker.predict(0.0, 5_000), 0.0, streams=False)
    worker.first_token(1, 9.0)
    assert worker.model.ttft_errors.count == 0
    assert worker.load(0.1).waiting == 1
    assert worker.load(5.0)[5:7] == (0, 1), "its prefill must be over by now; it runs"
    worker.ended(1, 9.0, 300)
    assert (len(worker), worker.load(9.0).running) == (0, 0)


def test_what_cannot_be_is_ignored() -> None:
    worker = taught()
    before = worker.predict(1e4, 2_000)
    for seconds in (nan, inf, -1.0):
        worker.model.observe_ttft(before, seconds)
        worker.model.observe_tpot(before, 10, seconds)
    worker.model.observe_tpot(before, 1, 0.5)
    worker.first_token(12_345, 1e4)
    worker.ended(12_345, 1e4, 5)
    assert worker.predict(1e4, 2_000) == before


@pytest.mark.parametrize("value", [0.0, -1.0, inf, nan])
def test_a_prior_that_cannot_be(value: float) -> None:
    with pytest.raises(ValueError, match="above 0 and finite"):
        LatencyPrior(tokens_per_second=value)


def check_sane(predicted: Prediction) -> None:
    assert all(isfinite(seconds) and seconds > 0 for seconds in predicted[:4])
    assert predicted.ttft_s <= predicted.ttft_p90_s
    assert predicted.tpot_s <= predicted.tpot_p90_s


@given(LOADS, st.tuples(SIZES, SIZES), st.floats(0.0, 1e5), SIZES, st.booleans())
def test_always_a_number_above_0(
    load: Load, prompt: tuple[float, float], restore: float, join: float, cold: bool
) -> None:
    model = (COLD if cold else TAUGHT).model
    check_sane(model.predict(load, *prompt, restore))
    check_sane(model.predict(load._replace(join_tokens=join), *prompt, restore))


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_also_for_what_makes_no_sense(uncached: float, context: float) -> None:
    check_sane(TAUGHT.model.predict(Load(behind_tokens=1e300, behind_pairs=1e308, waiting=3), uncached, context))


@given(LOADS, st.tuples(SIZES, SIZES), st.sampled_from(GROWING), SIZES, st.floats(0.0, 1e4))
def test_more_work_never_takes_less_time(
    load: Load, prompt: tuple[float, float], field: str, more: float, rest_s: float
) -> None:
    """Where there is room, and before anything was learnt of what will share the last step."""
    load = load._replace(rest_s=rest_s, room_tokens=inf)
    uncached, context = prompt
    before = COLD.model.predict(load, uncached, context)
    for after in (
        COLD.model.predict(load._replace(**{field: getattr(load, field) + more}), uncached, context),
        COLD.model.predict(load, uncached + more, context),
        COLD.model.predict(load, uncached, context + more),
        COLD.model.predict(load, uncached, context, more),
    ):
        assert after.ttft_s >= before.ttft_s * (1 - 1e-9)
        assert after.tpot_s >= before.tpot_s * (1 - 1e-9)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(LOADS, st.floats(1.0, 1e6), st.floats(0.0, 1e6), st.integers(2, 5_000)), max_size=30))
def test_whatever_is_observed_predictions_stay_sane(
    observed: list[tuple[Load, float, float, int]],
) -> None:
    model = LatencyModel(FleetLatency(PRIOR))
    for load, uncached, seconds, tokens in observed:
        predicted = model.predict(load, uncached)
        check_sane(predicted)
        model.observe_ttft(predicted, seconds)
        model.observe_tpot(predicted, tokens, seconds)


TAUGHT = taught()
TAUGHT.hold(1e6)
COLD = WorkerLatency(FleetLatency(PRIOR), kv_tokens=1e6)
