"""Non-negative least squares that forgets, for a few physical terms: one pass of arithmetic an observation.

Errors are relative to what was believed, so that a request of 20 ms counts as much as one of 20 s. The coefficients
follow by cyclic coordinate descent on the normal equations, a few sweeps each `_BATCH` observations from where they
were: it keeps them at or above 0 for free, and what observations do not tell apart stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_BATCH: Final = 8
_SWEEPS: Final = 3
_MEMORY: Final = 0.97
"""Share of the past that is kept per batch: about the last 250 observations count."""
_PRIOR_WEIGHT: Final = 24.0
"""Observations of its own that outweigh the fleet's."""
_STIFFNESS: Final = 1e-3
"""How much a coefficient is held to where it was, beside its own weight."""


class Moments:
    """Sums of products of the terms and of the terms with the target, of about the last few hundred observations."""

    __slots__ = ("count", "products", "targets")

    def __init__(self, terms: int) -> None:
        self.products = [[0.0] * terms for _ in range(terms)]
        self.targets = [0.0] * terms
        self.count = 0.0

    def fold(self, rows: Sequence[Sequence[float]]) -> None:
        """Take in a batch; each row is the terms and last the target, all ÷ what was believed."""
        terms = len(self.targets)
        for i in range(terms):
            products = self.products[i]
            for j in range(i + 1):
                products[j] = products[j] * _MEMORY + sum([row[i] * row[j] for row in rows])
                self.products[j][i] = products[j]
            self.targets[i] = self.targets[i] * _MEMORY + sum([row[i] * row[terms] for row in rows])
        self.count = self.count * _MEMORY + len(rows)


class Fit:
    """Seconds = coefficients · terms, all of them non-negative."""

    __slots__ = ("_fresh", "_moments", "_shared", "coefficients")

    def __init__(self, coefficients: Sequence[float], shared: Moments) -> None:
        """`coefficients` are believed at first; `shared` are the moments of the whole fleet."""
        self.coefficients = list(coefficients)
        self._moments = Moments(len(self.coefficients))
        self._shared = shared
        self._fresh: list[tuple[float, ...]] = []

    def observe(self, terms: Sequence[float], seconds: float, scale: float) -> None:
        """Terms and what was measured, both ÷ `scale` (above 0): the square of that error counts. It is for the caller
        to keep strays in bounds.
        """
        self._fresh.append((*[term / scale for term in terms], seconds / scale))
        if len(self._fresh) < _BATCH:
            return
        self._moments.fold(self._fresh)
        self._shared.fold(self._fresh)
        self._fresh.clear()
        self._descend()

    def _descend(self) -> None:
        own, shared = self._moments, self._shared
        share = min(_PRIOR_WEIGHT / shared.count, 1.0)
        rows = [
            [mine + share * theirs for mine, theirs in zip(*pair, strict=True)]
            for pair in zip(own.products, shared.products, strict=True)
        ]
        targets = [mine + share * theirs for mine, theirs in zip(own.targets, shared.targets, strict=True)]
        solution = self.coefficients
        start = list(solution)
        for _ in range(_SWEEPS):
            for i, row in enumerate(rows):
                weight = row[i]
                if weight <= 0.0:
                    continue
                rest = targets[i] - sum([a * b for a, b in zip(row, solution)]) + weight * solution[i]  # noqa: B905 - square
                held = _STIFFNESS * weight
                solution[i] = max((rest + held * start[i]) / (weight + held), 0.0)
