"""Single flight: one call for a key at a time, everybody is told, nothing is left, whoever leaves and whenever."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.single_flight import Role, SingleFlight


def test_one_leads_and_all_are_told() -> None:
    table: SingleFlight[str, int] = SingleFlight()
    assert [table.join("k", who) for who in range(100)] == [Role.LEADER, *[Role.WAITER] * 99]
    assert (len(table), table.waiting) == (1, 99)
    assert table.finish("k", 1) == [], "it does not lead"
    assert table.finish("k", 0) == list(range(1, 100))
    assert (len(table), table.waiting) == (0, 0)
    assert table.join("k", 5) is Role.LEADER, "the key is free"


def test_who_waits_longest_takes_over() -> None:
    table: SingleFlight[str, str] = SingleFlight()
    for who in "abcd":
        table.join("k", who)
    assert table.leave("k", "b") is None, "one that waited"
    assert table.leave("k", "a") == "c"
    assert table.leads("k", "c")
    assert table.leave("k", "a") is None, "it is gone already"
    assert table.finish("k", "a") == []
    assert table.finish("k", "c") == ["d"]


def test_the_last_one_leaves() -> None:
    table: SingleFlight[str, str] = SingleFlight()
    table.join("k", "a")
    table.join("k", "b")
    assert table.leave("k", "a") == "b"
    assert table.leave("k", "b") is None
    assert (len(table), table.waiting) == (0, 0)
    assert table.leave("k", "b") is None
    assert not table.leads("k", "b")


def test_keys_do_not_meet() -> None:
    table: SingleFlight[str, str] = SingleFlight()
    assert table.join("k", "a") is Role.LEADER
    assert table.join("other", "a") is Role.LEADER
    assert table.finish("k", "a") == []
    assert table.leads("other", "a")


def test_bounds() -> None:
    table: SingleFlight[str, int] = SingleFlight(most_flights=2, most_waiting=1)
    assert [table.join("a", who) for who in range(3)] == [Role.LEADER, Role.WAITER, Role.ALONE]
    assert [table.join("b", who) for who in range(1)] == [Role.LEADER]
    assert table.join("c", 1) is Role.ALONE
    assert table.leave("a", 2) is None, "who goes by itself is not known"
    assert table.finish("a", 0) == [1]
    assert table.join("c", 1) is Role.LEADER
    nobody: SingleFlight[str, int] = SingleFlight(most_flights=1, most_waiting=0)
    assert [nobody.join("a", who) for who in range(2)] == [Role.LEADER, Role.ALONE]
    for wrong in ({"most_flights": -1}, {"most_waiting": -1}):
        with pytest.raises(ValueError, match="fewer"):
            SingleFlight(**wrong)


def test_nobody_asks_twice() -> None:
    table: SingleFlight[str, int] = SingleFlight()
    table.join("k", 1)
    with pytest.raises(ValueError, match="already"):
        table.join("k", 1)


class Simulation:
    """Requests come, are cancelled, and calls end well or badly, in any order."""

    def __init__(self, *, most_flights: int, most_waiting: int) -> None:
        self.table: SingleFlight[int, int] = SingleFlight(most_flights=most_flights, most_waiting=most_waiting)
        self.asking: dict[int, int] = {}
        """Who has asked and neither left nor been told: its key."""
        self.calling: dict[int, int] = {}
        """Key: who has its call."""
        self.told: Counter[int] = Counter()
        self.n_asked = 0

    def come(self, key: int) -> None:
        who = self.n_asked
        self.n_asked += 1
        role = self.table.join(key, who)
        if role is Role.ALONE:
            self.told[who] += 1
            return
        self.asking[who] = key
        assert (role is Role.LEADER) is (key not in self.calling), "exactly one call"
        if role is Role.LEADER:
            self.calling[key] = who

    def cancel(self, choice: int) -> None:
        if not self.asking:
            return
        who = sorted(self.asking)[choice % len(self.asking)]
        key = self.asking.pop(who)
        promoted = self.table.leave(key, who)
        self.told[who] += 1
        if self.calling[key] == who:
            waiting = [one for one, its in self.asking.items() if its == key]
            assert promoted == (min(waiting) if waiting else None), "the one that waits longest, if anybody does"
            if promoted is None:
                del self.calling[key]
            else:
                self.calling[key] = promoted
        else:
            assert promoted is None

    def end(self, choice: int) -> None:
        if not self.calling:
            return
        key = sorted(self.calling)[choice % len(self.calling)]
        leader = self.calling.pop(key)
        others = self.table.finish(key, leader)
        assert others == sorted(who for who, its in self.asking.items() if its == key and who != leader)
        for who in (leader, *others):
            del self.asking[who]
            self.told[who] += 1

    def check(self) -> None:
        self.table.check()
        assert len(self.table) == len(self.calling)
        assert self.table.waiting == len(self.asking) - len(self.calling)
        assert all(self.table.leads(key, who) for key, who in self.calling.items())


STEPS = st.lists(st.tuples(st.sampled_from(["come", "come", "come", "cancel", "end"]), st.integers(0, 9)), max_size=80)


@settings(deadline=None)
@given(STEPS, st.integers(0, 3), st.integers(0, 4))
def test_any_history(steps: list[tuple[str, int]], most_flights: int, most_waiting: int) -> None:
    run(steps, Simulation(most_flights=most_flights, most_waiting=most_waiting))


def test_a_long_random_history() -> None:
    chance = random.Random(3)
    weights = {"come": 6, "cancel": 2, "end": 1}
    steps = [(chance.choices([*weights], [*weights.values()])[0], chance.randrange(1_000) % 7) for _ in range(3_000)]
    run(steps, Simulation(most_flights=10, most_waiting=50))


def run(steps: list[tuple[str, int]], simulation: Simulation) -> None:
    for name, number in steps:
        if name == "come":
            simulation.come(number % 4)
        elif name == "cancel":
            simulation.cancel(number)
        else:
            simulation.end(number)
        simulation.check()
    while simulation.calling:
        simulation.end(0)
    simulation.check()
    assert simulation.told == Counter(range(simulation.n_asked)), "everybody is told, once"
    assert (len(simulation.table), simulation.table.waiting) == (0, 0)


class Gateway:
    """As an event loop uses it: whoever waits has a future, whose result is the answer, or None to take over."""

    def __init__(self) -> None:
        self.table: SingleFlight[str, asyncio.Future[str | None]] = SingleFlight()
        self.calls = 0
        self.under_way = 0
        self.answer = asyncio.Event()

    async def ask(self, key: str) -> str:
        mine: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        role = self.table.join(key, mine)
        try:
            told = await mine if role is Role.WAITER else None
            if told is not None:
                return told
            answer = await self.call(key)
        except asyncio.CancelledError:
            following = self.table.leave(key, mine)
            if following is not None:
                following.set_result(None)
            raise
        for other in self.table.finish(key, mine):
            other.set_result(answer)
        return answer

    async def call(self, key: str) -> str:
        self.calls += 1
        self.under_way += 1
        assert self.under_way == 1
        try:
            await self.answer.wait()
        finally:
            self.under_way -= 1
        return f"answer to {key}"


@pytest.mark.parametrize("n_cancelled", [0, 1, 5])
async def test_a_hundred_at_the_same_time(n_cancelled: int) -> None:
    gateway = Gateway()
    tasks = [asyncio.create_task(gateway.ask("k")) for _ in range(100)]
    await asyncio.sleep(0)
    for task in tasks[:n_cancelled]:
        task.cancel()
        await asyncio.wait([task])
    gateway.answer.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert answers[n_cancelled:] == ["answer to k"] * (100 - n_cancelled)
    assert 1 <= gateway.calls <= 1 + n_cancelled
    assert (len(gateway.table), gateway.table.waiting) == (0, 0)
