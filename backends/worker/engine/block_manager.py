"""The paged KV pool's bookkeeping: who holds which block, and which block is taken next. Pure.

One state machine: a block is *in use* (references > 0) or *free*; either may hold KV that the prefix cache can find.
Free blocks are taken in this order: first those that hold nothing to be found, then the least recently used, and of
one sequence its tail before its head, which more prompts share. A free block that a prompt matches is taken back.

So no prefix outlives the one that it continues: whoever holds a block of it holds one of that as well, and gives it
back later.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from itertools import chain
from math import inf

from backends.worker.engine.prefix_cache import PrefixCache
from backends.worker.engine.sequence import Sequence
from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.kv_events import KvEvent
from policies.types import BlockHash, TokenIds

HashBlocks = Callable[[BlockHash, TokenIds, int], list[BlockHash]]
"""Hashes of the full blocks of some tokens: parent, ids and block size, as `extend_chain` takes them."""


class BlockManager:
    """`n_blocks` blocks of `block_size` tokens, numbered from 0. Nothing fails half way."""

    __slots__ = (
        "_cache",
        "_cached_free",
        "_empty",
        "_hash_blocks",
        "_held",
        "_model",
        "_references",
        "block_size",
        "n_blocks",
        "releases",
    )

    def __init__(self, n_blocks: int, block_size: int, model: str, *, hash_blocks: HashBlocks = extend_chain) -> None:
        """`model` is part of every hash: the name under which the gateway knows the model. Raises ValueError when
        one of the sizes is not positive.
        """
        if n_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {n_blocks} blocks of {block_size} tokens; both must be positive")
        self.n_blocks = n_blocks
        self.block_size = block_size
        self.releases = 0
        """How often blocks were given back: while it does not move, no room is made."""
        self._model = model
        self._hash_blocks = hash_blocks
        self._cache = PrefixCache(block_size)
        self._references = [0] * n_blocks
        self._empty = list(range(n_blocks - 1, -1, -1))  # free, nothing to be found; taken from the end
        self._cached_free: OrderedDict[int, None] = OrderedDict()  # free, can be found; taken from the front
        self._held: Counter[int] = Counter()  # by those who copy KV into or out of the pool

    # --- how full it is ---

    @property
    def free_blocks(self) -> int:
        """Blocks that no sequence holds, cached ones included."""
        return len(self._empty) + len(self._cached_free)

    @property
    def cached_blocks(self) -> int:
        """Blocks that can be found by their hash, in use or not; copies of one prefix count once."""
        return len(self._cache)

    @property
    def cached_hashes(self) -> frozenset[BlockHash]:
        """The hashes of those; a copy."""
        return self._cache.hashes

    @property
    def unused(self) -> list[int]:
        """The blocks that nobody holds, neither a sequence nor a copy; a new list."""
        return [*self._empty, *self._cached_free]

    def blocks_for(self, n_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-n_tokens // self.block_size)

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of these are free, so that taking them leaves fewer for others."""
        references = self._references
        return sum(1 for block in blocks if not references[block])

    # --- a sequence's blocks ---

    def match(self, sequence: Sequence) -> list[int]:
        """Blocks that hold the longest run of the sequence's leading full blocks, its last token left out: that is
        computed always, so that there is something to sample from. Changes nothing but the sequence's hashes; valid
        until the next `allocate`.
        """
        n_blocks = (sequence.n_tokens - 1) // self.block_size
        self._hash_up_to(sequence, n_blocks)
        ids = sequence.token_bytes(0, n_blocks * self.block_size)
        return self._cache.match(sequence.hashes[:n_blocks], ids, sequence.request.salt, sequence.came)

    def allocate(self, sequence: Sequence, n_tokens: int, matched: Items[int] = ()) -> bool:
        """Hold blocks for the sequence's leading `n_tokens` tokens: those it has, `matched` (only for one that has
        none), then free ones, evicting what was used longest ago. False, and nothing changed, when too few are free.
        """
        table = sequence.block_table
        n_new = self.blocks_for(n_tokens) - len(table) - len(matched)
        if n_new <= 0 and not matched:
            return True
        if n_new > self.free_blocks - (self.idle(matched) if matched else 0):
            return False
        if matched:
            assert not table, "blocks are matched once, at admission"
            self._take(matched)
            table.extend(matched)
            sequence.n_offered = len(matched)
            if sequence.expires != inf:
                self._cache.renew(matched, sequence.expires)
        for _ in range(n_new):
            table.append(self._take_free())
        return True

    def register(self, sequence: Sequence, n_tokens: int) -> None:
        """The step under way computes the sequence's leading `n_tokens` tokens, so the full blocks of these can be
        found from now on. Call it only for a sequence that is sure to stay in the step.
        """
        n_full = n_tokens // self.block_size
        if n_full <= sequence.n_offered:
            return
        self._hash_up_to(sequence, n_full)
        table, size, salt, end = sequence.block_table, self.block_size, sequence.request.salt, sequence.expires
        for at in range(sequence.n_offered, n_full):
            ids = sequence.token_bytes(at * size, (at + 1) * size)
            after = table[at - 1] if at else None
            if not self._cache.enter(table[at], sequence.hashes[at], ids, salt, after=after, expires=end):
                break  # nor will what follows it
        sequence.n_offered = n_full

    def free(self, sequence: Sequence) -> None:
        """Take back all the sequence's blocks. What can be found in them stays so until they are taken again."""
        self._give_back(sequence.block_table)
        sequence.block_table.clear()
        sequence.n_offered = 0

    # --- copies into and out of the pool ---

    def hold(self, blocks: Items[int]) -> None:
        """Keep what these blocks hold until they are let go: somebody reads them."""
        self._take(blocks)
        self._held.update(blocks)

    def reserve(self, n_blocks: int, *, after: Items[int]) -> list[int] | None:
        """Hold so many free blocks for somebody who fills them, and hold the `after` that they are to follow: a whole
        prefix as `match` found it. None, and nothing changed, when too few are free.
        """
        if n_blocks > self.free_blocks - self.idle(after):
            return None
        # First what they follow: nothing of it may be among those taken.
        self.hold(after)
        blocks = [self._take_free() for _ in range(n_blocks)]
        self._held.update(blocks)
        return blocks

    def let_go(self, blocks: Items[int]) -> None:
        """They are held no longer. What can be found in them stays so until they are taken again."""
        self._held.subtract(blocks)
        self._held += Counter()  # without zeros
        self._give_back(blocks)

    def adopt(self, sequence: Sequence, first: int, blocks: Items[int], *, after: int | None) -> int:
        """These held blocks were filled with the KV of the sequence's full blocks from number `first` on, which follow
        what block `after` holds (None: they begin the sequence). From now on it can be found; how many of them can.
        Between steps only.
        """
        size, salt = self.block_size, sequence.request.salt
        self._hash_up_to(sequence, first + len(blocks))
        entered = 0
        for at, block in enumerate(blocks, first):
            ids = sequence.token_bytes(at * size, (at + 1) * size)
            if not self._cache.enter(block, sequence.hashes[at], ids, salt, after=after, expires=sequence.expires):
                break
            after = block
            entered += 1
        self._cache.commit()
        return entered

    # --- the prefix cache as a whole ---

    def commit(self) -> None:
        """The step was computed: what it changed may be told."""
        self._cache.commit()

    def abort(self) -> None:
        """The step was not computed: nothing that it was to compute can be found. Its sequences hold their blocks
        still, of which the KV of those tokens is not there.
        """
        self._cache.abort()

    def clear(self, holders: Iterable[Sequence]) -> None:
        """Forget what is cached. `holders`, all sequences that hold blocks, keep them, and neither these blocks, full
        or not, nor what follows them will be found. Between steps only.
        """
        self._cache.clear()
        for sequence in holders:
            sequence.n_offered = self.n_blocks
        self._empty.extend(reversed(self._cached_free))
        self._cached_free.clear()

    def take_events(self) -> tuple[KvEvent, ...]:
        """Changes of the prefix cache since the last call, in order, as far as they were committed."""
        return self._cache.take_events()

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raise AssertionError unless `sequences`, which must be all that have blocks, and what is held account for
        every reference, free and used blocks for the pool, and the prefix cache is consistent. Microseconds a block.
        """
        counts = [0] * self.n_blocks
        for block in chain(*(sequence.block_table for sequence in sequences), self._held.elements()):
            counts[block] += 1
        assert counts == self._references, "block tables and reference counts disagree"
        free = self.unused
        unused = [block for block, count in enumerate(counts) if not count]
        assert sorted(free) == unused, "free + used != total"
        assert not any(block in self._cache for block in self._empty), "a block with cached KV passes for empty"
        assert all(block in self._cache for block in self._cached_free), "an empty block passes for cached"
        self._cache.check_integrity()

    def _give_back(self, blocks: Items[int]) -> None:
        self.releases += 1
        references = self._references
        for block in reversed(blocks):
            references[block] -= 1
            if references[block]:
                continue
            if block in self._cache:
                self._cached_free[block] = None
            else:
                self._empty.append(block)

    def _take(self, blocks: Items[int]) -> None:
        references = self._references
        for block in blocks:
            if not references[block]:
                del self._cached_free[block]
            references[block] += 1

    def _take_free(self) -> int:
        if self._empty:
            block = self._empty.pop()
        else:
            block, _ = self._cached_free.popitem(last=False)
            self._cache.forget(block)
        self._references[block] = 1
        return block

    def _hash_up_to(self, sequence: Sequence, n_blocks: int) -> None:
        hashes, size = sequence.hashes, self.block_size
        if len(hashes) >= n_blocks:
            return
        parent = hashes[-1] if hashes else root_hash(ChainKey(self._model, size, salt=sequence.request.salt))
        ids = sequence.token_bytes(len(hashes) * size, n_blocks * size)
        hashes.extend(self._hash_blocks(parent, ids, size))
