"""How fast an admission queue empties, learnt from what leaves it while something waits."""

from __future__ import annotations

from math import exp
from typing import Final

_MEMORY_S: Final = 20.0
"""Time that the queue was not empty, after which an observation counts 1/e."""
_TELLING_S: Final = 0.5


class DrainRate:
    """Uncached tokens per second, of all classes and tenants together. `now` does not go backwards."""

    __slots__ = ("_began", "_seconds", "_since", "_tokens")

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self._since: float | None = None
        self._began = 0.0

    @property
    def rate(self) -> float | None:
        """Tokens per second; None before the queue was busy for half a second."""
        return self._tokens / self._seconds if self._seconds >= _TELLING_S else None

    def queued(self, now: float) -> None:
        """Something waits from now on, if nothing did before."""
        if self._since is None:
            self._since = self._began = now

    def idle(self) -> None:
        """What waits is held back though there is room for it: how long it does tells nothing."""
        self._since = None

    def left(self, tokens: float, now: float, waiting: int) -> None:
        """So many tokens were dispatched, or given up (then 0), and so many requests wait still."""
        if self._since is None:
            return
        if now > self._began:  # what leaves as soon as it comes took no time
            seconds = now - self._since
            kept = exp(-seconds / _MEMORY_S)
            self._tokens = self._tokens * kept + tokens
            self._seconds = self._seconds * kept + seconds
        self._since = now if waiting else None
