"""What the benchmark of agent sessions measures, by hand; and that it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pytest

from gateway.replay.records import RequestRecord
from tests.bench import sessions
from tests.bench.sessions import HitsInTime, Recovery, recovery


def records(shares: list[float]) -> list[RequestRecord]:
    """One request a second, of 100 tokens that one cache could serve, and this share of them that was."""
    rows = []
    for second, share in enumerate(shares):
        record = RequestRecord(second, None, float(second), 200, 1, 100, sent=float(second), finished=second + 1.0)
        record.cached_tokens = round(100 * share)
        rows.append(record)
    return rows


def test_shares_between_two_moments() -> None:
    hits = HitsInTime(records([1.0, 0.5, 0.0, 0.0]))
    assert hits.share(0.0, 2.0) == 0.75
    assert hits.share(0.5, 1.5) == 0.5
    assert hits.share(9.0, 10.0) is None


def test_the_time_until_hits_are_back_counts_from_the_change() -> None:
    dip = [0.9] * 20 + [0.9] * 3 + [0.2] * 7 + [0.9] * 30  # noticed three seconds after the change
    assert recovery(HitsInTime(records(dip)), 20.0, 5.0) == Recovery(0.9, 0.2, 10.0)


def test_no_dip_and_no_recovery() -> None:
    assert recovery(HitsInTime(records([0.9] * 60)), 20.0, 5.0) == Recovery(0.9, 0.9, 0.0)
    assert recovery(HitsInTime(records([0.9] * 20 + [0.1] * 40)), 20.0, 5.0) == Recovery(0.9, 0.1, None)


def test_the_benchmark_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    arguments = ["--limit", "60", "--policies", "cost", "--moments", "0.5", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["sessions", *arguments])
    sessions.main()
    document = orjson.loads(out.read_bytes())
    assert 0.5 < document["hits"]["cost"] <= document["limit"]
    assert len(document["recovery"]["cost"]) == 1
    printed = capsys.readouterr().out
    assert "60 requests of agent sessions" in printed
    assert "A worker lost" in printed
