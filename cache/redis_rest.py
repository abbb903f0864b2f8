"""When a server that failed is tried again. Pure.

After a failure it rests, twice as long after each one in a row; then a single call tries it, and the others go on being
refused until that one has succeeded.
"""

from __future__ import annotations

from typing import Final

FIRST_REST: Final = 0.05


class Rest:
    """Of one server; who shares it takes turns. Times in seconds, of one monotonic clock."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._failures = 0
        self._failed_at = float("-inf")
        self._until = float("-inf")

    def admits(self, now: float, call_lasts: float) -> bool:
        """Whether a call may go there. After a rest it is the one that tries, and has `call_lasts` for it."""
        if self._failures == 0:
            return True
        if now < self._until:
            return False
        self._until = now + call_lasts
        return True

    def succeeded(self) -> None:
        """It has answered."""
        self._failures = 0

    def failed(self, now: float, began: float) -> None:
        """A call that began then has failed. Of calls that fail together the first counts alone."""
        if began <= self._failed_at:
            return
        self._failures += 1
        self._failed_at = now
        self._until = now + min(self._longest, FIRST_REST * 2 ** min(self._failures - 1, 30))
