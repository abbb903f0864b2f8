"""Requests that wait in front of a virtual fleet: the real admission queue, over simulated engines."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import cache

import pytest

from backends.simulated.engine import EngineConfig
from gateway.replay.arrival import Arrival
from gateway.replay.customers import Customer, customers_of, parse_classes, parse_tenants
from gateway.replay.slo import Slos
from gateway.replay.virtual_admission import AdmissionStage
from gateway.replay.virtual_fleet import Added, Lost, VirtualResult, replay_virtually
from policies.admission_types import AdmissionSettings, ClassRules, Late, ServiceClass
from policies.routing import make_policy
from tests.admission_load import BATCH, INTERACTIVE, RESERVE, Outcome, Workload, fair_shares, jain, outcome

ENGINE = EngineConfig(blocks=512, block_size=256, max_model_len=65_536)


def arrivals(count: int, per_second: float, seed: int = 3) -> list[Arrival]:
    """Prompts of 100 to 4,000 tokens that share nothing, answers of 20 to 200."""
    rng, at, out = random.Random(seed), 0.0, []
    for number in range(count):
        tokens = rng.randint(100, 4_000)
        first = number << 8
        blocks = tuple(range(first, first - (-tokens // 256)))
        out.append(Arrival(at, tokens, rng.randint(20, 200), blocks, 256))
        at += rng.expovariate(per_second)
    return out


def replay(rows: list[Arrival], stage: AdmissionStage | None, **more: object) -> VirtualResult:
    return replay_virtually(rows, make_policy("cost"), engine=ENGINE, admission=stage, **{"workers": 2, **more})  # type: ignore[arg-type]  # of a test


@pytest.mark.parametrize("policy", ["fair", "fcfs", "priority"])
def test_every_request_is_answered_or_given_up_once(policy: str) -> None:
    rows = arrivals(300, 40.0)
    shares = {Customer("a", INTERACTIVE): 1.0, Customer("b", BATCH): 1.0, Customer("c"): 1.0}
    slos = {each: Slos(ttft=0.5) for each in ServiceClass}
    settings = AdmissionSettings(max_waiting=60, interactive=ClassRules(0.0, Late.REFUSE, 1.0))
    result = replay(rows, AdmissionStage(policy, customers_of(rows, shares), slos, settings))
    kinds = {record.error for record in result.records}
    assert kinds <= {None, "refused", "expired"}
    for record in result.records:
        assert record.finished is not None
        assert (record.error is None) == (record.first_token is not None)
        assert record.tokens_made == (record.output_tokens if record.ok else 0)
    assert result == replay(rows, AdmissionStage(policy, customers_of(rows, shares), slos, settings))


def test_with_room_for_all_nobody_waits() -> None:
    rows = arrivals(100, 1.0)
    direct, waited = replay(rows, None), replay(rows, AdmissionStage("fair"))
    assert waited.ttft_at(0.99) == pytest.approx(direct.ttft_at(0.99), rel=0.3)
    assert all(record.ok for record in waited.records)


def test_workers_get_no_more_than_they_can_start_soon() -> None:
    """All at once: what waits in the engines is a step or two, whatever waits in front."""
    rows = [replace(arrival, at=0.0) for arrival in arrivals(200, 1.0)]
    result = replay(rows, AdmissionStage("fcfs", window_s=0.1))
    order = sorted(result.records, key=lambda record: record.index)
    firsts = [record.first_token or 0.0 for record in order]
    assert all(record.ok for record in result.records)
    # In the order of arrival, but for the few that are in the workers at the same time.
    assert all(later > earlier - 0.75 for earlier, later in itertools.pairwise(firsts))


def test_earlier_deadlines_and_higher_classes_go_first() -> None:
    rows = [replace(arrival, at=0.0) for arrival in arrivals(120, 1.0)]
    customers = [Customer("a", BATCH if n < 60 else INTERACTIVE) for n in range(120)]
    result = replay(rows, AdmissionStage("fair", customers))
    ttft = [record.ttft or 0.0 for record in result.records]
    assert max(ttft[60:]) < sorted(ttft[:60])[40]


def test_what_lost_its_worker_waits_again() -> None:
    rows = arrivals(200, 25.0)
    customers = customers_of(rows, {Customer("a", INTERACTIVE): 1.0, Customer("b", BATCH): 1.0})
    result = replay(rows, AdmissionStage("fair", customers), changes=[Lost(2.0, 0), Added(3.0)])
    errors = {record.error for record in result.records}
    assert errors == {None, "reset_mid_stream"}
    assert all(record.worker != "0" for record in result.records if record.ok and (record.first_token or 0.0) > 2.0)


def test_sessions_go_on_after_a_refusal() -> None:
    rows = [
        Arrival(0.0, 2_000, 10, tuple(range(8 * n, 8 * n + 8)), 256, session="s", pause=None if n == 0 else 0.1)
        for n in range(30)
    ]
    customers = [Customer("a", INTERACTIVE)] * 30
    result = replay(rows, AdmissionStage("fair", customers, {INTERACTIVE: Slos(ttft=0.001)}))
    assert all(record.finished is not None for record in result.records)
    assert {record.error for record in result.records} == {None, "refused"}  # none is refused before it is learnt
    assert [record.error for record in result.records[:10]] == [None] * 10


def test_customers_must_be_as_many_as_requests() -> None:
    with pytest.raises(ValueError, match="1 customers for 5 requests"):
        replay(arrivals(5, 1.0), AdmissionStage("fair", [Customer()]))


def test_an_admission_policy_must_be_there() -> None:
    with pytest.raises(ValueError, match="no admission policy 'lifo'"):
        replay(arrivals(5, 1.0), AdmissionStage("lifo"))


# -- whose requests they are


def test_customers_come_by_their_shares_and_a_session_is_of_one() -> None:
    rows = arrivals(4_000, 1.0)
    mine, yours = Customer("a"), Customer("b", BATCH)
    found = customers_of(rows, {mine: 1.0, yours: 3.0})
    assert found.count(yours) == pytest.approx(3_000, abs=150)
    of_session = customers_of([replace(row, session="s") for row in rows], {mine: 1.0, yours: 1.0})
    assert len(set(of_session)) == 1
    assert set(customers_of(rows, {mine: 0.0, yours: 1.0})) == {yours}
    with pytest.raises(ValueError, match="no shares"):
        customers_of(rows, {mine: 0.0})


def test_shares_as_people_write_them() -> None:
    assert parse_classes("interactive=0.6, batch=0.4") == {INTERACTIVE: 0.6, BATCH: 0.4}
    assert parse_tenants("2") == {"tenant-1": 1.0, "tenant-2": 1.0}
    assert parse_tenants("a=1,b") == {"a": 1.0, "b": 1.0}
    for text in ("0", "=1", "a=-1", "a=nan", "a=inf", "a=0"):
        with pytest.raises(ValueError, match=r"\S"):
            parse_tenants(text)


# -- what it is for


WORKLOAD = Workload(arrivals(1_600, 10.0), ENGINE, 4, ttft=2.0, tpot=0.25, batch_ttft=5.0)


@cache
def overload(policy: str, load: float, flood: ServiceClass = BATCH, reserve: float = RESERVE) -> Outcome:
    return outcome(WORKLOAD, policy, load, capacity(), flood, reserve)


@cache
def capacity() -> float:
    return WORKLOAD.capacity()


@pytest.mark.parametrize(("load", "least"), [(0.8, 0.99), (1.3, 0.99), (2.0, 0.95)])
def test_interactive_work_keeps_its_promise_while_batch_overloads(load: float, least: float) -> None:
    found = overload("fair", load)
    assert found.interactive >= least
    # At twice the capacity answers soon fill the KV caches: for two seconds, a tenth of the time, few find room.
    assert found.slowest_batch > (0.01 if load < 2 else -1)
    assert found.batch > 0.4
    assert max(found.cost.values()) <= 0.05


def test_goodput_under_overload_is_more_than_first_come_first_served() -> None:
    assert overload("fair", 1.3).goodput >= 1.5 * overload("fcfs", 1.3).goodput
    assert overload("fcfs", 1.3).interactive < 0.5


def test_a_tenant_that_floods_its_own_class_harms_no_other() -> None:
    fair, priority = (overload(policy, 2.0, INTERACTIVE) for policy in ("fair", "priority"))
    assert max(fair.cost["a"], fair.cost["b"]) <= 0.05
    assert min(priority.cost["a"], priority.cost["b"]) > 0.3


def test_a_flood_from_above_harms_batch_work_only_where_nothing_is_reserved_for_it() -> None:
    assert overload("fair", 2.0, INTERACTIVE, 0.0).cost["c"] > 0.3
    assert max(overload("fair", 2.0, INTERACTIVE).cost.values()) <= 0.05
    assert max(overload("fair", 2.0, INTERACTIVE, 0.2).cost.values()) <= 0.05


def test_max_min_fair_shares_and_jains_index() -> None:
    assert fair_shares({"a": 0.1, "b": 0.5, "c": 2.0}, 1.0) == pytest.approx({"a": 0.1, "b": 0.45, "c": 0.45})
    assert fair_shares({"a": 0.1, "b": 0.2}, 1.0) == pytest.approx({"a": 0.1, "b": 0.2})
    assert jain([1.0, 1.0, 1.0, 1.0]) == 1.0
    assert jain([1.0, 0.0, 0.0, 0.0]) == 0.25
