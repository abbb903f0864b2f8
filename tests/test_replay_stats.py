"""Statistics on hand-made records, exact to the last digit, and their renderings."""

from __future__ import annotations

import contextlib
import io
import re
import statistics
from array import array

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gateway.replay import figures
from gateway.replay.live import Progress, render
from gateway.replay.records import Gaps, RequestRecord
from gateway.replay.report import Run, print_report, report, warnings
from gateway.replay.results import SCHEMA, to_json
from gateway.replay.slo import Slos, WarmUp, parse_seconds, parse_slos, parse_warm_up
from gateway.replay.stats import Summary, distribution, mark_warm_up, percentile, quarter, summarize


def row(index: int, *, error: str | None = None, **changes: object) -> RequestRecord:
    """Sent at ``index`` s, first token 1 s later, three more tokens 0.25 s apart."""
    record = RequestRecord(
        index=index,
        session=None,
        scheduled=float(index),
        input_tokens=100,
        output_tokens=4,
        limit_tokens=50,
        sent=float(index),
        first_token=index + 1.0,
        last_token=index + 1.75,
        finished=index + 2.0,
        token_events=4,
        gaps=Gaps(3, 0.75, 0.25, array("f", [0.25] * 3)),
        prompt_tokens=100,
        cached_tokens=25,
        completion_tokens=4,
        status=200,
        error=error,
        error_detail="words" if error else None,
        worker="w1",
    )
    for name, value in changes.items():
        setattr(record, name, value)
    return record


def text_of(rendered: object, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(rendered)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50).map(sorted), st.integers(1, 99))
def test_percentile_is_the_inclusive_one_of_the_standard_library(values: list[float], per_cent: int) -> None:
    expected = statistics.quantiles(values, n=100, method="inclusive")[per_cent - 1]
    assert percentile(values, per_cent / 100) == pytest.approx(expected, abs=1e-6)


def test_percentile_by_hand() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0], 0.9) == 4.6
    assert percentile([7.0], 0.99) == 7.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)
    assert distribution([]) is None


def test_summary_of_a_plain_replay() -> None:
    summary = summarize([row(index) for index in range(4)])
    assert (summary.planned, summary.sent, summary.succeeded, summary.failed) == (4, 4, 4, 0)
    assert summary.duration == 5.0
    assert summary.ttft is not None
    assert summary.itl is not None
    assert summary.e2e is not None
    assert (summary.ttft.mean, summary.ttft.p99, summary.ttft.count) == (1.0, 1.0, 4)
    assert (summary.itl.p50, summary.itl.count) == (0.25, 12)
    assert summary.e2e.max == 1.75
    assert (summary.hits.share, summary.hits.limit, summary.hits.of_limit) == (0.25, 0.5, 0.5)
    assert summary.requests_per_second == 0.8
    assert summary.input_tokens_per_second == 80.0
    assert summary.output_tokens_per_second == 3.2
    assert (summary.prompt_ratio, summary.output_ratio) == (1.0, 1.0)
    assert summary.goodput == ()
    assert not warnings(summary)


def test_failed_requests_count_as_load_and_not_as_latency() -> None:
    rows = [
        row(0),
        row(1, error="http_503", status=503),
        row(2, error="connect_refused", status=None, worker=None),
    ]
    summary = summarize(rows)
    assert (summary.succeeded, summary.failed) == (1, 2)
    assert [(error.kind, error.count, error.example) for error in summary.errors] == [
        ("http_503", 1, "words"),
        ("connect_refused", 1, "words"),
    ]
    assert [(load.worker, load.requests, load.failed) for load in summary.workers] == [("w1", 2, 1)]
    assert summary.ttft is not None
    assert summary.ttft.count == 1


def test_load_per_worker() -> None:
    rows = [row(index, worker=f"w{(1, 2, 10)[min(index, 2)]}") for index in range(4)]
    rows[0].input_tokens = 500
    summary = summarize(rows)
    assert [load.worker for load in summary.workers] == ["w1", "w2", "w10"]
    assert [load.requests for load in summary.workers] == [1, 1, 2]
    assert summary.max_over_mean_requests == 1.5
    assert summary.max_over_mean_input == 1.875
    assert summarize(rows, fleet_size=8).max_over_mean_requests == 4.0


def test_goodput_needs_every_objective() -> None:
    rows = [row(0), row(1, first_token=4.0), row(2), row(3, error="timeout")]
    rows[2].gaps.total = 3.0
    strict, easy = summarize(rows, slos=[Slos(ttft=1.0, itl=0.25), Slos(), Slos(ttft=9.0, name="easy")]).goodput
    assert (strict.met, strict.share, strict.per_second) == (1, 0.25, 0.2)
    assert (easy.slos.name, easy.met, easy.share) == ("easy", 3, 0.75)
    assert Slos(e2e=1.75).met(rows[0])
    assert not Slos(e2e=1.74).met(rows[0])
    assert not Slos()


def test_hits_not_told_are_left_out() -> None:
    summary = summarize([row(0), row(1, cached_tokens=None)])
    assert (summary.hits.requests, summary.hits.prompt_tokens) == (1, 100)
    silent = summarize([row(0, cached_tokens=None)])
    assert silent.hits.share is None
    assert any("cached_tokens" in line for line in warnings(silent))


def test_hits_in_time() -> None:
    summary = summarize([row(index, cached_tokens=0 if index < 20 else 50) for index in range(40)])
    assert len(summary.slices) == 20
    assert (quarter(summary.slices, 0).share, quarter(summary.slices, 3).share) == (0.0, 0.5)
    assert [hits.requests for hits in summary.slices] == [2] * 20
    assert "rising: 0.0% in the first quarter, 50.0% in the last" in shown(summary)


def test_tpot_counts_tokens_and_not_events() -> None:
    assert row(0).tpot == 0.25
    assert row(0, completion_tokens=7).tpot == 0.125
    assert row(0, completion_tokens=1).tpot is None
    assert Slos(tpot=0.125).met(row(0, completion_tokens=7))
    assert not Slos(tpot=0.125).met(row(0))
    assert Slos(tpot=0.125).met(row(0, completion_tokens=1))


def test_what_warms_up_is_in_no_figure() -> None:
    rows = [row(index, error="timeout" if index == 0 else None) for index in range(4)]
    rows[0].sent, rows[1].sent = 1.0, 0.0  # sessions send out of the order of the trace
    mark_warm_up(rows, WarmUp(requests=2))
    assert [record.warm_up for record in rows] == [True, True, False, False]
    summary = summarize(rows)
    assert (summary.warm_up, summary.planned, summary.sent, summary.failed) == (2, 2, 2, 0)
    assert summary.duration == 3.0  # from 2 s, when the first that counts was sent, to 5 s
    assert summary.requests_per_second == pytest.approx(2 / 3)
    assert "after 2 to warm up that are not counted" in shown(summary)
    later = [row(index) for index in range(4)]
    mark_warm_up(later, WarmUp(seconds=2.5))
    assert [record.warm_up for record in later] == [True, True, True, False]
    untouched = [row(0)]
    mark_warm_up(untouched, WarmUp())
    assert not untouched[0].warm_up


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft=2,tpot=0.05", Slos(ttft=2.0, tpot=0.05, name="ttft=2,tpot=0.05")),
        ("chat:ttft=500ms, e2e = 1.5min", Slos(ttft=0.5, e2e=90.0, name="chat")),
        ("itl=250us", Slos(itl=0.00025, name="itl=250us")),
    ],
)
def test_objectives_are_read(text: str, expected: Slos) -> None:
    assert parse_slos(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected [NAME:]ttft=TIME"),
        ("chat", "got 'chat'"),
        ("p99=3", "got 'p99=3'"),
        ("ttft=1,ttft=2", "ttft is given twice"),
        ("ttft=fast", "not a length of time"),
        (":ttft=1", "expected a name before the colon"),
    ],
)
def test_what_is_wrong_with_objectives_is_told(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_slos(text)


@given(st.text(max_size=30))
def test_no_text_breaks_the_parsers(text: str) -> None:
    for parse in (parse_slos, parse_warm_up, parse_seconds):
        with contextlib.suppress(ValueError):
            assert parse(text) is not None


def test_warm_up_is_a_number_of_requests_or_a_time() -> None:
    assert parse_warm_up("100") == WarmUp(requests=100)
    assert parse_warm_up("30s") == WarmUp(seconds=30.0)
    with pytest.raises(ValueError, match="neither a number of requests"):
        parse_warm_up("many")


def shown(summary: Summary) -> str:
    return text_of(report(summary, Run("t.jsonl", "http://h", "m", 2.0)))


def test_summary_of_nothing_sent() -> None:
    rows = [row(0, sent=None, first_token=None, last_token=None, finished=None)]
    summary = summarize(rows, slos=[Slos(ttft=1.0)])
    assert (summary.sent, summary.ttft, summary.workers, summary.slices) == (0, None, (), ())
    assert "1 requests were never sent" in shown(summary)


def test_the_report_fits_100_columns_and_tells_everything() -> None:
    rows = [row(index, worker=f"a-worker-with-a-very-long-name-{index % 3}") for index in range(30)]
    rows[3].error, rows[3].error_detail = "http_500", "out of memory [bold]" * 20
    slos = Slos(ttft=1.5, itl=0.25, e2e=30.0)
    text = shown(summarize(rows, slos=[slos]))
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 100
    for words in (
        "29 of 30 requests answered in 31.0 s",
        "2 × the trace's speed",
        "TTFT",
        "25.0% of input tokens; one cache for all could serve 50.0% → 50.0% of the limit",
        "96.7% of requests (0.935/s): TTFT ≤ 1.50 s, mean ITL ≤ 250 ms, end to end ≤ 30.0 s",
        "max ÷ mean  1.00 by input tokens, 1.00 by requests",
        "…h-a-very-long-name-2 ",
        "http_500",
        "out of memory [bold]",
    ):
        assert words in text, text


def test_a_report_without_a_terminal_has_100_columns() -> None:
    file = io.StringIO()
    summary = summarize([row(0)])
    print_report(Console(file=file), report(summary, Run("t", "u", "m")))
    assert "sent → first token" in file.getvalue()


def test_warnings() -> None:
    rows = [
        row(0, scheduled=-1.0, prompt_tokens=140, cached_tokens=90, completion_tokens=2),
        row(1, sent=None, finished=None),
    ]
    found = warnings(summarize(rows))
    assert [next(word for word in ("late", "input", "output", "warm", "never") if word in line) for line in found] == [
        "late",
        "input",
        "output",
        "warm",
        "never",
    ]


def test_json_keeps_settings_summary_and_rows() -> None:
    rows = [row(0), row(1, error="timeout", last_token=None), row(2, sent=None)]
    slos = Slos(ttft=1.0)
    document = orjson.loads(
        to_json(settings={"speed": 2.0}, summary=summarize(rows, slos=[slos]), records=rows, interrupted=True)
    )
    assert list(document) == ["schema", "settings", "interrupted", "summary", "requests"]
    assert (document["schema"], document["settings"], document["interrupted"]) == (
        SCHEMA,
        {"speed": 2.0},
        True,
    )
    assert document["summary"]["ttft"] == {
        "count": 1,
        "mean": 1.0,
        "p50": 1.0,
        "p90": 1.0,
        "p99": 1.0,
        "max": 1.0,
    }
    assert document["summary"]["hits"]["of_limit"] == 0.5
    assert document["summary"]["workers"][0]["hits"]["share"] == 0.25
    assert [entry["index"] for entry in document["requests"]] == [0, 1]
    assert document["requests"][0]["ttft"] == 1.0
    assert document["requests"][0]["itl_mean"] == 0.25
    assert document["requests"][1]["error"] == "timeout"
    assert document["requests"][1]["latency"] is None


def test_the_live_view() -> None:
    rows = [
        row(0),
        row(1, error="timeout"),
        row(2, finished=None),
        row(3, sent=None, first_token=None, finished=None),
    ]
    progress = Progress(rows)
    for _ in range(2):  # looking twice counts nothing twice
        progress.update()
    assert (progress.sent, progress.done, progress.failed, progress.in_flight) == (3, 2, 1, 1)
    text = text_of(render(progress, 65.0))
    assert "2 of 4 answered" in text
    assert "1:05 / 1:05" in text
    assert "in flight 1   failed 1   from cache 25.0%   TTFT p50 1.00 s" in text
    rows[2].finished = 5.0
    progress.update()
    assert (progress.done, progress.in_flight) == (3, 0)
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0 s"),
        (0.0000419, "42 µs"),
        (0.0123, "12.3 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (9.996, "10.0 s"),
        (119.4, "119 s"),
        (200.0, "3 min 20 s"),
        (7500.0, "2 h 05 min"),
    ],
)
def test_seconds_for_people(value: float | None, text: str) -> None:
    assert figures.seconds(value) == text


def test_other_figures() -> None:
    assert [figures.count(value) for value in (7, 12_031, 27_441_774, 3.14159, 0.0)] == [
        "7",
        "12,031",
        "27.4 M",
        "3.14",
        "0",
    ]
    assert figures.bar(0.5, 4) == "██"
    assert figures.bar(0.53, 4) == "██▏"
    assert figures.bar(2.0, 4) == "████"
    assert figures.sparkline([0.0, None, 0.5, 1.0], top=1.0) == "▁·▅█"
    assert figures.sparkline([0.0], top=0.0) == "▁"
    assert (figures.clock(65.9), figures.clock(3723)) == ("1:05", "1:02:03")
