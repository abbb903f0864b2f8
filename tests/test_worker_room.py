"""Whether a worker can start one more request soon, or at all."""

from __future__ import annotations

import pytest

from policies.worker_room import starts_soon, takes_more


def test_what_is_queued_must_be_computed_within_the_window() -> None:
    assert starts_soon(1_999, 10_000.0, 1, 0.2)
    assert not starts_soon(2_000, 10_000.0, 1, 0.2)
    assert starts_soon(2_000, 10_000.0, 1, 0.3)


def test_where_nothing_is_queued_one_starts_at_once() -> None:
    assert starts_soon(0, 10.0, 0, 0.2)


def test_of_a_worker_whose_speed_nobody_knows_few_requests_are_enough() -> None:
    assert starts_soon(5_000, None, 1, 0.2)
    assert not starts_soon(5_000, None, 2, 0.2)


def test_a_worker_nobody_knows_gets_as_many_short_prompts_as_one_step_computes() -> None:
    assert starts_soon(1_023, None, 40, 0.2)
    assert not starts_soon(1_024, None, 40, 0.2)


@pytest.mark.parametrize(
    ("running", "most", "kv_used", "takes"),
    [
        (0, 1, 1.0, True),  # it has nothing
        (7, None, None, True),
        (7, 8, 0.5, True),
        (8, 8, 0.5, False),
        (7, 8, 0.95, False),
        (7, None, 0.94, True),
    ],
)
def test_one_more_would_run(running: int, most: int | None, kv_used: float | None, takes: bool) -> None:
    assert takes_more(running, most, kv_used) is takes
