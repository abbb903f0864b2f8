"""What has been proved of candidates: bounds by expected risk.

Candidates are ordered by the risk that was expected of them *before* their label was known (`RiskCurve`), and cut at
some levels. For all candidates up to a level, the labels bound how often they are wrong. That bound does not depend on
the curve being right: a bad curve costs hits, not correctness (Bates et al., "Distribution-free, risk-controlling
prediction sets", 2021, choose a threshold by such bounds; Blum, Kalai and Langford, 1999, count errors progressively,
each before it is learnt from).

The levels that one δ looks at are proved in a fixed order, and each only once those before it are. So each has the
whole of α: the first that is not below δ is wrongly held to be with probability α at most, and without it none of the
later ones is reached (fixed sequence testing, as in Angelopoulos et al., "Learn then test", 2021).

Which candidates are labelled is drawn at random, more often where serving is not allowed. So each band between two
levels weighs as many candidates as its labels were drawn from, not as many as it has labels (a stratified sample); or
else what is rarely served would count most. How often a band is drawn depends on what is known of it, not on what the
draw will show. Where the weights are off, the riskier bands are the ones drawn more often, and weigh too much rather
than too little.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from math import log2
from typing import Any, Final

from policies.semantic_bounds import Counts, Noise, upper_bound

LEVELS: Final = tuple(0.001 * 2 ** (step / 2) for step in range(16))
"""Of expected risk, from 0.1 to 18%; what is above the last is never served."""
_BELOW: Final = 2
_ABOVE: Final = 2
"""Steps from the level at δ to the first and the last that are looked at: from half of δ to twice as much."""
_STALE: Final = 0.02
"""Of the labels there were: so many more that show nothing wrong, and a bound is worth computing anew."""
_STEP: Final = 8.0
"""At least so many, but for the first few."""
_FINENESS: Final = 2
"""Bands whose weights differ by less than a factor of √2 are counted together."""
_LEAST_SHARE: Final = 0.01

Table = list[list[float]]
"""By band: candidates, then labels and wrong ones of each source in turn."""


def level_of(delta: float) -> int:
    """Index into `LEVELS` of the highest that is δ at most; −1 where there is none."""
    return bisect_left(LEVELS, delta * (1 + 1e-9)) - 1


@lru_cache(maxsize=256)
def levels_for(delta: float) -> range:
    """Indices into `LEVELS` in the order in which they are proved, the lowest first; empty where δ is below all."""
    middle = level_of(delta)
    if middle < 0:
        return range(0)
    return range(max(middle - _BELOW, middle % 2), min(middle + _ABOVE + 1, len(LEVELS)), 2)


class Evidence:
    """Labels by band, of a tenant or of one category of it."""

    __slots__ = (
        "_age",
        "_alpha",
        "_bounds",
        "_fresh",
        "_labels",
        "_mass",
        "_most",
        "_new",
        "_noises",
        "_old",
        "_started",
        "_up_to",
        "_wrong",
    )

    def __init__(self, noises: Sequence[Noise], alpha: float, most_labels: int, most_age: float) -> None:
        """Sources are known by their place in `noises`. Labels are forgotten as the settings of the tenant say."""
        self._noises = tuple(noises)
        self._alpha = alpha
        self._most = most_labels
        self._age = most_age
        self._started = 0.0
        self._fresh = 0.0
        """Labels in the newer of two tables; the older one goes when there are `most_labels`."""
        self._old = self._empty()
        self._new = self._empty()
        self._labels = [0.0] * len(LEVELS)
        """By band, in both tables; so are the next three."""
        self._mass = [0.0] * len(LEVELS)
        """Candidates."""
        self._up_to = [0.0] * len(LEVELS)
        """Labels of a band and all below it."""
        self._wrong = [0.0] * len(LEVELS)
        """Labels that say wrong, corrected by what is known of their sources' errors."""
        self._bounds: dict[int, tuple[float, float]] = {}
        """Level → bound, and the number of labels from which on it is computed anew."""

    def proved(self, risk: float, delta: float, category: Evidence | None = None) -> tuple[int, float] | None:
        """The highest level of candidates of this expected risk or more that has a bound of δ or less, and that bound;
        None where there is none. Only levels count up to which the category's own estimate is at most δ as well.
        """
        found: list[tuple[int, float]] = []
        for level in levels_for(delta):
            bound = self.bound(level)
            if bound > delta:
                break
            if risk <= LEVELS[level]:
                found.append((level, bound))
        while found and category is not None and category.rate(found[-1][0]) > delta:
            found.pop()
        return found[-1] if found else None

    def bound(self, level: int) -> float:
        """Upper bound for candidates up to a level; 1 where nothing is known."""
        labels = self._up_to[level]
        known = self._bounds.get(level)
        if known is not None and labels < known[1]:
            return known[0]
        bound = upper_bound(list(self._counts(level)), self._alpha, near=known[0] if known else LEVELS[level])
        self._bounds[level] = bound, labels + max(labels * _STALE, min(labels, _STEP), 1.0)
        return bound

    def rate(self, level: int) -> float:
        """The most likely share of wrong ones up to a level, with half a wrong one more than were seen."""
        wrong = mass = labels = 0.0
        for at in range(level + 1):
            if seen := self._labels[at]:
                labels += seen
                mass += self._mass[at]
                wrong += self._wrong[at] * self._mass[at] / seen
        one = mass / labels if labels else 1.0
        return (max(wrong, 0.0) + 0.5 * one) / (mass + one)

    def observe(
        self, risk: float, source: int, wrong: bool, now: float, *, share: float = 1.0, answers: int = 1
    ) -> None:
        """A label, the risk that was expected before it, and the share of candidates like it that are labelled. A wrong
        answer counts for each of the `answers` that one decision would have served, a right one once: as labels, those
        of the same answer tell nothing new.
        """
        band = bisect_left(LEVELS, risk)
        if band >= len(LEVELS):
            return
        self.let_go(now)
        labels = float(answers) if wrong else 1.0
        row, mass = self._new[band], labels / max(share, _LEAST_SHARE)
        row[0] += mass
        row[1 + 2 * source] += labels
        row[2 + 2 * source] += labels * wrong
        self._fresh += labels
        self._labels[band] += labels
        self._mass[band] += mass
        self._wrong[band] += labels * self._noises[source].unbiased(wrong)
        for level in range(band, len(LEVELS)):
            self._up_to[level] += labels
            if wrong:
                self._bounds.pop(level, None)

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
            if len(table) != len(LEVELS) or any(len(row) != 1 + 2 * len(self._noises) for row in table):
                raise ValueError("evidence of another shape")
        self._old, self._new = ([[float(each) for each in row] for row in table] for table in (old, new))
        self._started = float(data["started"])
        self._count()

    def _turn(self, now: float) -> None:
        self._old, self._new, self._started = self._new, self._empty(), now
        self._count()

    def _empty(self) -> Table:
        return [[0.0] * (1 + 2 * len(self._noises)) for _ in LEVELS]

    def _row(self, band: int) -> list[float]:
        return [old + new for old, new in zip(self._old[band], self._new[band], strict=True)]

    def _count(self) -> None:
        self._fresh = sum(sum(row[1::2]) for row in self._new)
        for band in range(len(LEVELS)):
            row = self._row(band)
            self._mass[band], self._labels[band] = row[0], sum(row[1::2])
            self._wrong[band] = sum(
                noise.unbiased(True) * wrong + noise.unbiased(False) * (labels - wrong)
                for noise, labels, wrong in zip(self._noises, row[1::2], row[2::2], strict=True)
            )
        self._up_to = [*accumulate(self._labels)]
        self._bounds.clear()

    def _counts(self, level: int) -> Iterator[Counts]:
        labels, mass = self._up_to[level], sum(self._mass[: level + 1])
        bands: dict[int, list[list[float]]] = {}
        for band in range(level + 1):
            if seen := self._labels[band]:
                weight = round(_FINENESS * log2(self._mass[band] / seen * labels / mass))
                bands.setdefault(weight, []).append(self._row(band))
        for weight, rows in bands.items():
            total = [sum(column) for column in zip(*rows, strict=True)]
            for noise, count, wrong in zip(self._noises, total[1::2], total[2::2], strict=True):
                if count:
                    yield Counts(count, wrong, noise, 2.0 ** (weight / _FINENESS))
