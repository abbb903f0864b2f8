"""What a guard is, and what it says: the words that all guards share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from policies.guards.alignment import Pair

REWORDED: Final = 1
"""Served by the looser rules for statements about software, told in other words."""
STRICT: Final = 2
"""Word for word, but for inflection, single synonyms, framings and moves that grammar accounts for."""
SAME_TEXT: Final = 3
"""The same text but for white space and its last full stop."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether two questions may share an answer as far as guards can tell; who refused, if not."""

    same: bool
    guard: str = ""
    """Name of the guard that refused; "" where none did."""
    reason: str = ""
    """A fixed word or two, fit for a metric's label: never a word of either text."""
    strength: int = 0
    """`REWORDED`, `STRICT` or `SAME_TEXT` where none refused; the higher, the less was left to judgement."""


class Guard(Protocol):
    """One reason why two texts that look alike may not mean the same."""

    name: str

    def refuses(self, pair: Pair) -> str:
        """Why it refuses, in a fixed word or two; "" where it does not. Symmetric, and never raises."""
        ...
