"""How far predictions are off, taken into account: a running correction, a margin that covers what it says, and the
error that is left, for people to see.

Ratios of measured to predicted are kept as logarithms: twice and half are equally far off.
"""

from __future__ import annotations

from math import exp, log
from typing import Final

QUANTILE: Final = 0.9
"""Share of requests that shall be at or below the upper prediction."""
_GAIN: Final = 0.04
"""Weight of the newest observation once many are known."""
_MOST: Final = 1.1
"""By more than this (three times) nothing is said to be off."""
_STEP: Final = 0.1
_MOST_WIDTH: Final = 8.0
_LEAST_SPREAD: Final = 0.01
_PRIOR_COUNT: Final = 10.0
"""So many observations of its own weigh as much as what the fleet has seen."""

_NEW: Final = 32.0
"""Of a worker known for longer only every fourth observation is told to the fleet."""


class Correction:
    """By what to multiply a prediction so that half of what is measured is above it: the median, which one stall does
    not move.
    """

    __slots__ = ("_bias", "_count", "_factor", "_fleet", "_spread")

    def __init__(self, fleet: Correction | None = None) -> None:
        """`fleet`'s is believed at first, and learns along."""
        self._fleet = fleet
        self._count = 0.0
        self._bias = 0.0
        self._factor = 1.0
        self._spread = 0.25

    @property
    def factor(self) -> float:
        """Between 1/3 and 3; what is the fleet's, as of the last observation."""
        if self._count or self._fleet is None:
            return self._factor
        return self._fleet.factor

    def observe(self, ratio: float) -> None:
        """Measured ÷ what would be predicted now without it; above 0."""
        off = min(max(log(ratio), -_MOST), _MOST)
        self._learn(off)
        bias, fleet = self._bias, self._fleet
        if fleet is not None:
            if _tells_fleet(self._count):
                fleet.observe(ratio)
            bias = _blend(self._count, bias, fleet._bias)  # noqa: SLF001 - of its own kind
        self._factor = exp(bias)

    def _learn(self, off: float) -> None:
        self._count += 1.0
        gain = max(1.0 / (self._count + 1.0), _GAIN)
        error = off - self._bias
        self._bias += gain * min(max(error, -self._spread), self._spread)
        self._spread = max(self._spread + gain * (abs(error) - self._spread), _LEAST_SPREAD)


class Margin:
    """From a prediction to the one that nine in ten stay below: a number of mean deviations.

    Adaptive conformal inference (Gibbs and Candès, 2021): each measurement above raises that number by nine units, each
    below lowers it by one, so that in the long run one in ten is above, whatever the distribution.
    """

    __slots__ = ("_count", "_factor", "_fleet", "_spread", "_width")

    def __init__(self, fleet: Margin | None = None) -> None:
        """`fleet`'s is believed at first, and learns along."""
        self._fleet = fleet
        self._count = 0.0
        self._spread = 0.25
        self._width = 2.0
        self._factor = exp(0.5)

    @property
    def factor(self) -> float:
        """At least 1; what is the fleet's, as of the last observation."""
        if self._count or self._fleet is None:
            return self._factor
        return self._fleet.factor

    def observe(self, ratio: float, *, missed: bool) -> None:
        """Measured ÷ predicted (above 0), as it was predicted then, and whether it was above the upper one."""
        off = min(abs(log(ratio)), 2.0 * _MOST)
        self._learn(off, missed)
        width, spread, fleet = self._width, self._spread, self._fleet
        if fleet is not None:
            if _tells_fleet(self._count):
                fleet.observe(ratio, missed=missed)
            width = _blend(self._count, width, fleet._width)  # noqa: SLF001 - of its own kind
            spread = _blend(self._count, spread, fleet._spread)  # noqa: SLF001 - of its own kind
        self._factor = exp(width * spread)

    def _learn(self, off: float, missed: bool) -> None:
        self._count += 1.0
        gain = max(1.0 / (self._count + 1.0), _GAIN)
        self._spread = max(self._spread + gain * (off - self._spread), _LEAST_SPREAD)
        step = _STEP * (QUANTILE if missed else QUANTILE - 1.0)
        self._width = min(max(self._width + step, 0.0), _MOST_WIDTH)


def _blend(count: float, own: float, fleet: float) -> float:
    return fleet + (own - fleet) * count / (count + _PRIOR_COUNT)


def _tells_fleet(count: float) -> bool:
    return count < _NEW or count % 4 == 0


class Errors:
    """Running figures of how good predictions were, over about the last two hundred."""

    __slots__ = ("count", "coverage", "mape")

    _MEMORY: Final = 200.0

    def __init__(self) -> None:
        self.count = 0
        self.mape = 0.0
        """Mean of |predicted − measured| ÷ measured; one counts as at most 10."""
        self.coverage = 0.0
        """Share that was at or below the upper prediction."""

    def observe(self, predicted: float, upper: float, measured: float) -> None:
        """What was said, and what came; `measured` is above 0."""
        self.count += 1
        gain = 1.0 / min(self.count, self._MEMORY)
        self.mape += gain * (min(abs(predicted - measured) / measured, 10.0) - self.mape)
        self.coverage += gain * ((measured <= upper) - self.coverage)
