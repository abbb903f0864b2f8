"""Non-negative least squares that forgets, for a few physical terms: a few microseconds an observation.

The coefficients follow by cyclic coordinate descent on the normal equations, a few sweeps every few observations
from where they were. That keeps them at or above 0, and what observations do not tell apart stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

Batch = tuple[list[list[float]], list[float], int]
"""Sums of products of terms, of terms and target, and of how many observations."""

_FIRST_BATCH: Final = 4
_BATCH: Final = 16
_FIRST: Final = 64
"""So many observations are taken in by small batches."""
_SWEEPS: Final = 2
_MEMORY: Final = 0.99
"""Share of the past that each observation keeps: about the last hundred count."""
_PRIOR_WEIGHT: Final = 24.0
"""So many observations of its own weigh as much as all that others have seen."""
_STIFFNESS: Final = 1e-3
"""How much a coefficient is held to where it was, beside its own weight."""


class Moments:
    """Sums of products of terms, and of terms and target, over about the last hundred observations."""

    __slots__ = ("count", "products", "targets")

    def __init__(self, terms: int) -> None:
        self.products = [[0.0] * terms for _ in range(terms)]
        self.targets = [0.0] * terms
        self.count = 0.0

    def add(self, batch: Batch) -> None:
        """Take in a batch."""
        products, targets, count = batch
        kept = _MEMORY**count
        for row, more in zip(self.products, products, strict=True):
            row[:] = [old * kept + new for old, new in zip(row, more, strict=True)]
        self.targets[:] = [old * kept + new for old, new in zip(self.targets, targets, strict=True)]
        self.count = self.count * kept + count


def _summed(rows: Sequence[Sequence[float]]) -> Batch:
    """Rows of the terms and last the target."""
    columns = list(zip(*rows, strict=True))
    target = columns.pop()
    products = [[0.0] * len(columns) for _ in columns]
    for i, column in enumerate(columns):
        for j in range(i + 1):
            products[i][j] = products[j][i] = _dot(column, columns[j])
    return products, [_dot(column, target) for column in columns], len(rows)


class SharedFit:
    """What all workers of a kind have shown; what is believed of one that has shown nothing."""

    __slots__ = ("coefficients", "moments")

    def __init__(self, coefficients: Sequence[float]) -> None:
        """`coefficients` are believed at first."""
        self.coefficients = list(coefficients)
        self.moments = Moments(len(self.coefficients))

    def add(self, batch: Batch) -> None:
        """Take in a batch of one worker."""
        self.moments.add(batch)
        _descend(self.coefficients, self.moments.products, self.moments.targets)


class Fit:
    """One worker's: seconds = coefficients · terms. Nothing is below 0."""

    __slots__ = ("_fresh", "_moments", "_own", "_shared", "coefficients")

    def __init__(self, shared: SharedFit) -> None:
        self.coefficients = shared.coefficients  # the very list, until it has some of its own
        self._own = False
        self._moments = Moments(len(self.coefficients))
        self._shared = shared
        self._fresh: list[tuple[float, ...]] = []

    def observe(self, terms: Sequence[float], seconds: float, scale: float) -> None:
        """Terms and what was measured, both ÷ `scale` (above 0): the square of that error counts. It is for the caller
        to keep strays within bounds.
        """
        self._fresh.append((*[term / scale for term in terms], seconds / scale))
        if len(self._fresh) < (_BATCH if self._moments.count > _FIRST else _FIRST_BATCH):
            return
        batch = _summed(self._fresh)
        self._fresh.clear()
        self._moments.add(batch)
        self._shared.add(batch)
        if not self._own:
            self._own = True
            self.coefficients = list(self.coefficients)
        self._solve()

    def _solve(self) -> None:
        own, shared = self._moments, self._shared.moments
        share = min(_PRIOR_WEIGHT / shared.count, 1.0)
        products = [
            [mine + share * theirs for mine, theirs in zip(*rows, strict=True)]
            for rows in zip(own.products, shared.products, strict=True)
        ]
        targets = [mine + share * theirs for mine, theirs in zip(own.targets, shared.targets, strict=True)]
        _descend(self.coefficients, products, targets)


def _descend(solution: list[float], products: Sequence[Sequence[float]], targets: Sequence[float]) -> None:
    """Move `solution` towards the least squares that none of it is below 0."""
    start = list(solution)
    for _ in range(_SWEEPS):
        for i, row in enumerate(products):
            weight = row[i]
            if weight <= 0.0:
                continue
            rest = targets[i] - _dot(row, solution) + weight * solution[i]
            held = _STIFFNESS * weight
            solution[i] = max((rest + held * start[i]) / (weight + held), 0.0)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum([a * b for a, b in zip(left, right)])  # noqa: B905 - of one length; asking takes as long as the product
