"""Statements about software told in other words: which words may go, and which other prepositions and orders say the
same. See `moves.py` for the orders.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from policies.guards.alignment import Pair
from policies.guards.blocks import Block, Comparison
from policies.guards.closed_words import NEGATION, SOFT_MARKS
from policies.guards.moves import Move, alike, allowed, is_turned_to, turned
from policies.guards.profile import Item
from policies.guards.statement_words import CARRIERS, HOLDERS
from policies.guards.stemming import ING
from policies.guards.word_lists import words

_TO: Final = frozenset({"to"})
_VERBAL: Final = words("to of for in")
_MEANS: Final = words("by @by and")


class Retold(Comparison):
    """A statement, and the same in other words."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(pair)
        self.stored = _without(pair.stored.items, pair.alignment.stored_only)
        self.new = _without(pair.new.items, pair.alignment.new_only)
        self.at_new = [0] * len(self.to)
        """Position in the stored text → position in the new one."""
        for at, place in enumerate(self.to):
            self.at_new[place] = at
        self.reworded = _is_reworded(pair)

    def reason(self) -> str:
        """See `Comparison`; and no verb changes its voice where its subject stays."""
        return super().reason() or self.whole()

    def whole(self) -> str:
        """A verb's voice must fit its place."""
        return "" if self._voices_fit() else "voice"

    def same_marks(self, before: Item, after: Item) -> bool:
        """Negations are weighed as a whole, by their own guard."""
        return before.hard == after.hard or (before.hard ^ after.hard) - NEGATION <= SOFT_MARKS

    def same_links(self, before: Item, after: Item) -> bool:
        """The same, or what may stand for it where other words differ, too."""
        if before.links == after.links:
            return True
        if not self.reworded:
            return False
        lone, fresh = set(before.links) - set(after.links), set(after.links) - set(before.links)
        if len(lone) > 1 or len(fresh) > 1:
            return False
        changed = lone | fresh
        if changed == {"has"}:
            # "It has 3 as its default", "its default is 3".
            return before.key[0] in "ln"
        if changed == _TO:
            # "Is used to sort", "sorts": a verb has no article.
            return not before.article and not after.article
        if ING in {before.ending, after.ending}:
            # "To sort", "of sorting"; "by running it", "you can run it".
            return (
                changed <= _VERBAL
                or (len(changed) == 2 and changed <= _MEANS)
                or (changed == {"by"} and (before.after_comma or after.after_comma))
                or alike(before.links, after.links)
            )
        return alike(before.links, after.links)

    def moves(self, p: Block, q: Block) -> bool:
        """See `moves.py`: either block may be the one that moves."""
        there = Move(self.stored, self.new, p.size, q.size, p.stored, q.stored, p.new, q.new, self.at_new)
        return allowed(there) or allowed(
            Move(self.new, self.stored, q.size, p.size, q.new, p.new, q.stored, p.stored, self.to)
        )

    def _voices_fit(self) -> bool:
        """Every verb that changes its voice stands on the other side of the word before it where it is passive."""
        for at, place in enumerate(self.to):
            before, after = self.stored[place], self.new[at]
            if not turned(before, after):
                continue
            if is_turned_to(before, after):
                if _has_subject(self.new, at) and self.to[at - 1] < place:
                    return False
            elif _has_subject(self.stored, place) and self.at_new[place - 1] < at:
                return False
        return True


def _has_subject(items: list[Item], verb: int) -> bool:
    return verb > 0 and items[verb - 1].sentence == items[verb].sentence and not items[verb].opens


def _without(items: list[Item], dropped: list[int]) -> list[Item]:
    """Items but those that may go, whose marks the next one takes over."""
    if not dropped:
        return items
    gone = set(dropped)
    kept: list[Item] = []
    last: Item | None = None
    for at, item in enumerate(items):
        whole = item if last is None else _after(last, item)
        last = whole if at in gone else None
        if at not in gone:
            kept.append(whole)
    return kept


def _after(gone: Item, item: Item) -> Item:
    """`item` with the marks of the one before it, which is left out."""
    links, own = gone.links, item.links
    if gone.key in CARRIERS:
        own = own[1:]
    elif gone.key in HOLDERS and not links and not own:
        links = ("has",)
    return replace(
        item, links=links + own, hard=gone.hard | item.hard, article=gone.article or item.article,
        after_comma=gone.after_comma or item.after_comma, opens=gone.opens or item.opens, aux=gone.aux or item.aux,
    )  # fmt: skip


def _is_reworded(pair: Pair) -> bool:
    """Some words are others, or left out; then prepositions may be others, too."""
    return pair.other_words or any(mark[0] == "@" for mark in (*pair.stored.hard, *pair.new.hard))
