"""Which item of one text is which of the other: equal keys first, then words that may stand for each other."""

from __future__ import annotations

from dataclasses import dataclass

from policies.guards.closed_words import AGENT, MODALS
from policies.guards.profile import Item, Profile


@dataclass(slots=True)
class Alignment:
    """Positions in the items of both texts."""

    order: list[tuple[int, int]]
    """(position in the new text, position in the stored one), by the first."""
    stored_only: list[int]
    new_only: list[int]


def align(stored: Profile, new: Profile) -> Alignment:
    """Pairs items one to one. Of equal ones, those that keep the order are paired."""
    theirs: dict[str, list[int]] = {}
    for at, item in enumerate(stored.items):
        theirs.setdefault(item.key, []).append(at)
    to: dict[int, int] = {}
    left: list[int] = []
    last = -1
    for at, item in enumerate(new.items):
        places = theirs.get(item.key)
        if not places:
            left.append(at)
            continue
        place = next((place for place in places if place > last), places[0])
        places.remove(place)
        to[at] = last = place
    taken = set(to.values())
    free = [at for at in range(len(stored.items)) if at not in taken]
    if left and free:
        relaxed = is_statement(stored, new)
        for at in list(left):
            place = _stand_in(new.items[at], stored, free, to.get(at - 1, -2) + 1, relaxed=relaxed)
            if place >= 0:
                to[at] = place
                free.remove(place)
                left.remove(at)
    return Alignment(sorted(to.items()), free, left)


def _stand_in(item: Item, stored: Profile, free: list[int], expected: int, *, relaxed: bool) -> int:
    """A free item of the stored text that may stand for `item`: the one expected there, else the first."""
    rows = item.statement if relaxed else item.general
    if not rows:
        return -1
    found = -1
    for place in free:
        other = stored.items[place]
        if not rows.isdisjoint(other.statement if relaxed else other.general):
            if place == expected:
                return place
            if found < 0:
                found = place
    return found


def is_statement(stored: Profile, new: Profile) -> bool:
    """Both tell of software rather than ask: more words and more orders are the same there.

    Not where the words are all the same: then their order is all there is to tell the texts apart.
    """
    return stored.software and new.software and not stored.question and not new.question and stored.bag != new.bag


def rewording(stored: Profile, new: Profile, pairs: Alignment) -> int:
    """How much of one text is put in other words in the other: words alone, and constructions such as "by using".

    The same words in another order are no other wording.
    """
    changed = sum(stored.items[place].key != new.items[at].key for at, place in pairs.order)
    words = len(pairs.stored_only) + len(pairs.new_only) + changed
    built = constructions(stored, new)
    # A modal alone in another's place ("should", "must") is a change of meaning.
    return words + built if words or built > 1 else 0


def constructions(stored: Profile, new: Profile) -> int:
    """0 to 2: whether modals and the like differ, and whether instruments are marked as often."""
    before, after = ([mark for mark in p.hard if mark in MODALS] for p in (stored, new))
    return (before != after) + (_instruments(stored) != _instruments(new))


def _instruments(profile: Profile) -> int:
    return sum(link in AGENT for item in profile.items for link in item.links)
