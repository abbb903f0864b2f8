"""Recent latency as a share of its objective: what batch work yields to."""

from __future__ import annotations

from collections import deque
from typing import Final

_SECONDS: Final = 10.0
_MOST: Final = 64
_QUANTILE: Final = 0.95


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
