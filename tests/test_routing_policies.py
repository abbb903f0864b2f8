"""The policies beside `cost`, whose turn it is, which two are drawn, where a key belongs, when a match wins."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from policies.routing import (
    ConsistentHash,
    LeastLoaded,
    PowerOfTwo,
    PrefixAffinity,
    Prompt,
    RandomChoice,
    RoundRobin,
    RoutingPolicy,
    WorkerView,
    slow_start_share,
)
from policies.routing_affinity import distance
from policies.routing_load import two_of
from policies.routing_types import draw
from policies.types import WorkerId

NOBODY = Prompt(0, {})
SAMPLES = st.floats(0, 1, exclude_max=True)
WEIGHTS = st.lists(st.floats(0.01, 100), min_size=1, max_size=8)
KEYS = [(i + 1) * 0x9E3779B97F4A7C15 % 2**64 for i in range(20_000)]


def view(name: str, weight: float = 1.0, active: int = 0) -> WorkerView:
    return WorkerView(WorkerId(name), active, 0.0, None, 0.0, weight)


def names(policy: RoutingPolicy, workers: list[WorkerView], count: int) -> str:
    return "".join(workers[policy.choose(NOBODY, workers, 0.5).chosen].id for _ in range(count))


# Drawing by weight


def test_a_draw_falls_by_weight_and_leaves_a_sample() -> None:
    assert [draw([1, 2, 1], i / 8) for i in range(8)] == [
        (0, 0.0), (0, 0.5), (1, 0.0), (1, 0.25), (1, 0.5), (1, 0.75), (2, 0.0), (2, 0.5),
    ]  # fmt: skip


@given(WEIGHTS, SAMPLES)
def test_a_draw_stays_in_its_bounds(weights: list[float], sample: float) -> None:
    for each in (sample, 0.0, math.nextafter(1.0, 0.0)):
        index, left = draw(weights, each)
        assert 0 <= index < len(weights)
        assert 0.0 <= left < 1.0


# In turn


def test_unequal_weights_are_mixed_as_nginx_mixes_them() -> None:
    """5, 1, 1: the example of nginx's change that brought the algorithm."""
    assert names(RoundRobin(), [view("a", 5), view("b", 1), view("c", 1)], 14) == "aabacaa" * 2


def test_one_that_leaves_and_returns_disturbs_nobody() -> None:
    policy = RoundRobin()
    all_three = [view("a"), view("b"), view("c")]
    assert names(policy, all_three, 4) == "abca"
    assert names(policy, [view("a"), view("c")], 3) == "cac"
    assert names(policy, all_three, 4) == "bcab"  # b was away: it is its turn


def test_a_new_one_is_next() -> None:
    policy = RoundRobin()
    assert names(policy, [view("a"), view("b")], 3) == "aba"
    assert names(policy, [view("a"), view("b"), view("c")], 4) == "cabc"


def test_models_that_alternate_do_not_starve_anybody() -> None:
    """With one turn for all, every second request of a model with two workers would hit the same one."""
    policy = RoundRobin()
    seen = "".join(names(policy, workers, 1) for _ in range(6) for workers in ([view("a"), view("b")], [view("x")]))
    assert seen == "axbx" * 3


def test_a_list_changed_in_place_is_seen() -> None:
    policy = RoundRobin()
    workers = [view("a"), view("b")]
    assert names(policy, workers, 2) == "ab"
    workers[1] = view("c")
    assert names(policy, workers, 3) == "cac"


@given(st.lists(st.sets(st.sampled_from("abcd"), min_size=1), min_size=1, max_size=30))
def test_whoever_waits_longest_is_next(fleets: list[set[str]]) -> None:
    """A naive model: the turn that is longest ago, or the order of the list while the candidates are the same."""
    policy = RoundRobin()
    last: dict[str, int] = {}
    chosen, before = "", ""
    for turn, fleet in enumerate(fleets, start=1):
        workers = "".join(sorted(fleet))
        if workers == before:
            expected = (workers + workers)[workers.index(chosen) + 1]
        else:
            expected = min(workers, key=lambda name: last.get(name, 0))
        chosen = names(policy, [view(name) for name in workers], 1)
        assert chosen == expected
        last[chosen] = turn
        before = workers


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_each_gets_exactly_its_weight_in_a_cycle(weights: list[int]) -> None:
    workers = [view(str(i), weight) for i, weight in enumerate(weights)]
    counts = Counter(names(RoundRobin(), workers, sum(weights)))
    if len(set(weights)) > 1:
        assert counts == {str(i): weight for i, weight in enumerate(weights)}
    else:
        assert set(counts.values()) == {weights[0]}


def test_turns_of_endless_new_workers_are_not_kept() -> None:
    policy = RoundRobin()
    for i in range(10_000):
        policy.choose(NOBODY, [view(f"a{i}"), view(f"b{i}")], 0.0)
        policy.choose(NOBODY, [view(f"a{i}", 2.0), view(f"b{i}")], 0.0)
    assert max(len(policy._last_turn), len(policy._credit)) <= 4096


# By load


def test_random_shares_by_weight() -> None:
    workers = [view("a", 1), view("b", 3)]
    counts = Counter(RandomChoice().choose(NOBODY, workers, i / 1_000).chosen for i in range(1_000))
    assert counts == {0: 250, 1: 750}


def test_least_loaded_counts_for_the_weight() -> None:
    workers = [view("a", 1, active=3), view("b", 4, active=14), view("c", 0.5, active=1)]
    decision = LeastLoaded().choose(NOBODY, workers, 0.0)
    assert (tuple(decision.costs), decision.chosen, decision.reason) == ((4, 3.75, 4.0), 1, "least loaded")


@given(WEIGHTS, st.lists(st.integers(0, 50), min_size=8, max_size=8), SAMPLES)
def test_power_of_two_takes_the_less_loaded_of_two_different_ones(
    weights: list[float], active: list[int], sample: float
) -> None:
    workers = [view(str(i), weight, active[i]) for i, weight in enumerate(weights)]
    first, second = two_of(workers, sample)
    assert (first == second) == (len(workers) == 1)
    decision = PowerOfTwo().choose(NOBODY, workers, sample)
    assert decision.chosen in {first, second}
    load = [(worker.active + 1) / worker.weight for worker in workers]
    assert load[decision.chosen] == min(load[first], load[second])
    assert [i for i, cost in enumerate(decision.costs) if cost < math.inf] == sorted({first, second})


def test_every_pair_is_drawn_alike() -> None:
    workers = [view(name) for name in "abcd"]
    counts = Counter(two_of(workers, (i + 0.5) / 1_200) for i in range(1_200))
    assert set(counts.values()) == {100}
    assert len(counts) == 12


# By key


def where(policy: ConsistentHash, workers: list[WorkerView], key: int) -> str:
    return workers[policy.choose(Prompt(0, {}, key), workers, 0.0).chosen].id


def test_only_the_keys_of_a_worker_that_goes_move() -> None:
    policy = ConsistentHash(bound=100)
    workers = [view(name) for name in "abcde"]
    moved: Counter[str] = Counter()
    for key in KEYS[:5_000]:
        before, after = where(policy, workers, key), where(policy, workers[:2] + workers[3:], key)
        if before == "c":
            moved[after] += 1
        else:
            assert after == before
    assert moved.keys() == set("abde")
    assert all(count == pytest.approx(250, rel=0.25) for count in moved.values())


def test_a_greater_weight_only_draws_keys_to_itself() -> None:
    policy = ConsistentHash(bound=100)
    for key in KEYS[:3_000]:
        before = where(policy, [view("a"), view("b"), view("c")], key)
        after = where(policy, [view("a"), view("b", 1.5), view("c")], key)
        assert after in {before, "b"}


def test_keys_fall_by_weight() -> None:
    workers = [view("a", 1), view("b", 2), view("c", 5)]
    counts = Counter(where(ConsistentHash(bound=100), workers, key) for key in KEYS)
    assert [counts[name] / len(KEYS) for name in "abc"] == [
        pytest.approx(share, rel=0.05) for share in (1 / 8, 2 / 8, 5 / 8)
    ]


def test_the_order_of_the_candidates_does_not_matter() -> None:
    workers = [view(name) for name in "abcde"]
    policy = ConsistentHash()
    for key in KEYS[:300]:
        assert where(policy, workers, key) == where(policy, workers[::-1], key)


def test_where_a_key_belongs_never_changes() -> None:
    """Gateways side by side, and the next release, must agree; these were computed once."""
    workers = [view(name) for name in ("gpu-0", "gpu-1", "gpu-2")]
    assert [where(ConsistentHash(), workers, key) for key in (0, 1, 2, 3, 2**63, 2**64 - 1)] == [
        "gpu-0", "gpu-0", "gpu-1", "gpu-2", "gpu-1", "gpu-0",
    ]  # fmt: skip


@given(
    st.lists(st.tuples(st.floats(0.05, 20), st.integers(0, 60)), min_size=1, max_size=8),
    st.integers(0, 2**64 - 1),
    st.sampled_from([1.0, 1.25, 2.0]),
)
def test_the_bound_is_kept_and_the_first_with_room_is_taken(
    fleet: list[tuple[float, int]], key: int, bound: float
) -> None:
    workers = [view(str(i), weight, active) for i, (weight, active) in enumerate(fleet)]
    total = Fraction(bound) * (sum(worker.active for worker in workers) + 1)
    weights = sum(Fraction(worker.weight) for worker in workers)
    room = [total * Fraction(worker.weight) / weights for worker in workers]
    assume(all(abs(each - round(each)) > 1e-9 for each in room))  # there, floats may round either way
    decision = ConsistentHash(bound=bound).choose(Prompt(0, {}, key), workers, 0.5)
    has_room = [worker.active + 1 <= math.ceil(room[i]) for i, worker in enumerate(workers)]
    assert any(has_room)
    order = sorted(range(len(workers)), key=lambda i: distance(key, workers[i]))
    assert decision.chosen == next(i for i in order if has_room[i])
    assert decision.reason == ("hash" if decision.chosen == order[0] else "over bound")


def test_an_idle_fleet_follows_the_hash_whatever_the_weights() -> None:
    workers = [view("a", 0.1), view("b", 10)]
    for key in KEYS[:200]:
        assert ConsistentHash().choose(Prompt(0, {}, key), workers, 0.0).reason == "hash"


def test_without_a_key_any_worker_will_do() -> None:
    workers = [view("a", 1), view("b", 3)]
    decisions = [ConsistentHash().choose(NOBODY, workers, i / 100) for i in range(100)]
    assert Counter(decision.chosen for decision in decisions) == {0: 25, 1: 75}
    assert {decision.reason for decision in decisions} == {"no key"}


def test_a_bound_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 1, not 0\.9"):
        ConsistentHash(bound=0.9)


# By threshold


@pytest.mark.parametrize(
    ("active", "cached", "chosen", "reason"),
    [
        ((5, 0, 0), (51, 0, 0), 0, "match"),
        ((5, 1, 0), (50, 0, 0), 2, "no match"),  # half is not more than half
        ((5, 4, 0), (80, 80, 60), 1, "match"),  # of equals the less loaded one
        ((32, 0, 5), (100, 0, 0), 0, "match"),  # 32 more is not more than 32
        ((33, 0, 5), (100, 0, 0), 1, "imbalanced"),
        ((363, 330, 340), (100, 0, 0), 0, "match"),  # 33 more, but not over a tenth more
        ((364, 330, 340), (100, 0, 0), 1, "imbalanced"),
    ],
)
def test_prefix_affinity(active: tuple[int, ...], cached: tuple[int, ...], chosen: int, reason: str) -> None:
    workers = [view(str(i), active=count) for i, count in enumerate(active)]
    prompt = Prompt(100, {worker.id: tokens for worker, tokens in zip(workers, cached, strict=True)})
    decision = PrefixAffinity().choose(prompt, workers, 0.0)
    assert (decision.chosen, decision.reason, decision.cached_tokens) == (chosen, reason, cached[chosen])
    assert list(decision.costs) == [count + 1 for count in active]


def test_prefix_affinity_has_thresholds_of_its_own() -> None:
    policy = PrefixAffinity(threshold=0.2, imbalance=2, ratio=2)
    prompt = Prompt(100, {WorkerId("a"): 30})
    assert policy.choose(prompt, [view("a", active=3), view("b")], 0.0).reason == "imbalanced"
    assert policy.choose(prompt, [view("a", active=5), view("b", active=3)], 0.0).reason == "match"
    assert policy.choose(Prompt(0, {}), [view("a"), view("b")], 0.9).reason == "no match"


# Slow start


@pytest.mark.parametrize(
    ("age", "window", "share"),
    [(0, 60, 0.1), (3, 60, 0.1), (6, 60, 0.1), (30, 60, 0.5), (59.4, 60, 0.99), (60, 60, 1), (1e9, 60, 1),
     (0, 0, 1), (-5, 0, 1), (-5, 60, 0.1)],
)  # fmt: skip
def test_a_slow_start_grows_with_age(age: float, window: float, share: float) -> None:
    assert slow_start_share(age, window) == pytest.approx(share)
    assert slow_start_share(0, 60, floor=0.3) == 0.3
