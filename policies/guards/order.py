"""Who did what to whom, when and in which order: words that are all the same may still say another thing.

Aligned items make blocks that both texts have in one piece. Blocks in another order are taken as the same only where a
rule of grammar accounts for the move and the marks of it are there: a clause or phrase put first, a passive with its
"by", two sides of an "and". Every other move refuses.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from policies.guards.alignment import Pair
from policies.guards.blocks import Block, Comparison
from policies.guards.closed_words import AGENT
from policies.guards.loose_order import LooseOrder
from policies.guards.profile import Item
from policies.guards.retold import Retold
from policies.guards.statement_words import stems
from policies.guards.word_lists import words

_ADJUNCT = words(
    "by @by with in on at for from to if when because after before during since until as without while once under "
    "through"
)

_ORDERED: Final = stems(
    "ratio quotient proportion fraction order sequence series rank ranking succession subtract minus deduct divide "
    "convert exponent power remainder translate map turn assign list former latter complete continue first last"
)
"""Where they stand, it matters which side of an "and" or an "or" comes first."""
_DIFFERENCE: Final = "w:differenc"
"""Of two numbers, where "of" follows: between two things it is the same from both sides."""


class OrderGuard:
    """Refuses another order, other prepositions, other voices."""

    name = "order"

    def refuses(self, pair: Pair) -> str:
        """See `Guard`."""
        if pair.stored.directions != pair.new.directions:
            return "direction"
        if pair.loose:
            return LooseOrder(pair).reason()
        return (Retold(pair) if pair.statement else _Strict(pair)).reason()


class _Strict(Comparison):
    """Any question: the same marks everywhere, and the moves that keep every mark."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(pair)
        self.ordered = _is_ordered(self.stored)

    def whole(self) -> str:
        pairs = [(self.stored[place], self.new[at]) for at, place in enumerate(self.to)]
        if any(before.possessive != after.possessive for before, after in pairs):
            return "possessor"
        if any((before.form == "passive") != (after.form == "passive") for before, after in pairs):
            return "voice"
        if any(_cut_off(before) != _cut_off(after) for before, after in pairs):
            return "comma"
        if any(before.opens != after.opens for before, after in pairs):
            # "No. Cats do.", "No cats do."
            return "sentence"
        return ""

    def same_marks(self, before: Item, after: Item) -> bool:
        return before.hard == after.hard

    def same_links(self, before: Item, after: Item) -> bool:
        return before.links == after.links

    def moves(self, p: Block, q: Block) -> bool:
        ps, pn = self.stored[p.stored], self.new[p.new]
        qs, qn = self.stored[q.stored], self.new[q.new]
        if ps.sentence != qs.sentence or pn.sentence != qn.sentence:
            return False
        return (
            _fronted(ps, pn, qn)
            or _fronted(qn, qs, ps)
            or _agent(ps, pn, qs, qn)
            or _agent(qn, qs, pn, ps)
            or (p.size == 1 and _voiced(ps, pn, qn))
            or (q.size == 1 and _voiced(qn, qs, ps))
            or (not self.ordered and p.size <= 2 and q.size <= 2 and conjuncts(ps, pn, qs, qn))
            or _owns(qs, qn, pn)
            or _owns(pn, ps, qs)
        )


def _cut_off(item: Item) -> bool:
    """Whether a comma makes another phrase of it: "eat, grandma"."""
    return item.after_comma and not item.opens and not item.links and item.key[0] not in "nd"


def _is_ordered(items: list[Item]) -> bool:
    return any(
        item.key in _ORDERED or item.key.endswith(":th") or (item.key == _DIFFERENCE and "of" in following.links)
        for item, following in pairwise([*items, Item("")])
    )


def _fronted(front: Item, back: Item, other_front: Item) -> bool:
    """A phrase with its preposition or conjunction first in one text and later in the other."""
    return bool(
        front.links and front.links[-1:] == back.links[-1:] and front.links[-1] in _ADJUNCT and front.opens
        and other_front.opens
    )  # fmt: skip


def _agent(subject: Item, agent: Item, rest: Item, opening: Item) -> bool:
    """The subject of one text stands behind "by" in the other."""
    return bool(
        subject.opens and not subject.links and agent.links and agent.links[-1] in AGENT
        and not (rest.links and rest.links[-1] in AGENT) and opening.opens
    )  # fmt: skip


def _voiced(active: Item, passive: Item, patient: Item) -> bool:
    """A verb before its object, active, and behind it, passive."""
    starts = patient.opens or patient.article or patient.capital or patient.key[0] != "w"
    return starts and passive.form == "passive" and active.form != "passive" and not (passive.links or patient.links)


def _owns(behind: Item, ahead: Item, owned: Item) -> bool:
    """What is "X of Y" and "Y's X"."""
    return bool(behind.links and behind.links[-1] == "of" and not owned.links and ahead.possessive)


def conjuncts(ps: Item, pn: Item, qs: Item, qn: Item) -> bool:
    """Two sides of an "and" or an "or"."""
    return (
        len(qs.links) == 1 and qs.links == pn.links and qs.links[0] in {"and", "or"} and ps.links == qn.links
        and all(item.article or item.capital or item.key[0] == "l" for item in (ps, qs, pn, qn))
    )  # fmt: skip
