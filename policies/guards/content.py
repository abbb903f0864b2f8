"""Every content word of one text is found again in the other."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from policies.guards.alignment import Pair
from policies.guards.loose_content import constructions, content_reason
from policies.guards.statement_words import ANYBODY, FULL, KINDS, NAMED_BEFORE, POINTING, may_go

_MIN_HELD: Final = 2
_SHARE: Final = 2
"""At most one word in so many may be left out."""


class ContentGuard:
    """Refuses a word that only one text has."""

    name = "content"

    def refuses(self, pair: Pair) -> str:
        """See `Guard`."""
        lone, fresh = pair.alignment.stored_only, pair.alignment.new_only
        if not lone and not fresh:
            return ""
        if pair.loose:
            return content_reason(pair)
        if not pair.statement:
            return "word"
        if max(len(lone), len(fresh)) > len(pair.alignment.order) // _SHARE or len(pair.alignment.order) < _MIN_HELD:
            return "nothing to go by"
        told = [may_go(pair.stored.items, at, pair.new.keys) for at in lone]
        told += [may_go(pair.new.items, at, pair.stored.keys) for at in fresh]
        if "" in told:
            return "word"
        if told.count(FULL) > 1 or _other_referents(pair):
            return "words"
        if FULL in told and _in_a_row(told, lone, fresh):
            return "phrase"
        return "" if _told_anew(pair) else "edit"


def _in_a_row(told: list[str], lone: list[int], fresh: list[int]) -> bool:
    """Whether the word after one that only carries or repeats it is left out, too: then a phrase is missing."""
    at = told.index(FULL)
    places, place = (lone, lone[at]) if at < len(lone) else (fresh, fresh[at - len(lone)])
    return place + 1 in places


def _other_referents(pair: Pair) -> bool:
    """One text points at anybody where the other points at what was named; or each calls a name another kind of
    thing.
    """
    lone = {pair.stored.items[at].key for at in pair.alignment.stored_only}
    fresh = {pair.new.items[at].key for at in pair.alignment.new_only}
    if not lone.isdisjoint(KINDS) and not fresh.isdisjoint(KINDS):
        return True
    return any(
        not one.isdisjoint(ANYBODY) and not other.isdisjoint(NAMED_BEFORE)
        for one, other in ((lone, fresh), (fresh, lone))
    )


def _told_anew(pair: Pair) -> bool:
    """Whether more differs than words that point at a noun: one word more in a text that else says the same word by
    word is what changes a meaning.
    """
    stored, new, pairs = pair.stored.items, pair.new.items, pair.alignment
    if all(stored[at].key not in POINTING for at in pairs.stored_only) and all(
        new[at].key not in POINTING for at in pairs.new_only
    ):
        return True
    return (
        any(stored[place].key != new[at].key or stored[place].links != new[at].links for at, place in pairs.order)
        or any(place < last for (_, last), (_, place) in pairwise(pairs.order))
        or constructions(pair.stored, pair.new) > 0
    )
