"""Every policy, exactly: frozen snapshots and a sample in, the choice and its costs out."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.routing import (
    DEFAULT_PREFILL_RATE,
    POLICIES,
    LeastLoaded,
    Needs,
    PredictedCost,
    Prompt,
    RoundRobin,
    WorkerView,
    fullness,
    lowest,
    make_policy,
)
from policies.types import WorkerId


def view(
    name: str, *, active: int = 0, queued: float = 0.0, rate: float | None = 1_000.0, recent: float = 0.0
) -> WorkerView:
    return WorkerView(WorkerId(name), active, queued, rate, recent)


def prompt(tokens: int, **cached: int) -> Prompt:
    return Prompt(tokens, {WorkerId(name): count for name, count in cached.items()})


NOBODY = prompt(0)


def test_round_robin_takes_each_in_turn() -> None:
    policy = RoundRobin()
    workers = [view("a"), view("b", active=9), view("c")]
    assert [policy.choose(NOBODY, workers, 0.5).chosen for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_least_loaded_takes_the_fewest_unfinished() -> None:
    workers = [view("a", active=2), view("b", active=1, queued=9e9), view("c", active=3)]
    assert LeastLoaded().choose(NOBODY, workers, 0.9).chosen == 1


def test_ties_are_broken_by_the_sample() -> None:
    costs = [3.0, 1.0, 2.0, 1.0, 1.0]
    samples = [0.0, 0.33, 0.34, 0.66, 0.67, math.nextafter(1.0, 0.0)]
    assert [lowest(costs, sample) for sample in samples] == [1, 1, 3, 3, 4, 4]
    assert lowest([2.0, 1.0], 0.99) == 1
    counts = Counter(lowest([5, 5, 5, 5], i / 1_000) for i in range(1_000))
    assert counts == {0: 250, 1: 250, 2: 250, 3: 250}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.floats(0, 1, exclude_max=True))
def test_the_lowest_is_always_one_of_the_lowest(costs: list[int], sample: float) -> None:
    assert costs[lowest(costs, sample)] == min(costs)


def test_the_decision_tells_what_is_cached_where_it_goes() -> None:
    for policy in (RoundRobin(), LeastLoaded(), PredictedCost()):
        decision = policy.choose(prompt(100, a=64), [view("a")], 0.0)
        assert (decision.chosen, decision.cached_tokens) == (0, 64)
        assert policy.choose(prompt(100, b=64), [view("a")], 0.0).cached_tokens == 0


# The cost policy


def test_cost_adds_queue_lack_decode_and_recent_work_in_one_unit() -> None:
    """(queued + 16 × active + 0.1 × recent + 2 × lack) ÷ rate."""
    policy = PredictedCost(idle_weight=2.0, full_weight=2.0, decode_tokens=16.0, spread=0.1)
    workers = [view("a", queued=500, active=3, recent=100), view("b", rate=500.0), view("c", active=1)]
    decision = policy.choose(prompt(1_000, a=800, c=100), workers, 0.0)
    assert tuple(decision.costs) == (
        (500 + 16 * 3 + 0.1 * 100 + 2 * 200) / 1_000,
        (0 + 0 + 2 * 1_000) / 500,
        (0 + 16 + 2 * 900) / 1_000,
    )
    assert decision.chosen == 0
    assert decision.cached_tokens == 800


def test_a_match_is_worth_what_it_saves_and_no_more() -> None:
    policy = PredictedCost(idle_weight=1.0, full_weight=1.0, decode_tokens=0.0, spread=0.0)
    for queued, chosen in ((599.0, 0), (601.0, 1)):
        decision = policy.choose(prompt(1_000, a=600), [view("a", queued=queued), view("b")], 0.0)
        assert decision.chosen == chosen


def test_recomputing_weighs_more_the_fuller_the_fleet() -> None:
    policy = PredictedCost(idle_weight=2.0, full_weight=4.0, decode_tokens=0.0, spread=0.0)

    def weight(queued: float) -> float:
        """What one uncached token costs more than a queued one, read off the costs."""
        decision = policy.choose(prompt(1_000), [view("a", queued=queued), view("b", queued=queued)], 0.0)
        return (decision.costs[0] * 1_000.0 - queued) / 1_000

    assert weight(0) == 2.0
    assert weight(1_000) == pytest.approx(3.0)
    assert weight(1e9) == pytest.approx(4.0, abs=1e-5)
    assert 2.0 < weight(100) < weight(200) < weight(5_000) < 4.0


def test_when_the_fleet_is_full_a_match_is_waited_for_longer() -> None:
    """The same advantage in queue no longer pays for recomputing, once everybody has long queues."""
    policy = PredictedCost(idle_weight=2.0, full_weight=4.0, decode_tokens=0.0, spread=0.0)
    request = prompt(1_000, a=1_000)
    assert policy.choose(request, [view("a", queued=3_500), view("b")], 0.0).chosen == 1
    assert policy.choose(request, [view("a", queued=23_500), view("b", queued=20_000)], 0.0).chosen == 0


def test_fullness() -> None:
    assert fullness(100, [0.0, 0.0]) == 0.0
    assert fullness(0, [0.0]) == 0.0
    assert fullness(100, [200.0, 0.0]) == 0.5
    assert fullness(0, [1.0]) == 1.0


@given(st.integers(0, 10**6), st.lists(st.floats(0, 1e9), min_size=1, max_size=8))
def test_fullness_is_a_share(tokens: int, queued: list[float]) -> None:
    assert 0.0 <= fullness(tokens, queued) <= 1.0


def test_everybody_sharing_the_first_block_brings_nobody_together() -> None:
    """The block-0 trap: each prompt shares 16 tokens with everything, so whoever served first always has a match.
    Where a match wins over load, all of them end up on that worker."""
    policy = PredictedCost()
    queued = dict.fromkeys("abcd", 0.0)
    active = dict.fromkeys("abcd", 0)
    served: Counter[str] = Counter()
    for i in range(400):
        workers = [view(name, active=active[name], queued=queued[name]) for name in "abcd"]
        decision = policy.choose(prompt(2_000, **dict.fromkeys(served, 16)), workers, (i * 0.618) % 1)
        name = "abcd"[decision.chosen]
        served[name] += 1
        queued[name] += 2_000 - decision.cached_tokens
        active[name] += 1
    assert set(served.values()) == {100}


def test_where_nothing_else_tells_workers_apart_recent_work_does() -> None:
    policy = PredictedCost()
    workers = [view("a", recent=500), view("b", recent=400), view("c", recent=600)]
    assert policy.choose(prompt(100), workers, 0.0).chosen == 1


def test_without_a_known_rate_workers_are_taken_as_usual() -> None:
    policy = PredictedCost(idle_weight=1.0, full_weight=1.0)
    alone = policy.choose(prompt(800), [view("a", rate=None)], 0.0)
    assert tuple(alone.costs) == (800 / DEFAULT_PREFILL_RATE,)
    decision = policy.choose(prompt(800), [view("a", rate=1_000), view("b", rate=None), view("c", rate=3_000)], 0.0)
    assert tuple(decision.costs) == (0.8, 0.4, 800 / 3_000)
    assert decision.chosen == 2


def test_a_weight_of_two_halves_the_cost() -> None:
    policy = PredictedCost(idle_weight=1.0, full_weight=1.0)
    light = view("a")
    decision = policy.choose(prompt(1_000), [light, light._replace(weight=2.0), light._replace(weight=0.5)], 0.0)
    assert (tuple(decision.costs), decision.chosen) == ((1.0, 0.5, 2.0), 1)


def test_equals_are_chosen_evenly() -> None:
    policy = PredictedCost()
    workers = [view(name) for name in "abcd"]
    counts = Counter(policy.choose(prompt(500), workers, i / 100).chosen for i in range(100))
    assert counts == {0: 25, 1: 25, 2: 25, 3: 25}


# The table of policies


def test_policies_by_name() -> None:
    assert isinstance(make_policy("round_robin"), RoundRobin)
    assert isinstance(make_policy("least_loaded"), LeastLoaded)
    assert isinstance(make_policy("cost", idle_weight=1.0, full_weight=2.0, decode_tokens=3.0), PredictedCost)
    assert {name: (make_policy(name).needs, make_policy(name).uses_key) for name in POLICIES} == {
        "consistent_hash": (Needs.LOAD, True),
        "cost": (Needs.PREFIXES, False),
        "least_loaded": (Needs.LOAD, False),
        "power_of_two": (Needs.LOAD, False),
        "prefix_affinity": (Needs.PREFIXES, False),
        "random": (Needs.NOTHING, False),
        "round_robin": (Needs.NOTHING, False),
        "slo": (Needs.LATENCY, False),
    }


def test_an_unknown_policy_lists_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"'kost'.*consistent_hash, cost, .*, round_robin, slo"):
        make_policy("kost")
