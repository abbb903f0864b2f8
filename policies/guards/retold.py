"""Statements about software told in other words: which other prepositions, voices and orders say the same.

Every move is one that English grammar has a name for, and both texts must bear its marks: the phrase that moves ends
where a phrase ends, the verb changes its voice exactly where its subject and object change places.
"""

from __future__ import annotations

from typing import Final

from policies.guards.alignment import Alignment, Pair
from policies.guards.blocks import Block, Comparison
from policies.guards.closed_words import NEGATION, SOFT_MARKS
from policies.guards.profile import Item
from policies.guards.statement_words import CARRIERS, HOLDERS, KINDS, stems
from policies.guards.stemming import ED, ING
from policies.guards.word_lists import listed, words

_FRONTED: Final = words("by @by with in on at for from to if when because during since as without while through within")
_INSTRUMENT: Final = words("by @by with through")
_PLACE: Final = words("in on at within")
_ALIKE: Final = frozenset(
    frozenset(pair.split("/"))
    for pair in listed(
        "with/of with/in of/in of/for of/on of/ in/on into/to into/in on/to to/for with/by with/@by by/@by through/by through/@by "
        "through/with about/on about/of and/ @by/ to/ from/of when/if for/in for/on when/during by/from from/in and/then "
        "as/ for/when to/in over/through like/ then/ about/for with/"
    )
)
"""Prepositions and conjunctions that may stand for each other; nothing after the slash: that may be left out."""
_PURPOSE: Final = ("to",)
_TO: Final = frozenset({"to"})
_VERBAL: Final = words("to of for in")
_MEANS: Final = words("by @by and")
_HOLDS: Final = stems(
    "contain include have list mention describe specify state provide offer show exist available present find locate "
    "store define explain give require support"
)
"""Verbs with a place for a subject: "the page lists X", "X is listed on the page"."""
_BEING: Final = stems("exist available present")
"""As if passive: what is in a place, the place has."""
_CHAIN: Final = words("and or")


class Retold(Comparison):
    """A statement, and the same in other words."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(pair)
        pairs = pair.alignment
        self.stored = _without(pair.stored.items, pairs.stored_only)
        self.new = _without(pair.new.items, pairs.new_only)
        self.reworded = _is_reworded(pair, pairs)

    def whole(self) -> str:
        return "voice" if not self._voices_fit() else ""

    def reason(self) -> str:
        """See `Comparison`; and no verb changes its voice where its subject stays."""
        return super().reason() or self.whole()

    def same_marks(self, before: Item, after: Item) -> bool:
        return before.hard == after.hard or (before.hard ^ after.hard) - NEGATION <= SOFT_MARKS

    def same_links(self, before: Item, after: Item) -> bool:
        if before.links == after.links:
            return True
        if not self.reworded:
            return False
        lone, fresh = set(before.links) - set(after.links), set(after.links) - set(before.links)
        if len(lone) > 1 or len(fresh) > 1:
            return False
        changed = lone | fresh
        if changed == _TO:
            # "Is used to sort", "sorts": a verb has no article.
            return not before.article and not after.article
        if before.ending == ING or after.ending == ING:
            # "To sort", "of sorting"; "by running it", "you can run it".
            return (
                changed <= _VERBAL
                or (len(changed) == 2 and changed <= _MEANS)
                or (changed == {"by"} and (before.after_comma or after.after_comma))
            )
        return not changed or frozenset(changed if len(changed) == 2 else {*changed, ""}) in _ALIKE

    def _voices_fit(self) -> bool:
        """Every verb that changes its voice stands on the other side of its subject."""
        at_new = {place: at for at, place in enumerate(self.to)}
        for at, place in enumerate(self.to):
            before, after = self.stored[place], self.new[at]
            if not _turned(before, after):
                continue
            if _passive(after):
                patient = self._subject(self.new, at)
                if patient is not None and self.to[patient] < place:
                    return False
            else:
                patient = self._subject(self.stored, place)
                if patient is not None and at_new[patient] < at:
                    return False
        return True

    @staticmethod
    def _subject(items: list[Item], verb: int) -> int | None:
        """The nearest word before a passive verb, if it is not the object of another."""
        before = verb - 1
        if before < 0 or items[before].sentence != items[verb].sentence or items[verb].opens:
            return None
        return before

    def moves(self, p: Block, q: Block) -> bool:
        return self._may(self.stored, self.new, p, q, p.stored, q.stored, p.new, q.new) or self._may(
            self.new, self.stored, q, p, q.new, p.new, q.stored, p.stored
        )

    def _may(self, one: list[Item], other: list[Item], a: Block, b: Block, a1: int, b1: int, a2: int, b2: int) -> bool:
        """A B in `one` (from `a1` and `b1`), B A in `other` (from `a2` and `b2`)."""
        first, second = one[a1], one[b1]
        moved, ahead = other[a2], other[b2]
        if first.sentence != second.sentence or moved.sentence != ahead.sentence:
            return False
        ends = _ends(other, a2 + a.size)
        return (
            (ends and self._fronted(first, moved, second, a))
            or (a.size == 1 and a2 + 1 == len(other) and _equated(first, moved, second, ahead))
            or (ends and self._instrument(one, other, a, b, a1, b1, a2, b2))
            or self._verb(one, other, a, b, a1, b1, a2, b2)
            or self._compound(first, second, moved, ahead, a, b, ends=ends)
            or self._kind(one, a, b, a1, b1, moved)
            or self._adverb(one, other, a, b, b1, b2)
            or (a.size <= 2 and b.size <= 2 and _conjuncts(first, moved, second, ahead))
        )

    @staticmethod
    def _fronted(first: Item, moved: Item, second: Item, a: Block) -> bool:
        """A phrase with its preposition opens the sentence in one text, and ends it in the other."""
        return bool(
            first.opens and first.links and first.links[-1] in _FRONTED and moved.links
            and (first.links[-1] == moved.links[-1] or _alike(first.links, moved.links))
            and (second.after_comma or a.size <= 2)
        )  # fmt: skip

    def _instrument(
        self, one: list[Item], other: list[Item], a: Block, b: Block, a1: int, b1: int, a2: int, b2: int
    ) -> bool:
        """The subject of one text is the agent, the means or the place in the other."""
        first, second, moved = one[a1], one[b1], other[a2]
        if first.links or not first.opens or not moved.links:
            return False
        turned = [n for n in range(b.size) if _turned(one[b1 + n], other[b2 + n])]
        if moved.links[-1] in _INSTRUMENT:
            return bool(turned) or second.aux or second.links[-1:] == ("to",) or bool(second.hard)
        return moved.links[-1] in _PLACE and any(
            one[b1 + n].key in _HOLDS or other[b2 + n].key in _HOLDS or "@can" in one[b1 + n].hard for n in turned
        )

    @staticmethod
    def _verb(one: list[Item], other: list[Item], a: Block, b: Block, a1: int, b1: int, a2: int, b2: int) -> bool:
        """Active before its object, passive behind it; or "the provided link" and "the link provided"."""
        first, second, moved, ahead = one[a1], one[b1], other[a2], other[b2]
        if a.size == 1 and _passive(moved) and not _passive(first) and first.ending != ED:
            return not second.links or second.links[-1] == "and"
        if a.size == 1 and b.size == 1 and first.form == "ed" == moved.form and not second.links:
            return not moved.links and ahead.links == first.links
        # Two verbs that share the object: "download and read X".
        return (
            a.size == 2 and one[a1 + 1].links == ("and",) == other[a2 + 1].links and not second.links
            and _passive(moved) and not _passive(first)
        )  # fmt: skip

    @staticmethod
    def _compound(first: Item, second: Item, moved: Item, ahead: Item, a: Block, b: Block, *, ends: bool) -> bool:
        """ "Library documentation" and "documentation of the library"; "the library's public documentation" too."""
        if not moved.links or not ends:
            return False
        if second.links == ("with",):
            # "The function has two parameters", "the parameters of the function".
            return moved.links == ("of",) and first.opens and not first.links
        if second.links == ("as",):
            # "Its default is 3", "it has 3 as its default".
            return moved.links == ("of",) and first.opens and not first.links and ahead.opens and not ahead.links
        if second.links or moved.links[-1] not in {"of", "for", "in"}:
            return False
        if first.possessive:
            return True
        return moved.links[-1] != "in" and a.size <= 2 and b.size == 1 and ahead.links == first.links

    @staticmethod
    def _kind(one: list[Item], a: Block, b: Block, a1: int, b1: int, moved: Item) -> bool:
        """ "The function f" and "the f function"."""
        if one[b1].links or moved.links:
            return False
        for name, name_at, kind, kind_at in ((a, a1, b, b1), (b, b1, a, a1)):
            if name.size == 1 and kind.size <= 2 and one[kind_at + kind.size - 1].key in KINDS:
                return one[name_at].key[0] == "l" or one[name_at].capital
        return False

    @staticmethod
    def _adverb(one: list[Item], other: list[Item], a: Block, b: Block, b1: int, b2: int) -> bool:
        """ "Automatically loads the file", "loads the file automatically": over one clause, no "and" in it."""
        for single, rest, start, items in ((a, b, b1, one), (b, a, b2, other)):
            del start, items
            if single.size == 1 and rest.size <= 4:
                break
        else:
            return False
        if a.size == 1 and one[b1 - 1].key.endswith("li") and not one[b1 - 1].links:
            return all(not _CHAIN.intersection(one[b1 + n].links) for n in range(b.size))
        return False


def _equated(first: Item, moved: Item, second: Item, ahead: Item) -> bool:
    """ "f is used to sort", "the function to sort is f"."""
    return (
        first.key[0] == "l" and first.opens and moved.aux and not moved.links
        and second.links == ahead.links == _PURPOSE and ahead.opens
    )  # fmt: skip


def _turned(before: Item, after: Item) -> bool:
    """Active in one text, passive in the other. "Files renamed" is neither."""
    if _passive(before) == _passive(after):
        return False
    return (after if _passive(before) else before).ending != ED


def _passive(item: Item) -> bool:
    return item.form == "passive" or item.key in _BEING


def _ends(items: list[Item], at: int) -> bool:
    """Whether a phrase ends before the item at `at`."""
    if at >= len(items):
        return True
    following = items[at]
    return bool(following.links or following.opens or following.after_comma or following.aux or following.article)


def _conjuncts(ps: Item, pn: Item, qs: Item, qn: Item) -> bool:
    return (
        len(qs.links) == 1 and qs.links == pn.links and qs.links[0] in _CHAIN and ps.links == qn.links
        and all(item.article or item.capital or item.key[0] == "l" for item in (ps, qs, pn, qn))
    )  # fmt: skip


def _alike(before: tuple[str, ...], after: tuple[str, ...]) -> bool:
    """Whether one preposition stands for another, or is left out, and the others are the same."""
    lone, fresh = set(before) - set(after), set(after) - set(before)
    if len(lone) > 1 or len(fresh) > 1:
        return False
    return frozenset({*(lone or {""}), *(fresh or {""})}) in _ALIKE or not (lone or fresh)


def _without(items: list[Item], dropped: list[int]) -> list[Item]:
    """Items but those that may go, whose marks the next one takes over."""
    if not dropped:
        return items
    gone = set(dropped)
    kept: list[Item] = []
    links: tuple[str, ...] | None = None
    opens = aux = comma = article = False
    carried = False
    hard: frozenset[str] = frozenset()
    for at, item in enumerate(items):
        if at in gone:
            if links is None:
                links, carried = item.links, item.key in CARRIERS
            elif not carried:
                links += item.links
            carried = item.key in CARRIERS
            if item.key in HOLDERS and not links:
                links = ("with",)
            opens, aux, comma, article = (
                opens or item.opens,
                aux or item.aux,
                comma or item.after_comma,
                article or item.article,
            )
            hard |= item.hard
            continue
        if links is not None:
            own = item.links[1:] if carried and item.links else item.links
            item = Item(  # noqa: PLW2901 - the same item, with the marks of what was left out before it
                item.key, item.general, item.statement, item.ending, item.form, item.capital, item.possessive,
                article or item.article, item.sentence, comma or item.after_comma, opens or item.opens, aux or item.aux,
                hard | item.hard, links + own,
            )  # fmt: skip
            links, carried, hard = None, False, frozenset()
            opens = aux = comma = article = False
        kept.append(item)
    return kept


def _is_reworded(pair: Pair, pairs: Alignment) -> bool:
    """Some words are others, or left out; then prepositions may be others, too."""
    if pairs.stored_only or pairs.new_only:
        return True
    stored, new = pair.stored.items, pair.new.items
    return any(stored[place].key != new[at].key for at, place in pairs.order) or any(
        mark[0] == "@" for mark in (*pair.stored.hard, *pair.new.hard)
    )
