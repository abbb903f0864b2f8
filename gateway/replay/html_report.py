"""The report as one HTML file: figures, plots and tables, light and dark. Nothing is loaded and no script runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources

from gateway.replay import figures, plots
from gateway.replay.plots import Bound, Plot
from gateway.replay.records import RequestRecord
from gateway.replay.report import Run, bounds, warnings
from gateway.replay.stats import Distribution, Summary


def html_report(summary: Summary, records: Sequence[RequestRecord], run: Run) -> str:
    """The whole page."""
    title = f"{summary.succeeded:,} of {summary.planned:,} requests answered"
    parts = [
        f"<header><h1>{escape(title)} <span>in {figures.seconds(summary.duration)}</span></h1>",
        f"<p>{escape(str(run))}{_warm_up(summary)}</p></header>",
        _warnings(summary),
        f'<section class="tiles">{"".join(_tiles(summary))}</section>',
        f'<section class="columns">{"".join([*map(figure, _plots(summary, records)), *_tables(summary)])}</section>',
    ]
    return document(f"Replay of {run.trace}", "".join(parts))


def document(title: str, body: str) -> str:
    """A page that loads nothing and runs no script; `body` is HTML."""
    style = resources.files("gateway.replay").joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{style}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _warm_up(summary: Summary) -> str:
    return f"; {summary.warm_up:,} requests to warm up are not counted" if summary.warm_up else ""


def _warnings(summary: Summary) -> str:
    found = warnings(summary)
    return f'<ul class="warnings">{"".join(f"<li>{escape(line)}</li>" for line in found)}</ul>' if found else ""


def _tiles(summary: Summary) -> Iterator[str]:
    ttft, tpot, hits = summary.ttft, summary.tpot, summary.hits
    yield tile("TTFT p50", *_middle_and_end(ttft))
    yield tile("TPOT p50", *_middle_and_end(tpot))
    yield tile("From cache", figures.share(hits.share), f"{figures.share(hits.limit)} possible")
    yield tile(
        "Throughput",
        f"{figures.count(summary.requests_per_second)}/s",
        f"{figures.count(summary.output_tokens_per_second)} output tokens/s",
    )
    for good in summary.goodput[:2]:
        yield tile(
            "Goodput", f"{figures.count(good.per_second)}/s", f"{figures.share(good.share)}: {bounds(good.slos)}"
        )
    if summary.failed:
        yield tile("Failed", f"{summary.failed:,}", f"of {summary.sent:,} sent", "bad")


def _middle_and_end(spread: Distribution | None) -> tuple[str, str]:
    return (figures.seconds(spread.p50), f"p99 {figures.seconds(spread.p99)}") if spread else ("–", "none")


def tile(name: str, value: str, more: str, style: str = "") -> str:
    """One figure; all are plain text."""
    return f'<div class="tile {style}"><b>{escape(name)}</b><strong>{escape(value)}</strong><i>{escape(more)}</i></div>'


def _plots(summary: Summary, records: Sequence[RequestRecord]) -> list[Plot]:
    counted = [record for record in records if not record.warm_up]
    done = [record for record in counted if record.ok]
    slos = [good.slos for good in summary.goodput]
    ttft_bounds = [Bound("TTFT", slo.ttft) for slo in slos if slo.ttft is not None]
    tpot_bounds = [Bound("TPOT", slo.tpot) for slo in slos if slo.tpot is not None]
    found = (
        plots.ttft_by_input(counted),
        plots.curve("TTFT", [record.ttft for record in done if record.ttft is not None], ttft_bounds),
        plots.worker_loads(records),
        plots.curve("TPOT", [record.tpot for record in done if record.tpot is not None], tpot_bounds),
        plots.tokens_in_time(records),
        plots.hits_in_time(records),
    )
    return [plot for plot in found if plot is not None]


def figure(plot: Plot) -> str:
    """A plot with its title, note and legend."""
    keys = "".join(f'<span class="key {style}">{escape(name)}</span>' for style, name in plot.legend)
    return (
        f"<figure><figcaption><h2>{escape(plot.title)}</h2><p>{escape(plot.note)}{keys}</p></figcaption>"
        f"{plot.svg}</figure>"
    )


def _tables(summary: Summary) -> Iterator[str]:
    yield _latencies(summary)
    if summary.goodput:
        rows = [
            (bounds(good.slos), figures.share(good.share), f"{good.met:,}", figures.count(good.per_second))
            for good in summary.goodput
        ]
        yield table("Goodput", ("objectives", "share", "requests", "per second"), rows)
    if any(load.worker for load in summary.workers):
        yield table(
            "Workers",
            ("worker", "requests", "input tokens", "from cache", "TTFT p50", "failed"),
            [
                (
                    load.worker or "(not told)",
                    f"{load.requests:,}",
                    figures.count(load.input_tokens),
                    figures.share(load.hits.share),
                    figures.seconds(load.ttft_p50),
                    f"{load.failed:,}",
                )
                for load in summary.workers
            ],
        )
    if summary.errors:
        rows_of_errors = [(error.kind, f"{error.count:,}", error.example) for error in summary.errors]
        yield table("Failed", ("class", "requests", "for example"), rows_of_errors, "words")


def _latencies(summary: Summary) -> str:
    spreads: tuple[tuple[str, Distribution | None], ...] = (
        ("TTFT", summary.ttft),
        ("TPOT", summary.tpot),
        ("ITL", summary.itl),
        ("end to end", summary.e2e),
        ("client late", summary.lateness),
    )
    rows = [
        (name, *(figures.seconds(value) for value in (s.mean, s.p50, s.p90, s.p99, s.max)))
        for name, s in spreads
        if s is not None
    ]
    return table("Latencies", ("", "mean", "p50", "p90", "p99", "max"), rows)


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], style: str = "") -> str:
    """A table with its title; all are plain text."""
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    table = f"<table class='{style}'><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div><h2>{escape(title)}</h2>{table}</div>"
