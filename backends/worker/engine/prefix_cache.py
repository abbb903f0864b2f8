"""Which block of the pool holds which prefix: an exact index by hash, and the KV events that tell of it. Pure.

A prefix of full blocks is one node (`CachedPrefix`), known by its last block's token ids and by its predecessor,
which is the very node of the prefix one block shorter. Our hashes have 64 bits, can be forged, and here they select
KV: so a match follows the chain from node to node and compares salt and token ids of each. Nodes, not block numbers,
are what is compared: a number is reused when its block is evicted, a node never comes back.

- A prefix that several blocks hold (two sequences filled one with the same tokens each) is one node with several
  blocks. Events tell what can be found, so they tell of the first and of the last.
- Of two prefixes with one hash the first is kept, and the second, with all that follows it, is not cached. So a hash
  in an event always means one prefix.
- A prefix is listed only while its predecessor is: `BlockManager` frees the tail of a sequence before its head.

What a step computes can be found as soon as the step is planned, for the runner writes a layer's KV of the whole batch
before any of it is read. It is told with `commit`, or taken back with `abort`.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from math import inf
from typing import Final

from cache.block_hash import TOKEN_BYTES
from cache.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, KvEvent
from policies.types import BlockHash, TokenIds

_MEDIUM: Final = "GPU"
"""What engines call the tier in which they compute, whatever the device is."""


class CachedPrefix:
    """The prefix that ends with these tokens. Compared by identity."""

    __slots__ = ("block_hash", "blocks", "expires", "parent", "salt", "token_ids")

    def __init__(self, block_hash: BlockHash, parent: CachedPrefix | None, token_ids: TokenIds, salt: str) -> None:
        self.block_hash = block_hash
        self.parent = parent
        """The prefix one block shorter; None for the first block."""
        self.token_ids = token_ids
        """Of its last block."""
        self.salt = salt
        self.blocks: list[int] = []
        """Blocks of the pool that hold its last block's KV, oldest first."""
        self.expires = inf
        """From then on it is not found any more, unless it is used or made anew before."""

    def ends_with(self, parent: CachedPrefix | None, token_ids: TokenIds, salt: str) -> bool:
        """Is it the prefix that goes on from `parent` with these tokens?"""
        return self.parent is parent and self.token_ids == token_ids and self.salt == salt


class PrefixCache:
    """The index. It holds no references: what becomes of a block is the block manager's to decide."""

    __slots__ = ("_block_bytes", "_block_size", "_by_hash", "_events", "_fresh", "_log", "_of_block")

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._block_bytes = TOKEN_BYTES * block_size
        self._by_hash: dict[BlockHash, CachedPrefix] = {}
        self._of_block: dict[int, CachedPrefix] = {}
        # Of the step under way: blocks that it entered, and in order what to tell (a node: it can be found; a
        # hash: it is gone).
        self._fresh: list[int] = []
        self._log: list[CachedPrefix | BlockHash] = []
        self._events: list[KvEvent] = []

    def __len__(self) -> int:
        """Prefixes that can be found."""
        return len(self._by_hash)

    def __contains__(self, block: int) -> bool:
        """Does this block hold KV that can be found?"""
        return block in self._of_block

    @property
    def hashes(self) -> frozenset[BlockHash]:
        """Of everything that can be found; a copy."""
        return frozenset(self._by_hash)

    def match(self, hashes: Items[BlockHash], ids: TokenIds, salt: str, now: float = 0.0) -> list[int]:
        """Blocks that hold the longest run of leading blocks of `ids`, which `hashes` belong to, as far as it has not
        expired `now`. Changes nothing; the result is valid until a block is allocated.
        """
        step, find = self._block_bytes, self._by_hash.get
        found: list[int] = []
        parent: CachedPrefix | None = None
        for at, block_hash in enumerate(hashes):
            node = find(block_hash)
            if node is None or not node.ends_with(parent, TokenIds(ids[at * step : (at + 1) * step]), salt):
                break
            if node.expires <= now:
                break
            found.append(node.blocks[0])
            parent = node
        return found

    def renew(self, blocks: Items[int], expires: float) -> None:
        """What these blocks hold was used: it is found until then."""
        for block in blocks:
            node = self._of_block.get(block)
            if node is not None:
                node.expires = expires

    def enter(
        self,
        block: int,
        block_hash: BlockHash,
        token_ids: TokenIds,
        salt: str,
        *,
        after: int | None,
        expires: float = inf,
    ) -> bool:
        """The step under way fills `block` with the KV of these tokens, which follow what block `after` holds (None:
        they begin the sequence), and may be found until `expires`. False, and nothing changed, when they cannot be
        found: what they follow cannot, or another prefix has their hash.
        """
        parent = None if after is None else self._of_block.get(after)
        if parent is None and after is not None:
            return False
        node = self._by_hash.get(block_hash)
        if node is None:
            node = CachedPrefix(block_hash, parent, token_ids, salt)
            self._by_hash[block_hash] = node
            self._log.append(node)
        elif not node.ends_with(parent, token_ids, salt):
            return False
        node.expires = expires
        node.blocks.append(block)
        self._of_block[block] = node
        self._fresh.append(block)
        return True

    def forget(self, block: int) -> None:
        """A block that can be found is about to be overwritten."""
        node = self._drop(block)
        if not node.blocks:
            self._log.append(node.block_hash)

    def commit(self) -> None:
        """The step was computed: what changed with it may be told."""
        self._fresh.clear()
        self._tell()

    def abort(self) -> None:
        """The step was not computed: forget the blocks that it entered. What it evicted stays evicted."""
        for block in self._fresh:
            self._drop(block)
        self._fresh.clear()
        # A node that the step made has no blocks left, and nobody was told of it.
        self._log = [entry for entry in self._log if not isinstance(entry, CachedPrefix)]
        self._tell()

    def clear(self) -> None:
        """Forget everything. Between steps only."""
        self._of_block.clear()
        self._by_hash.clear()
        self._events.append(AllBlocksCleared())

    def take_events(self) -> tuple[KvEvent, ...]:
        """What has changed since the last call, in order, as far as it was committed."""
        events = tuple(self._events)
        self._events.clear()
        return events

    def check_integrity(self) -> None:
        """Raise AssertionError unless both indexes agree and every chain is whole."""
        listed = {block: node for node in self._by_hash.values() for block in node.blocks}
        assert listed == self._of_block, "the index by hash and the index by block disagree"
        assert len(listed) == sum(len(node.blocks) for node in self._by_hash.values()), "a block is listed twice"
        for block_hash, node in self._by_hash.items():
            assert node.block_hash == block_hash, "a prefix is listed under another's hash"
            assert node.blocks, "a prefix without a block can be found"
            assert len(node.token_ids) == self._block_bytes, "a prefix does not end with a full block"
            parent = node.parent
            assert parent is None or self._by_hash.get(parent.block_hash) is parent, "a prefix outlived its parent"
            assert parent is None or parent.salt == node.salt, "a prefix has another salt than its parent"

    def _drop(self, block: int) -> CachedPrefix:
        node = self._of_block.pop(block)
        node.blocks.remove(block)
        if not node.blocks:
            del self._by_hash[node.block_hash]
        return node

    def _tell(self) -> None:
        """Turn the log into as few events as say the same in the same order."""
        stored: list[CachedPrefix] = []
        removed: list[BlockHash] = []
        for entry in self._log:
            if not isinstance(entry, CachedPrefix):
                self._tell_stored(stored)
                removed.append(entry)
                continue
            self._tell_removed(removed)
            if stored and entry.parent is not stored[-1]:
                self._tell_stored(stored)
            stored.append(entry)
        self._tell_stored(stored)
        self._tell_removed(removed)
        self._log.clear()

    def _tell_stored(self, run: list[CachedPrefix]) -> None:
        """Nodes of which each follows the one before."""
        if not run:
            return
        first = run[0]
        event = BlockStored(
            tuple([EngineHash(node.block_hash) for node in run]),
            None if first.parent is None else EngineHash(first.parent.block_hash),
            TokenIds(b"".join([node.token_ids for node in run])),
            self._block_size,
            medium=_MEDIUM,
            salt=first.salt or None if first.parent is None else None,
        )
        self._events.append(event)
        run.clear()

    def _tell_removed(self, hashes: list[BlockHash]) -> None:
        if hashes:
            self._events.append(BlockRemoved(tuple(map(EngineHash, hashes)), medium=_MEDIUM))
            hashes.clear()
