"""Counters and histograms as plain numbers: told at the end of a request, made into metrics when somebody asks.

One loop writes and reads them, so they need no locks, and telling one costs a lookup and an addition.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

SECONDS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0,
)  # fmt: skip
"""From an error that we answer ourselves to a reasoning model's long answer."""
FIRST_TOKEN_SECONDS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
"""As the conventions advise, and two more for long queues."""
OUTPUT_TOKEN_SECONDS: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TOKENS: Final = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0)


class Histogram:
    """How many values were at most so much. `bounds` are the buckets' upper ends, ascending."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def n(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus wants them: upper end and count."""
        ends = [*(repr(bound) for bound in self.bounds), "+Inf"]
        return list(zip(ends, map(float, accumulate(self.counts)), strict=True))
