"""Statements about software told freely: which orders of the same words still tell the same.

Weaker than the named moves of `moves.py`: a phrase may stand anywhere, as long as no two have taken each other's place.
What passes may be another statement in the same words: that is for the evidence of this strength to tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

from policies.guards.alignment import Pair
from policies.guards.blocks import Block, Comparison
from policies.guards.closed_words import MODALS, NEGATION, SOFT_MARKS
from policies.guards.loose_content import FEW, constructions
from policies.guards.loose_words import LIGHT
from policies.guards.profile import Item
from policies.guards.stemming import ED, ING
from policies.guards.word_lists import listed, words

_LINKS: Final = words(
    "of in on at to for with as through and but so then if @by into from when like up out about"
)  # fmt: skip
"""Prepositions and conjunctions that take each other's place without another direction, time or side."""
_NEAR: Final = tuple(
    frozenset(pair.split("/"))
    for pair in listed(
        "by/with by/@by by/through by/from over/through from/in when/during when/while while/whereas on/along if/when "
        "per/for between/among after/then in/within back"
    )
)
_MARKS: Final = SOFT_MARKS | MODALS | words("usually several some many other each")
_MAX_LOST: Final = 16
_MAX_BLOCKS: Final = 24
_POINTING: Final = words("w:suchlik p:you p:we p:it p:your p:its p:they p:them p:their")
_OWNED: Final = words("of for to in")
_TARGETS: Final = frozenset({"to", "into"})
_SOURCES: Final = words("of in out by with @by through over")


class LooseOrder(Comparison):
    """Any order in which no phrase has taken another's place."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(pair)
        # The same words in another order are no other wording; a modal alone in another's place is another meaning.
        self.reworded = pair.other_words or constructions(pair.stored, pair.new) > 1

    def reason(self) -> str:
        """See `Comparison`."""
        if not self.reworded:
            return "order"
        if self.tails is not None and not (self.same_links(*self.tails) and self.same_marks(*self.tails)):
            return "links"
        if any(_turned_round(before, after) for before, after in self._items()):
            return "direction"
        blocks = self._blocks()
        if isinstance(blocks, str):
            return blocks
        if (len(blocks) > 1 and self.strict) or len(blocks) > _MAX_BLOCKS:
            return "order"
        if len(blocks) > 1 and (self._swapped(blocks) or self._exchanged()):
            return "exchanged"
        return ""

    def same_marks(self, before: Item, after: Item) -> bool:
        """Negations are weighed as a whole, by their own guard."""
        return before.hard == after.hard or (before.hard ^ after.hard) - NEGATION <= _MARKS

    def same_links(self, before: Item, after: Item) -> bool:
        """The same, or none that tells a direction."""
        if before.links == after.links:
            return True
        changed = frozenset(before.links) ^ frozenset(after.links)
        if "from" in changed and (changed == {"from"} or not changed - {"from"} <= _SOURCES):
            return False
        if not changed.isdisjoint(_TARGETS) and "out" in changed:
            return False
        if "within" in changed and before.key[0] in "nd":  # "in five minutes", "within five minutes"
            return False
        # "By running x" and "run x": the verb tells the means, nobody acts.
        means = any("by" in item.links and item.ending == ING for item in (before, after))
        return changed - ({"by"} if means else frozenset()) <= _LINKS or changed in _NEAR

    def _swapped(self, blocks: list[Block]) -> bool:
        """Whether two phrases stand behind each other's prepositions and no verb has changed its voice: "the server
        lets users share", "users let the server share".
        """
        if any(before.form != after.form and "passive" in (before.form, after.form) for before, after in self._items()):
            return False
        weighty = [block for block in blocks if len(self.to) <= FEW or self._weighty(block)]
        return any(
            second.stored < first.stored
            and self.stored[first.stored].links == self.new[second.new].links
            and self.stored[second.stored].links == self.new[first.new].links
            and not self._turned(first.stored, second.stored)
            and not self._listed(first, second)
            for first, second in combinations(weighty, 2)
        )

    def _items(self) -> Iterator[tuple[Item, Item]]:
        return ((self.stored[place], self.new[at]) for at, place in enumerate(self.to))

    def _weighty(self, block: Block) -> bool:
        """Some word of it is more than a general one."""
        return any(self.stored[block.stored + n].key not in LIGHT for n in range(block.size))

    def _exchanged(self) -> bool:
        """Whether a word has taken another one's place, and neither has kept a neighbour.

        "Keeps a log of every query" and "keeps a query of every log".
        """
        before, after = _neighbours(self.stored, range(len(self.to))), _neighbours(self.new, self.to)
        keys = [item.key for item in self.stored]
        lost = [
            place
            for place in range(len(keys))
            if keys[place] not in _POINTING
            and not any(
                there >= 0 <= here and keys[there] == keys[here]
                for there, here in zip(before[place], after[place], strict=True)
            )
        ]
        if len(lost) > _MAX_LOST:
            return True

        def took(one: int, other: int) -> bool:
            return any(
                there >= 0 <= here and here not in (one, other) and keys[there] == keys[here]
                for there, here in zip(before[other], after[one], strict=True)
            )

        return any(
            keys[one] != keys[other]
            and (took(one, other) or took(other, one))
            and not self._turned(one, other)
            and not self._confused(one, other)
            for one, other in combinations(lost, 2)
        )

    def _confused(self, one: int, other: int) -> bool:
        """Two words that may stand for each other, paired crosswise with their synonyms."""
        here, there = self.stored[one], self.stored[other]
        replaced = any(self.stored[at].key != self.new[self.to.index(at)].key for at in (one, other))
        return replaced and not here.statement.isdisjoint(there.statement)

    def _listed(self, first: Block, second: Block) -> bool:
        """Two sides of an "and"."""
        return (
            second.stored + second.size == first.stored
            and first.new + first.size == second.new
            and self.stored[first.stored].links[-1:] == ("and",)
        )

    def _turned(self, one: int, other: int) -> bool:
        """Side by side in both texts: "the table's name", "the name of the table"; "given link", "link given"."""
        here, there = self.to.index(one), self.to.index(other)
        if abs(one - other) != 1 or abs(here - there) != 1:
            return False
        before, after = self.stored[max(one, other)], self.new[max(here, there)]
        if bool(before.links) != bool(after.links):
            return _OWNED.issuperset(before.links + after.links)
        pair = (self.stored[one], self.stored[other])
        return not before.links and not after.links and any(item.ending == ED or item.key[0] == "l" for item in pair)


def _turned_round(before: Item, after: Item) -> bool:
    """Whether one text goes to what the other comes from, wherever that stands."""
    return any(
        "from" in one.links and not _TARGETS.isdisjoint(other.links) and "from" not in other.links
        for one, other in ((before, after), (after, before))
    )


def _neighbours(items: Sequence[Item], places: Sequence[int]) -> list[tuple[int, int]]:
    """Place → places of the items before and behind it in the same sentence, -1 where there is none. Item n of `items`
    has place `places[n]`.
    """
    found = [(-1, -1)] * len(items)
    for at, place in enumerate(places):
        before = places[at - 1] if at and items[at - 1].sentence == items[at].sentence else -1
        last = at + 1 == len(items) or items[at + 1].sentence != items[at].sentence
        found[place] = before, -1 if last else places[at + 1]
    return found
