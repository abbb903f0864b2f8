"""All, some, none, only, more, less, often: how much, how many, how often, to what degree."""

from __future__ import annotations

from collections import Counter
from typing import Final

from policies.guards.alignment import Pair
from policies.guards.closed_words import QUANTIFIER
from policies.guards.word_lists import words

QUANTIFIER_MARKS: Final = frozenset(QUANTIFIER.values())
_MILD: Final = words("either both such also")
"""What a statement may add or leave out."""
_LOOSELY_MILD: Final = _MILD | words(
    "usually several some many other each too still already very yet again further additional fully"
)
_GROUPS: Final = (frozenset({"many", "several"}), frozenset({"all", "each"}))
"""What stands for each other there."""

_RIVALS: Final = (
    words("both either"), words("some many each half"), words("still already again yet"), words("very too"),
)  # fmt: skip
"""What may come and go, but not in each other's place: both tables, either table."""


class QuantityGuard:
    """Refuses another quantifier, adverb of degree or comparative."""

    name = "quantity"

    def refuses(self, pair: Pair) -> str:
        """See `Guard`."""
        stored, new = pair.stored, pair.new
        if stored.bag == new.bag and stored.marks != new.marks:
            # "From least to most", "from most to least".
            return "order"
        if stored.hard == new.hard:
            return ""
        before, after = (Counter(mark for mark in p.hard if mark in QUANTIFIER_MARKS) for p in (stored, new))
        if before == after:
            return ""
        if pair.statement:
            mild = _LOOSELY_MILD if pair.loose else _MILD
            lone, fresh = set(before - after), set(after - before)
            if any(lone & rivals and fresh & rivals for rivals in _RIVALS):
                return "quantity"
            lone, fresh = lone - mild, fresh - mild
            if lone == fresh or any(lone | fresh == group and lone and fresh for group in _GROUPS):
                return ""
        return "quantity"
