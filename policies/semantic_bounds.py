"""Bounds on the rate of a rare event, from labels that may themselves be wrong now and then.

`upper_bound` holds at all times at once: a decision that is taken anew with every label may look at it as often as it
likes. It is a test by betting: whoever claims that the rate is p or more would lose, on average, nothing against a bet
that it is θ·p for some θ < 1. The stake multiplies with every label, and reaches 1 ÷ α with probability α at most if
the claim is true (Ville's inequality). The claims that have not lost that much make up the interval. Several θ share
the first stake, so nobody needs to know the rate beforehand. The idea is that of Robbins (1970) and, for bounded
variables, of Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (JRSS B, 2024).

It needs no labels that are independent of each other, only that each is drawn without knowing its outcome: what is
refuted is that *every* label was wrong with probability p or more, given those before it.

Where no label says wrong, and α is 5%, a single look proves 5, 2 and 1% with 59, 149 and 299 labels; as many looks as
one likes need 77, 194 and 390. A third as many wrong ones as are claimed take some 11 ÷ the claim, half as many 19.

Labels of several strata may be counted together, each with a weight: how many candidates it stands for. A stake on a
label of weight w is w times as high, so that what is refuted is a rate among candidates rather than among labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import exp, inf, lgamma, log, log1p
from typing import Final, NamedTuple

_BETS: Final = ((0.0, 0.15), (0.1, 0.15), (0.2, 0.15), (0.35, 0.2), (0.55, 0.17), (0.75, 0.1), (0.9, 0.08))
"""θ, and its part of the first stake."""
_LEAST: Final = 1e-4
"""Bounds below this are not told apart."""
_PRECISION: Final = 0.02
"""Of a bound, relative; it is rounded up."""


class Noise(NamedTuple):
    """How often a source of labels errs."""

    false_wrong: float = 0.0
    """Share of correct answers that it calls wrong, at least. What is stated here is taken off the rate that is
    seen, so whoever overstates it breaks the bound; 0 is always safe."""
    false_correct: float = 0.0
    """Share of wrong answers that it calls correct, at most. Whoever understates it breaks the bound."""

    def seen(self, rate: float) -> float:
        """Share of labels that say wrong where `rate` of the answers are."""
        return self.false_wrong + rate * (1.0 - self.false_correct - self.false_wrong)

    def true(self, seen: float) -> float:
        """The rate behind what is seen, between 0 and 1."""
        return min(max((seen - self.false_wrong) / (1.0 - self.false_correct - self.false_wrong), 0.0), 1.0)

    def unbiased(self, wrong: bool) -> float:
        """What a label says, so that it is right on average: near 0 or 1, and these for a source that never errs."""
        return (wrong - self.false_wrong) / (1.0 - self.false_correct - self.false_wrong)

    def confirmed(self) -> Noise:
        """The same source where each "wrong" is asked for once more, and only stands if it is said again: for errors
        that are independent of each other, as those of a model that is asked with another seed.
        """
        missed = 1.0 - (1.0 - self.false_correct) ** 2
        return Noise(self.false_wrong**2, missed)


class Counts(NamedTuple):
    """Labels of one source."""

    labels: float
    wrong: float
    noise: Noise
    weight: float = 1.0
    """Candidates that each stands for, against what is usual among all that are counted together."""


def log_wealth(rate: float, counts: Sequence[Counts]) -> float:
    """Logarithm of what a stake of 1 has become against the claim that `rate` (above 0, below 1) or more is wrong."""
    if not 0.0 < rate < 1.0:
        raise ValueError(f"a rate of {rate!r}")
    told = [one for one in counts if one.labels]
    terms = [log(part) + sum(_won(theta**one.weight * rate, rate, one) for one in told) for theta, part in _BETS]
    most = max(terms)
    return most + log(sum(exp(term - most) for term in terms)) if most > -inf else -inf


def _won(bet: float, rate: float, counts: Counts) -> float:
    believed, claimed = counts.noise.seen(bet), counts.noise.seen(rate)
    won = (counts.labels - counts.wrong) * (log1p(-believed) - log1p(-claimed))
    if counts.wrong:
        won += counts.wrong * log(believed / claimed) if believed else -inf
    return won


def upper_bound(counts: Sequence[Counts], alpha: float, *, near: float = 0.05) -> float:
    """The rate that is not exceeded, with probability 1 − `alpha` at all times at once; at most 1. `near` is a guess
    that makes it faster, such as the last one.
    """
    needed = -log(alpha)
    if not any(one.labels for one in counts):
        return 1.0
    low, high = _around(counts, needed, min(max(near, _LEAST), 0.5))
    while high > low * (1.0 + _PRECISION):
        middle = (low * high) ** 0.5
        if log_wealth(middle, counts) >= needed:
            high = middle
        else:
            low = middle
    return high


def _around(counts: Sequence[Counts], needed: float, guess: float) -> tuple[float, float]:
    """A rate that is not refuted and one that is, near the guess."""
    if log_wealth(guess, counts) >= needed:
        while guess > _LEAST:
            lower = guess / 1.3
            if log_wealth(lower, counts) < needed:
                return lower, guess
            guess = lower
        return guess, guess
    while guess < 0.77:
        higher = guess * 1.3
        if log_wealth(higher, counts) >= needed:
            return guess, higher
        guess = higher
    return 1.0, 1.0


@lru_cache(maxsize=512)
def exact_interval(wrong: int, labels: int, alpha: float) -> tuple[float, float]:
    """The interval of Clopper and Pearson (1934) at one look, for reports; (0, 1) without labels."""
    if not labels:
        return 0.0, 1.0
    low = 0.0 if not wrong else _solve(lambda rate: 1.0 - _at_most(wrong - 1, labels, rate), alpha / 2)
    high = 1.0 if wrong == labels else _solve(lambda rate: -_at_most(wrong, labels, rate), -alpha / 2)
    return low, high


def _solve(rising: Callable[[float], float], target: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if rising(middle) < target:
            low = middle
        else:
            high = middle
    return high


def _at_most(wrong: int, labels: int, rate: float) -> float:
    """P(at most `wrong` of `labels`), the terms summed up from the largest."""
    if rate <= 0.0:
        return 1.0
    if rate >= 1.0:
        return float(wrong >= labels)
    if wrong > rate * labels:
        # The other tail is the shorter sum.
        return 1.0 - _at_most(labels - wrong - 1, labels, 1.0 - rate)
    term = exp(
        lgamma(labels + 1)
        - lgamma(wrong + 1)
        - lgamma(labels - wrong + 1)
        + wrong * log(rate)
        + (labels - wrong) * log1p(-rate)
    )
    total, odds = 0.0, (1.0 - rate) / rate
    for count in range(wrong, -1, -1):
        total += term
        if term < total * 1e-15:
            break
        term *= count / (labels - count + 1) * odds
    return min(total, 1.0)
