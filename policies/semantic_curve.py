"""Expected probability that a candidate's answer is wrong: by its similarity, and by what is known of its entry.

The published idea of one curve per entry (Schroeder et al., "vCache: Verified Semantic Prompt Caching", ICLR 2026)
needs dozens of labels for each entry before one may be served at a few per cent. Here all entries of a category
share a curve over similarity, and what an entry has shown itself chooses one of a few factors on it, which are learnt
from all entries that have shown as much. So an entry's own evidence counts as much as it has proved to count.

This only ranks candidates. It promises nothing: the bound is `semantic_evidence.py`'s.
"""

from __future__ import annotations

from math import log2
from typing import Final

BINS: Final = 48
_STEPS: Final = 4.0
"""Bins for each halving of the distance to 1: near-duplicates are told apart, far ones are not."""
_BELIEVED_NEAR: Final = (1.0, 0.6, 0.4, 0.3, 0.2, 0.15, 0.1, 0.07)
_BELIEVED_FAR: Final = (0.9, 0.7, 0.5)
_BELIEVED_SHAKEN: Final = (1.0, 0.6)
BELIEVED: Final = _BELIEVED_NEAR + _BELIEVED_FAR + _BELIEVED_SHAKEN
"""Factors before anything is learnt, by what `Entries` calls a standing: the more often an entry was found right, the
less; less so for questions farther from it than those were; the last two for entries that were found wrong before."""
FACTORS: Final = len(BELIEVED)
_PRIOR: Final = 0.5
"""Wrong answers, and twice as many labels, that any run of bins is believed to have had."""
_POOLED: Final = 150.0
"""Labels of its own after which a bin counts as much as its neighbours."""
_FIRST_FACTOR: Final = 2.0
"""Expected wrong answers after which what a standing has shown counts as much as what is believed of it."""
_LIFE: Final = 20_000.0
"""Labels of a category after which half of what they taught is let go, so that the curve follows a slow change."""
_STANDING_LIFE: Final = 2_000.0
"""The same for what a standing has shown, in expected wrong answers."""
_REFIT: Final = 1 / 32
"""Of the labels there were at the last fit: so many more and it is fitted again."""


def bin_of(similarity: float) -> int:
    """0 for a similarity of 0 or less, `BINS` − 1 for one that is as good as 1."""
    distance = 1.0 - similarity
    if distance >= 1.0:
        return 0
    if distance <= 2.5e-4:
        return BINS - 1
    return min(int(-_STEPS * log2(distance)), BINS - 1)


class Standings:
    """By what factor the risk of entries that have shown as much differs from the curve; of all categories of a tenant
    together, for what a comparison is worth hardly depends on what is asked.
    """

    __slots__ = ("_expected", "_seen", "factors")

    def __init__(self) -> None:
        self._expected = [0.0] * FACTORS
        self._seen = [0.0] * FACTORS
        self.factors = list(BELIEVED)

    def observe(self, standing: int, expected: float, wrong: float) -> None:
        """`expected` is what the curve alone says."""
        self._expected[standing] += expected
        self._seen[standing] += wrong
        if self._expected[standing] > _STANDING_LIFE:
            self._expected[standing] /= 2
            self._seen[standing] /= 2
        self._fit(standing)

    def dump(self) -> list[list[float]]:
        """Plain data for `load`."""
        return [list(self._expected), list(self._seen)]

    def load(self, data: list[list[float]]) -> None:
        """What `dump` returned. Raises ValueError for another shape."""
        self._expected, self._seen = _lists(data, FACTORS, 2)
        for standing in range(FACTORS):
            self._fit(standing)

    def _fit(self, standing: int) -> None:
        seen = max(self._seen[standing], 0.0)
        self.factors[standing] = (seen + BELIEVED[standing] * _FIRST_FACTOR) / (
            self._expected[standing] + _FIRST_FACTOR
        )


class RiskCurve:
    """Of one category; learns from every label."""

    __slots__ = ("_base", "_due", "_exposed", "_labels", "_since", "_standings", "_unseen", "_wrong")

    def __init__(self, standings: Standings) -> None:
        self._standings = standings
        self._exposed = [0.0] * BINS
        """Labels, each as many as its standing's factor says: those of well-proved entries tell little of others."""
        self._wrong = [0.0] * BINS
        self._labels = [0.0] * BINS
        """As many as they are."""
        self._unseen = [1.0] * BINS
        """Least risk of a bin: half a wrong one in the labels that were as near or nearer. That what is nearer is safer
        is only believed as far as it was seen: near-duplicates that mean something else are nearer than most that
        mean the same."""
        self._base = [0.5] * BINS
        self._since = 0.0
        self._due = 1.0

    def risk(self, bin_: int, standing: int) -> float:
        """Of a candidate in this bin whose entry has shown this much; at most 1."""
        return min(max(self._base[bin_] * self._standings.factors[standing], self._unseen[bin_]), 1.0)

    def observe(self, bin_: int, standing: int, wrong: float) -> None:
        """`wrong` is 0 or 1; a little off these for a source that errs, so that it is right on average."""
        self._exposed[bin_] += self._standings.factors[standing]
        self._wrong[bin_] += wrong
        self._labels[bin_] += 1.0
        self._standings.observe(standing, self._base[bin_], wrong)
        self._since += 1.0
        if self._since >= self._due:
            self.fade(0.5 if sum(self._exposed) > _LIFE else 1.0)

    def fade(self, kept: float) -> None:
        """What was learnt counts only this share from now on."""
        self._exposed = [each * kept for each in self._exposed]
        self._wrong = [each * kept for each in self._wrong]
        self._labels = [each * kept for each in self._labels]
        self._fit()

    def dump(self) -> list[list[float]]:
        """Plain data for `load`."""
        return [list(self._exposed), list(self._wrong), list(self._labels)]

    def load(self, data: list[list[float]]) -> None:
        """What `dump` returned. Raises ValueError for another shape."""
        self._exposed, self._wrong, self._labels = _lists(data, BINS, 3)
        self._fit()

    def _fit(self) -> None:
        pooled = _falling(self._exposed, self._wrong)
        for at, (exposed, wrong) in enumerate(zip(self._exposed, self._wrong, strict=True)):
            # A bin of many labels speaks for itself: near-duplicates that mean something else can make the risk rise
            # again close to 1.
            self._base[at] = (max(wrong, 0.0) + _POOLED * pooled[at]) / (exposed + _POOLED)
        above = 0.0
        for at in range(BINS - 1, -1, -1):
            above += self._labels[at]
            self._unseen[at] = _PRIOR / (above + 2 * _PRIOR)
        self._since, self._due = 0.0, max(sum(self._exposed) * _REFIT, 1.0)


def _lists(data: list[list[float]], size: int, number: int) -> list[list[float]]:
    if len(data) != number or any(len(told) != size for told in data):
        raise ValueError("a curve of another shape")
    return [[float(each) for each in told] for told in data]


def _falling(labels: list[float], wrong: list[float]) -> list[float]:
    """Rates that never rise from one bin to the next: neighbours that would are pooled (pool adjacent violators)."""
    runs: list[tuple[float, float, int]] = []
    for each_labels, each_wrong in zip(labels, wrong, strict=True):
        n, k, size = each_labels, max(each_wrong, 0.0), 1
        while runs and (not n or not runs[-1][0] or k * runs[-1][0] >= runs[-1][1] * n):
            last = runs.pop()
            n, k, size = n + last[0], k + last[1], size + last[2]
        runs.append((n, k, size))
    return [(k + _PRIOR) / (n + 2 * _PRIOR) for n, k, size in runs for _ in range(size)]
