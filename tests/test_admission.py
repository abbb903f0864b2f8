"""Each rule of the admission queue by itself: who goes next, and who pays what."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf, nan

import pytest

from policies.admission import ADMISSION_POLICIES, AdmissionQueue, make_admission
from policies.admission_types import (
    AdmissionSettings,
    ClassRules,
    Dispatched,
    Late,
    Reason,
    Refused,
    ServiceClass,
    Ticket,
)
from policies.batch_yield import BatchYield
from tests.admission_fixtures import BATCH, INTERACTIVE, PLAIN, STANDARD, drain, offer, queue, request, roomy, take

# Order


def test_an_empty_queue_has_nothing() -> None:
    admission = queue()
    assert admission.next(0.0, roomy) is None
    assert (len(admission), admission.running, admission.bytes) == (0, 0, 0)
    assert (admission.expire(9.0), admission.next_expiry()) == ([], None)
    admission.check_integrity()


def test_what_is_dispatched_says_what_it_was() -> None:
    admission = queue()
    asked = request(size=7)
    ticket = offer(admission, asked, 1.0)
    assert (len(admission), admission.bytes) == (1, 7)
    assert take(admission, 3.5) == Dispatched(ticket, asked, STANDARD, 2.5)
    assert (len(admission), admission.bytes, admission.running) == (0, 0, 1)


def test_within_a_tenant_the_earliest_deadline_goes_first_and_ties_first_come() -> None:
    admission = queue()
    tickets = [offer(admission, request(deadline=at)) for at in (9.0, 5.0, inf, 5.0, 7.0, inf)]
    assert drain(admission) == [tickets[index] for index in (1, 3, 4, 0, 2, 5)]


def test_between_classes_the_higher_goes_first() -> None:
    admission = queue()
    tickets = [offer(admission, request(service_class=each)) for each in (BATCH, STANDARD, INTERACTIVE) * 2]
    assert drain(admission) == [tickets[index] for index in (2, 5, 1, 4, 0, 3)]
    assert admission.waiting_by_class() == {INTERACTIVE: 0, STANDARD: 0, BATCH: 0}


def test_tenants_take_turns_by_tokens_and_not_by_deadline() -> None:
    admission = queue()
    small = [offer(admission, request("small", tokens=100, deadline=900.0)) for _ in range(6)]
    large = [offer(admission, request("large", tokens=300, deadline=1.0)) for _ in range(2)]
    assert drain(admission) == [small[0], large[0], *small[1:3], large[1], *small[3:]]


def test_a_weight_is_a_share_of_the_tokens() -> None:
    admission = queue()
    for _ in range(40):
        offer(admission, request("one"))
        offer(admission, request("three", weight=3.0))
    order = [take(admission).request.tenant for _ in range(40)]
    assert order.count("three") == 30
    assert order[:8] == ["one", "three", "three", "three"] * 2


@pytest.mark.parametrize(("burst", "first"), [(0.0, 1), (500.0, 6), (65_536.0, 20)])
def test_who_was_away_has_saved_up_so_much_and_no_more(burst: float, first: int) -> None:
    """Twenty requests of 100 tokens were dispatched of the other one meanwhile."""
    admission = queue(burst=burst)
    for _ in range(80):
        offer(admission, request("busy"))
    for _ in range(20):
        take(admission)
    for _ in range(30):
        offer(admission, request("back"))
    order = [take(admission).request.tenant for _ in range(40)]
    assert order.index("busy") in {first, first - 1}
    rest = order[first:]
    assert abs(rest.count("back") - rest.count("busy")) <= 1, "by turns from then on"


def test_whoever_asks_for_less_than_its_share_gets_a_burst_at_once() -> None:
    """One of them sends a request for every four of the other, and then four together: these go first."""
    admission = queue()
    for _ in range(200):
        offer(admission, request("flood"))
    for _ in range(10):
        offer(admission, request("modest"))
        assert {take(admission).request.tenant for _ in range(5)} == {"flood", "modest"}
    for _ in range(4):
        offer(admission, request("modest"))
    assert [take(admission).request.tenant for _ in range(5)] == ["modest"] * 4 + ["flood"]


def test_what_is_used_is_not_saved_up() -> None:
    """Half of all requests are its own, though never two of them wait."""
    admission = queue()
    for _ in range(100):
        offer(admission, request("flood"))
    for _ in range(20):
        offer(admission, request("steady"))
        assert {take(admission).request.tenant for _ in range(2)} == {"flood", "steady"}
    for _ in range(10):
        offer(admission, request("steady"))
    order = [take(admission).request.tenant for _ in range(10)]
    assert 4 <= order.count("steady") <= 6


def test_batch_may_have_its_share_of_a_full_fleet_though_nothing_else_runs() -> None:
    """Were it a share of what runs just now, the fleet would stand almost empty beside a queue of batch work."""
    admission = AdmissionQueue(AdmissionSettings(yield_from=0.5, yield_all=1.0))
    high = [offer(admission, request("a", INTERACTIVE)) for _ in range(50)]
    low = [offer(admission, request("b", BATCH)) for _ in range(200)]
    assert len([take(admission) for _ in range(100)]) == 100
    admission.pressure("m", 0.6, 0.0)
    for ticket in (*high, *low[:50]):
        assert admission.finished(ticket)
    dispatched = 0
    while admission.next(0.0, roomy):
        dispatched += 1
    assert 70 <= dispatched <= 80, "eight tenths of about a hundred"


def test_a_debt_is_remembered_while_others_wait() -> None:
    admission = queue()
    for _ in range(30):
        offer(admission, request("other"))
    offer(admission, request("large", tokens=1_000))
    assert [take(admission).request.tenant for _ in range(2)] == ["other", "large"]
    offer(admission, request("large", tokens=1_000))
    order = [take(admission).request.tenant for _ in range(12)]
    assert order.index("large") == 9, "it has left and come back, and paid"
    offer(admission, request("large", tokens=100))
    order = [take(admission).request.tenant for _ in range(5)]
    assert "large" not in order, "nor does it matter when it comes back"


def test_a_debt_is_remembered_while_its_tenant_is_away() -> None:
    admission = queue()
    for _ in range(30):
        offer(admission, request("other"))
    offer(admission, request("large", tokens=1_000))
    assert [take(admission).request.tenant for _ in range(6)] == ["other", "large", *["other"] * 4]
    offer(admission, request("large"))
    assert [take(admission).request.tenant for _ in range(6)].index("large") == 5


def test_who_comes_new_has_its_turn_in_the_same_round() -> None:
    admission = queue()
    for tenant in ("one", "two"):
        for _ in range(3):
            offer(admission, request(tenant))
    assert take(admission).request.tenant == "one"
    offer(admission, request("new"))
    assert [take(admission).request.tenant for _ in range(3)] == ["two", "new", "one"]


def test_a_request_costs_something_even_if_all_is_cached() -> None:
    admission = queue(least_charge=50.0)
    for _ in range(20):
        offer(admission, request("cached", tokens=0))
        offer(admission, request("plain", tokens=100))
    order = [take(admission).request.tenant for _ in range(15)]
    assert order.count("cached") == 10


# Models


def test_a_model_without_room_holds_up_no_other() -> None:
    admission = queue()
    blocked = offer(admission, request(model="full", service_class=INTERACTIVE))
    free = offer(admission, request(model="free", service_class=BATCH))
    room = {"full": 0, "free": 1}
    assert take(admission, room=room.__getitem__).ticket == free
    assert admission.next(0.0, room.__getitem__) is None
    room["full"] = 1
    assert take(admission, room=room.__getitem__).ticket == blocked


def test_models_take_turns() -> None:
    admission = queue()
    for _ in range(3):
        for model in ("x", "y", "z"):
            offer(admission, request(model=model))
    assert [take(admission).request.model for _ in range(9)] == ["x", "y", "z"] * 3


def test_turns_are_taken_for_each_model_by_itself() -> None:
    admission = queue()
    for _ in range(20):
        offer(admission, request("both", model="x"))
    for _ in range(15):
        take(admission)
    for _ in range(10):
        offer(admission, request("both", model="y"))
        offer(admission, request("other", model="y"))
    order = [take(admission, room={"x": 0, "y": 1}.__getitem__).request.tenant for _ in range(10)]
    assert order.count("both") == 5, "what it got from one model's workers takes nothing from it at another's"


# Slots


def test_a_tenant_at_its_limit_holds_up_nobody() -> None:
    admission = queue()
    mine = [offer(admission, request("a", max_running=1)) for _ in range(3)]
    other = offer(admission, request("b"))
    assert drain(admission) == [mine[0], other]
    admission.check_integrity()
    assert admission.finished(mine[0])
    assert drain(admission) == [mine[1]]
    assert admission.finished(other)
    assert drain(admission) == []
    assert admission.finished(mine[1])
    assert drain(admission) == [mine[2]]


def test_slots_are_a_tenants_across_models_and_classes() -> None:
    admission = queue()
    for model, service_class in (("x", INTERACTIVE), ("y", BATCH), ("x", STANDARD)):
        offer(admission, request(model=model, service_class=service_class, max_running=2))
    first = take(admission)
    take(admission)
    assert admission.next(0.0, roomy) is None
    admission.check_integrity()
    admission.finished(first.ticket)
    assert drain(admission) != []


@pytest.mark.parametrize("others", [0, 1])
def test_a_tenant_at_its_limit_may_take_everything_back(others: int) -> None:
    admission = queue()
    for number in range(others):
        offer(admission, request(f"other {number}"))
        offer(admission, request(f"other {number}"))
    first, *rest = [offer(admission, request(max_running=1)) for _ in range(3)]
    assert first in drain(admission)
    for number in range(others):
        offer(admission, request(f"other {number}"))
    for ticket in rest:
        assert admission.cancel(ticket)
    admission.check_integrity()
    again = offer(admission, request(max_running=1))
    assert again not in drain(admission)
    assert admission.finished(first)
    admission.check_integrity()
    assert drain(admission) == [again]


def test_a_raised_limit_holds_at_once() -> None:
    admission = queue()
    for _ in range(3):
        offer(admission, request(max_running=1))
    assert len(drain(admission)) == 1
    offer(admission, request(max_running=3))
    assert len(drain(admission)) == 2
    offer(admission, request(max_running=None))
    assert len(drain(admission)) == 2


def test_a_slot_comes_back_once() -> None:
    admission = queue()
    ticket = offer(admission, request())
    assert not admission.finished(ticket), "it waits"
    take(admission)
    assert not admission.cancel(ticket), "it runs"
    assert admission.finished(ticket)
    assert not admission.finished(ticket)
    assert not admission.cancel(ticket)
    assert not admission.correct(ticket, 5.0)
    assert not admission.put_back(ticket)
    assert admission.running == 0
    admission.check_integrity()


def test_cancelling_gives_back_place_and_bytes() -> None:
    admission = queue(max_waiting=1, max_bytes=10)
    ticket = offer(admission, request(size=10))
    assert isinstance(admission.offer(request(size=1), 0.0), Refused)
    assert admission.cancel(ticket)
    assert not admission.cancel(ticket)
    assert (len(admission), admission.bytes) == (0, 0)
    offer(admission, request(size=10))
    assert admission.next(0.0, roomy) is not None


def test_what_could_not_be_placed_waits_where_it_waited() -> None:
    admission = queue()
    first, second = offer(admission, request(deadline=5.0), 1.0), offer(admission, request(deadline=6.0), 1.0)
    assert take(admission, 2.0).ticket == first
    assert admission.put_back(first)
    assert (len(admission), admission.running) == (2, 0)
    admission.check_integrity()
    again = take(admission, 3.0)
    assert (again.ticket, again.waited_s) == (first, 2.0)
    assert drain(admission) == [second]


def test_what_could_not_be_placed_is_not_charged() -> None:
    admission = queue()
    for _ in range(30):
        offer(admission, request("a"))
        offer(admission, request("b"))
    n_others = 0
    for _ in range(10):
        while (picked := take(admission)).request.tenant != "a":
            n_others += 1
        admission.put_back(picked.ticket)
    assert n_others <= 1
    served = [take(admission).request.tenant for _ in range(20)]
    assert 9 <= served.count("a") <= 11


# Corrections


def test_a_charge_is_set_right_and_the_turns_with_it() -> None:
    admission = queue()
    for _ in range(30):
        offer(admission, request("guessed", tokens=1_000))
        offer(admission, request("exact", tokens=100))
    first = take(admission)
    assert first.request.tenant == "guessed"
    assert admission.correct(first.ticket, 100.0)
    order = [take(admission).request.tenant for _ in range(4)]
    assert order == ["exact", "guessed", "exact", "exact"]


def test_a_charge_that_was_too_low_is_paid_later() -> None:
    admission = queue()
    for _ in range(30):
        offer(admission, request("guessed", tokens=100))
        offer(admission, request("exact", tokens=100))
    first = take(admission)
    admission.finished(first.ticket, 1_000.0)
    assert [take(admission).request.tenant for _ in range(10)] == ["exact"] * 10
    assert take(admission).request.tenant == "guessed"


def test_one_request_at_a_time_is_charged_too() -> None:
    """It has left the queue whenever it is found out to have cost more."""
    admission = queue()
    served = {"guessed": 0.0, "exact": 0.0}
    for _ in range(3_000):
        offer(admission, request("exact", tokens=200))
    offer(admission, request("guessed", tokens=0))
    for _ in range(1_000):
        picked, second = take(admission), take(admission)
        for each in (picked, second):
            tokens = 2_000.0 if each.request.tenant == "guessed" else 200.0
            served[each.request.tenant] += tokens
            admission.finished(each.ticket, tokens)
            if each.request.tenant == "guessed":
                offer(admission, request("guessed", tokens=0))
    assert served["guessed"] == pytest.approx(served["exact"], rel=0.05)


@pytest.mark.parametrize("tokens", [nan, inf, -inf, 1e300])
def test_a_charge_that_means_nothing_costs_nobody_a_slot(tokens: float) -> None:
    admission = queue()
    ticket = offer(admission, request())
    offer(admission, request())
    take(admission)
    assert admission.correct(ticket, tokens)
    assert admission.finished(ticket, tokens)
    admission.check_integrity()
    assert len(drain(admission)) == 1


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_wrong_estimates_change_no_share(factor: float) -> None:
    admission = queue()
    served = {"guessed": 0.0, "exact": 0.0}
    for _ in range(3_000):
        offer(admission, request("guessed", tokens=factor * 200))
        offer(admission, request("exact", tokens=200))
    running: list[Ticket] = []
    for _ in range(3_000):
        picked = take(admission)
        served[picked.request.tenant] += 200
        running.append(picked.ticket)
        if len(running) == 8:
            admission.finished(running.pop(0), 200.0)
    assert served["guessed"] == pytest.approx(served["exact"], rel=0.03)


# Batch yields


def test_batch_fills_what_is_idle() -> None:
    admission = queue()
    for _ in range(10):
        offer(admission, request(service_class=BATCH))
    assert len(drain(admission)) == 10


def test_batch_is_held_back_under_pressure_and_others_are_not() -> None:
    admission = queue()
    batch, standard = offer(admission, request(service_class=BATCH)), offer(admission, request())
    admission.pressure("m", 1.0, 0.0)
    assert drain(admission) == [standard]
    admission.pressure("m", 0.0, 1.0)
    assert drain(admission, 1.0) == []
    assert drain(admission, 2.0) == [batch]


def test_batch_for_a_model_under_no_pressure_goes_on() -> None:
    admission = queue()
    offer(admission, request(service_class=BATCH, model="busy"))
    idle = offer(admission, request(service_class=BATCH, model="idle"))
    admission.pressure("busy", 1.0, 0.0)
    assert drain(admission) == [idle]


def test_other_pressures_to_yield_at_hold_at_once() -> None:
    admission = queue()
    ticket = offer(admission, request(service_class=BATCH))
    admission.pressure("m", 1.0, 0.0)
    admission.reconfigure(replace(PLAIN, yield_from=2.0, yield_all=3.0))
    assert drain(admission, 5.0) == [ticket]


def test_batch_takes_its_share_of_all_that_runs_and_could() -> None:
    admission = AdmissionQueue(
        AdmissionSettings(batch=ClassRules(), yield_from=0.5, yield_all=1.0),
        batch_yield=partial(BatchYield, band=0.0, recovery_s=1e9),
    )
    for _ in range(20):
        offer(admission, request(service_class=BATCH))
    admission.pressure("m", 0.75, 0.0)
    running: list[Ticket] = []
    while picked := admission.next(0.0, lambda _: 12 - len(running)):
        running.append(picked.ticket)
    assert len(running) == 6, "half of twelve"
    admission.finished(running.pop())
    assert admission.next(0.0, lambda _: 7) is not None


def test_batch_that_is_held_back_keeps_its_reserve() -> None:
    admission = queue(batch=ClassRules(reserve=0.1))
    admission.pressure("m", 1.0, 0.0)
    for _ in range(101):
        offer(admission, request("a", INTERACTIVE))
        offer(admission, request("b", BATCH))
    order = [take(admission).service_class for _ in range(101)]
    assert [place for place, each in enumerate(order) if each is BATCH] == list(range(10, 101, 10))


# Reserves


def test_a_lower_class_gets_its_reserve_under_a_flood() -> None:
    admission = queue(standard=ClassRules(reserve=0.05), batch=ClassRules(reserve=0.02))
    for _ in range(1_002):
        for service_class in ServiceClass:
            offer(admission, request(service_class=service_class))
    order = [take(admission).service_class for _ in range(1_002)]
    assert (order.count(STANDARD), order.count(BATCH)) == (50, 20)


def test_a_reserve_is_not_saved_up_while_nothing_waits() -> None:
    admission = queue(batch=ClassRules(reserve=0.1))
    for _ in range(200):
        offer(admission, request("a", INTERACTIVE))
    for _ in range(100):
        take(admission)
    for _ in range(50):
        offer(admission, request("b", BATCH))
    order = [take(admission).service_class for _ in range(51)]
    assert [place for place, each in enumerate(order) if each is BATCH] == [10, 20, 30, 40, 50]


def test_what_a_class_has_earned_is_lost_when_it_has_nothing_left() -> None:
    admission = queue(batch=ClassRules(reserve=0.1))
    ticket = offer(admission, request("b", BATCH))
    for _ in range(50):
        offer(admission, request("a", INTERACTIVE))
    assert [take(admission).service_class for _ in range(9)] == [INTERACTIVE] * 9
    admission.cancel(ticket)
    take(admission)
    offer(admission, request("b", BATCH))
    assert [take(admission).service_class for _ in range(11)] == [*[INTERACTIVE] * 10, BATCH]


def test_demoted_requests_count_as_batch_while_they_run() -> None:
    admission = queue(standard=ClassRules(late=Late.DEMOTE))
    for _ in range(2):
        offer(admission, request(deadline=1.0), 0.0, 2.0)
    first = take(admission)
    admission.check_integrity()
    assert admission.finished(first.ticket)
    admission.check_integrity()


def test_idle_capacity_is_not_taken_off_the_reserve() -> None:
    admission = queue(batch=ClassRules(reserve=0.1))
    for _ in range(100):
        offer(admission, request("b", BATCH))
    for _ in range(50):
        take(admission)
    for _ in range(100):
        offer(admission, request("a", INTERACTIVE))
    order = [take(admission).service_class for _ in range(51)]
    assert order.count(BATCH) == 5


# Other settings


def test_other_settings_hold_at_once() -> None:
    admission = queue()
    for _ in range(101):
        offer(admission, request("a", INTERACTIVE))
        offer(admission, request("b", BATCH))
    assert [take(admission).service_class for _ in range(20)] == [INTERACTIVE] * 20
    admission.reconfigure(AdmissionSettings(batch=ClassRules(reserve=0.1), max_waiting=182, max_retry_s=3.0))
    for _ in range(2):
        admission.offer(request("c", BATCH), 0.0)
    assert len(admission) == 182
    late = request("c", INTERACTIVE, deadline=1.0)
    assert [admission.offer(late, 0.0, 9.0), admission.offer(request("d"), 0.0)] == [
        Refused(Reason.DEADLINE, 3.0),
        Refused(Reason.QUEUE_FULL, 1.0),
    ]
    assert [take(admission).service_class for _ in range(22)].count(BATCH) == 2
    admission.check_integrity()


# How much is ahead


def test_tokens_ahead_of_a_new_request() -> None:
    admission = queue(batch=ClassRules(reserve=0.2))
    assert admission.tokens_ahead(request()) == 0
    for _ in range(10):
        offer(admission, request("flood", STANDARD, tokens=1_000))
    assert admission.tokens_ahead(request("flood")) == 10_000
    assert admission.tokens_ahead(request("small", tokens=100)) == 100, "its turn comes before"
    assert admission.tokens_ahead(request("small", tokens=100, weight=0.1)) == 1_000
    assert admission.tokens_ahead(request("small", INTERACTIVE)) == 0
    assert admission.tokens_ahead(request("small", BATCH, tokens=100)) == pytest.approx(400), "what earns it its place"
    assert admission.tokens_ahead(request("small", BATCH, tokens=5_000)) == 10_000
    offer(admission, request("low", BATCH, tokens=5_000))
    assert admission.tokens_ahead(request("flood")) == 12_500, "with what is reserved below"
    assert admission.tokens_ahead(request(model="other")) == 0


# Names


@pytest.mark.parametrize(
    ("name", "expected"),
    [("fair", ["i2", "i1", "s2", "s1", "b"]), ("priority", ["i1", "i2", "s1", "s2", "b"]),
     ("fcfs", ["b", "s1", "i1", "i2", "s2"])],
)  # fmt: skip
def test_policies_by_name(name: str, expected: list[str]) -> None:
    admission = make_admission(name)
    offered = [(BATCH, inf, "b"), (STANDARD, 9.0, "s1"), (INTERACTIVE, 9.0, "i1"), (INTERACTIVE, 5.0, "i2"),
               (STANDARD, 5.0, "s2")]  # fmt: skip
    names = {
        offer(admission, request("one", service_class, deadline=deadline)): called
        for service_class, deadline, called in offered
    }
    assert [names[ticket] for ticket in drain(admission, 1.0)] == expected
    admission.check_integrity()


def test_the_policies_that_fair_is_compared_with_refuse_nothing_but_for_room() -> None:
    for name in ("fcfs", "priority"):
        admission = make_admission(name, AdmissionSettings(max_waiting=2, tenant_max_waiting=1))
        late = request("a", INTERACTIVE, deadline=1.0, max_running=1)
        for _ in range(2):
            offer(admission, late, 0.0, 50.0)
        assert isinstance(admission.offer(late, 0.0), Refused)
        assert admission.next_expiry() == 60.0
        assert len(drain(admission, 2.0)) == 2
        admission.check_integrity()


def test_without_classes_each_request_still_waits_as_long_as_its_class_lets_it() -> None:
    admission = make_admission("fcfs", AdmissionSettings(batch=ClassRules(max_wait_s=7.0)))
    ticket = offer(admission, request(service_class=BATCH))
    offer(admission, request(service_class=INTERACTIVE))
    assert admission.next_expiry() == 7.0
    assert [gone.ticket for gone in admission.expire(7.0)] == [ticket]
    assert admission.next_expiry() == 60.0


def test_an_unknown_name_lists_the_known_ones() -> None:
    assert set(ADMISSION_POLICIES) == {"fair", "fcfs", "priority"}
    with pytest.raises(ValueError, match="no admission policy 'edf'; there are fair, fcfs, priority"):
        make_admission("edf")
