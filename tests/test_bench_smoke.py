"""The benchmarks still run. What they measure is nobody's business here: machines that run tests are busy."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.simulated.engine import EngineConfig
from cache.tokenizer import Tokenizer
from gateway.replay.arrival import Arrival
from tests.admission_load import RESERVE, Workload
from tests.bench import dataplane, processes
from tests.bench.admission_live import Case, Scale, lighter
from tests.bench.clock import Effort
from tests.bench.live_fleet import Setup
from tests.bench.live_run import live_run
from tests.bench.stages import Stages, show
from tests.bench.tenant_timing import ks, measure
from tests.tokens_fixtures import EMBEDDED


async def test_every_stage_is_measured_for_every_length(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = Tokenizer.load(EMBEDDED)
    rows = await Stages(tokenizer, Effort(rounds=1, round_us=0.0, fresh=2), warm_up_chars=1_000).measure((50, 8_000))
    assert all(set(row.microseconds) == {50, 8_000} for row in rows)
    assert {row.group for row in rows} == {"read", "tokens", "route", "forward", "all of it"}
    show(rows, tokenizer, "embedded")
    assert "8,000" in capsys.readouterr().out


def test_the_data_plane_benchmark_names_the_packages_it_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert processes.missing_tools() == ["nginx-light", "wrk"]
    assert dataplane.main([]) == 2
    assert "apt-get install nginx-light wrk" in capsys.readouterr().out


async def test_the_timing_of_tenants_is_measured() -> None:
    timing = await measure(2, speed=500.0)
    assert {len(times) for times in vars(timing).values()} == {2}


def test_the_kolmogorov_smirnov_test_tells_samples_apart() -> None:
    same = [float(number) for number in range(100)]
    assert ks(same, same) == (0.0, 1.0)
    assert ks(same, [number + 0.5 for number in same]) == pytest.approx((0.01, 1.0))
    distance, p = ks(same, [number + 20 for number in same])
    assert distance == pytest.approx(0.2)
    assert 0.02 < p < 0.05
    assert ks(same, [number + 1000 for number in same])[1] < 1e-20


async def test_a_recording_goes_over_the_wire_and_leaves_nothing_behind() -> None:
    arrivals = [Arrival(at / 8, 2_000, 80, tuple(range(100 * at, 100 * at + 4)), 512) for at in range(24)]
    workload = Workload(arrivals, EngineConfig(blocks=256, block_size=256), 1, 2.0, 0.1)
    case = Case("made up", 1.3, lighter(workload, Scale(4, 8.0, 1, 1.0)), 4.0)
    assert sum(arrival.input_tokens for arrival in case.workload.arrivals) == 24 * 500
    setup = Setup(
        "fair",
        case.workload.engine,
        1,
        {each.tenant: each.service_class for each in case.customers},
        case.workload.slos,
        RESERVE,
    )
    run = await live_run(setup, case.workload.arrivals, case.customers, case.speed)
    assert run.faults == []
    assert sum(run.statuses.values()) == 24
    assert {record.completion_tokens for record in run.records if record.ok} == {20}
    assert 0.0 < case.judged(run.records).jain <= 1.0
