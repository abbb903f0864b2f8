"""What `prefixgate plan` found, for people: on a terminal, as JSON, and as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Final

import orjson
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.replay import figures
from gateway.replay.capacity import Verdict
from gateway.replay.html_report import document, figure, table, tile
from gateway.replay.plots import Plot
from gateway.replay.svg import Frame, linear, logarithmic

SCHEMA: Final = "prefixgate.plan/1"
_BAR_WIDTH: Final = 8
_NOTHING: Final = 0.0005
"""A share that would be shown as 0.0%."""
_FIGURES: Final = ("goodput", "TTFT p50", "p99", "TPOT p99", "cached", "refused")


@dataclass(frozen=True, slots=True)
class Answer:
    """One way to run the fleet: how many workers it needs, and every fleet that was tried."""

    routing: str
    prefix_cache: bool
    needed: int | None
    """None: more than the largest fleet that was tried."""
    tried: Mapping[int, Verdict]

    @property
    def name(self) -> str:
        """For people."""
        return self.routing if self.prefix_cache else f"{self.routing}, no cache"


@dataclass(frozen=True, slots=True)
class Findings:
    """All that was found; the first answer is the one the others are compared with."""

    trace: str
    requests: int
    per_second: float
    """Requests per second that come, on average."""
    objectives: Sequence[str]
    target: float
    most: int
    """The largest fleet that was allowed."""
    admission: str
    answers: Sequence[Answer]
    notes: Sequence[str] = ()

    @property
    def fleet(self) -> int:
        """The fleet that is looked at: what the first answer needs, or else the largest."""
        return self.answers[0].needed or self.most


def render(found: Findings) -> RenderableType:
    """Everything, most important first."""
    parts: list[RenderableType] = [_head(found), "", _sizes(found.answers[0], found.target)]
    parts += ["", _ways(found)]
    if len(found.answers[0].tried[found.fleet].classes) > 1 or len(found.answers[0].tried[found.fleet].tenants) > 1:
        parts += ["", _who(found)]
    parts += [Text(note, style="yellow") for note in found.notes]
    return Group("", *parts, "")


def headline(found: Findings) -> str:
    """The answer in one line."""
    needed = found.answers[0].needed
    if needed is None:
        return f"More than {found.most} workers are needed"
    return f"{needed} worker{'' if needed == 1 else 's'} will do"


def _head(found: Findings) -> RenderableType:
    style = "bold green" if found.answers[0].needed else "bold red"
    return Group(
        Text.assemble((headline(found), style), f" for {found.trace}: {_load(found)}"),
        Text(f"{_promise(found)}; admission: {found.admission}", style="dim"),
    )


def _load(found: Findings) -> str:
    return f"{found.requests:,} requests, {figures.count(found.per_second)}/s"


def _promise(found: Findings) -> str:
    return f"{found.target:.4g} of requests within {'; '.join(found.objectives) or 'no objectives'}"


def _sizes(answer: Answer, target: float) -> RenderableType:
    table_ = _table()
    for name in ("workers", "within", "", *_FIGURES):
        table_.add_column(name, justify="left" if name == "within" else "right", no_wrap=True)
    for workers in sorted(answer.tried):
        verdict = answer.tried[workers]
        enough = verdict.enough(target)
        style = "bold green" if workers == answer.needed else "" if enough else "dim"
        bar = figures.bar(verdict.share, _BAR_WIDTH)
        table_.add_row(
            f"{workers}", Text(bar, style="green" if enough else "red"), figures.share(verdict.share), *_cells(verdict),
            style=style,
        )  # fmt: skip
    return Group(Text(f"Workers, with routing {answer.name}", style="bold"), table_)


def _cells(verdict: Verdict) -> list[str]:
    ttft, tpot = verdict.ttft, verdict.tpot
    return [
        f"{figures.count(verdict.goodput)}/s",
        figures.seconds(ttft.p50 if ttft else None),
        figures.seconds(ttft.p99 if ttft else None),
        figures.seconds(tpot.p99 if tpot else None),
        figures.share(verdict.hit_share),
        f"{verdict.refused:,}",
    ]


def _ways(found: Findings) -> RenderableType:
    title = f"What each routing gives with {found.fleet}, and how many workers it needs"
    table_ = _table(space=0)
    table_.add_column("routing")
    for name in ("needs", "within", *_FIGURES):
        table_.add_column(name, justify="right", no_wrap=True)
    for answer in found.answers:
        if (verdict := answer.tried.get(found.fleet)) is not None:
            table_.add_row(answer.name, _needed(answer, found), figures.share(verdict.share), *_cells(verdict))
    worth = cache_worth(found)
    return Group(Text(title, style="bold"), table_, *([Text(worth, style="bold")] if worth else []))


def _needed(answer: Answer, found: Findings) -> str:
    return f"> {found.most}" if answer.needed is None else str(answer.needed)


def cache_worth(found: Findings) -> str:
    """What prefix caches, with this routing, save; empty where that was not asked."""
    bare = next((answer for answer in found.answers if not answer.prefix_cache), None)
    if bare is None:
        return ""
    best = found.answers[0]
    mine, theirs = best.tried[found.fleet], bare.tried[found.fleet]
    saved = 1 - mine.computed_tokens / theirs.computed_tokens if theirs.computed_tokens else 0.0
    if saved < _NOTHING:
        return "The cache saves nothing: no prompts begin alike."
    text = f"The cache saves {figures.share(saved)} of the prompt tokens to compute"
    if mine.ttft and theirs.ttft:
        text += f"; TTFT p50 is {figures.seconds(mine.ttft.p50)} and not {figures.seconds(theirs.ttft.p50)}"
    if best.needed is not None and bare.needed is not None and bare.needed > best.needed:
        text += f"; it is worth {bare.needed - best.needed} of {bare.needed} workers"
    elif best.needed is not None and bare.needed is None:
        text += f"; without it, more than {found.most} workers are needed"
    return text + "."


def _who(found: Findings) -> RenderableType:
    verdict = found.answers[0].tried[found.fleet]
    title = f"Classes and tenants, with {found.fleet} and routing {found.answers[0].name}"
    table_ = _table()
    for name in ("", "requests", "within", "refused"):
        table_.add_column(name, justify="left" if not name else "right")
    groups = [*verdict.classes.items(), *(verdict.tenants.items() if len(verdict.tenants) > 1 else ())]
    for name, each in groups:
        table_.add_row(name, f"{each.requests:,}", figures.share(each.share), f"{each.refused:,}")
    return Group(Text(title, style="bold"), table_)


def _table(*, space: int = 1) -> Table:
    """Made to fit 80 columns."""
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, space, 0, 0))


def plan_json(found: Findings, settings: Mapping[str, object]) -> bytes:
    """The whole document, indented, ended by a newline."""
    content = {
        "schema": SCHEMA,
        "settings": settings,
        "trace": found.trace,
        "requests": found.requests,
        "requests_per_second": found.per_second,
        "target": found.target,
        "workers": found.answers[0].needed,
        "notes": list(found.notes),
        "answers": [
            {
                "routing": answer.routing,
                "prefix_cache": answer.prefix_cache,
                "workers": answer.needed,
                "tried": [_fields(answer.tried[n], found.target) for n in sorted(answer.tried)],
            }
            for answer in found.answers
        ],
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _fields(verdict: Verdict, target: float) -> dict[str, object]:
    fields = asdict(verdict)
    fields["share"] = verdict.share
    fields["enough"] = verdict.enough(target)
    for kind, groups in (("classes", verdict.classes), ("tenants", verdict.tenants)):
        for name, each in groups.items():
            fields[kind][name]["share"] = each.share
    return fields


def plan_html(found: Findings) -> str:
    """The whole page."""
    verdict = found.answers[0].tried[found.fleet]
    parts = [
        f"<header><h1>{escape(headline(found))} <span>for {escape(found.trace)}</span></h1>",
        f"<p>{escape(_load(found))}; {escape(_promise(found))}; admission: {escape(found.admission)}</p></header>",
        f'<ul class="warnings">{"".join(f"<li>{escape(n)}</li>" for n in found.notes)}</ul>' if found.notes else "",
        f'<section class="tiles">{"".join(_tiles(found, verdict))}</section>',
        f'<section class="columns">{"".join(map(figure, _plots(found)))}</section>',
        f'<section class="rows">{"".join(_tables(found))}</section>',
    ]
    return document(f"Plan for {found.trace}", "".join(parts))


def _tiles(found: Findings, verdict: Verdict) -> Iterator[str]:
    yield tile("Workers", _needed(found.answers[0], found), f"routing {found.answers[0].name}")
    yield tile("Within objectives", figures.share(verdict.share), f"with {found.fleet} workers")
    yield tile("Goodput", f"{figures.count(verdict.goodput)}/s", f"of {figures.count(found.per_second)}/s that come")
    if verdict.ttft:
        yield tile("TTFT p50", figures.seconds(verdict.ttft.p50), f"p99 {figures.seconds(verdict.ttft.p99)}")
    yield tile("From cache", figures.share(verdict.hit_share), "of prompt tokens")


def _plots(found: Findings) -> Iterator[Plot]:
    """The first answer's, with the last one's beside it: that is without a cache, where it was asked."""
    first, last = found.answers[0], found.answers[-1]
    shown = [first] if last is first else [first, last]
    legend = tuple((f"s{n}", answer.name) for n, answer in enumerate(shown, start=1))
    yield Plot("Within objectives", "share of requests, by workers", _within(found, shown), legend)
    if any(verdict.ttft for answer in shown for verdict in answer.tried.values()):
        yield Plot("TTFT", "p50 by workers", _ttft(shown), legend)


def _within(found: Findings, shown: Sequence[Answer]) -> str:
    frame = Frame("Share of requests within objectives by number of workers")
    x = linear([float(n) for answer in shown for n in answer.tried], frame.left, frame.right)
    y = linear([1.0], frame.bottom, frame.top)
    frame.y_axis(y, lambda part: f"{part:.0%}")
    frame.x_axis(x, figures.count, "workers")
    frame.path([(frame.left, y(found.target)), (frame.right, y(found.target))], "line limit")
    for n, answer in enumerate(shown, start=1):
        points = [(workers, answer.tried[workers].share) for workers in sorted(answer.tried)]
        frame.path([(x(workers), y(share)) for workers, share in points], f"line s{n}")
        for workers, share in points:
            frame.dot(x(workers), y(share), f"dot s{n}", f"{workers} workers: {figures.share(share)}", radius=4)
    return frame.svg()


def _ttft(shown: Sequence[Answer]) -> str:
    frame = Frame("Median time to first token by number of workers")
    x = linear([float(n) for answer in shown for n in answer.tried], frame.left, frame.right)
    rows = [
        [(workers, v.ttft.p50) for workers, v in sorted(answer.tried.items()) if v.ttft is not None] for answer in shown
    ]
    y = logarithmic([value for row in rows for _, value in row], frame.bottom, frame.top)
    frame.y_axis(y, figures.seconds)
    frame.x_axis(x, figures.count, "workers")
    for n, row in enumerate(rows, start=1):
        frame.path([(x(workers), y(value)) for workers, value in row], f"line s{n}")
        for workers, value in row:
            frame.dot(x(workers), y(value), f"dot s{n}", f"{workers} workers: {figures.seconds(value)}", radius=4)
    return frame.svg()


def _tables(found: Findings) -> Iterator[str]:
    head = ("workers", "within", *_FIGURES)
    first = found.answers[0]
    yield table(
        f"Workers, with routing {first.name}",
        head,
        [(str(n), figures.share(v.share), *_cells(v)) for n, v in sorted(first.tried.items())],
    )
    ways = [
        (answer.name, _needed(answer, found), figures.share(v.share), *_cells(v))
        for answer in found.answers
        if (v := answer.tried.get(found.fleet)) is not None
    ]
    yield table(f"Each routing with {found.fleet}", ("routing", "needs", *head[1:]), ways)
    verdict = first.tried[found.fleet]
    who = [
        (name, f"{each.requests:,}", figures.share(each.share), f"{each.refused:,}")
        for name, each in [*verdict.classes.items(), *verdict.tenants.items()]
    ]
    yield table("Classes and tenants", ("", "requests", "within", "refused"), who)
