"""All, some, none, only, more, less, often: how much, how many, how often, to what degree."""

from __future__ import annotations

from collections import Counter
from typing import Final

from policies.guards.alignment import is_statement
from policies.guards.closed_words import QUANTIFIER
from policies.guards.profile import Profile
from policies.guards.word_lists import words

QUANTIFIER_MARKS: Final = frozenset(QUANTIFIER.values())
_MILD: Final = words("either usually several some many such other also each both too still already very yet again")
_GROUPS: Final = (
    frozenset({"all", "each", "most", "many", "several", "both"}),
    frozenset({"few", "some", "either"}),
)


class QuantityGuard:
    """Refuses another quantifier, adverb of degree or comparative."""

    name = "quantity"

    def refuses(self, stored: Profile, new: Profile) -> str:
        """See `Guard`."""
        if stored.hard == new.hard:
            return ""
        before, after = (Counter(mark for mark in p.hard if mark in QUANTIFIER_MARKS) for p in (stored, new))
        if before == after:
            return ""
        if is_statement(stored, new):
            lone, fresh = set(before - after), set(after - before)
            if (
                (lone | fresh) <= _MILD
                and not (lone & _GROUPS[0] and fresh & _GROUPS[1])
                and not (lone & _GROUPS[1] and fresh & _GROUPS[0])
            ):
                return ""
        return "quantity"
