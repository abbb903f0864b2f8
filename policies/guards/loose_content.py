"""Statements about software told freely: which words may be in one text alone.

Any few that tell how things are told, and not what is told of, as long as enough stands in both texts and more than one
word differs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from policies.guards.alignment import Alignment, Pair
from policies.guards.closed_words import AGENT, MODALS
from policies.guards.loose_words import FRAMING, LIGHT
from policies.guards.profile import Profile

FEW: Final = 4
"""Words that both texts have: in so short a text each weighs more."""
_MAX_LIGHT: Final = 7
_MAX_FRAMING: Final = 5
_MAX_UNBALANCED: Final = 4
_MIN_HELD: Final = 1
_LITERAL_COUNTS: Final = 2
_REPEATED_SHARE: Final = 4


def content_reason(pair: Pair) -> str:
    """Why what one text alone says is more than another wording; "" where it is not."""
    return _too_much(pair) or _an_edit(pair)


def _too_much(pair: Pair) -> str:
    stored, new, pairs = pair.stored, pair.new, pair.alignment
    heavy = []
    for items, places, others in (
        (stored.items, pairs.stored_only, new.keys),
        (new.items, pairs.new_only, stored.keys),
    ):
        weighty = [at for at in places if items[at].key not in LIGHT]
        # What stands in the other text too is but repeated: "a column by its column name".
        if any(items[at].key not in others for at in weighty) or len(weighty) > len(pairs.order) // _REPEATED_SHARE:
            return "word"
        count = sum(items[at].key not in FRAMING for at in places)
        if count > _MAX_LIGHT or len(places) - count > _MAX_FRAMING or 2 * len(places) > len(items):
            return "words"
        heavy.append(count)
    if sum(heavy) > _MAX_LIGHT + 2:
        return "words"
    if abs(heavy[0] - heavy[1]) > _MAX_UNBALANCED:
        return "one-sided"
    return "" if not sum(heavy) or _held(stored, new, pairs, sum(heavy)) else "nothing to go by"


def _held(stored: Profile, new: Profile, pairs: Alignment, heavy: int) -> bool:
    """Whether enough stands in both texts."""
    held = {stored.items[place].key for at, place in pairs.order if stored.items[place].key == new.items[at].key}
    weight = sum(_LITERAL_COUNTS if key[0] == "l" else 1 for key in held - LIGHT)
    return weight >= _MIN_HELD + (len(pairs.order) <= FEW) or heavy <= len(held) // 4


def _an_edit(pair: Pair) -> str:
    """One word more, less or other in a text that else says the same word by word is what changes a meaning."""
    stored, new, pairs = pair.stored.items, pair.new.items, pair.alignment
    lone, fresh = pairs.stored_only, pairs.new_only
    if not lone and not fresh:
        return ""
    changed = sum(stored[place].key != new[at].key for at, place in pairs.order)
    marked = sum(
        stored[place].links != new[at].links or stored[place].hard != new[at].hard for at, place in pairs.order
    )
    moved = sum(place < last for (_, last), (_, place) in pairwise(pairs.order))
    other = changed + moved + max(0, marked - len(lone) - len(fresh)) + constructions(pair.stored, pair.new)
    few = len(pairs.order) <= FEW
    framing = [all(items[at].key in FRAMING for at in places) for items, places in ((stored, lone), (new, fresh))]
    if all(framing):
        return "" if other > few else "edit"
    if any(framing) and not changed and not moved:
        return "left out"
    return "" if other and other + min(len(lone), len(fresh)) > few else "edit"


def constructions(stored: Profile, new: Profile) -> int:
    """0 to 2: whether modals and the like differ, and whether instruments are marked as often."""
    before, after = ([mark for mark in profile.hard if mark in MODALS] for profile in (stored, new))
    return (before != after) + (_instruments(stored) != _instruments(new))


def _instruments(profile: Profile) -> int:
    return sum(link in AGENT for item in profile.items for link in item.links)
