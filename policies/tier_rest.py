"""When a tier that keeps failing is asked again. Pure.

A few failures in a row, and it rests, twice as long after each rest in a row. When a rest is over, a single call tries
the tier; the others are refused until that one has ended.
"""

from __future__ import annotations


class TierRest:
    """Of one tier, or of one thing that is asked of it. Times in seconds, of one clock. Not safe for several threads.

    Who is told `ready` and goes there calls `begin`, and then exactly one of `succeeded` and `failed`.
    """

    def __init__(self, *, after: int = 3, first_s: float = 1.0, longest_s: float = 60.0) -> None:
        if after < 1 or not 0 < first_s <= longest_s:
            raise ValueError("it takes a failure to rest, and a first rest that is no longer than the longest")
        self._after = after
        self._first_s = first_s
        self._longest_s = longest_s
        self._failures = 0
        self._rest_s = 0.0
        self._until = float("-inf")
        self._trying = False

    @property
    def resting(self) -> bool:
        """Has it failed, and not succeeded since? A call may try it all the same, see `ready`."""
        return self._rest_s > 0

    def ready(self, now: float) -> bool:
        """May a call go there now?"""
        return not self.resting or (not self._trying and now >= self._until)

    def left(self, now: float) -> float:
        """Seconds until a call may try it; 0 where one may, or does."""
        return max(0.0, self._until - now) if self.resting else 0.0

    def begin(self) -> None:
        """A call goes there; after a rest it is the one that tries."""
        self._trying = self.resting

    def succeeded(self) -> bool:
        """A call was answered. True where that is news: it had rested."""
        news = self.resting
        self._failures, self._rest_s, self._trying = 0, 0.0, False
        return news

    def failed(self, now: float) -> bool:
        """A call has failed. True where a rest begins. What fails late, with a rest begun meanwhile, does not count."""
        if self.resting and not self._trying:
            return False
        self._failures += 1
        if not self._trying and self._failures < self._after:
            return False
        self._trying = False
        self._rest_s = min(self._longest_s, self._rest_s * 2 or self._first_s)
        self._until = now + self._rest_s
        return True
