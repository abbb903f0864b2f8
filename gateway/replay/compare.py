"""Two saved results side by side: the ratio of every figure, which is better, and whether they may be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeGuard

import msgspec
import orjson
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.replay import figures
from gateway.replay.results import SCHEMA

COMPARISON_SCHEMA: Final = "prefixgate.replay.comparison/1"
SAME: Final = 0.01
"""Figures whose ratio is so near to 1 are the same: two runs of one thing differ by as much."""

Better = Literal["A", "B", "same"]

_LOWER: Final = ("ttft.", "tpot.", "itl.", "e2e.", "failed", "duration", "max_over_mean_")
_HIGHER: Final = (
    "requests_per_second",
    "input_tokens_per_second",
    "output_tokens_per_second",
    "hits.share",
    "hits.of_limit",
    "goodput.",
)
_COUNTS: Final = (".count", ".met")  # they say how much was measured
_DISTRIBUTIONS: Final = ("ttft", "tpot", "itl", "e2e", "lateness")
_ALIKE: Final = {
    "model": "models",
    "endpoint": "endpoints",
    "speed": "speeds",
    "arrivals": "files of arrivals",
    "concurrency": "numbers of users",
    "warm_up": "warm-ups",
    "max_output": "caps on the output",
    "ignore_eos": "settings of ignore_eos",
    "think_time": "think times",
    "session_gap": "gaps between sessions",
    "max_pause": "longest pauses",
    "workers": "fleet sizes",
}


class ComparisonError(ValueError):
    """A file that is no saved result; the message says which and what was expected."""


class Saved(msgspec.Struct):
    """What is read of a saved result; the requests' rows are passed over."""

    schema: str
    settings: dict[str, Any]
    summary: dict[str, Any]
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of both; ``ratio`` is B ÷ A, None where A is 0 or either is not known."""

    name: str
    a: float | None
    b: float | None
    ratio: float | None
    better: Better | None
    """None where neither direction is better in itself."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two results; ``warnings`` is empty where they may be compared."""

    a: str
    b: str
    warnings: tuple[str, ...]
    figures: tuple[Figure, ...]

    def count(self, better: Better) -> int:
        """In how many figures that one is better."""
        return sum(figure.better == better for figure in self.figures)

    @property
    def better(self) -> Better | None:
        """The one that is better in some figures and worse in none; None when each has its own."""
        a, b = self.count("A"), self.count("B")
        if a and b:
            return None
        return "A" if a else "B" if b else "same"


def read_saved(path: str) -> Saved:
    """The result saved at ``path`` with ``--json``. Raises `ComparisonError`."""
    try:
        saved = msgspec.json.decode(Path(path).read_bytes(), type=Saved)
    except OSError as error:
        raise ComparisonError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise ComparisonError(f"{path}: expected a result saved with --json: {error}") from error
    if saved.schema != SCHEMA:
        raise ComparisonError(f"{path}: expected schema {SCHEMA}, got {saved.schema[:60]!r}")
    return saved


def compare_files(a: str, b: str) -> Comparison:
    """The results saved at ``a`` and ``b``. Raises `ComparisonError`."""
    return compare(a, read_saved(a), b, read_saved(b))


def compare(name_a: str, a: Saved, name_b: str, b: Saved) -> Comparison:
    """Every figure that either has, in the order of the summary."""
    found_a, found_b = dict(_figures(a.summary)), dict(_figures(b.summary))
    names = list(dict.fromkeys([*found_a, *found_b]))
    return Comparison(
        a=name_a,
        b=name_b,
        warnings=tuple(_warnings(a, b)),
        figures=tuple(_figure(name, found_a.get(name), found_b.get(name)) for name in names),
    )


def _figures(summary: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in summary.items():
        if _is_number(value):
            yield name, value
        elif isinstance(value, dict) and name in {*_DISTRIBUTIONS, "hits"}:
            yield from ((f"{name}.{key}", part) for key, part in value.items() if _is_number(part))
        elif name == "goodput" and isinstance(value, list):
            for item in value:
                if isinstance(item, dict) and isinstance(slos := item.get("slos"), dict):
                    for key in ("met", "share", "per_second"):
                        if _is_number(part := item.get(key)):
                            yield f"goodput.{slos.get('name')}.{key}", part


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _figure(name: str, a: float | None, b: float | None) -> Figure:
    ratio = b / a if a and b is not None else None
    return Figure(name, a, b, ratio, _better(name, a, b))


def _better(name: str, a: float | None, b: float | None) -> Better | None:
    lower = name.startswith(_LOWER)
    judged = (lower or name.startswith(_HIGHER)) and not name.endswith(_COUNTS)
    if a is None or b is None or not judged:
        return None
    if abs(b - a) <= SAME * max(abs(a), abs(b)):
        return "same"
    return "B" if (b < a) == lower else "A"


def _warnings(a: Saved, b: Saved) -> Iterator[str]:
    for name, saved in (("A", a), ("B", b)):
        if saved.interrupted:
            yield f"{name} was stopped early."
        if failed := saved.summary.get("failed"):
            yield f"{failed:,} requests of {name} failed: its latencies are of the others."
    digests = [saved.settings.get("requests_digest") for saved in (a, b)]
    if digests[0] != digests[1]:
        traces = [saved.settings.get("trace") for saved in (a, b)]
        what = f"{traces[0]} and {traces[1]}" if traces[0] != traces[1] else "the trace's content or limit differs"
        yield f"Different requests: {what}."
    sent = [saved.summary.get("sent") for saved in (a, b)]
    if sent[0] != sent[1]:
        yield f"Different numbers of requests: {sent[0]} and {sent[1]}."
    for key, words in _ALIKE.items():
        values = [saved.settings.get(key) for saved in (a, b)]
        if values[0] != values[1]:
            yield f"Different {words}: {_word(values[0])} and {_word(values[1])}."


def _word(value: object) -> str:
    return "none" if value is None else str(value)


def comparison_json(comparison: Comparison) -> bytes:
    """The document, indented, ended by a newline."""
    document = {
        "schema": COMPARISON_SCHEMA,
        "a": comparison.a,
        "b": comparison.b,
        "comparable": not comparison.warnings,
        "warnings": list(comparison.warnings),
        "better": comparison.better,
        "better_in": {"A": comparison.count("A"), "B": comparison.count("B"), "same": comparison.count("same")},
        "figures": [asdict(figure) for figure in comparison.figures],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def render_comparison(comparison: Comparison) -> RenderableType:
    """For people: a verdict, warnings, and a row for each figure."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", style="bold", no_wrap=True)
    for name in ("A", "B", "B ÷ A"):
        table.add_column(name, justify="right", min_width=9)
    table.add_column("better")
    styles = {"A": "yellow", "B": "green", "same": "dim", None: "dim"}
    for figure in comparison.figures:
        style = styles[figure.better]
        shown = _writer(figure.name)
        table.add_row(
            figure.name,
            "–" if figure.a is None else shown(figure.a),
            "–" if figure.b is None else shown(figure.b),
            Text(figures.ratio(figure.ratio), style=style),
            Text({"same": "about the same", None: ""}.get(figure.better, figure.better or ""), style=style),
        )
    names = Text.assemble(("A  ", "bold"), comparison.a, "\n", ("B  ", "bold"), comparison.b)
    warnings = [Text.assemble(("! ", "bold yellow"), (line, "yellow")) for line in comparison.warnings]
    if warnings:
        warnings.insert(0, Text("These two runs are not comparable:", style="bold yellow"))
    return Group("", names, "", table, "", _verdict(comparison), *warnings, "")


def _verdict(comparison: Comparison) -> Text:
    a, b, same = (comparison.count(which) for which in ("A", "B", "same"))
    match comparison.better:
        case "same":
            return Text(f"No difference: all {same} figures are within {SAME:.0%}.", style="bold")
        case None:
            return Text(f"Mixed: A is better in {a} figures, B in {b}; {same} are about the same.", style="bold")
        case which:
            return Text(
                f"{which} is better: in {a or b} figures, and worse in none; {same} are about the same.", "bold"
            )


def _writer(name: str) -> Callable[[float], str]:
    if name.endswith(("share", "hits.limit", "of_limit")):
        return figures.share
    if name == "duration" or (name.startswith(_DISTRIBUTIONS) and not name.endswith(".count")):
        return figures.seconds
    if name.startswith("max_over_mean") or name.endswith("_ratio"):
        return figures.ratio
    return figures.count
