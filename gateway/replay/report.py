"""The report of a replay for people: readable in 100 columns, on a terminal or in a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.replay import figures
from gateway.replay.stats import quarter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.replay.slo import Slos
    from gateway.replay.stats import Distribution, Summary, WorkerLoad

_LABEL_WIDTH: Final = 12
_NAME_WIDTH: Final = 21
_BAR_WIDTH: Final = 10
_FILE_COLUMNS: Final = 100
_LATE_S: Final = 0.05  # the client's own lateness at p99 that earns a warning
_RATIO_OFF: Final = 0.05  # how far token counts may be from the trace's before it is said
_WARM: Final = 0.02  # so far above the limit is more than the chat template's own tokens
_STEADY: Final = 0.02  # quarters whose shares differ by less are called steady


@dataclass(frozen=True, slots=True)
class Run:
    """What was replayed, in words for people."""

    trace: str
    url: str
    model: str
    speed: float = 1.0
    concurrency: int | None = None

    def __str__(self) -> str:
        times = "the trace's own speed" if self.speed == 1 else f"{self.speed:g} × the trace's speed"
        pace = times if self.concurrency is None else f"closed loop of {self.concurrency:,}"
        return f"{self.trace} → {self.url}, model {self.model}, {pace}"


def report(summary: Summary, run: Run) -> RenderableType:
    """Everything worth knowing, most important first, warnings last so that they are seen."""
    parts = [_head(summary, run), _latencies(summary), _facts(summary)]
    if any(load.worker for load in summary.workers):
        parts.append(_workers(summary))
    if summary.errors:
        parts.append(_errors(summary))
    if found := warnings(summary):
        parts.append(_warnings(found))
    return Group("", *_spaced(parts), "")


def warnings(summary: Summary) -> list[str]:
    """What makes the figures worth less than they seem."""
    found = []
    if summary.lateness and summary.lateness.p99 > _LATE_S:
        late = figures.seconds(summary.lateness.p99)
        found.append(
            f"This client was itself late, by {late} at p99: the load was not the trace's."
            " Lower --speed or give the client a faster core."
        )
    if _is_off(summary.prompt_ratio):
        found.append(
            f"The server counted {figures.ratio(summary.prompt_ratio)} × the trace's input tokens:"
            " its tokenizer splits the words that prompts are made of."
        )
    if _is_off(summary.output_ratio):
        found.append(
            f"The server generated {figures.ratio(summary.output_ratio)} × the output tokens asked for:"
            " it may not know ignore_eos, or its context ended."
        )
    if summary.succeeded and not summary.hits.requests:
        found.append(
            "No answer told usage.prompt_tokens_details.cached_tokens, so cache hits are not known"
            " (vLLM tells them with --enable-prompt-tokens-details)."
        )
    if (summary.hits.of_limit or 0.0) > 1 + _WARM:
        found.append("More came from cache than one empty cache could have served: it was warm when the replay began.")
    if summary.sent < summary.planned:
        found.append(f"Stopped early: {summary.planned - summary.sent:,} requests were never sent.")
    return found


def _is_off(ratio: float | None) -> bool:
    return ratio is not None and abs(ratio - 1) > _RATIO_OFF


def _head(summary: Summary, run: Run) -> RenderableType:
    ok = summary.succeeded == summary.planned
    title = Text.assemble(
        (
            f"{summary.succeeded:,} of {summary.planned:,} requests answered",
            "bold green" if ok else "bold red",
        ),
        f" in {figures.seconds(summary.duration)}",
        f", after {summary.warm_up:,} to warm up that are not counted" if summary.warm_up else "",
    )
    return Group(title, Text(str(run), style="dim"))


def _latencies(summary: Summary) -> Table:
    table = _table(space=1)
    table.add_column("", width=_LABEL_WIDTH, style="bold")
    for name in ("mean", "p50", "p90", "p99", "max"):
        table.add_column(name, justify="right", min_width=7, no_wrap=True)
    table.add_column("", style="dim")
    rows: tuple[tuple[str, Distribution | None, str], ...] = (
        ("TTFT", summary.ttft, "sent → first token"),
        ("TPOT", summary.tpot, "per token after it"),
        ("ITL", summary.itl, "token → token"),
        ("end to end", summary.e2e, "sent → last token"),
        ("client late", summary.lateness, "due → sent"),
    )
    for name, spread, meaning in rows:
        style = "dim" if name == "client late" else ""
        values = (spread.mean, spread.p50, spread.p90, spread.p99, spread.max) if spread else (None,) * 5
        table.add_row(
            Text(name, style=style or "bold"),
            *(Text(figures.seconds(v), style=style) for v in values),
            meaning,
        )
    return table


def _facts(summary: Summary) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=_LABEL_WIDTH, style="bold", no_wrap=True)
    table.add_column()
    for name, fact in _fact_rows(summary):
        table.add_row(name, fact)
    return table


def _fact_rows(summary: Summary) -> Iterator[tuple[str, Text]]:
    hits = summary.hits
    if hits.requests:
        yield (
            "cache hits",
            Text.assemble(
                (figures.share(hits.share), "bold green"),
                f" of input tokens; one cache for all could serve {figures.share(hits.limit)}",
                (f" → {figures.share(hits.of_limit)} of the limit" if hits.of_limit is not None else ""),
            ),
        )
        yield "hits in time", _hits_in_time(summary)
    yield (
        "throughput",
        Text(
            f"{figures.count(summary.requests_per_second)} requests/s,"
            f" {figures.count(summary.input_tokens_per_second)} input tokens/s,"
            f" {figures.count(summary.output_tokens_per_second)} output tokens/s"
        ),
    )
    for number, good in enumerate(summary.goodput):
        yield (
            "" if number else "goodput",
            Text.assemble(
                (figures.share(good.share), "bold"),
                f" of requests ({figures.count(good.per_second)}/s): {bounds(good.slos)}",
            ),
        )


def bounds(slos: Slos) -> str:
    """Objectives for people, their name first where it says more than they do."""
    named = (("TTFT", slos.ttft), ("TPOT", slos.tpot), ("mean ITL", slos.itl), ("end to end", slos.e2e))
    text = ", ".join(f"{name} ≤ {figures.seconds(bound)}" for name, bound in named if bound is not None)
    return text if slos.name == "slo" or "=" in slos.name else f"{slos.name}: {text}"


def _hits_in_time(summary: Summary) -> Text:
    shares = [hits.share for hits in summary.slices]
    first, last = quarter(summary.slices, 0), quarter(summary.slices, 3)
    change = (last.share or 0.0) - (first.share or 0.0)
    word = "rising" if change > _STEADY else "falling" if change < -_STEADY else "steady"
    top = max((hits.limit or 0.0 for hits in summary.slices), default=0.0)  # full bar: all that was possible
    return Text.assemble(
        (figures.sparkline(shares, top=top), "green"),
        f"  {word}: {figures.share(first.share)} in the first quarter, {figures.share(last.share)} in the last",
        (f"\npossible: {figures.share(first.limit)} and {figures.share(last.limit)}", "dim"),
    )


def _workers(summary: Summary) -> RenderableType:
    table = _table()
    table.add_column("worker", style="bold", no_wrap=True, min_width=_LABEL_WIDTH)
    table.add_column("requests", justify="right")
    table.add_column("input tokens", justify="right")
    table.add_column("share of input", no_wrap=True)
    table.add_column("from cache", justify="right")
    table.add_column("TTFT p50", justify="right")
    failed = any(load.failed for load in summary.workers)
    if failed:
        table.add_column("failed", justify="right")
    total = sum(load.input_tokens for load in summary.workers)
    top = max(load.input_tokens for load in summary.workers)
    for load in summary.workers:
        table.add_row(*_worker_row(load, total=total, top=top, failed=failed))
    spread = Text.assemble(
        ("max ÷ mean  ", "bold"),
        (figures.ratio(summary.max_over_mean_input), "bold cyan"),
        " by input tokens, ",
        (figures.ratio(summary.max_over_mean_requests), "bold cyan"),
        " by requests",
    )
    return Group(table, spread)


def _worker_row(load: WorkerLoad, *, total: int, top: int, failed: bool) -> list[RenderableType]:
    part = load.input_tokens / total if total else 0.0
    cells: list[RenderableType] = [
        _tail(load.worker or "(not told)"),
        f"{load.requests:,}",
        figures.count(load.input_tokens),
        Text.assemble(
            (f"{figures.bar(load.input_tokens, _BAR_WIDTH, full=top):<{_BAR_WIDTH}}", "cyan"), f" {part:6.1%}"
        ),
        figures.share(load.hits.share),
        figures.seconds(load.ttft_p50),
    ]
    return [*cells, Text(f"{load.failed:,}", style="red" if load.failed else "dim")] if failed else cells


def _tail(name: str) -> str:
    """A name too long loses its beginning: names of one fleet differ at the end."""
    return name if len(name) <= _NAME_WIDTH else "…" + name[1 - _NAME_WIDTH :]


def _errors(summary: Summary) -> Table:
    table = _table()
    table.add_column("failed", style="bold red", no_wrap=True, min_width=_LABEL_WIDTH)
    table.add_column("requests", justify="right")
    table.add_column("for example", style="dim")
    for error in summary.errors:
        table.add_row(error.kind, f"{error.count:,}", Text(error.example))
    return table


def _warnings(found: list[str]) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(style="bold yellow")
    table.add_column(style="yellow")
    for line in found:
        table.add_row("!", line)
    return table


def _table(*, space: int = 2) -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, space, 0, 0))


def _spaced(parts: list[RenderableType]) -> Iterator[RenderableType]:
    for number, part in enumerate(parts):
        if number:
            yield ""
        yield part


def print_report(console: Console, rendered: RenderableType) -> None:
    """On ``console``, which gets at least 100 columns when it is not a terminal."""
    if not console.is_terminal:
        console.width = max(console.width, _FILE_COLUMNS)
    console.print(rendered)
