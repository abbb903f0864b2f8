"""Two saved results compared: every figure, which is better, and what makes them not comparable."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from gateway.replay.arrival import Arrival
from gateway.replay.compare import (
    COMPARISON_SCHEMA,
    Comparison,
    ComparisonError,
    Figure,
    compare_files,
    comparison_json,
    render_comparison,
)
from gateway.replay.plan import plan
from gateway.replay.records import RequestRecord
from gateway.replay.results import to_json
from gateway.replay.slo import Slos
from gateway.replay.stats import summarize

SETTINGS = {"trace": "t", "requests_digest": "d", "speed": 1.0, "model": "m", "concurrency": None}


def records(ttft: float, cached: int, count: int = 4) -> list[RequestRecord]:
    found = plan([Arrival(float(n), 100, 5, (1, 2), 64) for n in range(count)], speed=1.0, max_output=None)
    for record in found:
        record.sent = float(record.index)
        for token in range(5):
            record.token(record.sent + ttft + token * 0.1)
        record.finished = record.sent + ttft + 0.4
        record.prompt_tokens, record.cached_tokens, record.status, record.worker = 100, cached, 200, "w"
    return found


def save(path: Path, rows: list[RequestRecord], *, interrupted: bool = False, **settings: object) -> str:
    summary = summarize(rows, slos=[Slos(ttft=1.0, name="fast")])
    path.write_bytes(to_json(settings=SETTINGS | settings, summary=summary, records=rows, interrupted=interrupted))
    return str(path)


def figures(comparison: Comparison) -> dict[str, Figure]:
    return {figure.name: figure for figure in comparison.figures}


def text_of(comparison: Comparison) -> str:
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(render_comparison(comparison))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_ratios_of_every_figure_and_which_is_better(tmp_path: Path) -> None:
    a, b = save(tmp_path / "a.json", records(2.0, 20)), save(tmp_path / "b.json", records(0.5, 60))
    comparison = compare_files(a, b)
    found = figures(comparison)
    assert found["ttft.p50"] == Figure("ttft.p50", 2.0, 0.5, 0.25, "B")
    assert found["hits.share"].ratio == pytest.approx(3.0)
    assert found["hits.share"].better == "B"
    assert found["tpot.mean"].ratio == pytest.approx(1.0)
    assert found["tpot.mean"].better == "same"
    assert found["goodput.fast.share"] == Figure("goodput.fast.share", 0.0, 1.0, None, "B")
    assert found["sent"] == Figure("sent", 4, 4, 1.0, None)
    assert found["ttft.count"].better is None
    assert comparison.warnings == ()
    assert comparison.better == "B"
    assert compare_files(b, a).better == "A"
    assert compare_files(a, a).better == "same"
    for words in ("B is better: in", "worse in none", "ttft.p50", "2.00 s", "500 ms", "0.25", "about the same"):
        assert words in text_of(comparison), words
    assert "not comparable" not in text_of(comparison)


def test_every_number_of_the_summary_is_compared(tmp_path: Path) -> None:
    path = save(tmp_path / "a.json", records(2.0, 20))
    summary = orjson.loads(Path(path).read_bytes())["summary"]
    names = set(figures(compare_files(path, path)))
    assert {name for name, value in summary.items() if isinstance(value, int | float)} <= names
    for group in ("ttft", "tpot", "itl", "e2e", "lateness", "hits"):
        assert {f"{group}.{key}" for key, value in summary[group].items() if value is not None} <= names


def test_each_better_in_something_is_told(tmp_path: Path) -> None:
    a, b = save(tmp_path / "a.json", records(2.0, 60)), save(tmp_path / "b.json", records(0.5, 20))
    comparison = compare_files(a, b)
    assert comparison.better is None
    assert "Mixed: A is better in" in text_of(comparison)


def test_what_is_not_comparable_is_told(tmp_path: Path) -> None:
    a = save(tmp_path / "a.json", records(2.0, 20), concurrency=8, workers=4)
    rows = records(2.0, 20, count=3)
    rows[0].error = "timeout"
    b = save(tmp_path / "b.json", rows, interrupted=True, trace="u", requests_digest="e", speed=2.0)
    warnings = compare_files(a, b).warnings
    for words in (
        "B was stopped early.",
        "1 requests of B failed: its latencies are of the others.",
        "Different requests: t and u.",
        "Different numbers of requests: 4 and 3.",
        "Different speeds: 1.0 and 2.0.",
        "Different numbers of users: 8 and none.",
        "Different fleet sizes: 4 and none.",
    ):
        assert words in warnings
    assert "These two runs are not comparable:" in text_of(compare_files(a, b))


def test_the_comparison_as_json(tmp_path: Path) -> None:
    a, b = save(tmp_path / "a.json", records(2.0, 20)), save(tmp_path / "b.json", records(0.5, 60), speed=2.0)
    document: dict[str, Any] = orjson.loads(comparison_json(compare_files(a, b)))
    assert document["schema"] == COMPARISON_SCHEMA
    assert (document["a"], document["b"], document["better"], document["comparable"]) == (a, b, "B", False)
    assert document["better_in"]["A"] == 0
    assert {"name": "ttft.p50", "a": 2.0, "b": 0.5, "ratio": 0.25, "better": "B"} in document["figures"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "expected a result saved with --json"),
        (b"[]", "expected a result saved with --json"),
        (b'{"schema": "x", "settings": {}, "summary": 3}', "expected a result saved with --json"),
        (b'{"schema": "other/1", "settings": {}, "summary": {}}', "expected schema prefixgate.replay/2, got 'other/1'"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_is_no_result_is_named(tmp_path: Path, content: bytes | None, words: str) -> None:
    good, bad = save(tmp_path / "good.json", records(1.0, 1)), tmp_path / "bad.json"
    if content is not None:
        bad.write_bytes(content)
    with pytest.raises(ComparisonError) as caught:
        compare_files(good, str(bad))
    assert str(bad) in str(caught.value)
    assert words in str(caught.value)
