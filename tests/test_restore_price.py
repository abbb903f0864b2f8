"""The price of a restore: the exact optimum, what moves it, and how soon speeds are learnt."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import exp, inf, nan

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policies.restore_price import (
    PROBE_AFTER,
    PrefillModel,
    RestorableChunk,
    TierSpeed,
    attended,
    plan_restore,
)
from policies.types import Tier
from tests.bench.restore_price import MACHINES, Machine, percentile, run

MB = 1_000_000
TIERS = (Tier.HOST, Tier.DISK, Tier.REDIS)


def learnt(a: float, b: float, c: float, *, step_tokens: int | None = None) -> PrefillModel:
    """A model that has seen exact steps."""
    model = PrefillModel(1000.0, step_tokens=step_tokens)
    for _ in range(40):
        for n, context in ((1, 0), (64, 0), (512, 4096), (2048, 0), (2048, 16_384), (8192, 32_768)):
            model.observe(n, attended(n, context), a + b * n + c * attended(n, context))
    return model


def settled(rtt: float, bandwidth: float) -> TierSpeed:
    """A tier that has been measured, with nothing to wonder about."""
    speed = TierSpeed(rtt, bandwidth)
    for _ in range(3):
        speed.observe(MB, rtt + MB / bandwidth, 0.0)
    assert speed.margin == pytest.approx(0.0, abs=1e-9)
    return speed


def chain(*parts: tuple[int, Tier], tokens: int = 64, size: int = 4 * MB) -> list[RestorableChunk]:
    return [RestorableChunk(tokens, size, tier) for count, tier in parts for _ in range(count)]


# --- the plan ---------------------------------------------------------------------------------------------

chunks_of_all_kinds = st.lists(
    st.builds(RestorableChunk, st.integers(1, 512), st.integers(1, 40 * MB), st.sampled_from(TIERS)), max_size=25
)
speeds_of_all_kinds = st.fixed_dictionaries(
    {tier: st.builds(TierSpeed, st.floats(1e-6, 1e-1), st.floats(1e6, 1e11)) for tier in TIERS}
)
models = st.builds(PrefillModel, st.floats(100, 1e6), step_tokens=st.sampled_from([None, 100, 2048]))


def cost_of(  # noqa: PLR0917 - a formula of seven quantities
    k: int, chunks: Sequence[RestorableChunk], n_tokens: int, speeds: dict[Tier, TierSpeed], model: PrefillModel,
    rho: float, context: int,
) -> float:  # fmt: skip
    """As the formula says, from scratch."""
    wait = 0.0
    for tier in TIERS:
        size = sum(chunk.bytes for chunk in chunks[:k] if chunk.tier is tier)
        if size:
            wait += (speeds[tier].rtt + size / speeds[tier].bandwidth) * (1 + speeds[tier].margin)
    tokens = sum(chunk.tokens for chunk in chunks[:k])
    return wait + model.seconds(n_tokens - tokens, context + tokens) * (1 + rho)


@given(chunks_of_all_kinds, st.integers(1, 9000), speeds_of_all_kinds, models, st.floats(0, 5), st.integers(0, 5000))
def test_it_is_the_best_of_all(  # noqa: PLR0917 - what hypothesis draws
    chunks: list[RestorableChunk], n_tokens: int, speeds: dict[Tier, TierSpeed], model: PrefillModel, rho: float,
    context: int,
) -> None:  # fmt: skip
    plan = plan_restore(chunks, n_tokens, speeds, model, 0.0, rho=rho, context=context)
    possible = [k for k in range(len(chunks) + 1) if sum(chunk.tokens for chunk in chunks[:k]) < n_tokens]
    costs = {k: cost_of(k, chunks, n_tokens, speeds, model, rho, context) for k in possible}
    assert plan.cost == pytest.approx(min(costs.values()))
    assert costs[plan.n_chunks] == pytest.approx(plan.cost)
    assert plan.n_tokens == sum(chunk.tokens for chunk in chunks[: plan.n_chunks]) < n_tokens
    assert plan.compute_s == pytest.approx(model.seconds(n_tokens - plan.n_tokens, context + plan.n_tokens))
    # Never dearer than to recompute everything, even when transfers are as late as they may be.
    assert plan.cost <= model.seconds(n_tokens, context) * (1 + rho)
    late = sum(
        (speeds[tier].rtt + size / speeds[tier].bandwidth) * (1 + speeds[tier].margin)
        for tier in TIERS
        if (size := sum(chunk.bytes for chunk in chunks[: plan.n_chunks] if chunk.tier is tier))
    )
    assert late <= plan.deadline_s * (1 + 1e-9) + 1e-12
    assert plan.restore_s <= late * (1 + 1e-9)


@given(chunks_of_all_kinds, st.integers(1, 9000), models, st.floats(1e6, 1e11), st.floats(1.0, 100.0), st.floats(0, 5))
def test_more_bandwidth_never_restores_less(  # noqa: PLR0917 - what hypothesis draws
    chunks: list[RestorableChunk], n_tokens: int, model: PrefillModel, bandwidth: float, factor: float, rho: float
) -> None:
    slow = dict.fromkeys(TIERS, TierSpeed(1e-3, bandwidth))
    fast = dict.fromkeys(TIERS, TierSpeed(1e-3, bandwidth * factor))
    plans = [plan_restore(chunks, n_tokens, speeds, model, 0.0, rho=rho) for speeds in (slow, fast)]
    assert plans[0].n_chunks <= plans[1].n_chunks
    assert plans[0].cost >= plans[1].cost * (1 - 1e-9)


@given(chunks_of_all_kinds, st.integers(1, 9000), speeds_of_all_kinds, models, st.floats(0, 5), st.floats(0, 5))
def test_a_longer_queue_never_restores_less(  # noqa: PLR0917 - what hypothesis draws
    chunks: list[RestorableChunk], n_tokens: int, speeds: dict[Tier, TierSpeed], model: PrefillModel, rho: float,
    more: float,
) -> None:  # fmt: skip
    plans = [plan_restore(chunks, n_tokens, speeds, model, 0.0, rho=price) for price in (rho, rho + more)]
    assert plans[0].compute_s >= plans[1].compute_s * (1 - 1e-9)


def test_a_chain_over_three_tiers_is_taken_as_far_as_it_pays() -> None:
    model = learnt(0.0, 1e-4, 0.0)  # 6.4 ms a chunk
    speeds = {Tier.HOST: settled(1e-5, 10e9), Tier.DISK: settled(1e-3, 1e9), Tier.REDIS: settled(1e-3, 0.5e9)}
    chunks = chain((2, Tier.HOST), (3, Tier.DISK), (4, Tier.REDIS))
    plan = plan_restore(chunks, 1000, speeds, model, 0.0)
    assert (plan.n_chunks, plan.n_tokens) == (5, 320)  # 4 ms a chunk from disk, 8 ms from Redis
    assert plan.restore_s == pytest.approx(1e-5 + 8e-4 + 1e-3 + 12e-3)
    assert plan.recompute_s == pytest.approx(0.1, rel=1e-3)
    # Others wait for what is computed, but not for what is loaded.
    assert plan_restore(chunks, 1000, speeds, model, 0.0, rho=0.5).n_chunks == 9


def test_what_a_tier_cannot_give_ends_the_chain() -> None:
    model, speeds = learnt(0.0, 1e-3, 0.0), {Tier.HOST: settled(1e-5, 10e9)}
    chunks = chain((2, Tier.HOST), (1, Tier.DISK), (5, Tier.HOST))
    assert plan_restore(chunks, 1000, speeds, model, 0.0).n_chunks == 2


def test_the_last_token_is_always_computed() -> None:
    model, speeds = learnt(0.0, 1e-3, 0.0), {Tier.HOST: settled(1e-5, 10e9)}
    assert plan_restore(chain((2, Tier.HOST)), 128, speeds, model, 0.0).n_chunks == 1
    assert plan_restore(chain((2, Tier.HOST)), 129, speeds, model, 0.0).n_chunks == 2
    assert plan_restore([], 129, speeds, model, 0.0).n_chunks == 0


def test_a_tier_slower_than_recompute_is_left_alone() -> None:
    """A store that takes 38 s where computing takes 1 s."""
    model, speeds = learnt(0.0, 1.03 / 8192, 0.0), {Tier.REDIS: settled(1e-3, 28e6)}
    plan = plan_restore(chain((127, Tier.REDIS), size=8_400_000), 8192, speeds, model, 0.5)
    assert (plan.n_chunks, plan.deadline_s, plan.compute_s) == (0, 0.0, plan.recompute_s)


def test_a_negative_price_is_refused() -> None:
    for rho in (-0.1, nan):
        with pytest.raises(ValueError, match="a price of"):
            plan_restore([], 10, {}, PrefillModel(1000.0), 0.0, rho=rho)


def test_an_idle_tier_is_measured_beside_the_request_within_its_share() -> None:
    model = learnt(0.0, 1e-6, 0.0)  # nothing is worth restoring
    speeds = {Tier.HOST: settled(1e-5, 10e9), Tier.REDIS: settled(1e-3, 40e6)}  # 0.1 s a chunk from Redis
    chunks = chain((2, Tier.HOST), (2, Tier.REDIS))
    assert plan_restore(chunks, 1000, speeds, model, 0.3).probe is None
    assert plan_restore(chunks, 1000, speeds, model, PROBE_AFTER).probe == 0
    speeds[Tier.HOST].observe(MB, 1.1e-4, PROBE_AFTER)
    assert plan_restore(chunks, 1000, speeds, model, PROBE_AFTER).probe == 2
    speeds[Tier.REDIS].observe(MB, 1e-3 + MB / 40e6, PROBE_AFTER)
    speeds[Tier.REDIS].observe(MB, 0.5, PROBE_AFTER)  # was that a stray?
    assert plan_restore(chunks, 1000, speeds, model, PROBE_AFTER + 0.3).probe is None
    assert plan_restore(chunks, 1000, speeds, model, PROBE_AFTER + 0.5).probe == 2  # 4 × 0.1 s are over
    dear = learnt(0.0, 1e-2, 0.0)
    assert plan_restore(chunks, 1000, speeds, dear, 1e3).probe is None  # all are read anyway


# --- speeds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rtt", "bandwidth"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (inf, 1.0), (1.0, nan)])
def test_senseless_beliefs_are_refused(rtt: float, bandwidth: float) -> None:
    with pytest.raises(ValueError, match="a tier with"):
        TierSpeed(rtt, bandwidth)


def test_what_cannot_be_teaches_nothing() -> None:
    speed = TierSpeed(1e-3, 1e9)
    for size, seconds in ((-1, 1.0), (1, -1.0), (1, nan), (1, inf)):
        speed.observe(size, seconds, 5.0)
    assert speed.seconds(1_000_000) == pytest.approx(2e-3)
    assert speed.measured_at == -inf


@given(st.lists(st.tuples(st.integers(0, 10**10), st.floats(0, 1e4)), max_size=40))
def test_speeds_stay_finite_whatever_comes(transfers: list[tuple[int, float]]) -> None:
    speed = TierSpeed(1e-3, 1e9)
    for size, seconds in transfers:
        speed.observe(size, seconds, 0.0)
        assert 0 < speed.rtt < inf
        assert 0 < speed.bandwidth < inf
        assert 0 <= speed.margin <= speed.doubt < inf


@given(st.floats(1e-5, 1e-2), st.floats(1e7, 5e10), st.integers(0, 100))
@example(1e-5, 1e7, 19)
def test_round_trip_and_bandwidth_are_told_apart(rtt: float, bandwidth: float, seed: int) -> None:
    draw = random.Random(seed)
    speed = TierSpeed(1e-3, 1e9)
    for _ in range(30):
        size = int(rtt * bandwidth * exp(draw.uniform(-3, 3))) + 1
        speed.observe(size, rtt + size / bandwidth, 0.0)
    assert speed.rtt == pytest.approx(rtt, rel=0.1)
    assert speed.bandwidth == pytest.approx(bandwidth, rel=0.1)


@pytest.mark.parametrize("share", [1 / 30, 1 / 3, 3.0, 30.0])
@pytest.mark.parametrize("seed", range(5))
def test_another_bandwidth_is_known_after_three_transfers(share: float, seed: int) -> None:
    draw = random.Random(seed)
    speed = TierSpeed(5e-4, 1e9)
    for _ in range(50):
        size = draw.randint(1, 32) * 4 * MB
        speed.observe(size, (5e-4 + size / 1e9) * exp(draw.gauss(0, 0.1)), 0.0)
    assert speed.bandwidth == pytest.approx(1e9, rel=0.15)
    for _ in range(3):
        size = draw.randint(1, 32) * 4 * MB
        speed.observe(size, (5e-4 + size / (1e9 * share)) * exp(draw.gauss(0, 0.1)), 1.0)
    assert speed.bandwidth == pytest.approx(1e9 * share, rel=0.25)
    assert speed.measured_at == 1.0


def test_a_stray_moves_nothing_but_the_margin() -> None:
    speed = settled(1e-3, 1e9)
    for _ in range(10):
        speed.observe(4 * MB, 5e-3, 0.0)
    speed.observe(4 * MB, 0.5, 1.0)
    assert speed.bandwidth == pytest.approx(1e9, rel=0.1)
    assert 0.3 < speed.margin < 1.0
    for _ in range(15):
        speed.observe(4 * MB, 5e-3, 2.0)
    assert speed.margin < 0.1


# --- prefill ----------------------------------------------------------------------------------------------


def test_steps_are_learnt() -> None:
    model = learnt(5e-3, 3e-5, 4e-10)
    assert model.coefficients == pytest.approx((5e-3, 3e-5, 4e-10), rel=1e-3)
    assert model.seconds(1000, 9000) == pytest.approx(5e-3 + 3e-2 + 4e-10 * 9_500_000, rel=1e-3)
    assert model.seconds(0) == model.seconds(-5) == 0.0


def test_each_step_of_a_long_prefill_has_its_overhead() -> None:
    model = learnt(5e-3, 3e-5, 0.0, step_tokens=2048)
    assert model.seconds(2048) == pytest.approx(5e-3 + 3e-5 * 2048, rel=1e-3)
    assert model.seconds(2049) == pytest.approx(1e-2 + 3e-5 * 2049, rel=1e-3)


def test_a_device_that_slows_down_is_noticed() -> None:
    model = learnt(5e-3, 3e-5, 4e-10)
    for _ in range(300):
        for n, context in ((512, 0), (2048, 8192)):
            model.observe(n, attended(n, context), 2 * (5e-3 + 3e-5 * n + 4e-10 * attended(n, context)))
    for n, context in ((512, 0), (2048, 8192)):
        slow = 2 * (5e-3 + 3e-5 * n + 4e-10 * attended(n, context))
        assert model.seconds(n, context) == pytest.approx(slow, rel=0.02)


def test_steps_that_are_all_alike_teach_what_they_can() -> None:
    model = PrefillModel(1000.0)
    assert model.seconds(500) == pytest.approx(0.5)
    for _ in range(500):
        model.observe(64, attended(64, 100), 0.01)
    assert model.seconds(64, 100) == pytest.approx(0.01, rel=1e-3)
    assert min(model.coefficients) >= 0


@given(st.lists(st.tuples(st.integers(-1, 10**5), st.integers(0, 10**6), st.floats(0, 1e3)), max_size=40))
def test_no_coefficient_is_ever_negative(steps: list[tuple[int, int, float]]) -> None:
    model = PrefillModel(1000.0)
    for n, context, seconds in steps:
        model.observe(n, attended(n, context), seconds)
        assert all(0 <= value < inf for value in model.coefficients)


@pytest.mark.parametrize(("rate", "step"), [(0.0, None), (nan, None), (1.0, 0)])
def test_senseless_models_are_refused(rate: float, step: int | None) -> None:
    with pytest.raises(ValueError, match="tokens/s"):
        PrefillModel(rate, step_tokens=step)


# --- all of it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_regret_is_small_while_tiers_are_throttled(machine: Machine) -> None:
    regrets = run(machine, 2000, noise=0.1, seed=7)
    assert len(regrets.priced) > 1950
    assert percentile(regrets.priced, 0.99) <= 0.10
    assert percentile(regrets.priced, 0.9) <= 0.01
