"""The frame of a plot as inline SVG: scales, ticks, axes and marks. Pure; colours are classes of the page's style."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 640
HEIGHT: Final = 300
LEFT: Final = 64
RIGHT: Final = 18
TOP: Final = 14
BOTTOM: Final = 44
_CHAR: Final = 7.4  # width of a character of a label, about
_ZEROS: Final = re.compile(r"^(\d+)\.0+(?=\D|$)|(?<=\.\d)0+(?=\D|$)")

Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Scale:
    """Values to pixels, linear or by logarithm; ``ticks`` are where lines are drawn."""

    low: float
    high: float
    start: float
    stop: float
    log: bool
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        """The pixel, within the frame."""
        low, high, value = (
            (math.log(self.low), math.log(self.high), math.log(max(value, self.low)))
            if self.log
            else (self.low, self.high, value)
        )
        part = (value - low) / (high - low)
        return self.start + (self.stop - self.start) * min(1.0, max(0.0, part))


def linear(values: Sequence[float], start: float, stop: float, *, ticks: int = 5) -> Scale:
    """From 0 to a round number above the highest of ``values``."""
    top = max(values, default=0.0) or 1.0
    step = _round_up(top / ticks)
    count = math.ceil(top / step - 1e-9)
    return Scale(0.0, count * step, start, stop, log=False, ticks=tuple(n * step for n in range(count + 1)))


def exact(high: float, start: float, stop: float, *, ticks: int = 6) -> Scale:
    """From 0 to exactly ``high``: for time."""
    high = high or 1.0
    step = _round_time(high / ticks)
    marks = tuple(n * step for n in range(int(high / step) + 1))
    return Scale(0.0, high, start, stop, log=False, ticks=marks)


def logarithmic(values: Sequence[float], start: float, stop: float) -> Scale:
    """Around all ``values`` above 0; at 1, 2 and 5 of each decade where there are few decades, else at 1."""
    positive = [value for value in values if value > 0] or [1.0]
    low, high = _edge(min(positive), up=False), _edge(max(positive) * 1.000001, up=True)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    marks = (step * 10.0**decade for decade in range(first, last + 1) for step in steps)
    return Scale(low, high, start, stop, log=True, ticks=tuple(m for m in marks if low * 0.999 <= m <= high * 1.001))


def _edge(value: float, *, up: bool) -> float:
    decade = 10.0 ** math.floor(math.log10(value))
    # The logarithm of a number next to a power of ten is rounded, to either side.
    edges = [step * decade for step in (0.5, 1, 2, 5, 10, 20)]
    return next(edge for edge in edges if edge > value) if up else max(edge for edge in edges if edge <= value)


def _round_up(value: float) -> float:
    decade = 10.0 ** math.floor(math.log10(value))
    return next(step * decade for step in (1, 2, 2.5, 5, 10) if step * decade >= value * (1 - 1e-9))


def _round_time(value: float) -> float:
    for step in (60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400):
        if 30 < value <= step:
            return float(step)
    return _round_up(value)


def _bare(text: str) -> str:
    """A tick's label without digits that say nothing: 2 s, not 2.00 s."""
    return _ZEROS.sub(r"\1", text)


class Frame:
    """One plot in the making: axes first, then marks, then `svg`."""

    def __init__(self, label: str, *, height: int = HEIGHT, left: int = LEFT) -> None:
        self.left, self.right = left, WIDTH - RIGHT
        self.top, self.bottom = TOP, height - BOTTOM
        self._height = height
        self._label = label
        self._parts: list[str] = []

    def x_axis(self, scale: Scale, write: Format, title: str, *, grid: bool = False) -> None:
        """Ticks and title below."""
        last = -math.inf
        for tick in scale.ticks:
            x, text = scale(tick), _bare(write(tick))
            if grid:
                self._line(x, self.top, x, self.bottom, "grid")
            half = len(text) * _CHAR / 2
            if x - half > last:
                self.text(min(x, WIDTH - half), self.bottom + 16, text, "tick mid")
                last = x + half + 6
        self._line(self.left, self.bottom, self.right, self.bottom, "axis")
        self.text((self.left + self.right) / 2, self._height - 6, title, "title mid")

    def y_axis(self, scale: Scale, write: Format) -> None:
        """Grid lines, with their values on the left."""
        for tick in scale.ticks:
            y = scale(tick)
            self._line(self.left, y, self.right, y, "grid")
            self.text(self.left - 8, y + 4, _bare(write(tick)), "tick end")

    def text(self, x: float, y: float, text: str, style: str) -> None:
        """Text whose baseline begins, ends or has its middle at a point, by its style."""
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(text)}</text>')

    def path(self, points: Sequence[tuple[float, float] | None], style: str, *, title: str = "") -> None:
        """A line through pixels, broken where there is None."""
        drawn, begin = [], True
        for point in points:
            if point is None:
                begin = True
                continue
            drawn.append(f"{'M' if begin else 'L'}{point[0]:.1f} {point[1]:.1f}")
            begin = False
        hint = f"<title>{escape(title)}</title>" if title else ""
        self._parts.append(f'<path d="{"".join(drawn)}" class="{style}">{hint}</path>')

    def dot(self, x: float, y: float, style: str, title: str, *, radius: float = 2.6) -> None:
        """A point with its words."""
        self._parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" class="{style}"><title>{escape(title)}</title></circle>'
        )

    def bar(self, x: tuple[float, float], y: tuple[float, float], style: str, title: str = "") -> None:
        """A filled rectangle, from left to right and from top to bottom."""
        (left, right), (top, bottom) = x, y
        hint = f"<title>{escape(title)}</title>" if title else ""
        self._parts.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(0.0, right - left):.1f}"'
            f' height="{max(0.0, bottom - top):.1f}" class="{style}">{hint}</rect>'
        )

    def mark_x(self, x: float, text: str, *, row: int = 0) -> None:
        """A dashed line down, with its name beside it at the foot."""
        self._line(x, self.top, x, self.bottom, "bound")
        after = x + len(text) * _CHAR + 8 < self.right
        self.text(x + 5 if after else x - 5, self.bottom - 10 - 15 * row, text, "note" if after else "note end")

    def svg(self) -> str:
        """The element."""
        return (
            f'<svg viewBox="0 0 {WIDTH} {self._height}" role="img" aria-label="{escape(self._label, quote=True)}">'
            f"{''.join(self._parts)}</svg>"
        )

    def _line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        self._parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>')
