"""What a guard is, and what it says: the words that all guards share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from policies.guards.alignment import Pair


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether two questions may share an answer as far as guards can tell; who refused, if not."""

    same: bool
    guard: str = ""
    """Name of the guard that refused; "" where none did."""
    reason: str = ""
    """A fixed word or two, fit for a metric's label: never a word of either text."""
    strength: int = 0
    """Of `strength.py`, where none refused."""


class Guard(Protocol):
    """One reason why two texts that look alike may not mean the same."""

    name: str

    def refuses(self, pair: Pair) -> str:
        """Why it refuses, in a fixed word or two; "" where it does not. Symmetric, and never raises."""
        ...
