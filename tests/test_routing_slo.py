"""Meet the objective first, then pack: which worker the `slo` policy takes, and what it asks before."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from math import inf
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.fleet_outlook import objective_of
from backends.fleet_state import FleetState
from backends.fleet_worker import Worker
from backends.simulated.engine import EngineConfig
from gateway.replay.arrival import Arrival
from gateway.replay.customers import Customer
from gateway.replay.slo import Slos
from gateway.replay.virtual_admission import AdmissionStage
from gateway.replay.virtual_fleet import VirtualResult, replay_virtually
from policies.admission_types import ServiceClass
from policies.latency_model import Load, Prediction, Situation
from policies.latency_path import Estimate
from policies.restore_route import PricedRun, TierPrice
from policies.routing import MeetThenPack, Objective, PredictedCost, Prompt, WorkerView, make_policy
from policies.types import Tier, WorkerId

RATE = 1_000.0
TIGHT = 1.0


def view(name: str, queued: float = 0.0, active: int = 0, weight: float = 1.0) -> WorkerView:
    return WorkerView(WorkerId(name), active, queued, RATE, 0.0, weight)


class Oracle:
    """Predicts what it was told, else (queued + uncached) ÷ rate; notes who was asked about."""

    def __init__(self, workers: list[WorkerView], ttft: Mapping[str, float] | None = None, tpot: float = 0.01) -> None:
        self.queued = {worker.id: worker.queued_tokens for worker in workers}
        self.ttft = ttft or {}
        self.tpot = tpot
        self.asked: list[str] = []

    def predict(self, worker: WorkerId, uncached: float, context: float, restore_s: float) -> Prediction:
        self.asked.append(worker)
        ttft = self.ttft.get(worker, (self.queued[worker] + uncached) / RATE + restore_s)
        said = (ttft, 1.2 * ttft, self.tpot, 1.2 * self.tpot)
        made_from = Estimate(ttft, Situation.IDLE, 0, -1, ttft)
        return Prediction(*said, Situation.IDLE, Load(), uncached, context, restore_s, made_from)

    def objective(self, ttft: float = TIGHT, tpot: float = inf, waited: float = 0.0) -> Objective:
        return Objective(ttft - waited, ttft, tpot, self.predict)


def prompt(tokens: int, objective: Objective | None, **cached: int) -> Prompt:
    return Prompt(tokens, {WorkerId(name): held for name, held in cached.items()}, objective=objective)


def test_without_a_promise_it_is_the_cost_policy() -> None:
    workers = [view("a", 500.0, 1), view("b", 900.0), view("c", 200.0, 4)]
    asked = prompt(400, None, b=390)
    assert MeetThenPack().choose(asked, workers, 0.3) == PredictedCost().choose(asked, workers, 0.3)


def test_the_cheapest_is_taken_and_only_it_asked_about_while_it_keeps_the_promise() -> None:
    workers = [view("a", 300.0), view("b"), view("c", 100.0)]
    oracle = Oracle(workers)
    decision = MeetThenPack().choose(prompt(200, oracle.objective()), workers, 0.0)
    assert (decision.chosen, decision.reason, oracle.asked) == (1, "in time", ["b"])
    assert decision.costs == PredictedCost().choose(prompt(200, None), workers, 0.0).costs


def test_a_cheapest_that_would_be_late_is_passed_over() -> None:
    """Its queue looks short, but what is known of its latency says otherwise."""
    workers = [view("a", 300.0), view("b", 200.0), view("c", 450.0)]
    oracle = Oracle(workers, {"b": 1.5})
    decision = MeetThenPack().choose(prompt(400, oracle.objective(), b=60), workers, 0.0)
    assert (decision.chosen, decision.cached_tokens, decision.reason) == (0, 0, "in time")


def test_the_time_that_is_left_counts_and_not_what_was_promised() -> None:
    workers = [view("a", 100.0), view("b", 120.0)]
    oracle = Oracle(workers, {"a": 0.6, "b": 0.3})
    policy = MeetThenPack()
    assert policy.choose(prompt(200, oracle.objective(waited=0.1)), workers, 0.0).chosen == 0
    assert policy.choose(prompt(200, oracle.objective(waited=0.5)), workers, 0.0).chosen == 1


def test_where_none_would_be_in_time_the_cheapest_serves_it() -> None:
    workers = [view("a", 3_000.0), view("b", 2_000.0), view("c", 4_000.0)]
    decision = MeetThenPack().choose(prompt(1_500, Oracle(workers).objective(), c=1_490), workers, 0.0)
    usual = PredictedCost().choose(prompt(1_500, None, c=1_490), workers, 0.0)
    assert (decision.chosen, decision.reason) == (usual.chosen, "late") == (2, "late")


def test_a_promise_is_not_kept_at_any_price() -> None:
    """To compute a long session anew elsewhere takes others' time."""
    workers = [view("a", 900.0), view("b")]
    oracle = Oracle(workers, {"a": 1.1, "b": 0.8})
    decision = MeetThenPack().choose(prompt(10_000, oracle.objective(), a=9_900), workers, 0.0)
    assert (decision.chosen, decision.reason) == (0, "late")
    decision = MeetThenPack().choose(prompt(10_000, oracle.objective(), a=9_900, b=9_850), workers, 0.0)
    assert (decision.chosen, decision.reason) == (1, "in time")


def test_tokens_must_be_fast_enough_where_it_goes_instead() -> None:
    workers = [view("a", 300.0), view("b", 200.0)]
    for tpot, reason in ((0.1, "late"), (0.08, "in time")):
        oracle = Oracle(workers, {"b": 1.5}, tpot=tpot)
        assert MeetThenPack().choose(prompt(400, oracle.objective(tpot=0.1)), workers, 0.0).reason == reason


def test_whoever_may_be_late_too_is_not_taken_instead() -> None:
    """The median would be in time, the upper bound would not."""
    workers = [view("a", 300.0), view("b", 200.0)]
    oracle = Oracle(workers, {"a": 0.9, "b": 1.5})
    assert MeetThenPack().choose(prompt(400, oracle.objective()), workers, 0.0).reason == "late"


def test_at_most_five_of_a_large_fleet_are_asked_about() -> None:
    workers = [view(f"w{n}", 2_000.0 + n) for n in range(200)]
    oracle = Oracle(workers)
    assert MeetThenPack().choose(prompt(100, oracle.objective()), workers, 0.0).reason == "late"
    assert len(oracle.asked) <= 5
    policy = MeetThenPack()
    workers = [view(f"w{n}", 200.0 + n / 10) for n in range(200)]
    policy.choose(prompt(100, Oracle(workers).objective()), workers, 0.0)
    oracle = Oracle(workers, {worker.id: 9.0 for worker in workers})
    assert policy.choose(prompt(100, oracle.objective(10.0)), workers, 0.0).reason == "in time"
    assert len(oracle.asked) <= 9


# -- packing


def after_a_tight_one(workers: list[WorkerView]) -> MeetThenPack:
    policy = MeetThenPack()
    policy.choose(prompt(10, Oracle(workers).objective(TIGHT)), workers, 0.0)
    return policy


def test_whoever_has_time_goes_where_something_waits_already() -> None:
    workers = [view("a"), view("b", 300.0), view("c", 200.0), view("d", 2_000.0)]
    policy = after_a_tight_one(workers)
    decision = policy.choose(prompt(100, Oracle(workers).objective(10.0)), workers, 0.0)
    assert (decision.chosen, decision.reason) == (2, "packed")
    assert policy.choose(prompt(100, Oracle(workers).objective(TIGHT)), workers, 0.0).chosen == 0


@pytest.mark.parametrize(
    ("queued", "tokens", "why"),
    [
        (50.0, 100, "hardly anything waits there: it is worth as much as a free one"),
        (300.0, 300, "with it the tightest promise could not be kept there"),
        (600.0, 100, "the tightest promise cannot be kept there"),
    ],
)
def test_nothing_is_packed_where_it_would_not_help(queued: float, tokens: int, why: str) -> None:
    workers = [view("a"), view("b", queued)]
    decision = after_a_tight_one(workers).choose(prompt(tokens, Oracle(workers).objective(10.0)), workers, 0.0)
    assert (decision.chosen, decision.reason) == (0, "in time"), why


def test_nothing_is_packed_where_more_would_have_to_be_computed() -> None:
    workers = [view("a"), view("b", 200.0)]
    policy = after_a_tight_one(workers)
    assert policy.choose(prompt(200, Oracle(workers).objective(10.0), a=150), workers, 0.0).reason == "in time"
    assert policy.choose(prompt(200, Oracle(workers).objective(10.0), a=50), workers, 0.0).reason == "packed"


def test_nothing_is_packed_that_is_not_sure_of_its_own_time() -> None:
    workers = [view("a"), view("b", 200.0)]
    policy = after_a_tight_one(workers)
    unsure = Oracle(workers, {"b": 4.5})  # its upper bound is over half of ten seconds
    assert policy.choose(prompt(100, unsure.objective(10.0)), workers, 0.0).chosen == 0
    slow = Oracle(workers, tpot=0.09)
    assert policy.choose(prompt(100, slow.objective(10.0, tpot=0.1)), workers, 0.0).chosen == 0
    assert policy.choose(prompt(100, slow.objective(10.0, tpot=0.2)), workers, 0.0).chosen == 1


def test_where_all_are_promised_the_same_nothing_is_packed() -> None:
    workers = [view("a"), view("b", 200.0)]
    policy = MeetThenPack()
    assert {policy.choose(prompt(100, Oracle(workers).objective(2.0)), workers, 0.0).chosen for _ in range(9)} == {0}


def test_a_tight_promise_is_forgotten_when_nobody_has_it_any_more() -> None:
    workers = [view("a"), view("b", 200.0)]
    policy = after_a_tight_one(workers)
    chosen = [policy.choose(prompt(100, Oracle(workers).objective(10.0)), workers, 0.0).chosen for _ in range(256)]
    assert chosen[:127] == [1] * 127
    assert chosen[-1] == 0


def test_what_can_be_restored_is_not_computed() -> None:
    run = PricedRun(900, TierPrice(Tier.HOST, 0.0, 1e-5))
    workers = [view("a"), view("b")]
    oracle = Oracle(workers)
    asked = Prompt(1_000, {}, None, {WorkerId("b"): (run,)}, oracle.objective(0.5))
    decision = MeetThenPack().choose(asked, workers, 0.0)
    assert decision.chosen == 1
    assert decision.split is not None
    assert (decision.split.restored_tokens, decision.split.computed_tokens) == (900, 100)
    assert oracle.asked == ["b"]


@given(
    fleet=st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 40), st.floats(0.1, 10)), min_size=1, max_size=9),
    requests=st.lists(
        st.tuples(st.integers(1, 10**5), st.floats(0.01, 100), st.floats(-10, 10), st.floats(0.001, 1), st.data()),
        min_size=1,
        max_size=5,
    ),
)
def test_what_holds_of_every_choice(
    fleet: list[tuple[float, int, float]], requests: list[tuple[int, float, float, float, st.DataObject]]
) -> None:
    workers = [view(f"w{n}", queued, active, weight) for n, (queued, active, weight) in enumerate(fleet)]
    policy = MeetThenPack()
    for tokens, promised, waited, tpot, data in requests:
        cached = {worker.id: data.draw(st.integers(0, tokens - 1)) for worker in workers[::2]}
        oracle = Oracle(workers, tpot=0.05)
        objective = oracle.objective(promised, tpot, waited)
        decision = policy.choose(Prompt(tokens, cached, objective=objective), workers, 0.5)
        chosen = workers[decision.chosen].id
        held = cached.get(chosen, 0)
        assert decision.cached_tokens == held
        said = oracle.predict(chosen, tokens - held, held, 0.0)
        if decision.reason != "late":
            assert said.ttft_s <= objective.ttft_s
        cheapest = PredictedCost().choose(Prompt(tokens, cached), workers, 0.5)
        if decision.reason == "late":
            assert decision.chosen == cheapest.chosen
            assert said.ttft_s > objective.ttft_s
        if decision.reason == "packed":
            least = cached.get(workers[cheapest.chosen].id, 0)
            assert held >= least - 64
            assert workers[decision.chosen].queued_tokens > 0
        assert math.isfinite(decision.costs[decision.chosen])


# -- in front of a fleet


def test_what_was_promised_and_who_is_asked() -> None:
    fleet = FleetState([Worker(WorkerId("a"), "h", 1, configured_models=("m",))], cooldown=1.0, cooldown_max=1.0)
    assert objective_of(fleet, 5.0, 3.0, 8.0, None) is None, "nothing is learnt here"
    fleet.predicts = True
    assert objective_of(fleet, 5.0, 3.0, inf, None) is None, "nothing was promised"
    objective = objective_of(fleet, 5.0, 3.0, 8.0, None)
    assert objective is not None
    assert objective[:3] == (3.0, 5.0, inf)
    expected = fleet.latency_of(fleet.worker(WorkerId("a"))).predict(5.0, 700, 300, 0.0)
    assert objective.predict(WorkerId("a"), 700, 300, 0.0) == expected
    by_token = objective_of(fleet, 5.0, 3.0, inf, 0.1)
    assert by_token is not None
    assert by_token[:3] == (inf, inf, 0.1)


ENGINE = EngineConfig(blocks=1_024, block_size=256, max_model_len=32_768)
TWO = (Slos(ttft=0.4, tpot=0.1), Slos(ttft=8.0, tpot=0.1))


def replay(policy: str, rows: list[Arrival], **options: object) -> VirtualResult:
    return replay_virtually(rows, make_policy(policy), workers=4, engine=ENGINE, **options)  # type: ignore[arg-type]  # of a test


def arrivals(count: int, per_second: float) -> list[Arrival]:
    """Prompts of about a thousand tokens, some of ten thousand, that share nothing."""
    rng, at, rows = random.Random(1), 0.0, []
    for n in range(count):
        tokens = int(min(rng.lognormvariate(6.8, 0.9), 12_000))
        first = n << 8
        rows.append(Arrival(at, tokens, rng.randint(20, 200), tuple(range(first, first - (-tokens // 256))), 256))
        at += rng.expovariate(per_second)
    return rows


def test_without_promises_the_fleet_is_served_as_by_cost() -> None:
    rows = arrivals(200, 55.0)
    assert replay("slo", rows).ttft == replay("cost", rows).ttft


def test_whoever_has_time_makes_room_for_whoever_has_none() -> None:
    rows = arrivals(1_200, 55.0)
    results = {policy: replay(policy, rows, slos=lambda n: TWO[n % 2]) for policy in ("cost", "slo")}
    for result in results.values():
        assert all(TWO[n % 2].met(record) for n, record in enumerate(result.records))
    assert results["slo"].choices["packed"] > 300
    assert fmean(results["slo"].ttft[::2]) < fmean(results["cost"].ttft[::2])
    assert fmean(results["slo"].ttft[1::2]) > fmean(results["cost"].ttft[1::2])


def test_with_admission_the_promise_is_that_of_the_class_less_the_time_waited() -> None:
    rows = arrivals(400, 90.0)
    customers = [Customer("a", ServiceClass.INTERACTIVE), Customer("b", ServiceClass.BATCH)] * 200
    slos = {ServiceClass.INTERACTIVE: TWO[0]}
    result = replay("slo", rows, admission=AdmissionStage("fair", customers, slos))
    assert result.choices["lowest cost"] == 200, "batch was promised nothing"
    assert result.choices["in time"] > 100
