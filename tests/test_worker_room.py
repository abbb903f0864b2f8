"""How much a worker gets before requests wait in front of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policies.worker_room import has_room


def test_it_gets_what_it_can_start_within_the_window() -> None:
    assert has_room(1_999, 10_000.0, 1, window_s=0.2, running=1)
    assert not has_room(2_000, 10_000.0, 1, window_s=0.2, running=1)
    assert has_room(2_000, 10_000.0, 1, window_s=0.3, running=1)


def test_a_prompt_of_any_length_goes_to_a_worker_that_prefills_nothing() -> None:
    assert has_room(0, 10.0, 0, window_s=0.2, running=40)


def test_a_worker_nobody_knows_gets_two_requests() -> None:
    assert has_room(5_000, None, 1, window_s=0.2, running=1)
    assert not has_room(5_000, None, 2, window_s=0.2, running=2)


def test_a_worker_nobody_knows_gets_as_many_short_prompts_as_one_step_computes() -> None:
    assert has_room(1_023, None, 40, window_s=0.2, running=40)
    assert not has_room(1_024, None, 40, window_s=0.2, running=40)


def test_it_gets_no_more_than_it_runs_at_a_time() -> None:
    assert has_room(0, 1e4, 0, window_s=0.2, running=3, most_running=4)
    assert not has_room(0, 1e4, 0, window_s=0.2, running=4, most_running=4)


def test_a_full_cache_is_no_room() -> None:
    assert has_room(0, 1e4, 0, window_s=0.2, running=3, kv_used=0.9)
    assert not has_room(0, 1e4, 0, window_s=0.2, running=3, kv_used=0.96)


@given(
    st.floats(0, 1e9),
    st.none() | st.floats(1e-3, 1e6),
    st.integers(0, 100),
    st.integers(1, 100),
    st.none() | st.floats(0, 1),
)
def test_a_worker_that_has_nothing_gets_something(
    queued: float, rate: float | None, n_queued: int, most: int, kv_used: float | None
) -> None:
    assert has_room(queued, rate, n_queued, window_s=0.2, running=0, most_running=most, kv_used=kv_used)
