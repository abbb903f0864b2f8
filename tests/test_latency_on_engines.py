"""Predictions beside simulated engines under the gateway's own routing, in virtual time: exact, no clock read."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import fmean

import pytest

from backends.simulated.engine import EngineConfig
from gateway.replay.arrival import Arrival
from gateway.replay.traces import read_trace
from tests.latency_replay import Judged, capacity_speed, judged, requests, slowed, spread

ENGINE = EngineConfig(blocks=20_000, block_size=512, max_model_len=200_000)
TRACE = Path(__file__).parent / "data/traces/mooncake_conversation_2000.jsonl.xz"
WORKERS = 4


@cache
def capacity() -> float:
    return capacity_speed(arrivals(), workers=WORKERS, engine=ENGINE)


@cache
def arrivals() -> list[Arrival]:
    return spread(read_trace(TRACE, 1_200))


def result(load: float, *, waits: bool) -> Judged:
    return judged(requests(arrivals(), workers=WORKERS, engine=ENGINE, speed=load * capacity(), waits=waits))


@pytest.mark.parametrize("load", [0.5, 1.3])
def test_the_time_to_first_token_is_known_within_a_tenth(load: float) -> None:
    """After 500 requests over four workers; the queue alone, over the learnt rate, says less where it is short."""
    found = result(load, waits=False)
    assert found.ttft <= 0.1
    assert 0.7 <= found.ttft_p90 <= 0.97
    assert found.naive_ttft is not None
    if load < 1.0:
        assert found.ttft < 0.5 * found.naive_ttft


@pytest.mark.parametrize("load", [0.8, 1.3])
def test_so_it_is_of_those_that_wait_in_the_gateway(load: float) -> None:
    """Near and above saturation, from when they are sent; and what they are told when they come is of some use."""
    found = result(load, waits=True)
    assert found.ttft <= 0.18
    assert 0.8 <= found.ttft_p90 <= 0.97
    assert found.on_arrival is not None
    assert found.on_arrival <= 0.5


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_change_of_speed_is_known_after_twenty_requests(factor: float) -> None:
    pairs = slowed(per_second=4.0, before=300, after=80, factor=factor)
    errors = [abs(said / measured - 1.0) for said, measured in pairs]
    assert fmean(errors[200:300]) < 0.1
    assert fmean(errors[320:380]) < 0.25
