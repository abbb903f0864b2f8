"""Exact entries: the blocks that workers hold by what their KV events told, found by the engine's own hashes.

An engine's hashes are opaque, so each worker has a map from them to ours, which `BlockRemoved` and a parent's
hash are looked up in; our hash is recomputed from the event's tokens and the parent's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cache.block_hash import extend_chain
from cache.untold_salts import root_of
from cache.worker_blocks import follows_group, tier_of
from policies.types import Tier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cache.block_tables import BlockTables
    from cache.kv_events import BlockRemoved, BlockStored, EngineHash
    from cache.predictions import Predictions
    from cache.worker_blocks import EngineMap, PrefixIndexStats, WorkerBlocks
    from policies.types import BlockHash


class ExactBlocks:
    """All exact entries of a fleet; each worker's are in its `engines`."""

    def __init__(self, tables: BlockTables, predictions: Predictions, stats: PrefixIndexStats) -> None:
        self._tables = tables
        self._predictions = predictions
        self._stats = stats
        self.n_held = 0
        """Exact entries of all workers."""

    def read(self, state: WorkerBlocks, event: BlockStored, rank: int) -> tuple[Tier, list[BlockHash]] | None:
        """Where the event's leading blocks belong and our hashes of them; None, and counted, when the index
        cannot use it.
        """
        n_blocks = len(event.block_hashes)
        tier = tier_of(event.medium)
        if tier is None:
            self._stats.unknown_medium += n_blocks
            return None
        if not follows_group(state, event):
            self._stats.ignored_group += n_blocks
            return None
        if event.parent is None and state.block_size is None:
            state.block_size = event.block_size
        if event.block_size != state.block_size:
            self._stats.foreign_block_size += n_blocks
            return None
        if event.n_plain == 0:
            self._stats.not_plain += n_blocks
            return None
        parent = _parent(state, event, rank, tier)
        if parent is None:
            if event.parent is None:
                self._stats.unknown_salt += n_blocks
            else:
                self._stats.unknown_parent += n_blocks
            return None
        ours = extend_chain(parent, event.token_ids, event.block_size)
        if event.n_plain is not None:
            self._stats.not_plain += n_blocks - event.n_plain
            del ours[event.n_plain :]
        return tier, ours

    def insert(
        self,
        state: WorkerBlocks,
        key: tuple[int, Tier],
        engine_hashes: Sequence[EngineHash],
        ours: Sequence[BlockHash],
    ) -> None:
        """The worker holds these blocks, of one rank and tier, from now on; those predicted are confirmed."""
        engines = state.engines.setdefault(key, {})
        tier = key[1]
        tables = self._tables
        bit, table, added, confirmed = state.bit, tables.of_tier[tier], 0, 0
        # zip stops at the shorter: blocks past the placeable ones are left out.
        for engine_hash, block in zip(engine_hashes, ours, strict=False):
            known = engines.get(engine_hash)
            if known is not None:
                if known == block:
                    continue
                # The engine gave an old hash to another block: the old one is gone.
                self.forget(state, tier, engines, engine_hash)
                state.tear()
            engines[engine_hash] = block
            added += 1
            mask = table.get(block)
            if mask is None:
                table[block] = bit
            elif not mask & bit:
                table[block] = tables.intern(mask | bit)
            elif tier is Tier.DEVICE and block in state.predicted:
                del state.predicted[block]
                confirmed += 1
            else:
                state.extra_refs[tier, block] += 1
        state.n_exact += added
        self.n_held += added
        self._predictions.count(state, -confirmed)

    def remove(self, state: WorkerBlocks, event: BlockRemoved, rank: int) -> None:
        """Drop what the worker says it no longer holds."""
        tier = tier_of(event.medium)
        if tier is None:
            self._stats.unknown_medium += len(event.block_hashes)
            return
        if event.group is not None and event.group in state.ignored_groups:
            return
        engines = state.engines.get((rank, tier))
        if not engines:
            return
        state.tear()
        for engine_hash in event.block_hashes:
            if engine_hash in engines:
                self.forget(state, tier, engines, engine_hash)

    def forget(self, state: WorkerBlocks, tier: Tier, engines: EngineMap, engine_hash: EngineHash) -> None:
        """Drop one entry, which is in `engines`."""
        block = engines.pop(engine_hash)
        state.n_exact -= 1
        self.n_held -= 1
        if state.extra_refs:
            self._tables.release(state, tier, block)
        else:
            self._tables.unset(state, tier, block)  # nearly always, and one call less


def _parent(state: WorkerBlocks, event: BlockStored, rank: int, tier: Tier) -> BlockHash | None:
    if event.parent is None:
        return root_of(state, event, rank)
    for place in (tier, *Tier):
        engines = state.engines.get((rank, place))
        if engines is not None and (ours := engines.get(event.parent)) is not None:
            return ours
    return None
