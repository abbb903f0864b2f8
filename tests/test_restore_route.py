"""What is worth restoring where, exactly: the price, the split against every other one, and what `cost` makes of it."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.restore_route import (
    DEFAULT_HOST,
    PricedRun,
    RestoreSplit,
    TierPrice,
    best_split,
    priced,
    prices_of,
)
from policies.routing import CHOICES, DEFAULT_PREFILL_RATE, POLICIES, PredictedCost, Prompt, WorkerView, make_policy
from policies.types import Tier, TierRun, WorkerId

HOST = TierPrice(Tier.HOST, 0.01, 1e-5)
DISK = TierPrice(Tier.DISK, 0.02, 1e-3)
REDIS = TierPrice(Tier.REDIS, 0.05, 1e-4, "s")
PRICES = prices_of([HOST, DISK, REDIS])
A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")


def about(split: RestoreSplit) -> tuple[int, float, int]:
    """The seconds without what rounding adds."""
    return split.restored_tokens, round(split.restore_s, 9), split.computed_tokens


def test_a_price_must_be_one_that_a_tier_can_have() -> None:
    assert HOST.credible
    assert TierPrice(Tier.REDIS, 0.0, 1.0).credible
    for round_trip, per_token in ((-1.0, 1e-5), (601.0, 1e-5), (0.1, 0.0), (0.1, 1.1), (0.1, float("nan"))):
        assert not TierPrice(Tier.HOST, round_trip, per_token).credible, (round_trip, per_token)
    assert not TierPrice(Tier.DEVICE, 0.1, 1e-5).credible


def test_who_tells_nothing_may_have_a_host_and_who_tells_has_what_it_tells() -> None:
    assert prices_of([]) == {Tier.HOST: DEFAULT_HOST}
    assert prices_of([REDIS]) == {Tier.REDIS: REDIS}


def test_blocks_become_tokens_and_the_last_one_is_computed() -> None:
    runs = [TierRun(Tier.DEVICE, 2), TierRun(Tier.HOST, 3), TierRun(Tier.REDIS, 5)]
    assert priced(runs, 16, 161, PRICES) == (32, (PricedRun(48, HOST), PricedRun(80, REDIS)))
    assert priced(runs, 16, 160, PRICES) == (32, (PricedRun(48, HOST), PricedRun(79, REDIS)))
    assert priced(runs, 16, 81, PRICES) == (32, (PricedRun(48, HOST),))
    assert priced(runs, 16, 20, PRICES) == (19, ())
    assert priced(runs[1:], 16, 1000, PRICES) == (0, (PricedRun(48, HOST), PricedRun(80, REDIS)))
    assert priced([], 16, 100, PRICES) == (0, ())


def test_a_tier_without_a_price_ends_the_chain() -> None:
    runs = [TierRun(Tier.HOST, 1), TierRun(Tier.DISK, 1), TierRun(Tier.HOST, 9)]
    assert priced(runs, 16, 1000, prices_of([])) == (0, (PricedRun(16, DEFAULT_HOST),))


def test_blocks_on_the_device_behind_a_gap_cost_nothing() -> None:
    runs = [TierRun(Tier.HOST, 1), TierRun(Tier.DEVICE, 4)]
    device, behind = priced(runs, 16, 1000, PRICES)
    assert device == 0
    split = best_split(1000, 0, behind, rate=4_000)
    assert about(split) == (80, 0.01016, 920)


def test_a_short_run_is_not_worth_its_round_trip() -> None:
    # 0.01 s is what 80 tokens take at 8,000 tokens/s.
    assert best_split(1000, 0, [PricedRun(80, HOST)], rate=8_000) == RestoreSplit(0, 0.0, 1000)
    split = best_split(1000, 0, [PricedRun(96, HOST)], rate=8_000)
    assert about(split) == (96, 0.01096, 904)
    assert best_split(1000, 0, [PricedRun(80, HOST)], rate=8_000, lack_weight=2.0).restored_tokens == 80


def test_a_tier_slower_than_computing_ends_the_chain_unless_what_follows_makes_up_for_it() -> None:
    slow, fast = PricedRun(100, DISK), PricedRun(10_000, HOST)
    assert best_split(20_000, 0, [PricedRun(1_000, HOST), slow], rate=8_000).restored_tokens == 1_000
    assert best_split(20_000, 0, [PricedRun(1_000, HOST), slow, fast], rate=8_000).restored_tokens == 11_100


def test_a_tier_is_asked_once() -> None:
    runs = [PricedRun(1_000, HOST), PricedRun(1_000, REDIS), PricedRun(1_000, HOST)]
    split = best_split(9_000, 500, runs, rate=8_000)
    assert about(split) == (3_000, 0.01 + 0.05 + 0.02 + 0.1, 5_500)


def test_who_waits_for_other_transfers_restores_less() -> None:
    run = [PricedRun(8_000, HOST)]
    assert best_split(9_000, 0, run, rate=8_000, wait_s=0.5).restore_s == pytest.approx(0.5 + 0.01 + 0.08)
    assert best_split(9_000, 0, run, rate=8_000, wait_s=2.0) == RestoreSplit(0, 0.0, 9_000)


runs = st.lists(
    st.builds(
        PricedRun,
        st.integers(1, 5_000),
        st.sampled_from([HOST, DISK, REDIS, TierPrice(Tier.DEVICE, 0.0, 0.0)]),
    ),
    max_size=6,
)


@given(
    runs,
    st.integers(0, 3_000),
    st.integers(1, 3_000),
    st.floats(10, 1e6),
    st.floats(1, 5),
    st.sampled_from([0.0, 0.1, 3.0]),
)
def test_no_other_split_is_cheaper(  # noqa: PLR0917 - drawn, each
    chain: list[PricedRun], device: int, rest: int, rate: float, weight: float, wait: float
) -> None:
    """Against every number of tokens, for small ones, and every end of a run, and computing it all."""
    n_tokens = device + sum(run.tokens for run in chain) + rest
    split = best_split(n_tokens, device, chain, rate=rate, lack_weight=weight, wait_s=wait)
    assert split.restored_tokens + split.computed_tokens == n_tokens - device
    assert split.computed_tokens >= rest

    def cost(k: int) -> float:
        seconds, asked, left = (wait if k else 0.0), set(), k
        for tokens, price in chain:
            taken = min(tokens, left)
            if taken <= 0:
                break
            seconds += taken * price.s_per_token + (0.0 if price.tier in asked else price.round_trip_s)
            asked.add(price.tier)
            left -= taken
        return seconds * rate + weight * (n_tokens - device - k)

    chosen = split.restore_s * rate + weight * split.computed_tokens
    assert chosen == pytest.approx(cost(split.restored_tokens))
    ends = list(accumulate((run.tokens for run in chain), initial=0))
    for k in {*ends, *(end + 1 for end in ends[:-1]), *(end // 2 for end in ends)}:
        assert chosen <= cost(k) * (1 + 1e-9) + 1e-9, k


# --- the choice of `cost` ---


def view(name: WorkerId, *, queued: float = 0.0, active: int = 0, restoring: float = 0.0) -> WorkerView:
    return WorkerView(name, active, queued, 8_000.0, 0.0, 1.0, restoring)


LONG = Prompt(10_000, {A: 9_600}, None, {B: [PricedRun(9_600, REDIS)], C: [PricedRun(9_600, DISK)]})
FLAT = PredictedCost(full_weight=1.0)


@pytest.mark.parametrize(
    ("queued", "chosen", "reason"),
    [
        (0.0, 0, "holder"),  # 400 / 8,000 s
        (8_000.0, 0, "holder"),  # 1.05 s; restored elsewhere in 1.01 + 0.05
        (8_200.0, 1, "restore"),
        (80_000.0, 1, "restore"),
    ],
)
def test_the_holder_is_left_when_its_queue_is_longer_than_a_restore(queued: float, chosen: int, reason: str) -> None:
    decision = FLAT.choose(LONG, [view(A, queued=queued), view(B), view(C)], 0.0)
    assert (decision.chosen, decision.reason) == (chosen, reason)
    assert decision.costs == pytest.approx([(queued + 400) / 8_000, 0.05 + 0.96 + 0.05, 10_000 / 8_000])
    assert decision.cached_tokens == (9_600 if chosen == 0 else 0)
    assert decision.split is not None
    assert about(decision.split) == ((9_600, 1.01, 400) if chosen else (0, 0.0, 400))


def test_it_is_recomputed_where_both_the_holder_and_the_restoring_one_are_busy() -> None:
    decision = FLAT.choose(LONG, [view(A, queued=50_000), view(B, queued=50_000), view(C)], 0.0)
    assert (decision.chosen, decision.reason, decision.split) == (2, "recompute", RestoreSplit(0, 0.0, 10_000))


def test_a_restore_runs_beside_the_queue() -> None:
    idle, busy = (FLAT.choose(LONG, [view(B, queued=queued)], 0.0).costs[0] for queued in (0.0, 8_000.0))
    assert idle == pytest.approx(busy), "1.01 s of transfers hide 1 s of queue"
    waiting = FLAT.choose(LONG, [view(B, restoring=0.1)], 0.0)
    assert waiting.costs[0] == pytest.approx(idle + 0.1), "one transfer after another"


def test_what_does_not_fit_beside_those_that_run_waits() -> None:
    full, empty = view(B)._replace(room_tokens=2_000.0), view(B)._replace(room_tokens=10_000.0)
    assert FLAT.choose(LONG, [empty], 0.0).costs == FLAT.choose(LONG, [view(B)], 0.0).costs
    waiting = FLAT.choose(LONG, [full], 0.0).costs[0] - FLAT.choose(LONG, [empty], 0.0).costs[0]
    assert waiting == pytest.approx(8_000 / 8_000)
    assert FLAT.choose(LONG._replace(restorable={}), [full], 0.0).costs == [10_000 / 8_000], "as before without tiers"


def test_the_fuller_the_fleet_the_more_is_restored() -> None:
    prompt = Prompt(2_000, {}, None, {A: [PricedRun(1_900, TierPrice(Tier.REDIS, 0.0, 2e-4))]})
    assert PredictedCost().choose(prompt, [view(A)], 0.0).reason == "recompute"
    assert PredictedCost().choose(prompt, [view(A, queued=8_000)], 0.0).reason == "restore"


def test_a_weight_counts_as_speed_for_restores_too() -> None:
    slow = view(A)._replace(weight=0.5)
    prompt = Prompt(1_000, {}, None, {A: [PricedRun(900, HOST)], B: [PricedRun(900, HOST)]})
    decision = FLAT.choose(prompt, [slow, view(B)], 0.0)
    assert decision.costs[0] == pytest.approx(2 * decision.costs[1])
    assert decision.chosen == 1


def test_a_worker_nobody_has_seen_at_work_is_priced_at_the_usual_rate() -> None:
    unseen = view(B)._replace(prefill_rate=None)
    decision = FLAT.choose(LONG._replace(cached={}), [unseen], 0.0)
    assert decision.costs[0] == pytest.approx(0.05 + 0.96 + 400 / DEFAULT_PREFILL_RATE)


@given(st.data())
def test_tiers_never_make_a_worker_dearer_and_nothing_restorable_changes_nothing(data: st.DataObject) -> None:
    workers = [view(name, queued=data.draw(st.floats(0, 1e5)), active=data.draw(st.integers(0, 9))) for name in (A, B)]
    plain = Prompt(20_000, {A: data.draw(st.integers(0, 5_000)), B: data.draw(st.integers(0, 5_000))})
    behind = data.draw(runs.filter(lambda drawn: sum(run.tokens for run in drawn) < 15_000))
    tiered = plain._replace(restorable={A: behind})
    policy = PredictedCost()
    before, after = policy.choose(plain, workers, 0.5), policy.choose(tiered, workers, 0.5)
    assert after.costs[0] <= before.costs[0] * (1 + 1e-9)
    assert after.costs[1] == pytest.approx(before.costs[1])
    assert (before.reason, before.split) == ("lowest cost", None)
    assert after.reason in CHOICES


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"cost", "slo"}))
def test_other_policies_look_at_no_tier(name: str) -> None:
    views = [view(A, active=2), view(B, active=1), view(C, active=3)]
    one, other = (make_policy(name).choose(prompt, views, 0.3) for prompt in (LONG, LONG._replace(restorable={})))
    assert one == other
    assert one.split is None
