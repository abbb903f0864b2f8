"""The plots of a replay, each from its records to inline SVG. Pure; their size does not grow with the replay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.replay import figures
from gateway.replay.records import RequestRecord
from gateway.replay.stats import natural, percentile
from gateway.replay.svg import HEIGHT, Frame, Scale, exact, linear, logarithmic

BUCKETS: Final = 60
_HIT_BUCKETS: Final = 30  # fewer: a share of few requests jumps
_CURVE_POINTS: Final = 300
_CELL: Final = 3.0  # pixels; of points that fall into one cell one is drawn
_MOSTLY: Final = 0.5
_LOG_FROM: Final = 20.0  # highest ÷ lowest from which on an axis is logarithmic
_WORKER_ROWS: Final = 16
_ROW: Final = 40
_LABEL: Final = 14


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture with its name, what it shows, and which class means what."""

    title: str
    note: str
    svg: str
    legend: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Bound:
    """An objective to draw into a distribution."""

    name: str
    seconds: float


def ttft_by_input(records: Sequence[RequestRecord]) -> Plot | None:
    """A point a request: input tokens across, TTFT up."""
    rows = [(record, record.ttft) for record in records if record.ok and record.ttft is not None]
    if not rows:
        return None
    frame = Frame("Time to first token against input length")
    lengths = [record.prompt_tokens or record.input_tokens for record, _ in rows]
    x = linear([float(length) for length in lengths], frame.left, frame.right)
    y = _axis([ttft for _, ttft in rows], frame.bottom, frame.top)
    frame.y_axis(y, figures.seconds)
    frame.x_axis(x, figures.count, "input tokens")
    seen: set[tuple[int, int, bool]] = set()
    for (record, ttft), length in zip(rows, lengths, strict=True):
        cached = (record.cached_tokens or 0) / length if length else 0.0
        at = (x(length), y(ttft))
        cell = (int(at[0] / _CELL), int(at[1] / _CELL), cached >= _MOSTLY)
        if cell in seen:
            continue
        seen.add(cell)
        title = f"{length:,} tokens, {figures.share(cached)} from cache: {figures.seconds(ttft)}"
        frame.dot(*at, "dot s1" if cell[2] else "dot s2", title)
    told = any(record.cached_tokens is not None for record, _ in rows)
    legend = (("s1", "half or more from cache"), ("s2", "less")) if told else ()
    return Plot("TTFT by input length", "one point a request", frame.svg(), legend)


def curve(title: str, values: Iterable[float], bounds: Sequence[Bound]) -> Plot | None:
    """Share of requests at or below a length of time, with objectives and the usual percentiles."""
    ordered = sorted(values)
    if not ordered:
        return None
    frame = Frame(f"{title}, cumulative")
    x = _axis(ordered, frame.left, frame.right)
    y = linear([1.0], frame.bottom, frame.top)
    frame.y_axis(y, lambda part: f"{part:.0%}")
    frame.x_axis(x, figures.seconds, title, grid=True)
    shown = [bound for bound in bounds if x.low < bound.seconds < x.high]
    for row, bound in enumerate(shown):
        frame.mark_x(x(bound.seconds), f"{bound.name} ≤ {figures.seconds(bound.seconds)}", row=row)
    shares = [n / _CURVE_POINTS for n in range(_CURVE_POINTS + 1)]
    line = [(x(ordered[0]), y(0.0)), *((x(percentile(ordered, part)), y(part)) for part in shares)]
    frame.path([*line, (frame.right, y(1.0))], "line s1")
    for part in (0.5, 0.9, 0.99):
        value = percentile(ordered, part)
        frame.dot(x(value), y(part), "dot s1 ring", f"p{part * 100:g}: {figures.seconds(value)}", radius=4.5)
    parts = ", ".join(f"p{part * 100:g} {figures.seconds(percentile(ordered, part))}" for part in (0.5, 0.9, 0.99))
    return Plot(title, f"share of requests at or below; {parts}", frame.svg())


def worker_loads(records: Sequence[RequestRecord]) -> Plot | None:
    """A row a worker: requests in flight, mean over each part of the time."""
    by_worker: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in records:
        if record.sent is not None and record.finished is not None and record.status is not None:
            by_worker[record.worker or "(not told)"].append(record)
    if not by_worker:
        return None
    names = sorted(by_worker, key=lambda name: (-len(by_worker[name]), natural(name)))[:_WORKER_ROWS]
    names.sort(key=natural)
    end = _end(records)
    loads = {name: _in_flight(by_worker[name], end) for name in names}
    shown = labels(names)
    frame = Frame("Requests in flight per worker over time", height=max(HEIGHT, 62 + _ROW * len(names)), left=110)
    x = exact(end, frame.left, frame.right)
    _warm_up(frame, x, records)
    row = (frame.bottom - frame.top) / len(names)
    top = max(max(load) for load in loads.values())
    for number, (name, load) in enumerate(loads.items()):
        base = frame.top + row * (number + 1)
        y = Scale(0.0, top or 1.0, base, base - row + 8, log=False, ticks=())
        width = (frame.right - frame.left) / BUCKETS
        steps = [(frame.left + width * (place + side), y(value)) for place, value in enumerate(load) for side in (0, 1)]
        frame.path([(frame.left, base), *steps, (frame.right, base)], "area s1", title=_load_words(name, load))
        frame.path(steps, "thin s1")
        frame.path([(frame.left, base), (frame.right, base)], "grid")
        frame.text(frame.left - 8, base - row / 2 + 2, shown[number], "label end")
        frame.text(frame.left - 8, base - row / 2 + 16, f"mean {figures.count(sum(load) / BUCKETS)}", "tick end")
    frame.x_axis(x, _time, "time")
    more = f"; {len(by_worker) - len(names)} less busy ones not shown" if len(by_worker) > len(names) else ""
    note = f"requests in flight; a row is {figures.count(top)} high{more}"
    return Plot("Load per worker", note, frame.svg())


def tokens_in_time(records: Sequence[RequestRecord]) -> Plot | None:
    """Prompt tokens by when they were sent: from cache and computed."""
    parts = _parts(records, BUCKETS)
    if not any(part.prompt for part in parts):
        return None
    frame = Frame("Prompt tokens over time, from cache and computed")
    x = exact(_end(records), frame.left, frame.right)
    y = linear([float(part.prompt) for part in parts], frame.bottom, frame.top)
    frame.y_axis(y, figures.count)
    _warm_up(frame, x, records)
    width = (frame.right - frame.left) / BUCKETS
    for number, part in enumerate(parts):
        left, right = frame.left + width * number + 0.7, frame.left + width * (number + 1) - 0.7
        words = f"{figures.count(part.cached)} tokens from cache, {figures.count(part.prompt - part.cached)} computed"
        frame.bar((left, right), (y(part.cached), frame.bottom), "fill s1", words)
        frame.bar((left, right), (y(part.prompt), y(part.cached) - (1 if part.cached else 0)), "fill s2", words)
    frame.x_axis(x, _time, "time sent")
    legend = (("s1", "from cache"), ("s2", "computed"))
    return Plot("Prompt tokens in time", f"per {figures.seconds(_end(records) / BUCKETS)}", frame.svg(), legend)


def hits_in_time(records: Sequence[RequestRecord]) -> Plot | None:
    """Share of the prompt tokens from cache, beside what one cache for all could have served."""
    parts = _parts(records, _HIT_BUCKETS)
    if not any(part.prompt for part in parts):
        return None
    frame = Frame("Share of prompt tokens from cache over time")
    x = exact(_end(records), frame.left, frame.right)
    y = linear([1.0], frame.bottom, frame.top)
    frame.y_axis(y, lambda part: f"{part:.0%}")
    _warm_up(frame, x, records)
    width = (frame.right - frame.left) / _HIT_BUCKETS
    middles = [frame.left + width * (number + 0.5) for number in range(_HIT_BUCKETS)]
    frame.path(
        [(at, y(part.limit / part.input)) if part.input else None for at, part in zip(middles, parts, strict=True)],
        "line limit",
    )
    hits = [
        (at, y(part.cached / part.prompt)) if part.prompt else None for at, part in zip(middles, parts, strict=True)
    ]
    frame.path(hits, "line s1")
    for point, part in zip(hits, parts, strict=True):
        if point is not None:
            frame.dot(*point, "dot s1", f"{figures.share(part.cached / part.prompt)} from cache", radius=2.2)
    frame.x_axis(x, _time, "time sent")
    legend = (("s1", "from cache"), ("limit", "possible with one cache for all"))
    return Plot("Hit share in time", "cached ÷ prompt tokens", frame.svg(), legend)


@dataclass(slots=True)
class _Part:
    prompt: int = 0
    cached: int = 0
    input: int = 0
    limit: int = 0


def _parts(records: Sequence[RequestRecord], count: int) -> list[_Part]:
    parts = [_Part() for _ in range(count)]
    end = _end(records)
    for record in records:
        if record.ok and record.sent is not None and record.cached_tokens is not None and record.prompt_tokens:
            part = parts[_bucket(record.sent, end, count)]
            part.prompt += record.prompt_tokens
            part.cached += record.cached_tokens
            part.input += record.input_tokens
            part.limit += record.limit_tokens
    return parts


def _in_flight(records: Sequence[RequestRecord], end: float) -> list[float]:
    """Mean number in each of `BUCKETS` equal parts of the time."""
    busy = [0.0] * BUCKETS
    width = (end or 1.0) / BUCKETS
    for record in records:
        start, stop = record.sent or 0.0, record.finished or 0.0
        for number in range(_bucket(start, end), _bucket(stop, end) + 1):
            overlap = min(stop, width * (number + 1)) - max(start, width * number)
            busy[number] += max(0.0, overlap) / width
    return busy


def _bucket(moment: float, end: float, count: int = BUCKETS) -> int:
    return min(count - 1, max(0, int(moment / (end or 1.0) * count)))


def _end(records: Sequence[RequestRecord]) -> float:
    return max((record.finished or 0.0 for record in records), default=0.0) or 1.0


def _axis(values: Sequence[float], start: float, stop: float) -> Scale:
    positive = [value for value in values if value > 0]
    if positive and max(positive) / min(positive) > _LOG_FROM:
        return logarithmic(positive, start, stop)
    return linear(values, start, stop)


def _warm_up(frame: Frame, x: Scale, records: Sequence[RequestRecord]) -> None:
    warming = [record.sent for record in records if record.warm_up and record.sent is not None]
    counted = [record.sent for record in records if not record.warm_up and record.sent is not None]
    if warming:
        until = min(counted, default=max(warming))
        frame.bar((frame.left, x(until)), (frame.top, frame.bottom), "warming", "warm-up: sent, and not counted")


def _load_words(name: str, load: Sequence[float]) -> str:
    return f"{name}: {figures.count(sum(load) / len(load))} in flight on average, {figures.count(max(load))} at most"


def _time(value: float) -> str:
    return figures.clock(value) if value >= 60 else f"{value:g} s"


def labels(names: Sequence[str]) -> list[str]:
    """Names that fit beside a row: long ones keep what tells them apart, the first `_LABEL` characters of it."""
    if all(len(name) <= _LABEL for name in names):
        return list(names)
    before = len(_shared(names)) if len(names) > 1 else 0
    cut = [name[before:] for name in names]
    after = len(_shared([name[::-1] for name in cut])) if len(names) > 1 else 0
    whole = [len(name) - before - after for name in names]
    starts = [_word_start(name, before) for name in names]
    return [
        _fit(name[start : max(before + size, start)], head=start > 0, tail=after > 0)
        for name, start, size in zip(names, starts, whole, strict=True)
    ]


def _shared(names: Sequence[str]) -> str:
    """The characters with which all begin."""
    first, last = min(names), max(names)
    return first[: next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def _word_start(name: str, at: int) -> int:
    """Where the word or number that `at` is in begins, so that no name is cut within it."""
    while at > 0 and name[at - 1].isalnum():
        at -= 1
    return at


def _fit(text: str, *, head: bool, tail: bool) -> str:
    text = f"{'…' if head else ''}{text}{'…' if tail else ''}"
    return text if len(text) <= _LABEL else text[: _LABEL - 1] + "…"
