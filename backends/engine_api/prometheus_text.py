"""Parts of a metrics page in Prometheus' text format. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

TTFT_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
"""Seconds, as vLLM has them for the time to the first token."""


class Histogram:
    """Seconds, in buckets of the given upper bounds."""

    def __init__(self, buckets: Sequence[float] = TTFT_BUCKETS) -> None:
        self._buckets = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._buckets, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, labels: str) -> list[str]:
        """The type, cumulative buckets, sum and count."""
        total, lines = 0, [f"# TYPE {name} histogram"]
        for bound, count in zip((*map(str, self._buckets), "+Inf"), self._counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {total}')
        return [*lines, f"{name}_sum{{{labels}}} {self._sum}", f"{name}_count{{{labels}}} {total}"]


def escaped(label: str) -> str:
    """A label's value, ready for its quotes."""
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def sample_lines(prefix: str, gauges: Mapping[str, float], counters: Mapping[str, int], labels: str) -> list[str]:
    """Each gauge and counter under `prefix`, with its type; counters end in `_total`."""
    lines: list[str] = []
    for name, value in gauges.items():
        lines += [f"# TYPE {prefix}:{name} gauge", f"{prefix}:{name}{{{labels}}} {float(value)}"]
    for name, count in counters.items():
        lines += [f"# TYPE {prefix}:{name}_total counter", f"{prefix}:{name}_total{{{labels}}} {float(count)}"]
    return lines
