"""What a request that waits in front of a fleet is told to expect."""

from __future__ import annotations

import pytest

from backends.fleet_forecast import FleetForecast
from backends.fleet_state import FleetState
from backends.fleet_worker import Worker
from policies.types import WorkerId


def made(name: str, kv_tokens: int) -> Worker:
    worker = Worker(WorkerId(name), "10.0.0.1", 8_000)
    worker.told_kv_blocks = kv_tokens // worker.block_size
    return worker


def test_a_worker_whose_cache_has_no_room_for_the_prompts_that_come_takes_no_more() -> None:
    workers = [made("a", 100_000), made("b", 100_000)]
    fleet = FleetState(workers, cooldown=1.0, cooldown_max=1.0)
    forecast = FleetForecast(fleet)
    for worker in workers:
        fleet.reserve(worker, 100, 0.0, streams=True)
    workers[0].learn_kv_used(0.9)
    workers[1].learn_kv_used(0.5)
    assert forecast.rooms(workers, 0.0).among == workers, "short prompts fit into a tenth of it"
    for _ in range(500):
        fleet.release(fleet.reserve(workers[1], 1_000, 0.0, streams=True, cached=9_000), 0.0)
    workers[1].learn_kv_used(0.5)
    assert forecast.rooms(workers, 0.0).among == [workers[1]]
    assert forecast.rooms(workers, 0.0).free == 1


def test_how_fast_one_model_is_says_nothing_of_another() -> None:
    workers = [made("slow", 100_000), made("fast", 100_000)]
    fleet = FleetState(workers, cooldown=1.0, cooldown_max=1.0)
    fleet.n_first_tokens = 1_000
    forecast = FleetForecast(fleet)
    forecast.drains["slow"].queued(0.0)
    for second in range(1, 101):
        forecast.drains["slow"].left(10.0, float(second), 5)
    forecast.drains["fast"].queued(99.0)
    forecast.drains["fast"].left(10_000.0, 100.0, 0)
    assert forecast.turn("slow", 1_000.0, workers[:1]) == pytest.approx(100.0)
    assert forecast.turn("fast", 1_000.0, workers[1:]) == pytest.approx(0.1)
