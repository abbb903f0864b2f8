"""Who did what to whom, when and in which order: words that are all the same may still say another thing.

Aligned items make blocks that both texts have in one piece. Blocks in another order are taken as the same only where a
rule of grammar accounts for the move and the marks of it are there: a clause or phrase put first, a passive with its
"by", two sides of an "and". Every other move refuses.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from policies.guards.alignment import Alignment, align, is_statement, rewording
from policies.guards.closed_words import AGENT, NEGATION, SOFT_CONJUNCTION, SOFT_MARKS, SOFT_PREPOSITION
from policies.guards.profile import Item, Profile
from policies.guards.statement_words import FRAME, LIGHT
from policies.guards.stemming import ING, stem
from policies.guards.word_lists import listed, words

_LOOSE_AGENT: Final = frozenset({"by", "@by", "with", "through", "in", "of", "for", "from", "on"})
_ADJUNCT: Final = words(
    "by @by with in on at for from to if when because after before during since until as without while under through"
)
_SOFT_LINKS: Final = (
    SOFT_PREPOSITION | SOFT_CONJUNCTION | {"@by", "into", "from", "when", "where", "like", "up", "out", "about"}
) - {"by"}
_NEAR: Final = (
    {"by", "with"}, {"by", "@by"}, {"by", "through"}, {"by", "from"}, {"over", "through"}, {"from", "in"},
    {"when", "during"}, {"on", "along"}, {"if", "when"}, {"per", "for"}, {"between", "among"}, {"after", "then"},
    {"back"},
)  # fmt: skip
_KINDS: Final = frozenset(
    "w:" + stem(word)[0]
    for word in listed(
        "function method parameter argument class option command file variable folder library package module "
        "attribute property value dataset script object format"
    )
)
_OPENED: Final = frozenset({"of", "for"})
_TOWARDS: Final = frozenset({"to", "into"})
_PURPOSE: Final = frozenset({"@purpose"})
"""In a statement, "the purpose of X is to sort" and "X is used to sort"."""
_MAX_MOVES: Final = 4
_REWORDED: Final = 1


class _Block(NamedTuple):
    stored: int
    """Where it begins in the stored text, in paired items."""
    new: int
    size: int


class OrderGuard:
    """Refuses another order, other prepositions, other voices."""

    name = "order"

    def refuses(self, stored: Profile, new: Profile) -> str:
        """See `Guard`."""
        pairs = align(stored, new)
        if stored.directions != new.directions:
            return "direction"
        return _Comparison(stored, new, pairs).reason()


class _Comparison:
    def __init__(self, stored: Profile, new: Profile, pairs: Alignment) -> None:
        reworded = rewording(stored, new, pairs)
        self.statement = is_statement(stored, new)
        self.relaxed = reworded > 0 and self.statement
        self.free = reworded >= _REWORDED and self.relaxed
        self.stored = [stored.items[place] for place in sorted(place for _, place in pairs.order)]
        rank = {place: number for number, place in enumerate(sorted(place for _, place in pairs.order))}
        self.new = [new.items[at] for at, _ in pairs.order]
        self.to = [rank[place] for _, place in pairs.order]
        self.strict = stored.strict_order or new.strict_order
        self.moves = 0
        ends = Item("", hard=stored.tail, links=stored.tail_links), Item("", hard=new.tail, links=new.tail_links)
        self.tails = ends if ends[0] != ends[1] else None

    def reason(self) -> str:
        if self.tails is not None and not (self._same_links(*self.tails) and self._same_marks(*self.tails)):
            return "links"
        blocks = self._blocks()
        if isinstance(blocks, str):
            return blocks
        if len(blocks) > 1 and self.strict:
            return "order"
        if self.free:
            return self._relaxed_reason(blocks)
        while len(blocks) > 1:
            merged = self._merge(blocks)
            if merged is None or self.moves > _MAX_MOVES:
                return "order"
            blocks = merged
        return ""

    def _relaxed_reason(self, blocks: list[_Block]) -> str:
        """Where a statement is told in other words: no phrase may have taken another's place."""
        if self._lone_moves(blocks):
            return "moved"
        weighty = [block for block in blocks if self._weighty(block)]
        rank = {block.stored: number for number, block in enumerate(sorted(weighty))}
        for at, block in enumerate(weighty):
            right = weighty[at + 1] if at + 1 < len(weighty) else None
            after_left = rank[weighty[at - 1].stored] + 1 if at else 0
            before_right = rank[right.stored] - 1 if right else len(weighty) - 1
            if after_left == before_right != rank[block.stored]:
                other = sorted(weighty)[after_left]
                if self._in_place(other, block) and not self._voices(block, other, right):
                    return "place"
            if (
                right is not None and rank[right.stored] + 1 == rank[block.stored]
                and self._in_place(right, block) and self._in_place(block, right)
                and not self._voices(block, right) and not self._moves(right, block)
                and not self._named(block, right) and not self._adverb(block, right)
            ):  # fmt: skip
                return "swap"
        return ""

    def _lone_moves(self, blocks: list[_Block]) -> bool:
        """Whether two single words have changed places, each behind the other's prepositions."""
        keys = [item.key for item in self.stored]
        singles = [
            block
            for block in blocks
            if block.size == 1 and keys[block.stored] not in FRAME and keys.count(keys[block.stored]) == 1
        ]
        for at, one in enumerate(singles):
            for other in singles[at + 1 :]:
                if other.stored > one.stored:
                    continue
                a, b = self.stored[one.stored], self.new[one.new]
                c, d = self.stored[other.stored], self.new[other.new]
                if (
                    b.links == c.links and d.links == a.links and a.form == b.form and c.form == d.form
                    and not self._accounted(a, b, one) and not self._accounted(c, d, other)
                ):  # fmt: skip
                    return True
        return False

    def _named(self, one: _Block, other: _Block) -> bool:
        """A literal and the words that say what it is: "f, a simple function", "the simple function f"."""
        for literal, others in ((one, other), (other, one)):
            kinds = {self.stored[others.stored + n].key for n in range(others.size)}
            if literal.size == 1 and self.stored[literal.stored].key[0] == "l" and not kinds.isdisjoint(_KINDS):
                return True
        return False

    def _adverb(self, *blocks: _Block) -> bool:
        return any(block.size == 1 and self.stored[block.stored].key.endswith("li") for block in blocks)

    def _accounted(self, before: Item, after: Item, block: _Block) -> bool:
        if before.key[0] == "p" or (before.links and before.links == after.links):
            return True
        if bool(before.links) != bool(after.links):
            # An adjunct that has become the subject, or the other way round; a compound opened up with "of".
            bare, linked = (after, before) if before.links else (before, after)
            return (bare.opens and linked.links[-1] in _LOOSE_AGENT) or linked.links[-1] in _OPENED
        ps, ns = block.stored, block.new
        near = [self.stored[n].key for n in (ps - 1, ps + 1) if 0 <= n < len(self.stored)]
        near_now = [self.new[n].key for n in (ns - 1, ns + 1) if 0 <= n < len(self.new)]
        # "The function f" and "the f function".
        return any(
            key in near_now and (key[0] == "l" or before.key[0] == "l") and (key in _KINDS or before.key in _KINDS)
            for key in near
        )

    def _weighty(self, block: _Block) -> bool:
        """Some word of it is more than a general one."""
        return any(self.stored[block.stored + n].key not in LIGHT for n in range(block.size))

    def _in_place(self, before: _Block, after: _Block) -> bool:
        """`after` stands in the new text where `before` stands in the stored one, behind the same words."""
        return self.stored[before.stored].links == self.new[after.new].links

    def _voices(self, *blocks: _Block | None) -> bool:
        """A verb of these changes between active and passive."""
        return any(
            (self.stored[block.stored + n].form == "passive") != (self.new[block.new + n].form == "passive")
            for block in blocks
            if block is not None
            for n in range(block.size)
        )

    def _blocks(self) -> list[_Block] | str:
        """Maximal runs, their insides compared; or why they differ."""
        blocks: list[_Block] = []
        for at, place in enumerate(self.to):
            before, after = self.stored[place], self.new[at]
            if not self._same_marks(before, after):
                return "marks"
            if ("from" in before.links) != ("from" in after.links) and not _TOWARDS.isdisjoint(
                before.links + after.links
            ):
                return "direction"
            if blocks and place == self.to[at - 1] + 1:
                if not self._same_links(before, after):
                    return "links"
                blocks[-1] = blocks[-1]._replace(size=blocks[-1].size + 1)
            else:
                if not blocks and place == 0 and not self._same_links(before, after):
                    return "links"
                blocks.append(_Block(place, at, 1))
        if (
            not self.relaxed
            and len(blocks) == 1
            and any(self.stored[p].possessive != self.new[a].possessive for a, p in enumerate(self.to))
        ):
            return "possessor"
        if (
            not self.relaxed
            and len(blocks) == 1
            and any(
                (self.stored[p].form == "passive") != (self.new[a].form == "passive") for a, p in enumerate(self.to)
            )
        ):
            return "voice"
        return blocks

    def _same_marks(self, before: Item, after: Item) -> bool:
        if before.hard == after.hard:
            return True
        if self.statement and before.hard ^ after.hard == _PURPOSE:
            return True
        return self.relaxed and (before.hard ^ after.hard) - NEGATION <= SOFT_MARKS

    def _same_links(self, before: Item, after: Item) -> bool:
        if before.links == after.links:
            return True
        if self.relaxed:
            changed = set(before.links) ^ set(after.links)
            # "By running x" and "run x": the verb tells the means, nobody acts.
            means = any("by" in item.links and item.ending == ING for item in (before, after))
            return changed - ({"by"} if means else set()) <= _SOFT_LINKS or changed in _NEAR
        return False

    def _merge(self, blocks: list[_Block]) -> list[_Block] | None:
        """The same with two neighbours made one; None where no move accounts for any."""
        for at in range(len(blocks) - 1):
            first, second = blocks[at], blocks[at + 1]
            whole = _Block(min(first.stored, second.stored), first.new, first.size + second.size)
            if first.stored + first.size == second.stored and self._joins(second):
                return [*blocks[:at], whole, *blocks[at + 2 :]]
            if second.stored + second.size == first.stored and self._moves(second, first):
                self.moves += 1
                return [*blocks[:at], whole, *blocks[at + 2 :]]
        return None

    def _joins(self, block: _Block) -> bool:
        return self._same_links(self.stored[block.stored], self.new[block.new])

    def _moves(self, p: _Block, q: _Block) -> bool:
        """Whether P Q in the stored text may be Q P in the new one."""
        ps, pn = self.stored[p.stored], self.new[p.new]
        qs, qn = self.stored[q.stored], self.new[q.new]
        if ps.sentence != qs.sentence or pn.sentence != qn.sentence:
            return False
        return (
            self._fronted(ps, pn, qn)
            or self._fronted(qn, qs, ps)
            or self._agent(ps, pn, qs, qn)
            or self._agent(qn, qs, pn, ps)
            or self._verb(p, q)
            or self._conjuncts(p, q)
            or self._kind(p, q)
            or self._possessor(p, q)
        )

    @staticmethod
    def _fronted(front: Item, back: Item, other_front: Item) -> bool:
        """A phrase with its preposition or conjunction first in one text and later in the other."""
        return bool(
            front.links and front.links[-1:] == back.links[-1:] and front.links[-1] in _ADJUNCT and front.opens
            and other_front.opens
        )  # fmt: skip

    def _agent(self, subject: Item, agent: Item, rest: Item, opening: Item) -> bool:
        """The subject of one text stands behind "by" in the other."""
        marks = _LOOSE_AGENT if self.relaxed else AGENT
        return bool(
            subject.opens and not subject.links and agent.links and agent.links[-1] in marks
            and not (rest.links and rest.links[-1] in AGENT) and (self.relaxed or opening.opens)
        )  # fmt: skip

    def _verb(self, p: _Block, q: _Block) -> bool:
        """A verb before its object, active, and behind it, passive."""
        if p.size == 1 and self._voiced(self.stored[p.stored], self.new[p.new], self.new[q.new]):
            return True
        return q.size == 1 and self._voiced(self.new[q.new], self.stored[q.stored], self.stored[p.stored])

    def _voiced(self, active: Item, passive: Item, patient: Item) -> bool:
        if passive.form != "passive" or active.form == "passive" or passive.links:
            return False
        return not (patient.links and not self.relaxed)

    def _conjuncts(self, p: _Block, q: _Block) -> bool:
        ps, pn = self.stored[p.stored], self.new[p.new]
        qs, qn = self.stored[q.stored], self.new[q.new]
        return (
            p.size <= 2 and q.size <= 2
            and len(qs.links) == 1 and qs.links == pn.links and qs.links[0] in {"and", "or"}
            and ps.links == qn.links
            and all(item.article or item.capital or item.key[0] == "l" for item in (ps, qs, pn, qn))
        )  # fmt: skip

    def _kind(self, p: _Block, q: _Block) -> bool:
        ps, qs = self.stored[p.stored], self.stored[q.stored]
        pn = self.new[p.new]
        kinds = {ps.key[0] == "l", qs.key[0] == "l"}
        return (
            p.size == q.size == 1 and kinds == {True, False} and (ps.key in _KINDS or qs.key in _KINDS)
            and not qs.links and not pn.links
        )  # fmt: skip

    def _possessor(self, p: _Block, q: _Block) -> bool:
        """What is "X of Y" and "Y's X"; in statements "Y X" too."""
        ps, pn = self.stored[p.stored], self.new[p.new]
        qs, qn = self.stored[q.stored], self.new[q.new]
        return self._owns(qs, qn, pn) or self._owns(pn, ps, qs)

    def _owns(self, behind: Item, ahead: Item, owned: Item) -> bool:
        soft = {"of", "in", "for", "from"} if self.relaxed else {"of"}
        return bool(
            behind.links and behind.links[-1] in soft and not owned.links and (ahead.possessive or self.relaxed)
        )  # fmt: skip


def _longest_rising(blocks: list[_Block]) -> set[int]:
    """Numbers of those that stay: the heaviest sequence of blocks in the stored order."""
    best: list[tuple[int, int]] = []
    for at, block in enumerate(blocks):
        weight, before = max(((best[n][0], n) for n in range(at) if blocks[n].stored < block.stored), default=(0, -1))
        best.append((weight + block.size, before))
    at = max(range(len(best)), key=lambda n: best[n][0], default=-1)
    kept: set[int] = set()
    while at >= 0:
        kept.add(at)
        at = best[at][1]
    return kept
