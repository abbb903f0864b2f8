"""How figures are written for people: three significant digits and a unit that fits."""

from __future__ import annotations

from typing import Final

_BARS: Final = "▁▂▃▄▅▆▇█"


def seconds(value: float | None) -> str:
    """A length of time: 840 µs, 12.3 ms, 1.25 s, 3 min 20 s, 2 h 05 min."""
    if value is None:
        return "–"
    if value == 0:
        return "0 s"
    if value < 0.0009995:
        return f"{value * 1e6:.0f} µs"
    if value < 0.9995:
        return f"{_three(value * 1e3)} ms"
    if value < 119.5:
        return f"{_three(value)} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def share(value: float | None) -> str:
    """0 to 1 in per cent, one decimal."""
    return "–" if value is None else f"{value:.1%}"


def count(value: float) -> str:
    """A count or rate: 7, 12,031, 27.4 M; one below 100 keeps three digits."""
    if value >= 1e6:
        return f"{_three(value / 1e6)} M"
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return _three(value)


def ratio(value: float | None) -> str:
    """Two decimals."""
    return "–" if value is None else f"{value:.2f}"


def bar(value: float | None, width: int, *, full: float = 1.0) -> str:
    """A horizontal bar of ``width`` cells at ``full``."""
    eighths = round(max(0.0, min(1.0, (value or 0.0) / full if full else 0.0)) * width * 8)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


def sparkline(values: list[float | None], *, top: float) -> str:
    """One character a value, from 0 to ``top``; a dot where there is none."""
    return "".join(
        "·" if value is None else _BARS[min(len(_BARS) - 1, int(value / top * len(_BARS)))] if top else _BARS[0]
        for value in values
    )


def _three(value: float) -> str:
    """Three significant digits, no exponent."""
    digits = 3 if value < 0.9995 else 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}"


def clock(value: float) -> str:
    """A stopwatch: 1:05, 1:02:03."""
    minutes, rest = divmod(int(value), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
