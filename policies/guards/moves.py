"""Moves of a phrase that leave a statement's meaning alone, each by the name that grammar has for it.

A move is A B in one text and B A in the other. Every rule wants the marks of its move in both: the phrase that moves
ends where a phrase ends, a verb changes its voice where its object changes sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from policies.guards.profile import Item
from policies.guards.statement_words import KINDS, stems
from policies.guards.stemming import BASE, ED
from policies.guards.word_lists import listed, words

_FRONTED: Final = words("by @by with in on at for from to if when because during since as without while through within")
_INSTRUMENT: Final = words("by @by with through")
_PLACE: Final = words("in on at within")
_PURPOSE: Final = ("to",)
_CHAIN: Final = words("and or")
_HOLDS: Final = stems(
    "contain include have list mention describe specify state provide offer show exist available present find locate "
    "store define explain give require support"
)
"""Verbs with a place for a subject: "the page lists X", "X is listed on the page"."""
_BEING: Final = stems("exist available present")
"""As if passive: what is in a place, the place has."""
_NO_ADVERBS: Final = frozenset(f"w:{word}" for word in listed("appli suppli repli multipli compli impli reli famili"))
_MAX_CLAUSE: Final = 4
_ALIKE: Final = frozenset(
    frozenset(pair.split("/"))
    for pair in listed(
        "has/of has/with with/of with/in of/in of/for of/on in/on into/to into/in on/to to/for to/in with/by with/@by "
        "by/@by through/by through/@by through/with over/through about/on about/of about/for and/ and/then then/ @by/ "
        "like/ as/ when/if when/while while/whereas while/during when/during for/when"
    )
)
"""Prepositions and conjunctions that may stand for each other; nothing after the slash: that may be left out."""


@dataclass(slots=True)
class Move:
    """A B in `one` and B A in `other`: where A and B begin in each, and how many items they are."""

    one: list[Item]
    other: list[Item]
    size_a: int
    size_b: int
    a_one: int
    b_one: int
    a_other: int
    b_other: int
    across: Sequence[int]
    """Position in `one` → position in `other`."""

    @property
    def first(self) -> Item:
        """A where it comes first."""
        return self.one[self.a_one]

    @property
    def second(self) -> Item:
        """B where it comes second."""
        return self.one[self.b_one]

    @property
    def moved(self) -> Item:
        """A where it comes second."""
        return self.other[self.a_other]

    @property
    def ahead(self) -> Item:
        """B where it comes first."""
        return self.other[self.b_other]

    def ends(self) -> bool:
        """Whether a phrase ends behind A where it comes second."""
        at = self.a_other + self.size_a
        if at >= len(self.other):
            return True
        following = self.other[at]
        return bool(following.links or following.opens or following.after_comma or following.aux or following.article)


def allowed(move: Move) -> bool:
    """Whether some rule accounts for the move."""
    if move.first.sentence != move.second.sentence or move.moved.sentence != move.ahead.sentence:
        return False
    return (
        (move.ends() and (_fronted(move) or _instrument(move) or _compound(move)))
        or _equated(move)
        or _verb(move)
        or _kind(move)
        or _adverb(move)
        or _conjuncts(move)
    )


def _fronted(move: Move) -> bool:
    """A phrase with its preposition opens the sentence in one text, and ends it in the other."""
    first, moved = move.first, move.moved
    return bool(
        first.opens and first.links and first.links[-1] in _FRONTED and moved.links
        and (first.links[-1] == moved.links[-1] or alike(first.links, moved.links))
        and (move.second.after_comma or move.size_a <= 2)
    )  # fmt: skip


def _instrument(move: Move) -> bool:
    """The subject of one text is the agent, the means or the place in the other."""
    first, second, moved = move.first, move.second, move.moved
    if first.links or not first.opens or not moved.links:
        return False
    places = range(move.b_one, move.b_one + move.size_b)
    verbs = [(move.one[at], move.other[move.across[at]]) for at in places]
    changed = [(here, there) for here, there in verbs if turned(here, there)]
    if any(not _INSTRUMENT.isdisjoint(here.links) and here.links != there.links for here, there in verbs):
        # Another agent would have taken its place.
        return False
    if not changed and second.form == "passive":
        return False
    if moved.links[-1] in _INSTRUMENT:
        return bool(changed) or second.aux or second.links[-1:] == _PURPOSE or bool(second.hard)
    return moved.links[-1] in _PLACE and any(
        here.key in _HOLDS or there.key in _HOLDS or "@can" in here.hard for here, there in changed
    )


def _compound(move: Move) -> bool:
    """Compounds opened up: "library documentation", "the documentation of the library"."""
    first, second, moved, ahead = move.first, move.second, move.moved, move.ahead
    if not moved.links:
        return False
    if second.links in {("has",), ("as",)}:
        # "It has two rows", "its rows are two"; "it has 3 as its default", "the default of it is 3".
        clause = second.links == ("has",) or (ahead.opens and not ahead.links)
        return clause and moved.links == ("of",) and first.opens and not first.links
    if second.links or second.aux or moved.links[-1] not in {"of", "for", "in"}:
        return False
    if first.possessive:
        return True
    if first.key[0] == "l" and second.key in KINDS:
        # "The f class" is no "class of f".
        return False
    return moved.links[-1] != "in" and move.size_a <= 2 and move.size_b == 1 and ahead.links == first.links


def _equated(move: Move) -> bool:
    """A name and what it is for: "f is used to sort", "the function to sort is f"."""
    first, moved = move.first, move.moved
    return (
        move.size_a == 1 and move.a_other + 1 == len(move.other)
        and first.key[0] == "l" and first.opens and moved.aux and not moved.links
        and move.second.links == move.ahead.links == _PURPOSE and move.ahead.opens
    )  # fmt: skip


def _verb(move: Move) -> bool:
    """Active before its object, passive behind it; or "the provided link" and "the link provided"."""
    first, second, moved = move.first, move.second, move.moved
    if first.article or not _starts(move.ahead, move.b_other):
        return False
    to_passive = _passive(moved) and not _passive(first) and first.ending != ED
    if move.size_a == 1:
        if to_passive:
            return not second.links or second.links[-1] == "and"
        return (
            move.size_b == 1 and first.form == "ed" == moved.form
            and not second.links and not moved.links and move.ahead.links == first.links
        )  # fmt: skip
    # Two verbs that share the object: "download and read X".
    return (
        move.size_a == 2 and to_passive and not second.links
        and move.one[move.a_one + 1].links == ("and",) == move.other[move.a_other + 1].links
    )  # fmt: skip


def _starts(item: Item, at: int) -> bool:
    """Whether a phrase begins with the item."""
    return not at or bool(item.links or item.opens or item.after_comma or item.article)


def _kind(move: Move) -> bool:
    """A name and what kind of thing it is: "the function f", "the f function"."""
    if move.second.links or move.moved.links or move.moved.aux or (move.second.aux and not _named_first(move)):
        return False
    for name, name_size, kind, kind_size in (
        (move.a_one, move.size_a, move.b_one, move.size_b),
        (move.b_one, move.size_b, move.a_one, move.size_a),
    ):
        if name_size == 1 and kind_size <= 2 and move.one[kind + kind_size - 1].key in KINDS:
            return move.one[name].key[0] == "l" or (move.one[name].capital and kind_size == 1)
    return False


def _adverb(move: Move) -> bool:
    """An adverb before or behind its clause: "automatically loads the file", "loads the file automatically"."""
    single, clause, size = move.first, move.b_one, move.size_b
    if move.size_a != 1 or not _is_adverb(single):
        single, clause, size = move.second, move.a_one, move.size_a
        if move.size_b != 1 or not _is_adverb(single):
            return False
    return size <= _MAX_CLAUSE and all(_CHAIN.isdisjoint(move.one[clause + n].links) for n in range(size))


def _named_first(move: Move) -> bool:
    """A definition: "f is a function"."""
    return move.first.key[0] == "l" and move.first.opens and move.second.key in KINDS and move.size_b == 1


def _is_adverb(item: Item) -> bool:
    return item.key.endswith("li") and item.ending == BASE and not item.links and item.key not in _NO_ADVERBS


def _conjuncts(move: Move) -> bool:
    """Two sides of an "and" or an "or"."""
    first, second, moved, ahead = move.first, move.second, move.moved, move.ahead
    return (
        move.size_a <= 2 and move.size_b <= 2
        and len(second.links) == 1 and second.links == moved.links and second.links[0] in _CHAIN
        and first.links == ahead.links
        and all(item.article or item.capital or item.key[0] == "l" for item in (first, second, moved, ahead))
    )  # fmt: skip


def turned(before: Item, after: Item) -> bool:
    """Active in one text, passive in the other. "Files renamed" is neither."""
    if _passive(before) == _passive(after):
        return False
    return (after if _passive(before) else before).ending != ED


def is_turned_to(before: Item, after: Item) -> bool:
    """Of a verb that is `turned`: whether it is passive in `after`."""
    return _passive(after) and not _passive(before)


def _passive(item: Item) -> bool:
    return item.form == "passive" or item.key in _BEING


def alike(before: tuple[str, ...], after: tuple[str, ...]) -> bool:
    """Whether one preposition stands for another, or is left out, and the others are the same."""
    lone, fresh = set(before) - set(after), set(after) - set(before)
    if len(lone) > 1 or len(fresh) > 1:
        return False
    return not (lone or fresh) or frozenset({*(lone or {""}), *(fresh or {""})}) in _ALIKE
