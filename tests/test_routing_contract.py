"""What every routing policy keeps to, whichever it is."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.routing import POLICIES, Needs, Prompt, WorkerView, make_policy
from policies.types import WorkerId

SAMPLES = st.floats(0, 1, exclude_max=True)
WEIGHTS = st.one_of(st.just(1.0), st.floats(0.01, 100))
FLEETS = st.lists(
    st.builds(
        WorkerView,
        st.text("abcdefgh", min_size=1, max_size=2).map(WorkerId),
        st.integers(0, 500),
        st.floats(0, 1e7),
        st.one_of(st.none(), st.floats(1.0, 1e6)),
        st.floats(0, 1e7),
        WEIGHTS,
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda view: view.id,
)
KEYS = st.one_of(st.none(), st.integers(0, 2**64 - 1))
ALL = pytest.mark.parametrize("name", POLICIES)
BY_COST = {"cost", "least_loaded", "power_of_two"}


def idle(name: str, weight: float = 1.0, active: int = 0) -> WorkerView:
    return WorkerView(WorkerId(name), active, 0.0, 1_000.0, 0.0, weight)


@ALL
@given(fleets=st.lists(FLEETS, min_size=1, max_size=3), tokens=st.integers(0, 10**6), key=KEYS, data=st.data())
def test_the_choice_is_one_of_those_there_are(
    name: str, fleets: list[list[WorkerView]], tokens: int, key: int | None, data: st.DataObject
) -> None:
    """Also where the fleet changes between one request and the next."""
    policy = make_policy(name)
    for workers in [*fleets, *fleets]:
        cached = {worker.id: data.draw(st.integers(0, tokens)) for worker in workers[::2]}
        decision = policy.choose(Prompt(tokens, cached, key), workers, data.draw(SAMPLES))
        assert 0 <= decision.chosen < len(workers)
        assert decision.cached_tokens == cached.get(workers[decision.chosen].id, 0)
        assert decision.reason
        assert len(decision.costs) in {0, len(workers)}
        if decision.costs:
            assert all(cost >= 0 for cost in decision.costs)
            assert math.isfinite(decision.costs[decision.chosen])
        if name in BY_COST:
            assert decision.costs[decision.chosen] == min(decision.costs)


@ALL
def test_views_may_be_a_tuple_or_a_list(name: str) -> None:
    workers = [idle("a"), idle("b", 2.0)]
    chosen = [make_policy(name).choose(Prompt(9, {}, 7), views, 0.3).chosen for views in (workers, tuple(workers))]
    assert chosen[0] == chosen[1]


@ALL
def test_what_a_policy_does_not_need_changes_nothing(name: str) -> None:
    """The shell leaves out what `needs` does not name."""
    needs = make_policy(name).needs
    full = [WorkerView(WorkerId(str(i)), i * 7 % 5, 100.0 * i, 1_000.0 + i, 50.0 * i, 1 + i % 3) for i in range(5)]
    bare = [view._replace(queued_tokens=0.0, prefill_rate=None, recent_tokens=0.0) for view in full]
    if needs is Needs.NOTHING:
        bare = [view._replace(active=0) for view in bare]
    if needs in {Needs.PREFIXES, Needs.LATENCY}:
        bare = full
    policies = make_policy(name), make_policy(name)
    for i in range(50):
        prompt = Prompt(100, {WorkerId("2"): 80} if bare is full else {}, i * 0x9E3779B97F4A7C15 % 2**64)
        sample = i * 0.618 % 1
        assert policies[0].choose(prompt, full, sample).chosen == policies[1].choose(prompt, bare, sample).chosen


@ALL
@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0, 1.0), (1.0, 2.0, 3.0, 4.0)])
def test_shares_follow_the_weights_under_steady_load(name: str, weights: tuple[float, ...]) -> None:
    """200 requests at a time, each as long as the next, all different: work is shared by weight."""
    policy = make_policy(name)
    active = [0, 0, 0, 0]
    running: list[int] = []
    served: Counter[int] = Counter()
    for i in range(8_000):
        workers = [
            WorkerView(WorkerId(f"w{at}"), active[at], 100.0 * active[at], 1_000.0, 0.0, weight)
            for at, weight in enumerate(weights)
        ]
        key = (i + 1) * 0x9E3779B97F4A7C15 % 2**64
        chosen = policy.choose(Prompt(100, {}, key), workers, i * 0.6180339887 % 1).chosen
        served[chosen] += 1
        active[chosen] += 1
        running.append(chosen)
        if len(running) > 200:
            active[running.pop(0)] -= 1
    for at, weight in enumerate(weights):
        assert served[at] / 8_000 == pytest.approx(weight / sum(weights), rel=0.15)
