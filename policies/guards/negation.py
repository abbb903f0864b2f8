"""Negation: as many negations in both texts, and of the same words."""

from __future__ import annotations

from typing import Final

from policies.guards.alignment import Pair
from policies.guards.closed_words import NEGATION
from policies.guards.profile import Profile
from policies.guards.word_lists import words

_PLAIN: Final = words("not no without cannot nor non nothing none neither")
_MILD: Final = words("avoid avoids avoided avoiding")
"""Words that tell what is not done; a statement may say the same with other words."""

_LOOSE_REACH: Final = 3


class NegationGuard:
    """Refuses a negation more, less, of another kind, or of another word."""

    name = "negation"

    def refuses(self, pair: Pair) -> str:
        """See `Guard`."""
        stored, new = pair.stored, pair.new
        relaxed = pair.statement
        before, after = _kinds(stored, relaxed=relaxed), _kinds(new, relaxed=relaxed)
        if before != after:
            return "count"
        if relaxed and before and not _same_scope(pair):
            return "scope"
        return ""


def _kinds(profile: Profile, *, relaxed: bool) -> list[str]:
    if not relaxed:
        return sorted(profile.negations)
    return sorted("not" if word in _PLAIN else word for word in profile.negations if word not in _MILD)


def _same_scope(pair: Pair) -> bool:
    """What is negated here is negated there, or what stands beside it is."""
    stored, new = pair.stored, pair.new
    negated = {at for at, item in enumerate(new.items) if not item.hard.isdisjoint(NEGATION - _MILD)}
    if not new.tail.isdisjoint(NEGATION):
        negated.add(len(new.items))
    to = {place: at for at, place in pair.alignment.order}
    reach = _LOOSE_REACH if pair.loose else 1
    for place, item in enumerate(stored.items):
        if not item.hard.isdisjoint(NEGATION - _MILD):
            at = to.get(place)
            if at is not None and negated.isdisjoint(range(at - reach, at + reach + 1)):
                return False
    return True
