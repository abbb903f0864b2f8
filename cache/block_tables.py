"""Block hash -> the workers that hold it, a bit mask per tier: one look-up answers for the whole fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from policies.types import Tier

if TYPE_CHECKING:
    from cache.worker_blocks import WorkerBlocks
    from policies.types import BlockHash

_MAX_INTERNED: Final = 4096


class BlockTables:
    """One table per tier. A mask in a table is never 0: a block that nobody holds is not in it."""

    __slots__ = ("_masks", "device", "of_tier")

    def __init__(self) -> None:
        self.of_tier: dict[Tier, dict[BlockHash, int]] = {tier: {} for tier in Tier}
        self.device = self.of_tier[Tier.DEVICE]
        self._masks: dict[int, int] = {}
        """Equal masks are one object where that is cheap: less memory, and a match compares by identity."""

    def intern(self, mask: int) -> int:
        """The mask, as the object that stands for it everywhere."""
        masks = self._masks
        if len(masks) >= _MAX_INTERNED:
            masks.clear()
        return masks.setdefault(mask, mask)

    def unset(self, state: WorkerBlocks, tier: Tier, block: BlockHash) -> None:
        """The worker, whose bit is set, holds the block no longer."""
        table = self.of_tier[tier]
        mask = table[block] ^ state.bit
        if mask:
            table[block] = self.intern(mask)
        else:
            del table[block]

    def release(self, state: WorkerBlocks, tier: Tier, block: BlockHash) -> None:
        """One engine hash less stands for the block."""
        if not state.extra_refs or (tier, block) not in state.extra_refs:
            self.unset(state, tier, block)
            return
        state.extra_refs[tier, block] -= 1
        if not state.extra_refs[tier, block]:
            del state.extra_refs[tier, block]
