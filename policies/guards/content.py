"""Every content word of one text is found again in the other."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from policies.guards.alignment import Alignment, align, constructions, is_statement
from policies.guards.profile import Item, Profile
from policies.guards.statement_words import FRAME, LIGHT

_MAX_LIGHT: Final = 5
_MAX_FRAME: Final = 5
_MIN_CHANGES: Final = 2
_MAX_UNBALANCED: Final = 2
_MIN_HELD: Final = 2
_LITERAL_COUNTS: Final = 2


class ContentGuard:
    """Refuses a word that only one text has."""

    name = "content"

    def refuses(self, stored: Profile, new: Profile) -> str:
        """See `Guard`."""
        pairs = align(stored, new)
        lone, fresh = pairs.stored_only, pairs.new_only
        if not lone and not fresh:
            return ""
        if not is_statement(stored, new):
            return "word"
        return _too_much(stored, new, pairs) or _an_edit(stored, new, pairs)


def _too_much(stored: Profile, new: Profile, pairs: Alignment) -> str:
    """Why what one text alone says is more than another wording."""
    lone, fresh = pairs.stored_only, pairs.new_only
    heavy = 0
    for items, places in ((stored.items, lone), (new.items, fresh)):
        if any(items[at].key not in LIGHT for at in places):
            return "word"
        count = sum(items[at].key not in FRAME for at in places)
        if count > _MAX_LIGHT or len(places) - count > _MAX_FRAME or 2 * len(places) > len(items):
            return "words"
        heavy += count
    if heavy > _MAX_LIGHT + 2:
        return "words"
    if heavy:
        held = {stored.items[place].key for at, place in pairs.order if stored.items[place].key == new.items[at].key}
        if sum(_LITERAL_COUNTS if key[0] == "l" else 1 for key in held - LIGHT) < _MIN_HELD and heavy > len(held) // 4:
            return "nothing to go by"
    if abs(_count(stored.items, lone) - _count(new.items, fresh)) > _MAX_UNBALANCED:
        return "one-sided"
    return ""


def _an_edit(stored: Profile, new: Profile, pairs: Alignment) -> str:
    """One word more, less or other in a text that else says the same word by word is what changes a meaning."""
    lone, fresh = pairs.stored_only, pairs.new_only
    changed = sum(stored.items[place].key != new.items[at].key for at, place in pairs.order)
    marked = sum(
        stored.items[place].links != new.items[at].links or stored.items[place].hard != new.items[at].hard
        for at, place in pairs.order
    )
    moved = sum(place < last for (_, last), (_, place) in pairwise(pairs.order))
    other = changed + moved + max(0, marked - len(lone) - len(fresh))
    framing = all(stored.items[at].key in FRAME for at in lone) and all(new.items[at].key in FRAME for at in fresh)
    if framing:
        return "" if other + constructions(stored, new) else "edit"
    if other + constructions(stored, new) + min(len(lone), len(fresh)) >= _MIN_CHANGES:
        return ""
    return "edit"


def _count(items: list[Item], places: list[int]) -> int:
    return sum(items[at].key not in FRAME for at in places)
