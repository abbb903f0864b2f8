"""The engine's copies that tell how well a first token's time could be known."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.simulated.engine import EngineConfig, SimulatedEngine
from backends.simulated.sequence import request_from_ids
from gateway.replay.arrival import Arrival
from gateway.replay.virtual_engines import prompt_ids
from tests.latency_floor import Floors, answers_end_elsewhere, copied, first_token
from tests.latency_replay import requests

SMALL = EngineConfig(blocks=200, block_size=16, max_model_len=2_000, max_batched_tokens=512, max_num_seqs=16)


def busy(seed: int, n: int) -> tuple[SimulatedEngine, float]:
    """An engine that has been given `n` requests, which fill its cache, and the time."""
    rng, now = random.Random(seed), 0.0
    engine = SimulatedEngine(SMALL)
    for number in range(n):
        now += rng.choice([0.0, rng.expovariate(20.0)])
        engine.advance(now)
        tokens = rng.randint(1, 900)
        shared = rng.randint(0, 2)
        blocks = tuple(shared * 100 + i if i < 8 else number << 8 | i for i in range(-(-tokens // 16)))
        arrival = Arrival(now, tokens, 1, blocks, 16)
        engine.submit(
            request_from_ids(str(number), prompt_ids(arrival), rng.randint(1, 200), block_size=16, model="m"), now
        )
    return engine, now


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 25))
def test_a_copy_says_what_happens_and_leaves_the_engine_alone(seed: int, n: int) -> None:
    engine, _ = busy(seed, n)
    said = first_token(copied(engine), str(n - 1))
    other = copied(engine)
    answers_end_elsewhere(other, lambda made: made + 7)
    first_token(other, str(n - 1))
    other.check_integrity()
    engine.check_integrity()
    again, _ = busy(seed, n)
    assert said == first_token(again, str(n - 1)) == first_token(engine, str(n - 1))


def test_lengths_are_drawn_of_those_that_are_longer() -> None:
    floors = Floors(1, [5, 9, 9, 20])
    assert {floors._draw(5) for _ in range(50)} == {9, 20}
    assert {floors._draw(0) for _ in range(80)} == {5, 9, 20}
    assert floors._draw(20) == 21


@pytest.mark.parametrize("waits", [False, True])
def test_looking_changes_nothing_and_the_last_one_is_known(*, waits: bool) -> None:
    rng = random.Random(3)
    arrivals = [
        Arrival(i * 0.05, tokens, rng.randint(1, 60), tuple(range(i << 8, (i << 8) + -(-tokens // 16))), 16)
        for i in range(24)
        for tokens in [rng.randint(10, 900)]
    ]
    plain, looked = (
        requests(arrivals, workers=2, engine=SMALL, speed=1.0, waits=waits, floor_every=every) for every in (0, 1)
    )
    assert [row._replace(floor=None) for row in looked] == plain
    assert all(row.floor is not None for row in looked)
    last = looked[-1]
    assert last.floor is not None
    assert last.floor.lengths_known == pytest.approx(last.first - last.sent, rel=1e-6)
