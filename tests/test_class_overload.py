"""When the classes above ask for more than all there is, the ones below are owed more than their reserve."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.admission import AdmissionQueue, make_admission
from policies.admission_types import AdmissionSettings, ClassRules, Late, Queued, Request, ServiceClass
from policies.class_overload import ClassOverload
from policies.model_queue import ModelQueue

INTERACTIVE, STANDARD, BATCH = ServiceClass
RESERVE = 0.02


def overloaded(sent: list[float], away: list[float]) -> ClassOverload:
    """So many tokens of each class after two seconds."""
    overload = ClassOverload([0.0] * 3)
    overload.turned_away(0, 0.0, 0.0)
    overload.fade(2.0)
    overload.sent = sent
    for rank, tokens in enumerate(away):
        overload.turned_away(rank, tokens, 7.0)
    return overload


@pytest.mark.parametrize(
    ("away", "excess"),
    [
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
        ([40.0, 0.0, 0.0], [0.0, 0.0, 0.0]),  # the highest class asks for no more than there is
        ([140.0, 0.0, 0.0], [0.0, 0.5, 0.5]),
        ([140.0, 200.0, 0.0], [0.0, 0.5, 0.75]),
        ([40.0, 0.0, 1e6], [0.0, 0.0, 0.0]),  # what lower classes ask for is no reason
    ],
)
def test_excess_is_what_the_classes_above_would_not_get_if_they_alone_were_served(
    away: list[float], excess: list[float]
) -> None:
    overload = overloaded([60.0, 0.0, 40.0], away)
    assert [overload.excess(rank) for rank in range(3)] == pytest.approx(excess)


def test_nothing_is_said_of_the_first_two_seconds() -> None:
    overload = ClassOverload([0.0] * 3)
    overload.turned_away(0, 100.0, 5.0)
    assert overload.fades_at == 7.0
    assert overload.excess(2) == 0.0
    assert overload.fade(7.0)
    assert overload.excess(2) == 1.0


def test_what_was_turned_away_is_forgotten_in_time() -> None:
    overload = ClassOverload([0.0] * 3)
    overload.turned_away(0, 60.0, 108.0)
    overload.turned_away(0, 40.0, 109.0)
    overload.sent[0] = 100.0
    assert overload.fades_at == 110.0
    assert overload.fade(110.0)
    assert overload.fades_at == 120.0
    assert overload.sent[0] == pytest.approx(50.0)
    assert overload.excess(1) == pytest.approx(0.5)
    assert overload.fade(130.0)
    assert overload.sent[0] == pytest.approx(12.5)
    assert not overload.fade(200.0)


def test_what_cost_less_than_was_thought_is_no_excess() -> None:
    overload = overloaded([-100.0, 0.0, 40.0], [0.0, 0.0, 50.0])
    assert [overload.excess(rank) for rank in range(3)] == [0.0, 0.0, 0.0]


class Fleet:
    """It takes one request after the other, of 100 tokens each. What must wait is refused by its prediction."""

    def __init__(self, admission: AdmissionQueue) -> None:
        self.admission = admission
        self.served: dict[str, int] = {}
        self.now = 0.0

    def ask(self, tenant: str, service_class: ServiceClass, *, weight: float = 1.0, late: bool = False) -> None:
        asked = Request(
            tenant, "m", 100.0, service_class, weight, self.now + 20.0 if service_class is INTERACTIVE else inf
        )
        answer = self.admission.offer(asked, self.now, 50.0 if late else 0.0)
        assert isinstance(answer, Queued) != late

    def serve(self) -> str:
        self.now += 0.1
        picked = self.admission.next(self.now, lambda _: 1)
        assert picked is not None
        tenant = picked.request.tenant
        self.served[tenant] = self.served.get(tenant, 0) + 1
        self.admission.finished(picked.ticket)
        self.admission.check_integrity()
        return tenant


def test_a_highest_class_of_which_nothing_is_here_can_be_asked_for_its_wait() -> None:
    queue = ModelQueue([0.0, RESERVE, RESERVE], quantum=100.0)
    queue.overload = overloaded([0.0] * 3, [100.0, 0.0, 0.0])
    queue.classes[STANDARD].active, queue.classes[BATCH].tokens = 1.0, 500.0
    assert sum(queue.shares()[1:]) == pytest.approx(1.0)
    assert queue.ahead(INTERACTIVE, "a", 1.0, 100.0) <= 500.0


def rules(reserve: float) -> AdmissionSettings:
    return AdmissionSettings(
        interactive=ClassRules(late=Late.REFUSE), standard=ClassRules(), batch=ClassRules(reserve), quantum=100.0
    )


def flood(away: int, reserve: float = RESERVE, weight: float = 1.0, n_served: int = 2_000) -> float:
    """The share of batch beside one interactive tenant, of whose requests so many are refused for each that goes; by
    and by, that is after the first twenty seconds.
    """
    fleet = Fleet(AdmissionQueue(rules(reserve)))
    for _ in range(2):
        fleet.ask("d", INTERACTIVE)
        fleet.ask("c", BATCH, weight=weight)
    for number in range(n_served + 200):
        if number == 200:
            fleet.served.clear()
        if fleet.serve() == "c":
            fleet.ask("c", BATCH, weight=weight)
        else:
            fleet.ask("d", INTERACTIVE)
            for _ in range(away):
                fleet.ask("d", INTERACTIVE, late=True)
    return fleet.served.get("c", 0) / n_served


def test_a_class_that_gets_all_it_asks_for_owes_the_others_their_reserve_alone() -> None:
    assert flood(away=0) == pytest.approx(RESERVE, abs=0.002)


def test_a_flood_that_is_turned_away_gives_way_as_far_as_the_weights_say() -> None:
    equal, light = flood(away=9), flood(away=9, weight=0.25)
    assert equal == pytest.approx(RESERVE + (1 - RESERVE) / 2, abs=0.01)
    assert light == pytest.approx(RESERVE + (1 - RESERVE) / 5, abs=0.01)


def test_strict_is_who_reserves_nothing() -> None:
    assert flood(away=9, reserve=0.0) == 0.0


def test_no_more_than_is_turned_away() -> None:
    """A tenth too much is asked for: so half of the tokens, which are due by weight, are not taken from the flood."""
    fleet = Fleet(AdmissionQueue(rules(RESERVE)))
    for _ in range(2):
        fleet.ask("d", INTERACTIVE)
        fleet.ask("c", BATCH)
    asked = 0.0
    for _ in range(5_000):
        asked += 1.1
        if fleet.serve() == "c":
            fleet.ask("c", BATCH)
        else:
            fleet.ask("d", INTERACTIVE)
            asked -= 1.0
        while asked >= 1.0:
            fleet.ask("d", INTERACTIVE, late=True)
            asked -= 1.0
    assert 0.07 < fleet.served["c"] / 5_000 < 0.14


@pytest.mark.parametrize("policy", ["priority", "fcfs"])
def test_who_reserves_nothing_by_its_discipline_owes_nothing(policy: str) -> None:
    fleet = Fleet(make_admission(policy, rules(RESERVE)))
    fleet.ask("d", INTERACTIVE)
    queue = fleet.admission
    queue.offer(Request("d", "m", 100.0, INTERACTIVE, deadline=2.0), 0.0, 5.0)
    assert queue._models
    assert all(each.overload is None for each in queue._models.values())


def test_a_deadline_that_no_empty_queue_could_keep_is_no_overload() -> None:
    admission = AdmissionQueue(rules(RESERVE))
    admission.offer(Request("c", "m", 100.0, BATCH), 0.0)
    admission.offer(Request("d", "m", 100.0, INTERACTIVE, deadline=2.0, lead_s=3.0), 0.0, 3.0)
    assert admission._models["m"].overload is None
    admission.offer(Request("d", "m", 100.0, INTERACTIVE, deadline=2.0, lead_s=1.0), 0.0, 3.0)
    assert admission._models["m"].overload is not None


steps = st.tuples(
    st.sampled_from(ServiceClass), st.sampled_from("abc"), st.sampled_from([0.1, 1.0, 10.0]), st.booleans()
)


@given(st.lists(steps, min_size=1, max_size=80), st.floats(0.01, 0.5), st.floats(0.01, 0.45))
@settings(max_examples=100, deadline=None)
def test_the_highest_class_always_keeps_some(
    asked: list[tuple[ServiceClass, str, float, bool]], standard: float, batch: float
) -> None:
    admission = AdmissionQueue(
        AdmissionSettings(standard=ClassRules(standard, Late.REFUSE), batch=ClassRules(batch, Late.REFUSE))
    )
    admission.offer(Request("d", "m", 100.0, INTERACTIVE), 0.0)
    queue = admission._models["m"]
    for now, (rank, tenant, weight, late) in enumerate(asked):
        asking = Request(f"{tenant} {weight}", "m", 100.0, rank, weight, now + 2.0)
        admission.offer(asking, now, 5.0 if late else 0.0)
        if not late:
            admission.next(now, lambda _: 1)
        shares = queue.shares()
        assert shares[0] == 0.0
        assert standard <= shares[1]
        assert batch <= shares[2]
        assert sum(shares) < 1.0
        admission.check_integrity()
