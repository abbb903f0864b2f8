"""Which workers hold which blocks: exact from their KV events, predicted from where requests were just sent.

One global table per tier maps our chained block hash to a bit mask of workers (`block_tables`); matching is one
walk over a prompt's hashes. Its entries are exact (`exact_blocks`) or predicted (`predictions`).

What is unknown is not cached. A block whose parent is not known, of an unknown medium, block size or cache
group, or one that depends on an image, is counted and left out. Everything is bounded: when `max_blocks`
entries are held, the oldest of the worker that holds most make room. All of these, an eviction with a child
still listed too, make the index claim less than the truth: a match ends at the first block that is not there.

A worker that held much and is cleared gets a new bit at once (`worker_slots`), so nothing of the old matches
from then on. The old bit is swept out of the tables in steps, and is not given away again before it is clean.

What a worker has on a tier that others read too, such as one Redis for all, those others have as well: whoever names
the same store is of one group (`store_groups`). Only `match_runs` and `match_tiers` look at tiers beyond the device.

Two limits of what events tell. An engine may publish blocks of salted prompts without their salt: what is done
about that stands in `untold_salts`. And for hybrid models only the first full-attention group is followed (a block
is gone as soon as any full-attention group drops it): whether the sliding window or the state of the last blocks is
still there, the engine alone knows.
"""

from __future__ import annotations

from itertools import groupby, repeat
from typing import TYPE_CHECKING, Final

from cache.block_tables import BlockTables
from cache.eviction import evict
from cache.exact_blocks import ExactBlocks
from cache.index_integrity import check_counts, check_groups, check_queue, check_slots, check_tables
from cache.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from cache.predictions import Predictions
from cache.store_groups import StoreGroups
from cache.untold_salts import lapse_salts, note_salt
from cache.worker_blocks import NO_VICTIMS, PrefixIndexStats, WorkerTraits
from cache.worker_slots import WorkerSlots
from policies.types import Tier, TierRun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cache.kv_events import KvEvent
    from cache.worker_blocks import WorkerBlocks
    from policies.types import BlockHash, WorkerId

_SWEEP_STEP: Final = 128
"""Entries of cleared workers swept by each `expire`: some tens of microseconds."""
_MAX_RUNS: Final = 64
"""How often a chain may change tier on a worker; behind that it counts as not there. Few do so twice."""


class PrefixIndex:
    """The blocks of a fleet. Synchronous and single-threaded; every method leaves it consistent.

    Its size, `len()`, counts entries: one per engine block held (per rank and tier) and one per predicted
    block. Together with what is still to be swept, `stale_count`, it never exceeds `max_blocks`.
    """

    def __init__(self, *, max_blocks: int, clear_at_once: int = 1024) -> None:
        """A worker with up to `clear_at_once` entries is cleared on the spot, which by default takes less than
        a millisecond; one with more is given a new bit and swept later.
        """
        _check_bound(max_blocks)
        self.max_blocks = max_blocks
        self._clear_at_once = clear_at_once
        self.stats = PrefixIndexStats()
        self._workers: dict[WorkerId, WorkerBlocks] = {}
        self._tables = BlockTables()
        self._device = self._tables.device
        self._slower = [table for tier, table in self._tables.of_tier.items() if tier is not Tier.DEVICE]
        self._slots = WorkerSlots(self._tables)
        self._names = self._slots.names
        self._groups = StoreGroups()
        self._predictions = Predictions(self._tables, max_blocks=max_blocks)
        self._exact = ExactBlocks(self._tables, self._predictions, self.stats)
        self._now = 0.0
        """The latest time anybody told."""

    # --- the fleet ---

    def add_worker(
        self,
        worker: WorkerId,
        *,
        model: str,
        block_size: int | None = None,
        capacity: int | None = None,
        salts_told: bool = False,
    ) -> None:
        """Begin to follow a worker that serves `model`; a worker known already is forgotten first.

        Blocks of another size than `block_size` do not count; without it the first event that starts a prompt
        sets it. For `capacity` see `set_capacity`. With `salts_told` its events are known to tell the salt of a
        prompt that has one; otherwise that is believed once one does (see `untold_salts`).
        """
        _check_capacity(capacity)
        self.remove_worker(worker)
        self._workers[worker] = self._slots.place(worker, WorkerTraits(model, block_size, capacity, salts_told))

    def set_capacity(self, worker: WorkerId, blocks: int | None) -> None:
        """How many blocks fit in the cache of a worker that publishes no events: what is predicted of it then never
        expires, but beyond that number the least recently used prompts go, each from its end, as an engine evicts.
        None: predictions expire by time. Unknown names are fine.

        Changing the number keeps what fits. Beginning or ending to go by one forgets the worker's predictions.
        Raises ValueError when `blocks` is not positive.
        """
        _check_capacity(blocks)
        state = self._workers.get(worker)
        if state is None or state.traits.capacity == blocks:
            return
        if blocks is None or state.traits.capacity is None:
            for block in list(state.predicted):
                self._predictions.drop(state, block)
            state.traits = state.traits._replace(capacity=blocks)
            state.begin_predictions()
            return
        state.traits = state.traits._replace(capacity=blocks)
        if state.recency is not None:
            self._predictions.trim(state, state.recency)

    def set_stores(self, worker: WorkerId, stores: Mapping[Tier, str]) -> None:
        """Which of its tiers it shares: with all workers of its model that name the same store on the same tier. An
        empty name is a tier of its own. Kept when the worker is cleared, not when it is added anew. Unknown names are
        fine.
        """
        state = self._workers.get(worker)
        shared: dict[Tier, str] = {tier: store for tier, store in stores.items() if store and tier is not Tier.DEVICE}
        if state is None or state.stores == shared:
            return
        self._groups.leave(state)
        state.stores = shared
        self._groups.join(state)

    def remove_worker(self, worker: WorkerId) -> None:
        """Forget a worker. Unknown names are fine."""
        state = self._workers.pop(worker, None)
        if state is None:
            return
        self._groups.leave(state)
        if state.size > self._clear_at_once:
            self._retire(state)
        else:
            self._empty(state, list(state.engines))
            self._slots.vacate(state)

    def clear(self, worker: WorkerId, *, rank: int | None = None) -> None:
        """Forget what the worker holds (of one data-parallel rank), predictions included. Unknown names are
        fine.

        Nothing forgotten matches from now on. The call takes no longer for a worker that held much: its
        memory is given back by `sweep`. Only one rank of a worker of which others hold something too is
        taken out at once, block by block.
        """
        state = self._workers.get(worker)
        if state is None:
            return
        if rank is not None and any(held for (other, _), held in state.engines.items() if other != rank):
            self._empty(state, [key for key in state.engines if key[0] == rank])
        elif state.size > self._clear_at_once:
            self._groups.leave(state)
            self._retire(state)
            successor = self._workers[worker] = self._slots.place(worker, state.traits)
            successor.salts = state.salts
            successor.stores = state.stores
            self._groups.join(successor)
        else:
            self._empty(state, list(state.engines))
            state.reset()

    def sweep(self, n_blocks: int) -> int:
        """Give back up to `n_blocks` entries of workers that were cleared or removed; how many remain.

        Who calls it regularly keeps the index small and its bits few; nobody has to.
        """
        return self._slots.sweep(n_blocks)

    def _retire(self, state: WorkerBlocks) -> None:
        self._exact.n_held -= state.n_exact
        self._predictions.count(state, -len(state.predicted))
        self._slots.retire(state)

    def _empty(self, state: WorkerBlocks, keys: Sequence[tuple[int, Tier]]) -> None:
        """Take these maps and all predictions out at once."""
        for key in keys:
            engines = state.engines[key]
            for engine_hash in list(engines):
                self._exact.forget(state, key[1], engines, engine_hash)
            del state.engines[key]
        for block in list(state.predicted):
            self._predictions.drop(state, block)
        state.victims = NO_VICTIMS

    # --- what events tell ---

    def apply(self, worker: WorkerId, event: KvEvent, *, rank: int = 0) -> None:
        """Apply one event of a worker's data-parallel rank. Events of unknown workers are ignored."""
        state = self._workers.get(worker)
        if state is None:
            return
        if isinstance(event, BlockStored):
            self._store(state, event, rank)
        elif isinstance(event, BlockRemoved):
            self._exact.remove(state, event, rank)
        elif isinstance(event, AllBlocksCleared):
            self.clear(worker, rank=rank)

    def _store(self, state: WorkerBlocks, event: BlockStored, rank: int) -> None:
        if state.salts:
            lapse_salts(state, self._now)
        placed = self._exact.read(state, event, rank)
        if placed is None:
            return
        tier, ours = placed
        # No single event may claim more than the whole index: its leading blocks are the useful ones.
        del ours[self.max_blocks :]
        self._make_room(len(ours))
        self._exact.insert(state, (rank, tier), event.block_hashes, ours)

    def resize(self, max_blocks: int) -> None:
        """Bound it otherwise from now on; what is too much goes at once, some microseconds a block. Raises ValueError
        below 1.
        """
        _check_bound(max_blocks)
        self.max_blocks = max_blocks
        self._predictions.resize(max_blocks)
        self._make_room(0)

    # --- what routing adds ---

    def predict(
        self, worker: WorkerId, hashes: Sequence[BlockHash], *, start: int, now: float, ttl: float, salt: str = ""
    ) -> Sequence[BlockHash]:
        """Expect `worker` to hold `hashes[start:]` soon: they match at once and expire at `now + ttl`, in
        seconds, unless an event confirms them. Blocks known exactly stay so; a second prediction only
        prolongs the first. Those of a worker with a capacity do not expire: `now` is when they were used, and what
        is used at the same `now` again is not used more recently.

        `salt` is the request's, which the hashes are chained with: events of the worker that may not tell theirs are
        read with it in mind.

        Returns the blocks that the worker was neither known nor expected to hold before, in order, for
        `unpredict` should the request fail. Not to be changed; valid for as long as it is kept. A prompt that
        is predicted for that long already, from its first block on, costs two look-ups.
        """
        state = self._workers.get(worker)
        if state is None:
            return ()
        self.expire(now)
        if salt:
            note_salt(state, salt, now + ttl)
        deadline = now + ttl if state.traits.capacity is None else now
        opened = self._predictions.prepare(state, hashes, start, deadline)
        if not opened.blocks:
            return ()
        # Room for all, not for the new ones alone: to make it, predictions of this very prompt may have to go. And
        # whatever goes from now on tears a hole into what is about to be predicted for that long.
        state.latest_deadline = max(state.latest_deadline, deadline)
        self._make_room(len(opened.blocks))
        return self._predictions.add(state, opened, deadline, at_root=not start)

    def unpredict(self, worker: WorkerId, blocks: Sequence[BlockHash]) -> int:
        """Take back what `predict` returned, as far as no event has confirmed it: the request failed and will
        not bring it. How many were taken back.

        Blocks that were known or expected before that prediction are not in what it returned, so they stay.
        Those of them that a later request expects too go as well, until an event or the next prediction says
        otherwise: of two sources that disagree the one that claims less is believed.
        """
        state = self._workers.get(worker)
        return 0 if state is None else self._predictions.take_back(state, blocks)

    def expire(self, now: float) -> int:
        """Drop the predictions whose time has come and no event confirmed; how many they were. Sweeps a little
        as well.
        """
        self._now = max(self._now, now)
        if self._slots.retired:
            self.sweep(_SWEEP_STEP)
        dropped = self._predictions.expire(now)
        self.stats.expired += dropped
        return dropped

    # --- what routing asks ---

    def match(self, hashes: Sequence[BlockHash]) -> dict[WorkerId, int]:
        """The prefix match of each worker, in blocks on its device; workers without any are left out."""
        depths: dict[WorkerId, int] = {}
        alive = -1
        last: int | None = alive
        depth = 0
        for mask in map(self._device.get, hashes):
            # Masks are interned and neighbours mostly share theirs: identity is the whole test for most
            # blocks.
            if mask is not last:
                if mask is None:
                    break
                if depth and (lost := alive & ~mask):
                    depths.update(dict.fromkeys(self._names(lost), depth))
                alive &= mask
                if not alive:
                    return depths
                last = mask
            depth += 1
        if depth:
            depths.update(dict.fromkeys(self._names(alive), depth))
        return depths

    def match_runs(self, hashes: Sequence[BlockHash]) -> dict[WorkerId, list[TierRun]]:
        """The longest run of leading blocks that each worker has on any tier, its own or one it shares, cut where the
        tier changes. A block counts on the fastest tier that has it. Workers without any are left out.

        Not for when nothing `is_tiered`: `match` says the same in less time.
        """
        tables = self._tables.of_tier
        tiers = [tier for tier in Tier if tables[tier]]
        walks = [map(tables[tier].get, hashes, repeat(0)) for tier in tiers]
        shared = [at for at, tier in enumerate(tiers) if self._groups.is_shared(tier)]
        found: dict[WorkerId, list[TierRun]] = {}
        starts: dict[WorkerId, int] = {}
        on = [0] * len(tiers)  # the workers that are on each tier at this depth; no worker is on two
        alive, depth = -1, 0
        for masks, run in groupby(zip(*walks, strict=True)):
            before, on = on, []
            left = alive
            for at, mask in enumerate(masks):
                wide = self._groups.widen(tiers[at], mask) if mask and at in shared else mask
                on.append(left & wide)
                left &= ~wide
            alive ^= left  # who is on no tier is out
            for at, was in enumerate(before):
                if (moved := was & ~on[at]) and (full := self._close(found, starts, moved, tiers[at], depth)):
                    alive &= ~full
                    on = [workers & ~full for workers in on]
            if not alive:
                return found
            depth += len(list(run))
        for at, is_on in enumerate(on):
            self._close(found, starts, is_on, tiers[at], depth)
        return found

    def _close(
        self, found: dict[WorkerId, list[TierRun]], starts: dict[WorkerId, int], workers: int, tier: Tier, depth: int
    ) -> int:
        """A run of these workers ends at `depth`; the bits of those whose last it must be."""
        full = 0
        for state in self._slots.holders(workers):
            runs = found.setdefault(state.id, [])
            runs.append(TierRun(tier, depth - starts.get(state.id, 0)))
            starts[state.id] = depth
            if len(runs) >= _MAX_RUNS:
                full |= state.bit
        return full

    def match_tiers(self, hashes: Sequence[BlockHash]) -> dict[WorkerId, dict[Tier, int]]:
        """The same, summed up by tier. Only workers and tiers with blocks are listed."""
        return {worker: blocks_by_tier(runs) for worker, runs in self.match_runs(hashes).items()}

    @property
    def is_tiered(self) -> bool:
        """Is any block known on a tier other than the device?"""
        return any(self._slower)

    def block_count(self, worker: WorkerId) -> int:
        """Entries of one worker; 0 for an unknown one."""
        state = self._workers.get(worker)
        return 0 if state is None else state.size

    def __len__(self) -> int:
        """Entries of all workers."""
        return self._exact.n_held + self._predictions.n_held

    @property
    def predicted_count(self) -> int:
        """Entries that no event has confirmed yet."""
        return self._predictions.n_held

    @property
    def stale_count(self) -> int:
        """Entries of cleared and removed workers that are still to be swept."""
        return self._slots.n_stale

    # --- the bound ---

    def _make_room(self, n_blocks: int) -> None:
        """Evict until `n_blocks`, at most `max_blocks`, fit: what is to be swept anyway, then from the worker
        with most entries, oldest first.
        """
        if (excess := self._excess(n_blocks)) > 0:
            self.sweep(excess)
        while (excess := self._excess(n_blocks)) > 0:
            state = max(self._workers.values(), key=_size)
            before = len(self)
            evict(state, excess, self._exact, self._predictions)
            self.stats.evicted += before - len(self)

    def _excess(self, n_blocks: int) -> int:
        return len(self) + self._slots.n_stale + n_blocks - self.max_blocks

    def check_integrity(self) -> None:
        """Recompute everything from the workers' maps. Slow; for tests and idle times.

        Raises RuntimeError naming what does not agree.
        """
        workers = self._workers.values()
        check_tables((*workers, *self._slots.retired), self._tables)
        check_slots(workers, self._slots)
        check_groups(workers, self._groups)
        check_counts(workers, self._exact, self._predictions, self._slots, self.max_blocks)
        check_queue(workers, self._predictions)


def blocks_by_tier(runs: Sequence[TierRun]) -> dict[Tier, int]:
    """Blocks on each tier."""
    blocks: dict[Tier, int] = {}
    for tier, count in runs:
        blocks[tier] = blocks.get(tier, 0) + count
    return blocks


def _check_bound(max_blocks: int) -> None:
    if max_blocks < 1:
        message = f"max_blocks must be positive, not {max_blocks}"
        raise ValueError(message)


def _check_capacity(blocks: int | None) -> None:
    if blocks is not None and blocks < 1:
        message = f"a worker's capacity must be positive, not {blocks} blocks"
        raise ValueError(message)


def _size(state: WorkerBlocks) -> int:
    return state.size
