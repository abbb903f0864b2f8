"""Passive ejection, to the number: who is out, until when, how many at a time, and how it is forgiven."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from policies.ejection import EjectionRules, Ejections, Outcome
from policies.types import WorkerId

OK, ERROR, GATEWAY = Outcome.OK, Outcome.SERVER_ERROR, Outcome.GATEWAY
A, B, C = (WorkerId(name) for name in "abc")


def fleet(size: int = 3, **rules: float) -> Ejections:
    ejections = Ejections(EjectionRules(**rules))  # type: ignore[arg-type]  # some are whole numbers
    for i in range(size):
        ejections.add(WorkerId("abcdefghijklmnopqrstuvwxyz"[i]))
    return ejections


def fail(ejections: Ejections, worker: WorkerId, now: float, *, times: int = 5) -> list[bool]:
    return [ejections.record(worker, GATEWAY, now) for _ in range(times)]


def test_the_fifth_failure_in_a_row_ejects_for_thirty_seconds() -> None:
    ejections = fleet()
    assert fail(ejections, A, 100.0) == [False] * 4 + [True]
    assert (ejections.is_out(A, 100.0), ejections.is_out(A, 129.9), ejections.is_out(A, 130.0)) == (True, True, False)
    assert (ejections.until(A), ejections.until(B)) == (130.0, None)
    assert (ejections.n_out(129.9), ejections.n_out(130.0)) == (1, 0)


@pytest.mark.parametrize(
    ("outcomes", "ejected"),
    [
        ([ERROR] * 5, True),
        ([ERROR, GATEWAY] * 2 + [ERROR], True),  # a gateway failure counts as both
        ([ERROR] * 4 + [OK] + [ERROR] * 4, False),  # a success resets the count
        ([GATEWAY] * 2 + [OK] + [GATEWAY] * 2, False),
    ],
)
def test_what_counts_as_in_a_row(outcomes: list[Outcome], ejected: bool) -> None:
    ejections = fleet()
    told = [ejections.record(A, outcome, 0.0) for outcome in outcomes]
    assert told == [False] * (len(outcomes) - 1) + [ejected]
    assert ejections.is_out(A, 0.0) is ejected


def test_gateway_failures_have_a_count_of_their_own() -> None:
    ejections = fleet(consecutive_gateway_failures=2)
    told = [ejections.record(A, outcome, 0.0) for outcome in (GATEWAY, ERROR, GATEWAY, GATEWAY)]
    assert told == [False, False, False, True]


def test_each_ejection_is_longer_and_the_longest_is_capped() -> None:
    ejections = fleet()
    now, lengths = 0.0, []
    for _ in range(12):
        assert fail(ejections, A, now)[-1]
        until = ejections.until(A)
        assert until is not None
        lengths.append(until - now)
        now = until
        assert ejections.sweep(now) == [A]
    assert lengths == [30, 60, 90, 120, 150, 180, 210, 240, 270, 300, 300, 300]
    for _ in range(9):
        assert ejections.sweep(now) == []
    fail(ejections, A, now)
    assert ejections.until(A) == now + 60.0  # what is beyond the longest need not be forgiven


def test_each_sweep_forgives_one_ejection() -> None:
    ejections = fleet()
    fail(ejections, A, 0.0)
    assert ejections.sweep(30.0) == [A]
    fail(ejections, A, 30.0)
    assert ejections.until(A) == 90.0
    assert [ejections.sweep(now) for now in (40.0, 80.0)] == [[], []]  # nothing is forgiven while it is out
    assert ejections.sweep(90.0) == [A]
    assert ejections.sweep(100.0) == []  # from two to one
    fail(ejections, A, 105.0)
    assert ejections.until(A) == 165.0
    assert ejections.sweep(165.0) == [A]
    for now in (175.0, 185.0, 195.0):
        ejections.sweep(now)
    fail(ejections, A, 200.0)
    assert ejections.until(A) == 230.0


def test_what_ends_while_it_is_out_does_not_count() -> None:
    ejections = fleet()
    fail(ejections, A, 0.0)
    assert fail(ejections, A, 10.0, times=20) == [False] * 20
    assert ejections.until(A) == 30.0
    assert not ejections.record(A, OK, 10.0)
    assert ejections.is_out(A, 10.0)
    assert fail(ejections, A, 31.0) == [False] * 4 + [True]  # no sweep yet, and back all the same


def test_out_again_before_a_sweep_is_not_told_as_back() -> None:
    ejections = fleet()
    fail(ejections, A, 0.0)
    fail(ejections, A, 30.0)
    assert ejections.sweep(35.0) == []
    assert ejections.until(A) == 90.0


@pytest.mark.parametrize(
    ("size", "share", "cap"),
    [(1, 0.1, 1), (2, 0.1, 1), (10, 0.1, 1), (19, 0.1, 1), (20, 0.1, 2), (10, 0.7, 7), (4, 0.5, 2), (3, 0.0, 1),
     (3, 1.0, 3)],
)  # fmt: skip
def test_so_many_may_be_out(size: int, share: float, cap: int) -> None:
    ejections = fleet(size, max_share=share)
    workers = [WorkerId("abcdefghijklmnopqrstuvwxyz"[i]) for i in range(size)]
    assert sum(fail(ejections, worker, 0.0)[-1] for worker in workers) == cap == ejections.n_out(0.0)


def test_the_cap_is_that_of_whole_numbers() -> None:
    """In floats, 0.29 × 100 is less than 29."""
    ejections = Ejections(EjectionRules(max_share=0.29))
    for i in range(100):
        ejections.add(WorkerId(str(i)))
    assert ejections.cap == 29


def test_one_that_may_not_be_ejected_is_as_soon_as_there_is_room() -> None:
    ejections = fleet(2)
    fail(ejections, A, 0.0)
    assert not any(fail(ejections, B, 0.0, times=9))
    assert ejections.record(B, ERROR, 30.0)
    assert ejections.sweep(30.0) == [A]


def test_force() -> None:
    ejections = fleet(2)
    assert ejections.force(A, 0.0)
    assert not ejections.force(A, 1.0)  # out already
    assert not ejections.force(B, 1.0)  # the cap
    assert ejections.until(A) == 30.0
    assert ejections.force(A, 30.0)
    assert ejections.until(A) == 90.0
    assert not ejections.force(C, 0.0)  # not of this fleet


def test_a_removed_worker_is_gone_and_comes_back_unburdened() -> None:
    ejections = fleet()
    fail(ejections, A, 0.0)
    ejections.remove(A)
    assert (ejections.is_out(A, 1.0), ejections.until(A), ejections.n_out(1.0)) == (False, None, 0)
    assert not any(fail(ejections, A, 1.0))
    assert ejections.sweep(100.0) == []
    ejections.add(A)
    ejections.add(A)
    fail(ejections, A, 200.0)
    assert ejections.until(A) == 230.0


def test_when_the_fleet_shrinks_the_one_due_soonest_is_let_in() -> None:
    ejections = fleet(20)
    fail(ejections, A, 0.0)
    fail(ejections, B, 10.0)
    ejections.remove(C)
    assert (ejections.is_out(A, 11.0), ejections.is_out(B, 11.0)) == (False, True)
    assert ejections.sweep(12.0) == [A]
    assert ejections.sweep(22.0) == []


@pytest.mark.parametrize(
    ("candidates", "out", "panic"),
    [(2, 1, False), (2, 2, True), (1, 1, True), (4, 2, False), (5, 3, True), (3, 0, False)],
)  # fmt: skip
def test_panic_when_less_than_half_is_in(candidates: int, out: int, panic: bool) -> None:
    assert fleet().panic(candidates, out) is panic


def test_usable() -> None:
    ejections = fleet(3)
    everybody = ["a", "b", "c"]
    assert ejections.usable(everybody, 0.0, WorkerId) is everybody
    fail(ejections, A, 0.0)
    assert ejections.usable(everybody, 1.0, WorkerId) == ["b", "c"]
    assert ejections.usable(["b", "c"], 1.0, WorkerId) == ["b", "c"]
    assert ejections.usable(["a"], 1.0, WorkerId) == ["a"]  # panic: better a bad one than none
    assert ejections.usable(everybody, 30.0, WorkerId) == everybody


@pytest.mark.parametrize(
    "rules",
    [
        {"consecutive_failures": 0}, {"consecutive_gateway_failures": 0}, {"base_s": 0.0}, {"base_s": 301.0},
        {"max_share": 1.1}, {"panic_share": -0.1}, {"sweep_s": 0.0},
    ],
)  # fmt: skip
def test_rules_that_make_no_sense_are_refused(rules: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"at least one failure|times must|shares lie"):
        EjectionRules(**rules)  # type: ignore[arg-type]  # some are whole numbers


class Fleet(RuleBasedStateMachine):
    """Whatever happens in whatever order: the cap, the times, and no trace of those who left."""

    NAMES = st.sampled_from([WorkerId(f"w{i}") for i in range(12)])

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ejections = Ejections(EjectionRules(consecutive_failures=2, consecutive_gateway_failures=2, max_share=0.3))
        self.known: set[WorkerId] = set()
        self.out_since: dict[WorkerId, float] = {}

    @rule(worker=NAMES)
    def add(self, worker: WorkerId) -> None:
        self.ejections.add(worker)
        self.known.add(worker)

    @rule(worker=NAMES)
    def remove(self, worker: WorkerId) -> None:
        self.ejections.remove(worker)
        self.known.discard(worker)
        assert not self.ejections.is_out(worker, self.now)
        assert self.ejections.until(worker) is None

    @rule(worker=NAMES, outcome=st.sampled_from(Outcome), times=st.integers(1, 3))
    def record(self, worker: WorkerId, outcome: Outcome, times: int) -> None:
        for _ in range(times):
            was_out = self.ejections.is_out(worker, self.now)
            ejected = self.ejections.record(worker, outcome, self.now)
            assert ejected is (not was_out and self.ejections.is_out(worker, self.now))
            if ejected:
                self.out_since[worker] = self.now

    @rule(worker=NAMES)
    def force(self, worker: WorkerId) -> None:
        was_out = self.ejections.is_out(worker, self.now)
        room = self.ejections.n_out(self.now) < max(1, len(self.known) * 3 // 10)
        assert self.ejections.force(worker, self.now) is (worker in self.known and not was_out and room)
        if not was_out:
            self.out_since[worker] = self.now

    @rule(seconds=st.sampled_from([0.5, 10.0, 40.0, 400.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.known)
    @rule()
    def sweep(self) -> None:
        back = self.ejections.sweep(self.now)
        assert len(set(back)) == len(back)
        assert set(back) <= self.known
        assert not any(self.ejections.is_out(worker, self.now) for worker in back)
        assert self.ejections.sweep(self.now) == []

    @invariant()
    def cap_and_times_hold(self) -> None:
        out = {worker for worker in self.known if self.ejections.is_out(worker, self.now)}
        assert self.ejections.n_out(self.now) == len(out) <= max(1, len(self.known) * 3 // 10)
        for worker in out:
            until = self.ejections.until(worker)
            assert until is not None
            assert self.now < until
            assert 30.0 <= until - self.out_since[worker] <= 300.0
        assert self.ejections._records.keys() == self.known
        assert set(self.ejections._until) <= self.known
        assert set(self.ejections._back) <= self.known
        assert not set(self.ejections._back) & set(self.ejections._until)


Fleet.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestFleet = Fleet.TestCase
