"""Negation: as many negations in both texts, and of the same words."""

from __future__ import annotations

from typing import Final

from policies.guards.alignment import align, is_statement
from policies.guards.closed_words import NEGATION
from policies.guards.profile import Profile
from policies.guards.word_lists import words

_PLAIN: Final = words("not no without cannot nor non nothing none neither")
_MILD: Final = words("avoid avoids avoided avoiding")
"""Words that tell what is not done; a statement may say the same with other words."""


class NegationGuard:
    """Refuses a negation more, less, of another kind, or of another word."""

    name = "negation"

    def refuses(self, stored: Profile, new: Profile) -> str:
        """See `Guard`."""
        relaxed = is_statement(stored, new)
        before, after = _kinds(stored, relaxed=relaxed), _kinds(new, relaxed=relaxed)
        if before != after:
            return "count"
        if relaxed and before and not _same_scope(stored, new):
            return "scope"
        return ""


def _kinds(profile: Profile, *, relaxed: bool) -> list[str]:
    if not relaxed:
        return sorted(profile.negations)
    return sorted("not" if word in _PLAIN else word for word in profile.negations if word not in _MILD)


def _same_scope(stored: Profile, new: Profile) -> bool:
    """What is negated here is negated there, or what stands beside it is."""
    negated = {at for at, item in enumerate(new.items) if not item.hard.isdisjoint(NEGATION - _MILD)}
    if not new.tail.isdisjoint(NEGATION):
        negated.add(len(new.items))
    to = {place: at for at, place in align(stored, new).order}
    for place, item in enumerate(stored.items):
        if not item.hard.isdisjoint(NEGATION - _MILD):
            at = to.get(place)
            if at is not None and negated.isdisjoint(range(at - 3, at + 3)):
                return False
    return True
