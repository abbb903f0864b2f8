"""What has been proved of candidates: bounds by expected risk, and whether the world has changed since.

Candidates are ordered by the risk that was expected of them *before* their label was known (`RiskCurve`), and cut at
some levels. For all candidates up to a level, the labels bound how often they are wrong. That bound does not depend on
the curve being right: a bad curve costs hits, not correctness. The levels that one δ looks at share its α (Bates et
al., "Distribution-free, risk-controlling prediction sets", 2021, choose a threshold by such bounds; Blum, Kalai and
Langford, 1999, count errors progressively, each before it is learnt from).

Which candidates are labelled is drawn at random, more often where serving is not allowed yet. Those are the riskier
ones, so a level's labels overstate its risk rather than understate it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from math import log
from typing import Any, Final

from policies.semantic_bounds import Counts, Noise, upper_bound

LEVELS: Final = tuple(0.001 * 2 ** (step / 2) for step in range(16))
"""Of expected risk, from 0.1 to 18%; what is above the last is never served."""
LOOKED_AT: Final = 3
"""Levels that one δ may use, each half of the one above; the highest is δ at most: no answer is served whose own
expected risk is above δ, however good the others are."""
_STALE: Final = 0.02
"""Of the labels there were: so many more that show nothing wrong, and a bound is worth computing anew."""

Table = list[list[float]]
"""By level, then labels and wrong ones of each source in turn."""


def levels_for(delta: float) -> range:
    """Indices into `LEVELS`, the highest first; empty where δ is below all."""
    top = bisect_left(LEVELS, delta * (1 + 1e-9)) - 1
    return range(top, max(top - 2 * LOOKED_AT, -1), -2)


class Evidence:
    """Labels by level, of a tenant or of one category of it."""

    __slots__ = (
        "_age",
        "_alpha",
        "_bounds",
        "_fresh",
        "_labels",
        "_most",
        "_new",
        "_noises",
        "_old",
        "_started",
        "_wrong",
    )

    def __init__(self, noises: Sequence[Noise], alpha: float, most_labels: int, most_age: float) -> None:
        """Sources are known by their place in `noises`. Labels are forgotten as the settings of the tenant say."""
        self._noises = tuple(noises)
        self._alpha = alpha / LOOKED_AT
        self._most = most_labels
        self._age = most_age
        self._started = 0.0
        self._fresh = 0.0
        """Labels in the newer of two tables; the older one goes when there are `most_labels`."""
        self._old = self._empty()
        self._new = self._empty()
        self._labels = [0.0] * len(LEVELS)
        """Up to each level, and of these the wrong ones, as far as the sources' errors are known."""
        self._wrong = [0.0] * len(LEVELS)
        self._bounds: dict[int, tuple[float, float]] = {}
        """Level → bound, and the number of labels from which on it is computed anew."""

    def proved(self, risk: float, delta: float) -> tuple[int, float] | None:
        """A level of candidates of this expected risk or more that has a bound of δ or less, and that bound; None where
        there is none.
        """
        for level in levels_for(delta):
            if risk > LEVELS[level]:
                return None
            bound = self.bound(level)
            if bound <= delta:
                return level, bound
        return None

    def bound(self, level: int) -> float:
        """Upper bound for candidates up to a level; 1 where nothing is known."""
        labels = self._labels[level]
        known = self._bounds.get(level)
        if known is not None and labels < known[1]:
            return known[0]
        bound = upper_bound(list(self._counts(level)), self._alpha, near=known[0] if known else LEVELS[level])
        self._bounds[level] = bound, labels + max(labels * _STALE, 8.0)
        return bound

    def rate(self, level: int) -> float:
        """The most likely share of wrong ones up to a level, with half a wrong one more than were seen."""
        return (max(self._wrong[level], 0.0) + 0.5) / (self._labels[level] + 1.0)

    def observe(self, risk: float, source: int, wrong: bool, now: float) -> None:
        """A label, and the risk that was expected before it."""
        level = bisect_left(LEVELS, risk)
        if level >= len(LEVELS):
            return
        self.let_go(now)
        row, told = self._new[level], self._noises[source].unbiased(wrong)
        self._fresh += 1.0
        row[2 * source] += 1.0
        row[2 * source + 1] += wrong
        for above in range(level, len(LEVELS)):
            self._labels[above] += 1.0
            self._wrong[above] += told
            if wrong:
                self._bounds.pop(above, None)

    def let_go(self, now: float) -> None:
        """Labels that are too many, or too old even if nothing has come since."""
        if now - self._started >= 2 * self._age:
            self.forget()
            self._started = now
        elif now - self._started >= self._age:
            self._turn(self._started + self._age)
        elif self._fresh >= self._most:
            self._turn(now)

    def forget(self) -> None:
        """Starts anew."""
        self._old, self._new = self._empty(), self._empty()
        self._count()

    def dump(self) -> dict[str, Any]:
        """Plain data for `load`."""
        return {"old": self._old, "new": self._new, "started": self._started}

    def load(self, data: Mapping[str, Any]) -> None:
        """What was dumped with as many sources. Raises ValueError, KeyError or TypeError for another shape."""
        old, new = data["old"], data["new"]
        for table in (old, new):
            if len(table) != len(LEVELS) or any(len(row) != 2 * len(self._noises) for row in table):
                raise ValueError("evidence of another shape")
        self._old, self._new = ([[float(each) for each in row] for row in table] for table in (old, new))
        self._started = float(data["started"])
        self._count()

    def _turn(self, now: float) -> None:
        self._old, self._new, self._started = self._new, self._empty(), now
        self._count()

    def _empty(self) -> Table:
        return [[0.0] * (2 * len(self._noises)) for _ in LEVELS]

    def _count(self) -> None:
        self._fresh = sum(sum(row[::2]) for row in self._new)
        for level in range(len(LEVELS)):
            counts = list(self._counts(level))
            self._labels[level] = sum(one.labels for one in counts)
            self._wrong[level] = sum(
                one.noise.unbiased(True) * one.wrong + one.noise.unbiased(False) * (one.labels - one.wrong)
                for one in counts
            )
        self._bounds.clear()

    def _counts(self, level: int) -> Iterator[Counts]:
        rows = [row for table in (self._old, self._new) for row in table[: level + 1]]
        for source, noise in enumerate(self._noises):
            labels = sum(row[2 * source] for row in rows)
            if labels:
                yield Counts(labels, sum(row[2 * source + 1] for row in rows), noise)


class ChangeDetector:
    """Whether wrong answers among what is, or would be, served come by chance or because the world has changed: Page's
    CUSUM (1954) of how much more likely the labels are if the risk has lately become intolerable.

    While it is above 0 nothing is served: whatever comes is compared until it is known. So a change costs the wrong
    answers until the first that is compared, and few more.
    """

    __slots__ = ("level",)

    _ALARM: Final = 6.0
    """Some three wrong ones close together. It may take its time: nothing is served meanwhile."""

    def __init__(self) -> None:
        self.level = 0.0

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
