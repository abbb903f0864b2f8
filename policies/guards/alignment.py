"""Two texts side by side: which item of one is which of the other, worked out once for all guards."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from policies.guards.profile import Item, Profile
from policies.guards.software import SURELY
from policies.guards.strength import LOOSE, REWORDED, STRICT


@dataclass(slots=True)
class Alignment:
    """Positions in the items of both texts."""

    order: list[tuple[int, int]]
    """(position in the new text, position in the stored one), by the first."""
    stored_only: list[int]
    new_only: list[int]


class Pair:
    """Two texts, and what more than one guard asks of them together."""

    __slots__ = ("_alignment", "loose", "new", "statement", "stored")

    def __init__(self, stored: Profile, new: Profile, rules: int = REWORDED) -> None:
        self.stored = stored
        self.new = new
        self.statement = rules < STRICT and is_statement(stored, new, SURELY if rules > LOOSE else 1)
        """Both tell of software: other words and other constructions are allowed for."""
        self.loose = self.statement and rules == LOOSE
        """And general words may come and go."""
        self._alignment: Alignment | None = None

    @property
    def alignment(self) -> Alignment:
        """Worked out when first asked for."""
        if self._alignment is None:
            self._alignment = align(self.stored, self.new, statement=self.statement)
        return self._alignment

    @property
    def moved(self) -> bool:
        """Some words stand in another order."""
        return any(later < earlier for (_, earlier), (_, later) in pairwise(self.alignment.order))

    @property
    def other_words(self) -> bool:
        """Some words are others, or stand in one text alone."""
        pairs, stored, new = self.alignment, self.stored.items, self.new.items
        if pairs.stored_only or pairs.new_only:
            return True
        return any(stored[place].key != new[at].key for at, place in pairs.order)


def is_statement(stored: Profile, new: Profile, software: int = SURELY) -> bool:
    """Both tell of software, so much at least, rather than ask: more words and more orders are the same there.

    Not where the words are all the same: then their order is all there is to tell the texts apart.
    """
    return (
        min(stored.software, new.software) >= software
        and not (stored.question or new.question) and stored.bag != new.bag
    )  # fmt: skip


def align(stored: Profile, new: Profile, *, statement: bool) -> Alignment:
    """Pairs items one to one: equal keys first, then words that may stand for each other."""
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
        place = places[0] if len(places) == 1 else _likeliest(places, last, at, stored.items, new.items)
        places.remove(place)
        to[at] = last = place
    taken = set(to.values())
    free = [at for at in range(len(stored.items)) if at not in taken]
    if left and free:
        for at in list(left):
            place = _stand_in(new.items[at], stored, free, to.get(at - 1, -2) + 1, statement=statement)
            if place >= 0:
                to[at] = place
                free.remove(place)
                left.remove(at)
    return Alignment(sorted(to.items()), free, left)


def _likeliest(places: list[int], last: int, at: int, stored: list[Item], new: list[Item]) -> int:
    """Of equal items the one with the same neighbour, else the next in order, else the first."""
    if last + 1 in places:
        return last + 1
    if at + 1 < len(new):
        following = new[at + 1].key
        for place in places:
            if place + 1 < len(stored) and stored[place + 1].key == following:
                return place
    return next((place for place in places if place > last), places[0])


def _stand_in(item: Item, stored: Profile, free: list[int], expected: int, *, statement: bool) -> int:
    """A free item of the stored text that may stand for `item`: the one expected there, else the first."""
    rows = item.statement if statement else item.general
    if not rows:
        return -1
    found = -1
    for place in free:
        other = stored.items[place]
        if not rows.isdisjoint(other.statement if statement else other.general):
            if place == expected:
                return place
            if found < 0:
                found = place
    return found
