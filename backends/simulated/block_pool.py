"""The KV block pool: reference counts, prefix cache, least recently used free list. Pure.

One state machine: a block is *in use* (references > 0) or *free*; either may carry a hash. A free block with
a hash is cached: it can be matched and taken back, or evicted when its turn in the free list comes. The order
of the free list is vLLM's: never used blocks first, then by time of release, a sequence's tail before its
head (so that the head, which more prompts share, lives longest).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from backends.simulated.kv_chain import EngineHash
from policies.types import Tier


@dataclass(frozen=True, slots=True)
class Stored:
    """Consecutive blocks that became findable: `hashes[0]` follows `parent` (None: it starts its chain)."""

    hashes: tuple[EngineHash, ...]
    parent: EngineHash | None
    owner: object
    first_block: int
    tier: Tier = Tier.DEVICE


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks of which the last copy on a tier is gone."""

    hashes: tuple[EngineHash, ...]
    tier: Tier = Tier.DEVICE


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing is cached any more."""


PoolEvent = Stored | Removed | Cleared


class BlockPool:
    """`capacity` blocks. Mutating methods never fail half way: ask `has_room` before `allocate`."""

    __slots__ = ("_copies", "_events", "_free", "_fresh", "_hash_of", "_references", "capacity", "releases")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.releases = 0
        """How many times blocks were given back: when it has not moved, what did not fit still does not."""
        self._free: OrderedDict[int, None] = OrderedDict()
        self._fresh = 0
        self._references: list[int] = []
        self._hash_of: list[EngineHash | None] = []
        self._copies: dict[EngineHash, list[int]] = {}
        self._events: list[PoolEvent] = []

    @property
    def free(self) -> int:
        """Blocks that nobody uses, cached or not."""
        return len(self._free) + self.capacity - self._fresh

    @property
    def used(self) -> int:
        """Blocks that some sequence holds."""
        return self._fresh - len(self._free)

    @property
    def cached(self) -> int:
        """Distinct hashes that can be matched now."""
        return len(self._copies)

    def match(self, hashes: Sequence[EngineHash], limit: int) -> list[int]:
        """Block ids of the longest run of leading `hashes` held here, at most `limit`. Changes nothing."""
        copies = self._copies
        found: list[int] = []
        for index in range(min(limit, len(hashes))):
            blocks = copies.get(hashes[index])
            if blocks is None:
                break
            found.append(blocks[0])
        return found

    def has_room(self, new_blocks: int, matched: Sequence[int] = ()) -> bool:
        """Whether `matched` can be taken and `new_blocks` allocated besides."""
        references = self._references
        idle = sum(1 for block in matched if references[block] == 0)
        return new_blocks <= self.free - idle

    def take(self, matched: Sequence[int]) -> None:
        """Hold blocks returned by `match` (nothing may have been allocated since)."""
        for block in matched:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Hold `count` empty blocks, evicting what was used longest ago. Needs `has_room(count)`."""
        fresh = min(count, self.capacity - self._fresh)
        blocks = list(range(self._fresh, self._fresh + fresh))
        self._fresh += fresh
        self._references.extend([1] * fresh)
        self._hash_of.extend([None] * fresh)
        evicted: list[EngineHash] = []
        for _ in range(count - fresh):
            block, _none = self._free.popitem(last=False)
            self._references[block] = 1
            self._forget(block, evicted)
            blocks.append(block)
        if evicted:
            self._events.append(Removed(tuple(evicted)))
        return blocks

    def store(
        self,
        blocks: Sequence[int],
        hashes: Sequence[EngineHash],
        *,
        parent: EngineHash | None,
        owner: object,
        first_block: int,
    ) -> None:
        """Make full blocks findable: `blocks[i]` holds the content `hashes[i]`, chained on `parent`.

        A content that another block holds already gets a second copy (vLLM never merges blocks of a running
        sequence) and no event: events tell what *can be found*, not how often.
        `owner` and `first_block` travel in the event, so that its reader can look up the token ids.
        """
        run: list[EngineHash] = []
        run_parent, run_start = parent, first_block
        for offset, (block, block_hash) in enumerate(zip(blocks, hashes, strict=True)):
            self._hash_of[block] = block_hash
            copies = self._copies.get(block_hash)
            if copies is None:
                self._copies[block_hash] = [block]
                run.append(block_hash)
                continue
            copies.append(block)
            if run:
                self._events.append(Stored(tuple(run), run_parent, owner, run_start))
            run = []
            run_parent, run_start = block_hash, first_block + offset + 1
        if run:
            self._events.append(Stored(tuple(run), run_parent, owner, run_start))

    def release(self, blocks: Sequence[int]) -> None:
        """Give back one hold on each block of a sequence, head first in `blocks`, freed tail first."""
        self.releases += 1
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None

    def clear_cache(self) -> bool:
        """Forget every cached block; refused (False) while any block is in use, as vLLM refuses."""
        if self.used:
            return False
        self._copies.clear()
        self._hash_of = [None] * self._fresh
        self._events.append(Cleared())
        return True

    def take_events(self) -> list[PoolEvent]:
        """Events since the last call, in order; the caller owns the list."""
        events, self._events = self._events, []
        return events

    def check_integrity(self) -> None:
        """Raise AssertionError unless free + used == capacity and every index agrees with every other."""
        counts = self._references
        held = sum(1 for count in counts if count > 0)
        assert min(counts, default=0) >= 0, "a block was released more often than held"
        assert held + self.free == self.capacity, "free + used != capacity"
        assert {b for b, count in enumerate(counts) if count == 0} == set(self._free)
        listed = {block: key for key, copies in self._copies.items() for block in copies}
        carried = {block: key for block, key in enumerate(self._hash_of) if key is not None}
        assert listed == carried, "hash index and blocks disagree"

    def _forget(self, block: int, evicted: list[EngineHash]) -> None:
        block_hash = self._hash_of[block]
        if block_hash is None:
            return
        self._hash_of[block] = None
        copies = self._copies[block_hash]
        copies.remove(block)
        if not copies:
            del self._copies[block_hash]
            evicted.append(block_hash)
