"""The benchmarks still run. What they measure is nobody's business here: machines that run tests are busy."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache.tokenizer import Tokenizer
from tests.bench import dataplane, processes
from tests.bench.clock import Effort
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
