"""Key → worker: bounds, expiry, and workers that go."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from policies.affinity import AffinityMap
from policies.types import WorkerId

A, B = WorkerId("a"), WorkerId("b")


def test_a_key_is_known_for_its_time_after_the_last_use() -> None:
    affinity = AffinityMap(10, ttl=5.0)
    affinity.put("s", A, 0.0)
    assert affinity.get("s", 4.9) == A
    assert affinity.get("s", 9.8) == A
    assert affinity.get("s", 14.8) is None
    assert len(affinity) == 0


def test_text_and_bytes_are_different_keys() -> None:
    affinity = AffinityMap(10, ttl=5.0)
    affinity.put("s", A, 0.0)
    affinity.put(b"s", B, 0.0)
    assert (affinity.get("s", 1.0), affinity.get(b"s", 1.0)) == (A, B)


def test_the_key_unused_for_longest_makes_room() -> None:
    affinity = AffinityMap(2, ttl=5.0)
    affinity.put("1", A, 0.0)
    affinity.put("2", A, 1.0)
    affinity.get("1", 2.0)
    affinity.put("3", B, 3.0)
    assert [affinity.get(key, 3.0) for key in "123"] == [A, None, B]
    affinity.put("3", A, 3.0)  # a key that is there needs no room
    assert [affinity.get(key, 3.0) for key in "123"] == [A, None, A]


def test_a_worker_that_is_forgotten_may_come_back() -> None:
    affinity = AffinityMap(10, ttl=5.0)
    affinity.put("1", A, 0.0)
    affinity.put("2", B, 0.0)
    affinity.forget_worker(A)
    affinity.forget_worker(WorkerId("never seen"))
    assert (affinity.get("1", 1.0), affinity.get("2", 1.0), len(affinity)) == (None, B, 1)
    affinity.put("3", A, 1.0)
    assert (affinity.get("1", 1.0), affinity.get("3", 1.0), len(affinity)) == (None, A, 2)


@pytest.mark.parametrize(("entries", "ttl"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, float("nan"))])
def test_a_map_that_holds_nothing_is_refused(entries: int, ttl: float) -> None:
    with pytest.raises(ValueError, match="holds nothing"):
        AffinityMap(entries, ttl)


class AgainstAModel(RuleBasedStateMachine):
    """A list of (key, worker, last use), oldest first. Forgotten entries keep their places in it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.map = AffinityMap(4, ttl=10.0)
        self.model: dict[str, tuple[WorkerId | None, float]] = {}

    @rule(seconds=st.integers(0, 6))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(key=st.sampled_from("abcdefg"), worker=st.sampled_from(["x", "y", "z"]))
    def put(self, key: str, worker: str) -> None:
        self.map.put(key, WorkerId(worker), self.now)
        self.expire()
        self.model.pop(key, None)
        if len(self.model) == 4:
            del self.model[next(iter(self.model))]
        self.model[key] = (WorkerId(worker), self.now)

    @rule(key=st.sampled_from("abcdefg"))
    def get(self, key: str) -> None:
        self.expire()
        expected = self.model.get(key, (None, 0.0))[0]
        assert self.map.get(key, self.now) == expected
        if expected is not None:
            del self.model[key]
            self.model[key] = (expected, self.now)
        assert len(self.map) == sum(worker is not None for worker, _ in self.model.values())

    @rule(worker=st.sampled_from(["x", "y", "z"]))
    def forget(self, worker: str) -> None:
        self.map.forget_worker(WorkerId(worker))
        for key, (home, used) in self.model.items():
            if home == worker:
                self.model[key] = (None, used)

    @invariant()
    def bounds_hold(self) -> None:
        assert len(self.map) <= len(self.map._entries) <= 4
        homes = self.map._homes.values()
        assert sum(home.entries for home in homes) == len(self.map)
        assert all(home.entries > 0 for home in homes)

    def expire(self) -> None:
        self.model = {key: (home, used) for key, (home, used) in self.model.items() if used + 10.0 > self.now}


AgainstAModel.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestAgainstAModel = AgainstAModel.TestCase


def test_other_bounds_hold_for_what_is_known() -> None:
    homes = AffinityMap(4, 10.0)
    for at, key in enumerate("abcd"):
        homes.put(key, A, float(at))
    homes.configure(2, 100.0)
    assert [homes.get(key, 50.0) for key in "abcd"] == [None, None, A, A]
    homes.configure(2, 5.0)
    assert (homes.get("c", 55.0), len(homes)) == (None, 0)
