"""Two texts as runs of words that both have in one piece, and the moves that turn one order into the other."""

from __future__ import annotations

from typing import Final, NamedTuple

from policies.guards.alignment import Pair
from policies.guards.profile import Item

_MAX_MOVES: Final = 4


class Block(NamedTuple):
    """A run of aligned items; positions count aligned items only."""

    stored: int
    """Where it begins in the stored text."""
    new: int
    size: int


class Comparison:
    """Aligned items of both texts. What counts as the same mark, and as a move, subclasses say."""

    def __init__(self, pair: Pair) -> None:
        order = pair.alignment.order
        places = sorted(place for _, place in order)
        rank = {place: number for number, place in enumerate(places)}
        self.stored: list[Item] = [pair.stored.items[place] for place in places]
        self.new: list[Item] = [pair.new.items[at] for at, _ in order]
        self.to = [rank[place] for _, place in order]
        """Position in the new text → position in the stored one."""
        self.strict = pair.stored.strict_order or pair.new.strict_order
        stored, new = pair.stored, pair.new
        ends = Item("", hard=stored.tail, links=stored.tail_links), Item("", hard=new.tail, links=new.tail_links)
        self.tails = ends if ends[0] != ends[1] else None

    def reason(self) -> str:
        """Why the texts differ; "" where they do not."""
        if self.tails is not None and not (self.same_links(*self.tails) and self.same_marks(*self.tails)):
            return "links"
        blocks = self._blocks()
        if isinstance(blocks, str):
            return blocks
        if len(blocks) == 1:
            return self.whole()
        if self.strict:
            return "order"
        return "" if self._reduces(blocks, _MAX_MOVES) else "order"

    def whole(self) -> str:
        """Why texts of the same order differ."""
        raise NotImplementedError

    def same_marks(self, before: Item, after: Item) -> bool:
        """Whether negations, modals and quantifiers before an item agree."""
        raise NotImplementedError

    def same_links(self, before: Item, after: Item) -> bool:
        """Whether prepositions and conjunctions before an item agree."""
        raise NotImplementedError

    def moves(self, p: Block, q: Block) -> bool:
        """Whether P Q in the stored text may be Q P in the new one."""
        raise NotImplementedError

    def _blocks(self) -> list[Block] | str:
        """Maximal runs, their insides compared; or why they differ."""
        blocks: list[Block] = []
        for at, place in enumerate(self.to):
            before, after = self.stored[place], self.new[at]
            if not self.same_marks(before, after):
                return "marks"
            if blocks and place == self.to[at - 1] + 1:
                if not self.same_links(before, after):
                    return "links"
                blocks[-1] = blocks[-1]._replace(size=blocks[-1].size + 1)
            else:
                if not blocks and place == 0 and not self.same_links(before, after):
                    return "links"
                blocks.append(Block(place, at, 1))
        return blocks

    def _joined(self, blocks: list[Block]) -> list[Block]:
        """Neighbours that now stand in the same order in both texts, made one."""
        joined = blocks[:1]
        for block in blocks[1:]:
            last = joined[-1]
            if last.stored + last.size == block.stored and self.same_links(
                self.stored[block.stored], self.new[block.new]
            ):
                joined[-1] = last._replace(size=last.size + block.size)
            else:
                joined.append(block)
        return joined

    def _reduces(self, blocks: list[Block], left: int) -> bool:
        """Whether at most `left` moves make one block of them."""
        blocks = self._joined(blocks)
        if len(blocks) == 1:
            return True
        if not left or len(blocks) > 2 * left + 1:
            return False
        for at in range(len(blocks) - 1):
            first, second = blocks[at], blocks[at + 1]
            if second.stored + second.size == first.stored and self.moves(second, first):
                whole = Block(second.stored, first.new, first.size + second.size)
                if self._reduces([*blocks[:at], whole, *blocks[at + 2 :]], left - 1):
                    return True
        return False
