"""Recent latency as a share of its objective: what batch work yields to."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

_SECONDS: Final = 10.0
_MOST: Final = 64
_QUANTILE: Final = 0.95


class SloPressure:
    """How near interactive requests are to their objectives: the larger of the two pressures, of times to first token
    and of times per output token, as they were told over the last ten seconds.
    """

    __slots__ = ("_per_token", "_to_first")

    def __init__(self) -> None:
        self._to_first = LatencyPressure()
        self._per_token = LatencyPressure()

    @property
    def fades_at(self) -> float:
        """From when on it may be lower though nothing more is told; infinite where nothing was."""
        return min(self._to_first.fades_at, self._per_token.fades_at)

    def first_token(self, ratio: float, now: float) -> float:
        """One request's time to first token ÷ its objective; the pressure now."""
        self._to_first.observe(ratio, now)
        return self.at(now)

    def per_token(self, ratio: float, now: float) -> float:
        """One request's time per output token ÷ its objective; the pressure now."""
        self._per_token.observe(ratio, now)
        return self.at(now)

    def at(self, now: float) -> float:
        """The pressure now; 0 where nothing was told of late."""
        return max(self._to_first.at(now), self._per_token.at(now))


class LatencyPressure:
    """The 95th percentile of (latency ÷ objective) over the last ten seconds, of at most 64 requests."""

    __slots__ = ("_pressure", "_recent")

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=_MOST)
        self._pressure: float | None = 0.0
        """None: to be found anew."""

    @property
    def fades_at(self) -> float:
        """When the oldest that counts does so no longer; infinite where there is none."""
        return self._recent[0][0] + _SECONDS if self._recent else inf

    def observe(self, ratio: float, now: float) -> float:
        """One more request's, at least 0; what the pressure is now."""
        self._recent.append((now, ratio))
        self._pressure = None
        return self.at(now)

    def at(self, now: float) -> float:
        """What the pressure is now; 0 where nothing was told of late."""
        recent = self._recent
        while recent and recent[0][0] + _SECONDS < now:
            recent.popleft()
            self._pressure = None
        if self._pressure is None:
            ordered = sorted([each for _, each in recent])
            self._pressure = ordered[int(_QUANTILE * len(ordered))] if ordered else 0.0
        return self._pressure
