"""The default policy on a real trace, in virtual time: exact, repeatable, and no clock is read.

The first 2,000 requests of the Mooncake conversation trace over eight simulated workers whose caches hold the whole
slice, at a speed where prefill without any cache would keep them 80% busy.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from backends.simulated.engine import EngineConfig
from backends.simulated.timing import PublishedTiming
from gateway.replay.arrival import Arrival
from gateway.replay.stats import one_cache_hit_share
from gateway.replay.traces import read_trace
from gateway.replay.virtual_fleet import VirtualResult, replay_virtually
from policies.routing import make_policy

WORKERS = 8
TRACE = Path(__file__).parent / "data/traces/mooncake_conversation_2000.jsonl.xz"
ENGINE = EngineConfig(blocks=20_000, block_size=512, max_model_len=200_000)


@cache
def arrivals() -> list[Arrival]:
    return read_trace(TRACE)


def speed_at(demand: float) -> float:
    """The speed-up at which prefill without a cache takes this share of what the fleet can prefill."""
    budget = ENGINE.max_batched_tokens
    rate = budget / PublishedTiming().step_s(budget, decoding=False, kv_used=0.0)
    offered = sum(arrival.input_tokens for arrival in arrivals()) / arrivals()[-1].at
    return demand * WORKERS * rate / offered


@cache
def result(policy: str, seed: int = 0) -> VirtualResult:
    return replay_virtually(
        arrivals(), make_policy(policy), workers=WORKERS, engine=ENGINE, speed=speed_at(0.8), seed=seed
    )


def test_it_is_repeatable() -> None:
    again = replay_virtually(arrivals()[:200], make_policy("cost"), workers=WORKERS, engine=ENGINE, seed=3)
    assert again == replay_virtually(arrivals()[:200], make_policy("cost"), workers=WORKERS, engine=ENGINE, seed=3)


@pytest.mark.parametrize("seed", range(3))
def test_cost_finds_nine_in_ten_of_the_possible_hits(seed: int) -> None:
    limit = one_cache_hit_share(arrivals())
    assert round(limit, 3) == 0.294
    assert result("cost", seed).hit_share >= 0.9 * limit


@pytest.mark.parametrize("seed", range(3))
def test_cost_keeps_the_load_even(seed: int) -> None:
    """All requests share block 0, and still no worker computes over a tenth more than the mean."""
    assert result("cost", seed).imbalance <= 1.1


@pytest.mark.parametrize("seed", range(3))
def test_cost_halves_the_time_to_first_token_of_least_loaded(seed: int) -> None:
    ours, theirs = result("cost", seed), result("least_loaded", seed)
    assert ours.mean_ttft <= 0.5 * theirs.mean_ttft
    assert ours.ttft_at(0.9) <= 0.5 * theirs.ttft_at(0.9)


def test_least_loaded_and_round_robin_waste_most_hits() -> None:
    """What the trace gives to those who do not look: the comparison is not against a straw man."""
    assert 0.07 < result("least_loaded").hit_share < 0.12
    assert 0.07 < result("round_robin").hit_share < 0.12
