"""How far predictions are off, taken into account: a running correction, and a quantile that covers what it says."""

from __future__ import annotations

from math import exp, log
from typing import Final

_QUANTILE: Final = 0.9
_GAIN: Final = 0.04
"""Weight of the newest observation once many are known."""
_MOST: Final = 1.1
"""ln 3: by so much one observation may be off at most, and still counts as that."""
_STEP: Final = 0.1
"""How far one miss moves the quantile, in spreads."""
_PRIOR_COUNT: Final = 10.0


class Calibration:
    """Of one kind of prediction. Ratios of measured to predicted are kept as logarithms.

    The upper quantile is adaptive conformal (Gibbs and Candès, 2021): each measurement above it raises it by 9 units,
    each below lowers it by 1, so that in the long run one in ten is above, whatever the distribution.
    """

    __slots__ = ("_bias", "_count", "_parent", "_spread", "_width")

    def __init__(self, parent: Calibration | None = None) -> None:
        """`parent` is the fleet's, which is believed at first and learns along."""
        self._parent = parent
        self._count = 0.0
        self._bias = 0.0
        self._spread = 0.25
        self._width = 2.0

    def factors(self) -> tuple[float, float]:
        """(what to multiply a prediction by, what to multiply the result by for the upper quantile, at least 1)."""
        bias, spread, width = self._blend()
        return exp(bias), exp(width * spread)

    def _blend(self) -> tuple[float, float, float]:
        parent = self._parent
        if parent is None:
            return self._bias, self._spread, self._width
        own = self._count / (self._count + _PRIOR_COUNT)
        bias, spread, width = parent._blend()
        return (
            own * self._bias + (1.0 - own) * bias,
            own * self._spread + (1.0 - own) * spread,
            own * self._width + (1.0 - own) * width,
        )

    def observe(self, ratio: float, off: float, *, missed: bool) -> None:
        """`ratio`: measured ÷ what would be predicted now, before any correction. `off`: the logarithm of measured ÷
        the prediction that was given, and whether it was above the quantile given with that.
        """
        bias = min(max(log(ratio), -_MOST), _MOST)
        self._learn(bias, off, missed)
        if self._parent is not None:
            self._parent._learn(bias, off, missed)

    def _learn(self, bias: float, off: float, missed: bool) -> None:
        self._count = min(self._count + 1.0, 1e6)
        gain = max(1.0 / (self._count + 1.0), _GAIN)
        error = bias - self._bias
        self._bias += gain * min(max(error, -2.0 * self._spread), 2.0 * self._spread)
        self._spread += gain * (min(abs(off), 2.0) - self._spread)
        self._spread = max(self._spread, 0.01)
        self._width = min(max(self._width + _STEP * (_QUANTILE if missed else _QUANTILE - 1.0), 0.0), 8.0)
