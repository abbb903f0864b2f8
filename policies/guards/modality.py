"""Can, must, should; is, was, will be, used to; what, where, when: what is asked of the same things."""

from __future__ import annotations

from typing import Final

from policies.guards.alignment import align, is_statement
from policies.guards.closed_words import NEGATION
from policies.guards.profile import Item, Profile
from policies.guards.quantities import QUANTIFIER_MARKS
from policies.guards.stemming import BASE, ED
from policies.guards.word_lists import words

_POSSIBLE: Final = frozenset({"can", "@can", "may"})
_SOFT: Final = words("@can can may @must must should @should will @how how what which @usedto @purpose")
_NECESSARY: Final = frozenset({"must", "@must", "should", "@should"})


class ModalityGuard:
    """Refuses another modal, another tense, another question word."""

    name = "modality"

    def refuses(self, stored: Profile, new: Profile) -> str:
        """See `Guard`."""
        if is_statement(stored, new):
            return self._statement(stored, new)
        if stored.question != new.question or stored.opening != new.opening:
            return "question"
        if stored.hard != new.hard and self._modals(stored) != self._modals(new):
            return "modal"
        if stored.tense != new.tense:
            return "tense"
        pairs = align(stored, new)
        if any(_other_tense(stored.items[place], new.items[at]) for at, place in pairs.order):
            return "tense"
        return ""

    @staticmethod
    def _modals(profile: Profile) -> list[str]:
        return [mark for mark in profile.hard if mark not in QUANTIFIER_MARKS]

    @staticmethod
    def _statement(stored: Profile, new: Profile) -> str:
        before, after = set(stored.hard), set(new.hard)
        if bool(before & _NECESSARY) != bool(after & _NECESSARY):
            return "modal"
        lone, fresh = before - after, after - before
        for one, other in ((lone, fresh), (fresh, lone)):
            if one & _POSSIBLE and other & _NECESSARY:
                return "modal"
        if (lone ^ fresh) - _SOFT - QUANTIFIER_MARKS - NEGATION:
            return "question"
        if stored.tense.count("past") != new.tense.count("past") or stored.answer != new.answer != "" != stored.answer:
            return "tense"
        return ""


def _other_tense(before: Item, after: Item) -> bool:
    """Works and worked, works and is working."""
    if before.form == after.form and before.ending == after.ending:
        return False
    if (before.form == "prog") != (after.form == "prog"):
        return True
    if before.key != after.key:
        return before.ending != after.ending and ED in {before.ending, after.ending}
    plain, other = (before, after) if before.ending == BASE else (after, before)
    return plain.ending == BASE and other.form in {"ed", "perfect"}
