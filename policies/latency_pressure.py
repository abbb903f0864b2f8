"""Recent latency as a share of its objective: what batch work yields to."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

_SECONDS: Final = 10.0
_OBJECTIVES: Final = 3
_MOST: Final = 64
_QUANTILE: Final = 0.95


class SloPressure:
    """How near interactive requests are to their objectives: the larger of the two pressures, of times to first token
    and of times per output token, as they were told of late.
    """

    __slots__ = ("_per_token", "_to_first")

    def __init__(self) -> None:
        self._to_first = LatencyPressure()
        self._per_token = LatencyPressure()

    @property
    def fades_at(self) -> float:
        """From when on it may be lower though nothing more is told; infinite where nothing was."""
        return min(self._to_first.fades_at, self._per_token.fades_at)

    @property
    def ends_at(self) -> float:
        """From when on it is 0 unless more is told."""
        return max(self._to_first.ends_at, self._per_token.ends_at)

    def first_token(self, seconds: float, objective: float, now: float) -> float:
        """One request's time to first token, and what it should have been at most; the pressure now."""
        self._to_first.observe(seconds / objective, now, objective)
        return self.at(now)

    def per_token(self, ratio: float, now: float) -> float:
        """One request's time per output token ÷ its objective; the pressure now."""
        self._per_token.observe(ratio, now)
        return self.at(now)

    def at(self, now: float) -> float:
        """The pressure now; 0 where nothing was told of late."""
        return max(self._to_first.at(now), self._per_token.at(now))


class LatencyPressure:
    """The 95th percentile of (latency ÷ objective) of what was told of late, of at most 64 requests."""

    __slots__ = ("_pressure", "_recent", "fades_at")

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=_MOST)
        self._pressure: float | None = 0.0
        """None: to be found anew."""
        self.fades_at = inf
        """When the next one does not count any longer; infinite where there is none."""

    @property
    def ends_at(self) -> float:
        """When none counts any longer."""
        return max((until for until, _ in self._recent), default=-inf)

    def observe(self, ratio: float, now: float, objective: float = 0.0) -> float:
        """One more request's, at least 0; what the pressure is now. It counts for ten seconds, or for as long as three
        times what it might take in seconds: where minutes are promised less is told in that time.
        """
        until = now + max(_SECONDS, _OBJECTIVES * objective)
        self._recent.append((until, ratio))
        self.fades_at = min(self.fades_at, until)
        self._pressure = None
        return self.at(now)

    def at(self, now: float) -> float:
        """What the pressure is now; 0 where nothing was told of late."""
        if self.fades_at < now:
            self._recent = deque([each for each in self._recent if each[0] >= now], _MOST)
            self.fades_at = min((until for until, _ in self._recent), default=inf)
            self._pressure = None
        if self._pressure is None:
            ordered = sorted([ratio for _, ratio in self._recent])
            self._pressure = ordered[int(_QUANTILE * len(ordered))] if ordered else 0.0
        return self._pressure
