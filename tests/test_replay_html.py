"""The report in HTML: whole, well-formed, loading nothing, and no larger for a longer replay."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backends.simulated.engine import EngineConfig
from gateway.replay.html_report import html_report
from gateway.replay.plots import labels
from gateway.replay.records import RequestRecord
from gateway.replay.report import Run
from gateway.replay.slo import Slos, WarmUp
from gateway.replay.stats import mark_warm_up, summarize
from gateway.replay.svg import exact, linear, logarithmic
from gateway.replay.traces import read_trace
from gateway.replay.virtual_fleet import replay_virtually
from policies.routing import make_policy

TRACE = Path(__file__).parent / "data/traces/mooncake_conversation_2000.jsonl.xz"
ENGINE = EngineConfig(blocks=2_000, block_size=512, max_model_len=200_000)
SLOS = (Slos(ttft=0.5, tpot=0.02, name="chat"), Slos(ttft=2.0))
PLOTS = ["TTFT by input length", "TTFT", "Load per worker", "TPOT", "Prompt tokens in time", "Hit share in time"]
VOID = {"meta"}


class Page(HTMLParser):
    """Checks that what is opened is closed, and collects what could load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in {"src", "href", "data", "action", "srcset"}]
        self.loads += [tag] if tag in {"script", "link", "iframe", "object", "embed", "base"} else []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def replayed(limit: int) -> list[RequestRecord]:
    arrivals = read_trace(TRACE, limit)
    return list(replay_virtually(arrivals, make_policy("cost"), workers=3, engine=ENGINE, speed=2.0).records)


def page(records: list[RequestRecord], trace: str = "t.jsonl") -> str:
    return html_report(summarize(records, slos=SLOS), records, Run(trace, "http://h", "m"))


def test_every_plot_is_there_and_nothing_is_loaded() -> None:
    records = replayed(300)
    mark_warm_up(records, WarmUp(requests=20))
    text = page(records)
    assert Page(text).loads == []
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text
    assert [title for title in re.findall(r"<h2>([^<]*)</h2>", text) if title in PLOTS] == PLOTS
    pictures = [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text)]
    assert len(pictures) == len(PLOTS)
    for words in (
        "280 of 280 requests answered",
        "20 requests to warm up are not counted",
        "chat: TTFT ≤ 500 ms, TPOT ≤ 20.0 ms",
        "prefers-color-scheme: dark",
        "not counted</title>",
    ):
        assert words in text, words


def test_a_point_a_request_where_they_do_not_cover_each_other() -> None:
    records = replayed(12)
    scatter = re.findall(r"<svg.*?</svg>", page(records))[0]
    assert 8 <= scatter.count("<circle") <= 12
    record = records[3]
    assert record.ttft is not None
    assert f"{record.prompt_tokens:,} tokens" in scatter


def test_marks_stay_inside_the_picture() -> None:
    for svg in re.findall(r"<svg.*?</svg>", page(replayed(200))):
        root = ET.fromstring(svg)
        width, height = (float(part) for part in root.attrib["viewBox"].split()[2:])
        for element in root.iter():
            for name, most in (("cx", width), ("x", width), ("x1", width), ("cy", height), ("y", height)):
                assert 0 <= float(element.get(name, 0)) <= most, (element.tag, element.attrib)


def test_a_longer_replay_makes_no_larger_file() -> None:
    records = replayed(400)
    small = len(page(records))
    assert len(page(records * 20)) < 1.3 * small


def test_names_from_outside_are_text() -> None:
    records = replayed(5)
    records[0].worker = "<script>alert(1)</script>"
    records[1].error, records[1].error_detail = "http_500", "<img src=x>"
    text = page(records, trace="<b>.jsonl")
    assert Page(text).loads == []
    assert "<b>.jsonl" not in text


def test_nothing_answered_is_a_page_too() -> None:
    records = replayed(4)
    for record in records:
        record.error, record.first_token, record.last_token = "timeout", None, None
    text = page(records)
    assert Page(text).loads == []
    assert "0 of 4 requests answered" in text
    assert "Failed" in text
    assert "<h2>TTFT</h2>" not in text
    assert Page(page([])).loads == []


def test_answers_that_tell_no_cached_tokens() -> None:
    records = replayed(20)
    for record in records:
        record.cached_tokens = None
    text = page(records)
    assert "Hit share in time" not in text
    assert "cache hits are not known" in text


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20))
@example([999_999.9999999999])
def test_scales_hold_every_value_in_order(values: list[float]) -> None:
    for scale in (linear(values, 0, 100), logarithmic(values, 0, 100), exact(max(values), 0, 100)):
        pixels = [scale(value) for value in sorted(values)]
        assert pixels == sorted(pixels)
        assert 0 <= pixels[0] <= pixels[-1] <= 100
        assert 1 <= len(scale.ticks) <= 25
        assert all(0 <= scale(tick) <= 100 for tick in scale.ticks)
        assert scale.low <= min(values) * 1.001
        assert scale.high >= max(values) * 0.999


@pytest.mark.parametrize("values", [[], [0.0]])
def test_scales_of_nothing(values: list[float]) -> None:
    assert linear(values, 0, 10)(0.0) == 0
    assert logarithmic(values, 0, 10)(0.0) == 0


def test_labels_keep_what_tells_workers_apart() -> None:
    assert labels(["a", "b"]) == ["a", "b"]
    assert labels([f"https-gpu-node-{n}.cluster.local:8000" for n in (1, 10)]) == ["…1…", "…10…"]
    assert labels(["http://127.0.0.1:8001", "http://127.0.0.1:8002"]) == ["…8001", "…8002"]
    assert labels(["one-name-longer-than-that"]) == ["one-name-long…"]


@given(st.lists(st.text(max_size=30), min_size=1, max_size=6, unique=True))
def test_labels_fit(names: list[str]) -> None:
    assert all(len(label) <= 14 for label in labels(names))
