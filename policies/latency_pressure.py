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

    __slots__ = ("_per_token", "_said", "_to_first")

    def __init__(self) -> None:
        self._to_first = LatencyPressure()
        self._per_token = LatencyPressure()
        self._said = [(-inf, 0.0), (-inf, 0.0)]

    def first_token(self, ratio: float, now: float) -> float:
        """One request's time to first token ÷ its objective; the pressure now."""
        self._said[0] = (now, self._to_first.observe(ratio, now))
        return self._larger(now)

    def per_token(self, ratio: float, now: float) -> float:
        """One request's time per output token ÷ its objective; the pressure now."""
        self._said[1] = (now, self._per_token.observe(ratio, now))
        return self._larger(now)

    def _larger(self, now: float) -> float:
        return max(pressure for at, pressure in self._said if at >= now - _SECONDS)


class LatencyPressure:
    """The 95th percentile of (latency ÷ objective) over the last ten seconds, of at most 64 requests."""

    __slots__ = ("_recent",)

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=_MOST)

    def observe(self, ratio: float, now: float) -> float:
        """One more request's, at least 0; what the pressure is now."""
        recent = self._recent
        while recent and recent[0][0] < now - _SECONDS:
            recent.popleft()
        recent.append((now, ratio))
        ordered = sorted([each for _, each in recent])
        return ordered[min(int(_QUANTILE * len(ordered)), len(ordered) - 1)]
