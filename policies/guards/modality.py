"""Can, must, should; is, was, will be, used to; what, where, when: what is asked of the same things."""

from __future__ import annotations

from typing import Final

from policies.guards.alignment import Pair
from policies.guards.closed_words import NEGATION
from policies.guards.profile import Item, Profile
from policies.guards.quantities import QUANTIFIER_MARKS
from policies.guards.stemming import BASE, ED
from policies.guards.word_lists import words

_SOFT: Final = words("@can can may @must must should @should will @how how what which @usedto @purpose @as @you")
_DENYING: Final = words("not no never none nobody nothing nowhere neither nor cannot hardly")
_UNCERTAIN: Final = words("will shall would may")
_NECESSARY: Final = frozenset({"must", "@must"})
_ADVISED: Final = frozenset({"should", "@should"})


class ModalityGuard:
    """Refuses another modal, another tense, another question word."""

    name = "modality"

    def refuses(self, pair: Pair) -> str:
        """See `Guard`."""
        stored, new = pair.stored, pair.new
        if (stored.answer and new.answer and stored.answer != new.answer) or _denies(stored) != _denies(new):
            return "answer"
        return _statement(pair) if pair.statement else _question(pair)


def _question(pair: Pair) -> str:
    stored, new = pair.stored, pair.new
    if stored.question != new.question or stored.opening != new.opening:
        return "question"
    if stored.hard != new.hard and _modals(stored) != _modals(new):
        return "modal"
    if stored.asides != new.asides:
        return "aside"
    if _auxiliaries(stored) != _auxiliaries(new):
        return "auxiliary"
    if stored.tense != new.tense:
        return "tense"
    pairs = pair.alignment.order
    return "tense" if any(_other_tense(stored.items[place], new.items[at]) for at, place in pairs) else ""


def _modals(profile: Profile) -> list[str]:
    return [mark for mark in profile.hard if mark not in QUANTIFIER_MARKS]


def _statement(pair: Pair) -> str:
    stored, new = pair.stored, pair.new
    if stored.keys == new.keys and not pair.moved and _uncertain(stored) != _uncertain(new):
        # Nothing else differs: "is removed", "will be removed".
        return "modal"
    before, after = set(stored.hard), set(new.hard)
    for group in (_NECESSARY, _ADVISED):
        counts = [sum(mark in group for mark in profile.hard) for profile in (stored, new)]
        if counts[0] != counts[1] and not (pair.loose and all(counts)):
            return "modal"
    lone, fresh = before - after, after - before
    if (lone ^ fresh) - _SOFT - QUANTIFIER_MARKS - NEGATION:
        return "question"
    if stored.tense.count("past") != new.tense.count("past"):
        return "tense"
    return ""


def _uncertain(profile: Profile) -> list[str]:
    return [mark for mark in profile.hard if mark in _UNCERTAIN]


def _auxiliaries(profile: Profile) -> tuple[int, int]:
    """How often it says be, but for passives, and have."""
    passives = sum(item.form == "passive" for item in profile.items)
    return profile.auxiliaries.count("be") - passives, profile.auxiliaries.count("have")


def _denies(profile: Profile) -> bool:
    """Whether its yes or no goes against the rest: a "no" needs no other negation, a "yes" takes none back."""
    denied = not _DENYING.isdisjoint(profile.negations)
    return (profile.answer == "no" and not denied) or (profile.answer == "yes" and denied)


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
