"""Which bit means which worker: the bit of one that was cleared is swept clean before it is given away again."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from cache.worker_blocks import WorkerBlocks
from policies.types import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cache.block_tables import BlockTables
    from cache.worker_blocks import WorkerTraits
    from policies.types import WorkerId

_MAX_NAMED: Final = 4096


class WorkerSlots:
    """Every slot is one worker's, being swept, or free."""

    def __init__(self, tables: BlockTables) -> None:
        self._tables = tables
        self.owners: list[WorkerBlocks | None] = []
        self.free: list[int] = []
        """A heap of the slots whose bit is nowhere set."""
        self.retired: deque[WorkerBlocks] = deque()
        """What workers were known to hold before they were cleared: of no worker any more, still in the tables."""
        self.n_stale = 0
        """Entries of those."""
        self._names_of: dict[int, tuple[WorkerId, ...]] = {}
        """Mask -> its workers, as often asked by a match; void when a slot changes hands."""

    def place(self, worker: WorkerId, traits: WorkerTraits) -> WorkerBlocks:
        """A worker that holds nothing, in a slot whose bit is clean."""
        if self.free:
            slot = heappop(self.free)
        else:
            slot = len(self.owners)
            self.owners.append(None)
        state = self.owners[slot] = WorkerBlocks(worker, slot, traits)
        self._names_of.clear()
        return state

    def vacate(self, state: WorkerBlocks) -> None:
        """The worker leaves, and all it held has been taken out of the tables."""
        self.owners[state.slot] = None
        heappush(self.free, state.slot)

    def retire(self, state: WorkerBlocks) -> None:
        """From now on its bit means no worker; what it held is swept later."""
        state.retired = True
        self.owners[state.slot] = None
        self._names_of.clear()
        self.retired.append(state)
        self.n_stale += state.size

    def sweep(self, n_blocks: int) -> int:
        """Take up to `n_blocks` entries of retired workers out of the tables; how many remain."""
        while n_blocks > 0 and self.retired:
            state = self.retired[0]
            before = state.size
            self._dismantle(state, n_blocks)
            swept = before - state.size
            n_blocks -= swept
            self.n_stale -= swept
            if not state.size:
                self.retired.popleft()
                heappush(self.free, state.slot)
        return self.n_stale

    def holders(self, mask: int) -> Iterator[WorkerBlocks]:
        """The workers of a mask, in the order of their slots; the bits of retired ones mean nobody."""
        while mask:
            low = mask & -mask
            state = self.owners[low.bit_length() - 1]
            if state is not None:
                yield state
            mask ^= low

    def names(self, mask: int) -> tuple[WorkerId, ...]:
        """The names of a mask's workers."""
        names = self._names_of.get(mask)
        if names is None:
            if len(self._names_of) >= _MAX_NAMED:
                self._names_of.clear()
            names = self._names_of[mask] = tuple([state.id for state in self.holders(mask)])
        return names

    def _dismantle(self, state: WorkerBlocks, n_blocks: int) -> None:
        """Take the newest `n_blocks` entries, or all, of a retired worker out of the tables."""
        for (_, tier), engines in state.engines.items():
            n_taken = min(n_blocks, len(engines))
            for _ in range(n_taken):
                self._tables.release(state, tier, engines.popitem()[1])
            state.n_exact -= n_taken
            n_blocks -= n_taken
        for _ in range(min(n_blocks, len(state.predicted))):
            self._tables.unset(state, Tier.DEVICE, state.predicted.popitem()[0])
