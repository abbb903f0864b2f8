"""Predicted entries: blocks that a worker is expected to hold until a time, from where requests were just sent.

An event that confirms one makes it an exact entry; the others go when their time has come, or when the request
that was to bring them has failed.

Of a worker without events nothing is ever confirmed. Where its capacity is known, its predictions have no deadline
but that capacity: they go as an engine evicts, the least recently used prompt first and each from its end. Their order
is kept in one linked dict: a use moves a prompt's blocks to the end of it, the last block first, so that whatever is
dropped from its head has no successor left.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import count, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from policies.types import Tier

if TYPE_CHECKING:
    from collections import OrderedDict
    from collections.abc import Sequence

    from cache.block_tables import BlockTables
    from cache.worker_blocks import WorkerBlocks
    from policies.types import BlockHash

_FRACTION: Final = 4
"""At most a quarter of the index is predictions with a deadline: guesses never push out most of what is known."""


class Open(NamedTuple):
    """What a prediction has still to say."""

    blocks: list[BlockHash]
    """To be predicted or prolonged, each once, in order."""
    n_new: int
    """Those of them that are not predicted yet."""


_NOTHING: Final = Open([], 0)


class Predictions:
    """All predictions of a fleet, in the order of their deadlines; each worker's are in its `predicted`."""

    def __init__(self, tables: BlockTables, *, max_blocks: int) -> None:
        self._tables = tables
        self.resize(max_blocks)
        self.n_held = 0
        """Predicted entries of all workers."""
        self.n_recent = 0
        """Those of workers with a capacity, which are not in the queue."""
        self.queue: list[tuple[float, int, WorkerBlocks, list[BlockHash]]] = []
        """A heap, one entry per prediction: deadline, ticket against ties, worker, blocks."""
        self.n_queued = 0
        """Blocks in that heap; those prolonged or confirmed since are still in it."""
        self._ticket = count()

    def resize(self, max_blocks: int) -> None:
        """Take up another bound of the index; what is too much goes with the next prediction."""
        self._bound = max(1, max_blocks // _FRACTION)

    def prepare(self, state: WorkerBlocks, hashes: Sequence[BlockHash], start: int, deadline: float) -> Open:
        """What predicting `hashes[start:]` until `deadline` would change, as much as fits in the bound: the
        oldest predictions go before their time to make it fit.
        """
        capacity = state.traits.capacity
        if capacity is not None and len(hashes) > capacity:
            hashes = hashes[:capacity]
        if start >= len(hashes):
            return _NOTHING
        predicted = state.predicted
        if deadline > state.torn_until and (
            predicted.get(hashes[-1], 0.0) >= deadline <= predicted.get(hashes[start], 0.0)
        ):
            # Both ends are predicted for that long, so whatever lies between was too, in the same call.
            return _NOTHING
        if state.recency is not None:
            return self._used(state, hashes, start)
        fresh = self._unconfirmed(state, hashes, start, deadline)[: self._bound]
        n_new = _count_new(state, fresh)
        while self.n_held - self.n_recent + n_new > self._bound or self.n_queued + len(fresh) > 2 * self._bound:
            if not self.queue:
                break
            self._expire_first()
            n_new = _count_new(state, fresh)
        return Open(fresh, n_new)

    def add(self, state: WorkerBlocks, opened: Open, deadline: float, *, at_root: bool) -> list[BlockHash]:
        """Predict what was prepared; which blocks were not predicted before. Unless it begins `at_root`, what
        comes before it need not be there for that long. For a worker with a capacity `deadline` is the time of use.
        """
        fresh = opened.blocks
        added = fresh if opened.n_new == len(fresh) else [block for block in fresh if block not in state.predicted]
        device, intern, bit = self._tables.device, self._tables.intern, state.bit
        for block in added:
            device[block] = intern(device.get(block, 0) | bit)
        self.count(state, len(added))
        if not at_root:
            state.tear()
        if (recency := state.recency) is not None:
            recency.update(dict.fromkeys(reversed(fresh), deadline))
            if len(added) < len(fresh):
                deque(map(recency.move_to_end, reversed(fresh)), maxlen=0)
            self.trim(state, recency)
            return added
        state.predicted.update(dict.fromkeys(fresh, deadline))
        self.n_queued += len(fresh)
        heappush(self.queue, (deadline, next(self._ticket), state, fresh))
        return added

    def trim(self, state: WorkerBlocks, recency: OrderedDict[BlockHash, float]) -> None:
        """Drop what is beyond the worker's capacity."""
        capacity = state.traits.capacity
        if capacity is not None and len(recency) > capacity:
            self.drop_oldest(state, recency, len(recency) - capacity)

    def drop_oldest(self, state: WorkerBlocks, recency: OrderedDict[BlockHash, float], n_blocks: int) -> None:
        """Drop the `n_blocks` least recently used ones, which there must be."""
        device, intern, bit, torn = self._tables.device, self._tables.intern, state.bit, state.torn_until
        for _ in range(n_blocks):
            block, used = recency.popitem(last=False)
            if mask := device[block] ^ bit:
                device[block] = intern(mask)
            else:
                del device[block]
            torn = max(used, torn)
        state.torn_until = torn
        self.count(state, -n_blocks)

    def count(self, state: WorkerBlocks, n_blocks: int) -> None:
        """So many more, or fewer, are predicted of this worker."""
        self.n_held += n_blocks
        if state.traits.capacity is not None:
            self.n_recent += n_blocks

    def take_back(self, state: WorkerBlocks, blocks: Sequence[BlockHash]) -> int:
        """Drop those of `blocks` that are predicted; how many they were."""
        predicted = [block for block in blocks if block in state.predicted]
        for block in predicted:
            self.drop(state, block)
        return len(predicted)

    def expire(self, now: float) -> int:
        """Drop the predictions whose time has come; how many they were."""
        dropped = 0
        while self.queue and self.queue[0][0] <= now:
            dropped += self._expire_first()
        return dropped

    def drop(self, state: WorkerBlocks, block: BlockHash) -> None:
        """Take one out, before its time or at it."""
        # Whatever is predicted for longer was predicted without this block, so it misses nothing.
        state.torn_until = max(state.torn_until, state.predicted.pop(block))
        self.count(state, -1)
        self._tables.unset(state, Tier.DEVICE, block)

    def _expire_first(self) -> int:
        deadline, _, state, blocks = heappop(self.queue)
        self.n_queued -= len(blocks)
        if state.retired:
            return 0
        # A later deadline belongs to a later prediction, which has an entry of its own in the queue.
        due = [block for block in blocks if state.predicted.get(block) == deadline]
        for block in due:
            self.drop(state, block)
        return len(due)

    def _used(self, state: WorkerBlocks, hashes: Sequence[BlockHash], start: int) -> Open:
        """All predictions that a use of the prompt makes or renews: those before `start` too, for a block must not
        outlive its parent.
        """
        device, predicted, bit = self._tables.device, state.predicted, state.bit
        head = [block for block in islice(hashes, start) if block in predicted]
        tail = [block for block in islice(hashes, start, None) if block in predicted or not device.get(block, 0) & bit]
        fresh = list(dict.fromkeys((*head, *tail)))
        return Open(fresh, _count_new(state, fresh))

    def _unconfirmed(
        self, state: WorkerBlocks, hashes: Sequence[BlockHash], start: int, deadline: float
    ) -> list[BlockHash]:
        """The blocks of `hashes[start:]`, each once, that a prediction until `deadline` changes anything
        for.
        """
        device, predicted, bit = self._tables.device, state.predicted, state.bit
        return [
            block
            for block in dict.fromkeys(islice(hashes, start, None))
            if (predicted[block] < deadline if block in predicted else not device.get(block, 0) & bit)
        ]


def _count_new(state: WorkerBlocks, blocks: Sequence[BlockHash]) -> int:
    return len(blocks) - sum(map(state.predicted.__contains__, blocks))
