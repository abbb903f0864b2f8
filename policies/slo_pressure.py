"""How near recent latency is to its objective: the signal by which batch work yields. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

_KEPT: Final = 64
_WINDOW_S: Final = 10.0
_QUANTILE: Final = 0.95


class SloPressure:
    """The 95th percentile of latency ÷ objective over the last requests, of ten seconds at most."""

    __slots__ = ("_recent", "value")

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=_KEPT)  # when, ratio
        self.value = 0.0

    def observe(self, ratio: float, now: float) -> float:
        """One more request took so much of what it might; the pressure now."""
        recent = self._recent
        recent.append((now, max(ratio, 0.0)))
        while recent[0][0] < now - _WINDOW_S:
            recent.popleft()
        ratios = sorted(each for _, each in recent)
        self.value = ratios[int(_QUANTILE * (len(ratios) - 1))]
        return self.value
