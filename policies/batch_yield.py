"""How much of the capacity batch work may take while interactive latency nears its objective."""

from __future__ import annotations

from math import inf
from typing import Final

_STALE_S: Final = 10.0
_BAND: Final = 0.1


class BatchYield:
    """Of one model. Falls at once and rises slowly: batch work that is in the workers already can only be waited for.

    `pressure` is recent interactive latency ÷ its objective. Up to `start` batch may take everything, from `stop` on
    nothing, and in between in proportion. Hysteresis: to rise, the pressure must be lower by `band` than where the
    share would be reached falling, and from 0 to 1 takes `recovery_s`. A pressure that nobody confirms while it counts,
    ten seconds if nothing else is told, is 0 then: without interactive requests there is nothing to measure, and
    nothing to spare.
    """

    __slots__ = ("_at", "_band", "_recovery_s", "_share", "_start", "_stop", "_until", "pressure")

    def __init__(self, start: float, stop: float, *, band: float | None = None, recovery_s: float = 5.0) -> None:
        """`band` is 0.1 by default, or half of `start` where that is less. Raises ValueError unless 0 < start < stop,
        0 <= band < start, and a recovery that takes time.
        """
        self._recovery_s = recovery_s
        self.configure(start, stop, band=band)
        self._share = 1.0
        self._at = -inf
        self._until = -inf
        self.pressure = 0.0

    def configure(self, start: float, stop: float, *, band: float | None = None) -> None:
        """Yield between these from now on; the share goes on from where it is. Raises ValueError as at first."""
        band = min(_BAND, start / 2) if band is None else band
        recovery_s = self._recovery_s
        if not 0 < start < stop < inf or not 0 <= band < start or not recovery_s > 0:
            raise ValueError(f"no way to yield: {start!r} to {stop!r}, band {band!r}, recovery in {recovery_s!r} s")
        self._start, self._stop, self._band = start, stop, band

    def observe(self, pressure: float, now: float, until: float | None = None) -> None:
        """The pressure is this from now on, and 0 from `until` on. Raises ValueError for one below 0 or that is no
        number.
        """
        if not pressure >= 0:
            raise ValueError(f"no pressure: {pressure!r}")
        self.share(now)
        self.pressure = pressure
        self._until = now + _STALE_S if until is None else until
        self.share(now)

    def share(self, now: float) -> float:
        """Of the capacity, in [0, 1]; exactly 0 at `stop` and above."""
        if self._share == 1.0 and self.pressure <= self._start:
            return 1.0
        stale = now >= self._until
        pressure = 0.0 if stale else self.pressure
        falling, rising = self._target(pressure), self._target(pressure + self._band)
        if falling < self._share:
            self._share = falling
        elif rising > self._share:
            since = max(self._at, self._until) if stale else self._at
            self._share = min(rising, self._share + max(now - since, 0.0) / self._recovery_s)
        self._at = max(now, self._at)
        return self._share

    def _target(self, pressure: float) -> float:
        return min(max((self._stop - pressure) / (self._stop - self._start), 0.0), 1.0)
