"""How fast an admission queue empties, learnt from what leaves it while something waits."""

from __future__ import annotations

from math import exp
from typing import Final

_MEMORY_S: Final = 20.0
"""Time that the queue was not empty, after which an observation counts 1/e."""
_TELLING_S: Final = 0.5


class DrainRate:
    """Uncached tokens per second, of all classes and tenants together. `now` does not go backwards."""

    __slots__ = ("_seconds", "_since", "_tokens")

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self._since: float | None = None

    @property
    def rate(self) -> float | None:
        """Tokens per second; None before the queue was busy for half a second."""
        return self._tokens / self._seconds if self._seconds >= _TELLING_S else None

    def queued(self, now: float) -> None:
        """Something waits from now on, if nothing did before."""
        if self._since is None:
            self._since = now

    def left(self, tokens: float, now: float, waiting: int) -> None:
        """So many tokens were dispatched, or given up (then 0), and so many requests wait still."""
        if self._since is None:
            return
        seconds = max(now - self._since, 0.0)
        kept = exp(-seconds / _MEMORY_S)
        self._tokens = self._tokens * kept + tokens
        self._seconds = self._seconds * kept + seconds
        self._since = now if waiting else None
