"""Who gets how much: between tenants and between classes, in every interval, whatever the requests are like."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.admission import AdmissionQueue
from policies.admission_types import AdmissionSettings, ClassRules, Dispatched, Queued, Request, ServiceClass

QUANTUM = 200.0
INTERACTIVE, STANDARD, BATCH = ServiceClass

lengths = st.lists(st.sampled_from([1.0, 64.0, 300.0, 4_000.0]), min_size=1, max_size=6)


class Source(NamedTuple):
    """A tenant that always has something to send, of these lengths in turn."""

    weight: float
    tokens: list[float]


sources = st.lists(st.builds(Source, st.sampled_from([0.25, 1.0, 1.0, 3.0]), lengths), min_size=2, max_size=4)


def queue(standard: float = 0.0, batch: float = 0.0) -> AdmissionQueue:
    return AdmissionQueue(
        AdmissionSettings(
            interactive=ClassRules(), standard=ClassRules(standard), batch=ClassRules(batch), quantum=QUANTUM,
            least_charge=32.0,
        )
    )  # fmt: skip


def charge(tokens: float) -> float:
    return max(tokens, 32.0)


class Senders:
    """Each keeps two requests in the queue."""

    def __init__(self, admission: AdmissionQueue, tenants: list[Source], service_class: ServiceClass) -> None:
        self.admission = admission
        self.tenants = tenants
        self.service_class = service_class
        self.sent = [0] * len(tenants)
        for index in range(len(tenants)):
            self.send(index)
            self.send(index)

    def send(self, index: int) -> None:
        weight, tokens = self.tenants[index]
        asked = Request(str(index), "m", tokens[self.sent[index] % len(tokens)], self.service_class, weight)
        self.sent[index] += 1
        assert isinstance(self.admission.offer(asked, 0.0), Queued)


def take(admission: AdmissionQueue) -> Dispatched:
    picked = admission.next(0.0, lambda _: 1)
    assert picked is not None
    return picked


def spread(differences: list[float]) -> float:
    """The largest change over any interval."""
    return max(differences) - min(differences)


@given(sources, st.booleans(), st.lists(st.integers(0, 60), max_size=8))
@settings(max_examples=150, deadline=None)
def test_no_interval_treats_two_busy_tenants_unequally(tenants: list[Source], finish: bool, visits: list[int]) -> None:
    admission = queue()
    senders = Senders(admission, tenants, STANDARD)
    served = [0.0] * len(tenants)
    history = [list(served)]
    for step in range(300):
        if step in visits:  # one that comes and goes
            admission.offer(Request("guest", "m", 700.0), 0.0)
        picked = take(admission)
        if finish:
            admission.finished(picked.ticket, picked.request.tokens)
        if picked.request.tenant != "guest":
            index = int(picked.request.tenant)
            served[index] += charge(picked.request.tokens) / picked.request.weight
            history.append(list(served))
            senders.send(index)
    for one, other in combinations(range(len(tenants)), 2):
        bound = 3 * QUANTUM + sum(charge(max(tenants[i].tokens)) / tenants[i].weight for i in (one, other))
        assert spread([row[one] - row[other] for row in history]) <= bound


@given(st.lists(st.tuples(lengths, st.booleans()), min_size=3, max_size=3))
@settings(max_examples=100, deadline=None)
def test_no_interval_costs_a_class_its_reserve(classes: list[tuple[list[float], bool]]) -> None:
    reserves = (0.0, 0.1, 0.05)
    admission = queue(*reserves[1:])
    busy = [rank for rank in ServiceClass if classes[rank][1] or rank is BATCH]
    senders = {rank: Senders(admission, [Source(1.0, classes[rank][0])], rank) for rank in busy}
    served = [0.0, 0.0, 0.0]
    total = 0.0
    history = [(total, tuple(served))]
    for _ in range(500):
        picked = take(admission)
        tokens = charge(picked.request.tokens)
        served[picked.service_class] += tokens
        total += tokens
        history.append((total, tuple(served)))
        senders[picked.service_class].send(0)
    largest = charge(max(max(classes[rank][0]) for rank in busy))
    for rank in busy:
        if rank is busy[0]:
            continue  # it gets all that is left
        own = charge(max(classes[rank][0]))
        short = [reserves[rank] * sum_ - each[rank] for sum_, each in history]
        assert spread(short) <= own + sum(reserves) * largest + largest * (len(busy) > 2) * reserves[rank] + 1e-3
        assert min(short) >= -1e-3, "and never more than it"


@pytest.mark.parametrize("flood", [INTERACTIVE, STANDARD])
def test_nobody_starves_under_a_permanent_flood(flood: ServiceClass) -> None:
    admission = queue(0.05, 0.02)
    senders = Senders(admission, [Source(100.0, [4_000.0])] * 3, flood)
    waiting = {}
    for rank in ServiceClass:
        if rank > flood:
            for tenant in ("light", "heavy"):
                answer = admission.offer(Request(tenant, "m", 900.0 if tenant == "light" else 9_000.0, rank), 0.0)
                assert isinstance(answer, Queued)
                waiting[answer.ticket] = rank
    for _ in range(1_000):
        picked = take(admission)
        if picked.ticket not in waiting:
            senders.send(int(picked.request.tenant))
        waiting.pop(picked.ticket, None)
    assert not waiting


def test_a_tenant_of_little_weight_is_served_among_heavy_ones() -> None:
    admission = queue()
    senders = Senders(admission, [Source(0.01, [4_000.0]), *[Source(100.0, [4_000.0])] * 2], STANDARD)
    n_served = [0, 0, 0]
    for _ in range(60_100):
        index = int(take(admission).request.tenant)
        n_served[index] += 1
        senders.send(index)
    assert n_served[0] in {3, 4}
    assert abs(n_served[1] - n_served[2]) <= 10


waiting_requests = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([40.0, 300.0, 4_000.0]), st.sampled_from([1.0, 2.0])), max_size=30
)


@given(waiting_requests, st.integers(0, 10), st.sampled_from("abcd"), st.sampled_from([40.0, 900.0]))
@settings(max_examples=150, deadline=None)
def test_tokens_ahead_are_those_that_go_before(
    waiting: list[tuple[str, float, float]], dispatched: int, tenant: str, tokens: float
) -> None:
    admission = queue()
    weights = {name: weight for name, _, weight in waiting} | {"d": 1.0}
    for name, length, _ in waiting:
        admission.offer(Request(name, "m", length, weight=weights[name]), 0.0)
    for _ in range(min(dispatched, len(waiting))):
        take(admission)
    asked = Request(tenant, "m", tokens, weight=weights.get(tenant, 1.0))
    expected = admission.tokens_ahead(asked)
    mine = admission.offer(asked, 0.0)
    assert isinstance(mine, Queued)
    before = 0.0
    while (picked := take(admission)).ticket != mine.ticket:
        before += picked.request.tokens
    largest = 4_000.0
    others = [weights[name] for name in {name for name, _, _ in waiting} - {tenant}]
    bound = sum(3 * QUANTUM * weight + largest + largest * weight / asked.weight for weight in others)
    assert abs(before - expected) <= bound


def test_many_tenants_that_come_and_go_leave_nothing_behind() -> None:
    admission = queue()
    senders = Senders(admission, [Source(1.0, [100.0])], STANDARD)
    for number in range(5_000):
        admission.offer(Request(f"guest {number}", "m", 5_000.0 if number % 10 == 0 else 50.0), 0.0)
        for _ in range(4):
            picked = take(admission)
            admission.finished(picked.ticket)
            if picked.request.tenant == "0":
                senders.send(0)
    assert len(admission) == 2
    fair = admission._models["m"].classes[STANDARD]
    assert len(fair.flows) < 200
    assert len(admission._accounts) == 1
    admission.check_integrity()


@pytest.mark.parametrize("tokens", [50.0, 5_000.0])
def test_tenants_that_come_once_while_another_runs_leave_nothing_behind(tokens: float) -> None:
    admission = queue()
    admission.offer(Request("always", "m", 1.0), 0.0)
    take(admission)
    for number in range(5_000):
        admission.offer(Request(f"guest {number}", "m", tokens), 0.0)
        admission.finished(take(admission).ticket)
    fair = admission._models["m"].classes[STANDARD]
    assert len(fair.flows) < 200
    assert fair.busy == 1
    admission.check_integrity()


def test_what_fills_the_workers_counts_though_nobody_had_to_wait_for_it() -> None:
    """One tenant was alone, and took all. When the room is gone another one goes before it until it has as much, or
    its burst; and what has ended is nobody's debt.
    """
    for ended in (False, True):
        admission = queue()
        for _ in range(30):
            admission.offer(Request("flood", "m", 1_000.0), 0.0)
            running = take(admission)
            if ended:
                admission.finished(running.ticket)
        for _ in range(10):
            admission.offer(Request("flood", "m", 1_000.0), 0.0)
            admission.offer(Request("late", "m", 1_000.0), 0.0)
        order = [take(admission).request.tenant for _ in range(10)]
        assert order.count("late") == (5 if ended else 10)


def test_offers_that_are_cancelled_leave_nothing_behind() -> None:
    admission = AdmissionQueue()
    admission.offer(Request("kept", "m", 1.0, deadline=1e9), 0.0)
    for number in range(5_000):
        for tenant in ("kept", f"guest {number % 7}"):
            answer = admission.offer(Request(tenant, "m", 10.0, deadline=1e9 + number), 0.0)
            assert isinstance(answer, Queued)
            assert admission.cancel(answer.ticket)
    admission.check_integrity()
    fair = admission._models["m"].classes[STANDARD]
    assert len(admission._expiries) < 100
    assert len(fair.turns()) < 100
    assert max(len(flow.heap) for flow in fair.flows.values()) < 100
