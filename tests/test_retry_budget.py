"""The retry budget: a share of what is in flight, and never less than the floor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.retry_budget import RetryBudget


@pytest.mark.parametrize(
    ("share", "floor", "active", "allowed"),
    [(0.2, 3, 0, 3), (0.2, 3, 15, 3), (0.2, 3, 19, 3), (0.2, 3, 20, 4), (0.2, 3, 100, 20), (0.2, 0, 4, 0),
     (0.2, 0, 5, 1), (0.0, 0, 100, 0), (1.0, 0, 7, 7), (0.29, 0, 100, 29)],
)  # fmt: skip
def test_so_many_at_a_time(share: float, floor: int, active: int, allowed: int) -> None:
    budget = RetryBudget(share, floor)
    assert [budget.try_take(active) for _ in range(allowed + 2)] == [True] * allowed + [False] * 2
    for _ in range(allowed):
        budget.give_back()
    assert budget.in_flight == 0
    assert budget.try_take(active) is (allowed > 0)


def test_what_was_not_taken_cannot_be_given_back() -> None:
    with pytest.raises(ValueError, match="than taken"):
        RetryBudget().give_back()


@pytest.mark.parametrize(("share", "floor"), [(-0.1, 3), (1.1, 3), (0.2, -1)])
def test_a_budget_that_makes_no_sense_is_refused(share: float, floor: int) -> None:
    with pytest.raises(ValueError, match="no retry budget"):
        RetryBudget(share, floor)


@given(st.lists(st.one_of(st.none(), st.integers(0, 200))))
def test_never_more_than_the_share_at_the_time_of_taking(steps: list[int | None]) -> None:
    budget = RetryBudget(0.2, 3)
    for active in steps:
        before = budget.in_flight
        if active is not None:
            taken = budget.try_take(active)
            assert taken is (before + 1 <= max(3, active // 5))
            assert budget.in_flight == before + taken
        elif before:
            budget.give_back()
