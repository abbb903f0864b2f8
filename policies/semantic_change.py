"""Whether the world has changed: what was proved of candidates then no longer holds of those to come."""

from __future__ import annotations

from math import log
from typing import Final

from policies.semantic_bounds import Noise


class ChangeDetector:
    """Whether wrong answers among what is, or would be, served come by chance or because the world has changed: Page's
    CUSUM (1954) of how much more likely the labels are if the risk has lately become intolerable.

    While that is in doubt nothing is served: whatever comes is compared until it is known. So a change costs the wrong
    answers until the first that is compared, and few more.
    """

    __slots__ = ("level",)

    _ALARM: Final = 7.0
    """Some four wrong ones close together. It may take its time: nothing is served meanwhile."""
    _DOUBT: Final = 1.0
    """Above it, a change is more than e times as likely as chance. Where δ is 1 or 2%, about half as many right answers
    in a row end the doubt after a wrong one as would bring the level back to 0.
    """

    def __init__(self) -> None:
        self.level = 0.0

    @property
    def doubts(self) -> bool:
        """Has too much been wrong of late for anything to be served?"""
        return self.level > self._DOUBT

    def observe(self, wrong: bool, noise: Noise, usual: float, delta: float) -> bool:
        """Whether what was known no longer holds. `usual` is the risk as known so far."""
        usual = min(max(usual, delta / 4), delta * 0.75)
        before, after = noise.seen(usual), noise.seen(min(max(2 * delta, 3 * usual), 0.5))
        step = log(after / before) if wrong else log((1 - after) / (1 - before))
        self.level = max(self.level + step, 0.0)
        if self.level < self._ALARM:
            return False
        self.level = 0.0
        return True
