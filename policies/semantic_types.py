"""What the decision of a semantic cache is asked and what it answers, as values.

*Wrong* is an answer that differs in meaning from what the workers would have said. A *candidate* is the nearest entry
of the same partition, with what is known of it when a request comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Final, NamedTuple

from policies.semantic_bounds import Noise

__all__ = ["Candidate", "Choice", "Decision", "Noise", "Outcome", "SemanticSettings", "Why"]


class Candidate(NamedTuple):
    """The nearest entry to a request."""

    entry: str
    """The entry's key; another answer has another key."""
    similarity: float
    """Cosine, 1 for the same."""
    category: str = ""
    """Requests whose risk is alike: a route, a kind of question. Each has a curve of its own."""
    guard: int = 1
    """0 where a guard failed or could not tell, which is a miss; above that, how much the guards found alike. Each
    number learns by itself."""
    age: float = 0.0
    """Seconds since the answer was written."""


class Choice(StrEnum):
    """What becomes of a request."""

    SERVE = "serve"
    EXPLORE = "explore"
    """Ask a worker, compare its answer with the entry's, and tell `observe`."""
    MISS = "miss"
    """Ask a worker."""


class Why(StrEnum):
    """What decided."""

    BOUND = "bound"
    """Served: the bound of its like is below δ."""
    AUDIT = "audit"
    """It could have been served; chosen at random to be compared instead."""
    LEARNING = "learning"
    """Not enough is known, or too much is wrong, of its like."""
    CHANGED = "changed"
    """A wrong answer came to light: nothing is served until it is known whether that was chance."""
    QUARANTINE = "quarantine"
    GUARD = "guard"
    FLOOR = "floor"
    EXPIRED = "expired"


class Decision(NamedTuple):
    """What to do, and the figures behind it."""

    choice: Choice
    why: Why
    estimate: float
    """Expected probability that the entry's answer would be wrong; 1 where nobody looked."""
    bound: float
    """Upper confidence bound of that, for all candidates of no greater expected risk; 1 where none of δ is proved."""
    would_serve: bool
    """Would be served if nothing but shadow mode and the audit stood against it."""
    share: float = 1.0
    """Of the candidates like this that are compared."""
    answers: int = 1
    """Requests that it is the answer to."""


class Outcome(NamedTuple):
    """What a label has led to."""

    quarantined: bool = False
    """The entry is not served for now."""
    drop: tuple[str, ...] = ()
    """Entries that the cache shall forget: too often wrong, or no room is left to remember that they were."""
    changed: bool = False
    """What was known of this category no longer holds and is learnt anew."""


_SHADOW: Final = Noise()
_MOST_AUDITS: Final = 0.5


@dataclass(frozen=True, slots=True)
class SemanticSettings:
    """Of one tenant. Raises ValueError for what cannot be meant."""

    delta: float = 0.02
    """Share of the answers served by meaning that may be wrong, above 0 and below 1."""
    confidence: float = 0.95
    """Of the bound, each time that evidence starts anew."""
    floor: float = 0.7
    """Similarity below which nothing is considered."""
    learn_rate: float = 1.0
    """Share of the candidates that may not be served whose answer is compared with the worker's."""
    audit_rate: float | None = None
    """The same for those that may be served. None: as many as `promise_hits` asks for, see `audits`."""
    promise_hits: int = 10_000
    """Over so many served answers δ shall hold even if the world changes once among them: the more there are, the
    fewer audits are needed."""
    shadow: bool = False
    """Nothing is served; what would be is counted and compared."""
    ttl: float = 86_400.0
    """Seconds for which an answer may be served."""
    category_ttl: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, Noise] = field(default_factory=lambda: {"shadow": _SHADOW})
    """Who labels at random, by name, and how often each errs."""
    judged_by: str = ""
    """What else labels depend on. Those of another judge prove nothing."""
    recovery: int = 4
    """An entry found wrong is served again after so many comparisons in a row found it right; twice as many the
    second time."""
    strikes: int = 3
    """An entry found wrong this often is dropped."""
    max_entries: int = 50_000
    """Entries whose evidence is kept."""
    evidence_labels: int = 8_000
    """The bound rests on the last labels of a category, between this many and twice as many."""
    evidence_age: float = 7 * 86_400.0
    """And on none that is more than twice as old, in seconds."""
    client_reports: int = 20
    """Reports of wrong answers that count from one client in an hour."""

    def __post_init__(self) -> None:
        for name in ("delta", "confidence"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be above 0 and below 1, not {getattr(self, name)!r}")
        for name in ("floor", "learn_rate", "audit_rate"):
            share = getattr(self, name)
            if share is not None and not 0.0 <= share <= 1.0:
                raise ValueError(f"{name} must be between 0 and 1, not {share!r}")
        for name in ("recovery", "strikes", "max_entries", "evidence_labels", "promise_hits"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if not 1 <= len(self.sources) <= 8:
            raise ValueError(f"{len(self.sources)} sources of labels; 1 to 8 are expected")
        for name, noise in self.sources.items():
            if min(noise) < 0.0 or not isfinite(sum(noise)) or sum(noise) > 0.8:
                raise ValueError(f"source {name!r} errs too often to tell anything: {noise}")

    def audits(self, served: int, *, doubts: bool = False) -> float:
        """Share of what may be served that is compared instead, after so many served answers.

        After a change all is served as before until the first wrong answer is compared, which takes 1 ÷ this share
        wrong answers on average, and three times as many once in twenty times. Half of what δ has granted so far has
        to suffice for that; so many are compared at first, and ever fewer until `promise_hits`. Half are as well while
        one that was found wrong makes it doubtful (`doubts`) whether all is as it was.
        """
        if self.audit_rate is not None:
            return self.audit_rate
        if doubts:
            return _MOST_AUDITS
        return min(6.0 / (self.delta * min(max(served, 1), self.promise_hits)), _MOST_AUDITS)

    def lifetime(self, category: str) -> float:
        """Seconds for which an answer of this category may be served."""
        return self.category_ttl.get(category, self.ttl)
