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
FACTORS: Final = 6
_PRIOR: Final = 0.5
"""Wrong answers, and twice as many labels, that any run of bins is believed to have had."""
_POOLED: Final = 30.0
"""Labels of its own after which a bin counts as much as its neighbours."""
_FIRST_FACTOR: Final = 2.0
"""Expected wrong answers after which a factor counts as much as the belief that it is 1."""
_REFIT: Final = 1 / 64
"""Of the labels there were at the last fit: so many more and it is fitted again."""


def bin_of(similarity: float) -> int:
    """0 for a similarity of 0 or less, `BINS` − 1 for one that is as good as 1."""
    distance = 1.0 - similarity
    if distance >= 1.0:
        return 0
    if distance <= 2.5e-4:
        return BINS - 1
    return min(int(-_STEPS * log2(distance)), BINS - 1)


class RiskCurve:
    """Of one category; learns from every label."""

    __slots__ = ("_base", "_due", "_expected", "_factors", "_labels", "_seen", "_since", "_wrong")

    def __init__(self) -> None:
        self._labels = [0.0] * BINS
        self._wrong = [0.0] * BINS
        self._base = [0.5] * BINS
        self._expected = [0.0] * FACTORS
        self._seen = [0.0] * FACTORS
        self._factors = [1.0] * FACTORS
        self._since = 0.0
        self._due = 1.0

    def risk(self, bin_: int, standing: int) -> float:
        """Of a candidate in this bin whose entry has shown this much; at most 1."""
        return min(self._base[bin_] * self._factors[standing], 1.0)

    def observe(self, bin_: int, standing: int, wrong: float) -> None:
        """`wrong` is between 0 and 1; a label of a source that errs may be off these a little."""
        self._labels[bin_] += 1.0
        self._wrong[bin_] += wrong
        self._expected[standing] += self._base[bin_]
        self._seen[standing] += wrong
        self._factors[standing] = self._factor(standing)
        self._since += 1.0
        if self._since >= self._due or wrong > 0.5:
            self._fit()

    def fade(self, kept: float) -> None:
        """What was learnt counts only this share from now on."""
        for told in (self._labels, self._wrong, self._expected, self._seen):
            told[:] = [each * kept for each in told]
        self._fit()

    def dump(self) -> list[list[float]]:
        """Plain data for `load`."""
        return [list(each) for each in (self._labels, self._wrong, self._expected, self._seen)]

    def load(self, data: list[list[float]]) -> None:
        """What `dump` returned."""
        for mine, told, size in zip(
            (self._labels, self._wrong, self._expected, self._seen), data, (BINS, BINS, FACTORS, FACTORS), strict=True
        ):
            if len(told) != size:
                raise ValueError("a curve of another shape")
            mine[:] = [float(each) for each in told]
        self._fit()

    def _factor(self, standing: int) -> float:
        seen = max(self._seen[standing], 0.0)
        return (seen + _FIRST_FACTOR) / (self._expected[standing] + _FIRST_FACTOR)

    def _fit(self) -> None:
        pooled = _falling(self._labels, self._wrong)
        for at, (labels, wrong) in enumerate(zip(self._labels, self._wrong, strict=True)):
            # A bin of many labels speaks for itself: near-duplicates that mean something else can make the risk rise
            # again close to 1.
            self._base[at] = (max(wrong, 0.0) + _POOLED * pooled[at]) / (labels + _POOLED)
        self._factors = [self._factor(each) for each in range(FACTORS)]
        self._since, self._due = 0.0, max(sum(self._labels) * _REFIT, 1.0)


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
