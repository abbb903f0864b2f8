"""Which workers hold which blocks: exact from their KV events, predicted from where requests were just sent.

One global table per tier maps our chained block hash to a bit mask of workers; matching is one walk over a
prompt's hashes. An engine's own hashes are opaque, so each worker also has a map from them to ours, which
`BlockRemoved` and a parent's hash are looked up in; our hash is recomputed from the event's tokens and the
parent's.

What is unknown is not cached. A block whose parent is not known, of an unknown medium, block size or cache
group, or one that depends on an image, is counted and left out. Everything is bounded: when `max_blocks`
entries are held, the oldest of the worker that holds most make room. All of these, an eviction with a child
still listed too, make the index claim less than the truth: a match ends at the first block that is not there.

A worker that held much and is cleared gets a new bit at once, so nothing of the old matches from then on. The
old bit is swept out of the tables in steps, and is not given away again before it is clean.

Two limits of what events tell. An engine that was sent a cache salt but publishes events without it stores
those blocks under the unsalted chain: only predictions speak for salted prompts then, and a fleet that mixes
salted and unsalted prompts on such an engine sees unsalted matches that the engine will not honour. And for
hybrid models only the first full-attention group is followed (a block is gone as soon as any full-attention
group drops it): whether the sliding window or the state of the last blocks is still there, the engine alone
knows.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import reduce
from heapq import heappop, heappush
from itertools import count, groupby, islice, repeat
from operator import or_
from typing import TYPE_CHECKING, Final

from cache.block_hash import extend_chain
from cache.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash
from cache.worker_blocks import NO_VICTIMS, PrefixIndexStats, WorkerBlocks, follows_group, tier_of
from policies.types import BlockHash, Tier, WorkerId

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cache.kv_events import KvEvent
    from cache.worker_blocks import EngineMap

_VICTIMS_FRACTION: Final = 32
"""The oldest 1/32 of a worker's entries are looked up at once, to be evicted one by one: the head of a dict is
only cheap to reach now and then."""
_SWEEP_STEP: Final = 128
"""Entries of cleared workers swept by each `expire`: some tens of microseconds."""
_PREDICTED_FRACTION: Final = 4
"""At most a quarter of the bound is predictions: guesses never push out most of what is known."""
_MAX_INTERNED: Final = 4096


class PrefixIndex:
    """The blocks of a fleet. Synchronous and single-threaded; every method leaves it consistent.

    Its size, `len()`, counts entries: one per engine block held (per rank and tier) and one per predicted
    block. Together with what is still to be swept, `stale_count`, it never exceeds `max_blocks`.
    """

    def __init__(self, *, max_blocks: int, clear_at_once: int = 1024) -> None:
        """A worker with up to `clear_at_once` entries is cleared on the spot, which by default takes less than
        a millisecond; one with more is given a new bit and swept later.
        """
        if max_blocks < 1:
            message = f"max_blocks must be positive, not {max_blocks}"
            raise ValueError(message)
        self.max_blocks = max_blocks
        self._clear_at_once = clear_at_once
        self.stats = PrefixIndexStats()
        self._tables: dict[Tier, dict[BlockHash, int]] = {tier: {} for tier in Tier}
        self._device = self._tables[Tier.DEVICE]
        self._workers: dict[WorkerId, WorkerBlocks] = {}
        self._slots: list[WorkerBlocks | None] = []
        self._free_slots: list[int] = []
        """A heap of the slots whose bit is nowhere set."""
        self._retired: deque[WorkerBlocks] = deque()
        """What workers were known to hold before they were cleared: of no worker any more, still in the tables."""
        self._n_stale = 0
        """Entries of those."""
        self._masks: dict[int, int] = {}
        """Equal masks are one object where that is cheap: less memory, and `match` compares by identity."""
        self._names_of: dict[int, tuple[WorkerId, ...]] = {}
        """Mask -> its workers, as often asked by `match`; void when a slot changes hands."""
        self._size = 0
        self._n_predicted = 0
        self._expiries: list[tuple[float, int, WorkerBlocks, list[BlockHash]]] = []
        """A heap, one entry per `predict`: deadline, ticket against ties, worker, blocks."""
        self._n_queued = 0
        """Blocks in that heap; those prolonged or confirmed since are still in it."""
        self._ticket = count()

    # --- the fleet ---

    def add_worker(self, worker: WorkerId, *, model: str, block_size: int | None = None) -> None:
        """Begin to follow a worker that serves `model`; a worker known already is forgotten first.

        Blocks of another size than `block_size` do not count; without it the first event that starts a prompt
        sets it.
        """
        self.remove_worker(worker)
        self._workers[worker] = self._place(worker, model, block_size)

    def remove_worker(self, worker: WorkerId) -> None:
        """Forget a worker. Unknown names are fine."""
        state = self._workers.pop(worker, None)
        if state is None:
            return
        if state.size > self._clear_at_once:
            self._retire(state)
        else:
            self._empty(state, list(state.engines))
            self._slots[state.slot] = None
            heappush(self._free_slots, state.slot)

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
            self._retire(state)
            self._workers[worker] = self._place(worker, state.model, state.configured_block_size)
        else:
            self._empty(state, list(state.engines))
            state.reset()

    def sweep(self, n_blocks: int) -> int:
        """Give back up to `n_blocks` entries of workers that were cleared or removed; how many remain.

        Who calls it regularly keeps the index small and its bits few; nobody has to.
        """
        while n_blocks > 0 and self._retired:
            state = self._retired[0]
            before = state.size
            self._dismantle(state, n_blocks)
            swept = before - state.size
            n_blocks -= swept
            self._n_stale -= swept
            if not state.size:
                self._retired.popleft()
                heappush(self._free_slots, state.slot)
        return self._n_stale

    def _dismantle(self, state: WorkerBlocks, n_blocks: int) -> None:
        """Take the newest `n_blocks` entries, or all, of a retired worker out of the tables."""
        for (_, tier), engines in state.engines.items():
            n_taken = min(n_blocks, len(engines))
            for _ in range(n_taken):
                self._release(state, tier, engines.popitem()[1])
            state.n_exact -= n_taken
            n_blocks -= n_taken
        for _ in range(min(n_blocks, len(state.predicted))):
            self._unset(state, Tier.DEVICE, state.predicted.popitem()[0])

    def _place(self, worker: WorkerId, model: str, block_size: int | None) -> WorkerBlocks:
        """A worker that holds nothing, in a slot whose bit is clean."""
        if self._free_slots:
            slot = heappop(self._free_slots)
        else:
            slot = len(self._slots)
            self._slots.append(None)
        state = self._slots[slot] = WorkerBlocks(worker, slot, model, block_size)
        self._names_of.clear()
        return state

    def _retire(self, state: WorkerBlocks) -> None:
        """From now on its bit means no worker."""
        state.retired = True
        self._slots[state.slot] = None
        self._names_of.clear()
        self._retired.append(state)
        self._size -= state.size
        self._n_stale += state.size
        self._n_predicted -= len(state.predicted)

    def _empty(self, state: WorkerBlocks, keys: Sequence[tuple[int, Tier]]) -> None:
        """Take these maps and all predictions out at once."""
        for key in keys:
            engines = state.engines[key]
            for engine_hash in list(engines):
                self._forget(state, key[1], engines, engine_hash)
            del state.engines[key]
        for block in list(state.predicted):
            self._drop_predicted(state, block)
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
            self._remove(state, event, rank)
        elif isinstance(event, AllBlocksCleared):
            self.clear(worker, rank=rank)

    def _store(self, state: WorkerBlocks, event: BlockStored, rank: int) -> None:
        n_blocks = len(event.block_hashes)
        tier = tier_of(event.medium)
        if tier is None:
            self.stats.unknown_medium += n_blocks
            return
        if not follows_group(state, event):
            self.stats.ignored_group += n_blocks
            return
        if event.parent is None and state.block_size is None:
            state.block_size = event.block_size
        if event.block_size != state.block_size:
            self.stats.foreign_block_size += n_blocks
            return
        if event.n_plain == 0:
            self.stats.not_plain += n_blocks
            return
        parent = self._parent(state, event, rank, tier)
        if parent is None:
            self.stats.unknown_parent += n_blocks
            return
        ours = extend_chain(parent, event.token_ids, event.block_size)
        if event.n_plain is not None:
            self.stats.not_plain += n_blocks - event.n_plain
            del ours[event.n_plain :]
        # No single event may claim more than the whole index: its leading blocks are the useful ones.
        del ours[self.max_blocks :]
        self._make_room(len(ours))
        self._insert(state, (rank, tier), event.block_hashes, ours)

    def _parent(self, state: WorkerBlocks, event: BlockStored, rank: int, tier: Tier) -> BlockHash | None:
        if event.parent is None:
            return state.root(event)
        for place in (tier, *Tier):
            engines = state.engines.get((rank, place))
            if engines is not None and (ours := engines.get(event.parent)) is not None:
                return ours
        return None

    def _insert(
        self,
        state: WorkerBlocks,
        key: tuple[int, Tier],
        engine_hashes: Sequence[EngineHash],
        ours: Sequence[BlockHash],
    ) -> None:
        engines = state.engines.setdefault(key, {})
        tier = key[1]
        bit, table, added = state.bit, self._tables[tier], 0
        # zip stops at the shorter: blocks past the placeable ones are left out.
        for engine_hash, block in zip(engine_hashes, ours, strict=False):
            known = engines.get(engine_hash)
            if known is not None:
                if known == block:
                    continue
                # The engine gave an old hash to another block: the old one is gone.
                self._forget(state, tier, engines, engine_hash)
                state.tear()
            engines[engine_hash] = block
            added += 1
            mask = table.get(block)
            if mask is None:
                table[block] = bit
            elif not mask & bit:
                table[block] = self._intern(mask | bit)
            elif tier is Tier.DEVICE and block in state.predicted:
                del state.predicted[block]
                self._size -= 1
                self._n_predicted -= 1
            else:
                state.extra_refs[tier, block] += 1
        state.n_exact += added
        self._size += added

    def _remove(self, state: WorkerBlocks, event: BlockRemoved, rank: int) -> None:
        tier = tier_of(event.medium)
        if tier is None:
            self.stats.unknown_medium += len(event.block_hashes)
            return
        if event.group is not None and event.group in state.ignored_groups:
            return
        engines = state.engines.get((rank, tier))
        if not engines:
            return
        state.tear()
        for engine_hash in event.block_hashes:
            if engine_hash in engines:
                self._forget(state, tier, engines, engine_hash)

    # --- what routing adds ---

    def predict(
        self, worker: WorkerId, hashes: Sequence[BlockHash], *, start: int, now: float, ttl: float
    ) -> Sequence[BlockHash]:
        """Expect `worker` to hold `hashes[start:]` soon: they match at once and expire at `now + ttl`, in
        seconds, unless an event confirms them. Blocks known exactly stay so; a second prediction only
        prolongs the first.

        Returns the blocks that the worker was neither known nor expected to hold before, in order, for
        `unpredict` should the request fail. Not to be changed; valid for as long as it is kept. A prompt that
        is predicted for that long already, from its first block on, costs two look-ups.
        """
        state = self._workers.get(worker)
        if state is None:
            return ()
        self.expire(now)
        deadline, bound = now + ttl, max(1, self.max_blocks // _PREDICTED_FRACTION)
        if start >= len(hashes):
            return ()
        if deadline > state.torn_until and (
            state.predicted.get(hashes[-1], 0.0) >= deadline <= state.predicted.get(hashes[start], 0.0)
        ):
            return ()  # both ends are predicted for that long, so whatever lies between was too, in the same call
        fresh = self._unconfirmed(state, hashes, start, deadline)[:bound]
        n_new = len(fresh) - sum(map(state.predicted.__contains__, fresh))
        while self._n_predicted + n_new > bound or self._n_queued + len(fresh) > 2 * bound:
            if not self._expiries:
                break
            self._expire_first()
            n_new = len(fresh) - sum(map(state.predicted.__contains__, fresh))
        if not fresh:
            return ()
        self._make_room(n_new)
        added = fresh if n_new == len(fresh) else [block for block in fresh if block not in state.predicted]
        for block in added:
            self._device[block] = self._intern(self._device.get(block, 0) | state.bit)
        self._size += len(added)
        self._n_predicted += len(added)
        state.predicted.update(dict.fromkeys(fresh, deadline))
        state.latest_deadline = max(state.latest_deadline, deadline)
        if start:
            state.tear()  # what comes before `start` need not be there for that long
        self._n_queued += len(fresh)
        heappush(self._expiries, (deadline, next(self._ticket), state, fresh))
        return added

    def unpredict(self, worker: WorkerId, blocks: Sequence[BlockHash]) -> int:
        """Take back what `predict` returned, as far as no event has confirmed it: the request failed and will
        not bring it. How many were taken back.

        Blocks that were known or expected before that prediction are not in what it returned, so they stay.
        Those of them that a later request expects too go as well, until an event or the next prediction says
        otherwise: of two sources that disagree the one that claims less is believed.
        """
        state = self._workers.get(worker)
        if state is None:
            return 0
        open_ones = [block for block in blocks if block in state.predicted]
        for block in open_ones:
            self._drop_predicted(state, block)
        return len(open_ones)

    def _unconfirmed(
        self, state: WorkerBlocks, hashes: Sequence[BlockHash], start: int, deadline: float
    ) -> list[BlockHash]:
        """The blocks of `hashes[start:]`, each once, that a prediction until `deadline` changes anything
        for.
        """
        device, predicted, bit = self._device, state.predicted, state.bit
        return [
            block
            for block in dict.fromkeys(islice(hashes, start, None))
            if (predicted[block] < deadline if block in predicted else not device.get(block, 0) & bit)
        ]

    def expire(self, now: float) -> int:
        """Drop the predictions whose time has come and no event confirmed; how many they were. Sweeps a little
        as well.
        """
        if self._retired:
            self.sweep(_SWEEP_STEP)
        dropped = 0
        while self._expiries and self._expiries[0][0] <= now:
            dropped += self._expire_first()
        self.stats.expired += dropped
        return dropped

    def _expire_first(self) -> int:
        deadline, _, state, blocks = heappop(self._expiries)
        self._n_queued -= len(blocks)
        if state.retired:
            return 0
        # A later deadline belongs to a later prediction, which has an entry of its own in the queue.
        due = [block for block in blocks if state.predicted.get(block) == deadline]
        for block in due:
            self._drop_predicted(state, block)
        return len(due)

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

    def match_tiers(self, hashes: Sequence[BlockHash]) -> dict[WorkerId, dict[Tier, int]]:
        """The longest run of leading blocks each worker holds on any tier, split by tier.

        A block counts on the fastest tier it is held on. Only workers and tiers with blocks are listed.
        """
        tiers = [tier for tier in Tier if self._tables[tier]]
        walks = [map(self._tables[tier].get, hashes, repeat(0)) for tier in tiers]
        found: dict[WorkerId, dict[Tier, int]] = {}
        alive = -1
        for masks, run in groupby(zip(*walks, strict=True)):
            alive &= reduce(or_, masks)
            if not alive:
                break
            n_blocks = sum(1 for _ in run)
            for state in self._holders(alive):
                tier = next(tier for tier, mask in zip(tiers, masks, strict=True) if mask & state.bit)
                depths = found.setdefault(state.id, {})
                depths[tier] = depths.get(tier, 0) + n_blocks
        return found

    def block_count(self, worker: WorkerId) -> int:
        """Entries of one worker; 0 for an unknown one."""
        state = self._workers.get(worker)
        return 0 if state is None else state.size

    def __len__(self) -> int:
        """Entries of all workers."""
        return self._size

    @property
    def predicted_count(self) -> int:
        """Entries that no event has confirmed yet."""
        return self._n_predicted

    @property
    def stale_count(self) -> int:
        """Entries of cleared and removed workers that are still to be swept."""
        return self._n_stale

    # --- inside ---

    def _holders(self, mask: int) -> Iterator[WorkerBlocks]:
        while mask:
            low = mask & -mask
            state = self._slots[low.bit_length() - 1]
            if state is not None:
                yield state
            mask ^= low

    def _names(self, mask: int) -> tuple[WorkerId, ...]:
        names = self._names_of.get(mask)
        if names is None:
            if len(self._names_of) >= _MAX_INTERNED:
                self._names_of.clear()
            names = self._names_of[mask] = tuple([state.id for state in self._holders(mask)])
        return names

    def _intern(self, mask: int) -> int:
        masks = self._masks
        if len(masks) >= _MAX_INTERNED:
            masks.clear()
        return masks.setdefault(mask, mask)

    def _forget(self, state: WorkerBlocks, tier: Tier, engines: EngineMap, engine_hash: EngineHash) -> None:
        block = engines.pop(engine_hash)
        state.n_exact -= 1
        self._size -= 1
        self._release(state, tier, block)

    def _release(self, state: WorkerBlocks, tier: Tier, block: BlockHash) -> None:
        """One engine hash less stands for the block."""
        if state.extra_refs and (tier, block) in state.extra_refs:
            state.extra_refs[tier, block] -= 1
            if not state.extra_refs[tier, block]:
                del state.extra_refs[tier, block]
        else:
            self._unset(state, tier, block)

    def _drop_predicted(self, state: WorkerBlocks, block: BlockHash) -> None:
        # Whatever is predicted for longer was predicted without this block, so it misses nothing.
        state.torn_until = max(state.torn_until, state.predicted.pop(block))
        self._size -= 1
        self._n_predicted -= 1
        self._unset(state, Tier.DEVICE, block)

    def _unset(self, state: WorkerBlocks, tier: Tier, block: BlockHash) -> None:
        table = self._tables[tier]
        mask = table[block] ^ state.bit
        if mask:
            table[block] = self._intern(mask)
        else:
            del table[block]

    def _make_room(self, n_blocks: int) -> None:
        """Evict until `n_blocks`, at most `max_blocks`, fit: what is to be swept anyway, then from the worker
        with most entries, oldest first.
        """
        if (excess := self._excess(n_blocks)) > 0:
            self.sweep(excess)
        while (excess := self._excess(n_blocks)) > 0:
            state = max(self._workers.values(), key=_size)
            before = self._size
            self._evict(state, excess)
            self.stats.evicted += before - self._size

    def _excess(self, n_blocks: int) -> int:
        return self._size + self._n_stale + n_blocks - self.max_blocks

    def _evict(self, state: WorkerBlocks, n_blocks: int) -> None:
        """Drop up to `n_blocks` of its victims, those chosen before or new ones."""
        if not state.victims.hashes:
            state.choose_victims(max(n_blocks, state.size // _VICTIMS_FRACTION))
        tier, engines, hashes = state.victims
        if engines is not None:
            state.tear()
        while n_blocks and hashes:
            victim = hashes.pop()
            # It may have gone by itself meanwhile.
            if engines is None:
                if victim in state.predicted:
                    self._drop_predicted(state, BlockHash(victim))
                    n_blocks -= 1
            elif victim in engines:
                self._forget(state, tier, engines, EngineHash(victim))
                n_blocks -= 1

    def check_integrity(self) -> None:
        """Recompute everything from the workers' maps. Slow; for tests and idle times.

        Raises RuntimeError naming what does not agree.
        """
        truth: dict[Tier, dict[BlockHash, int]] = {tier: {} for tier in Tier}
        for state in (*self._workers.values(), *self._retired):
            held: Counter[tuple[Tier, BlockHash]] = Counter()
            for (_, tier), engines in state.engines.items():
                held.update((tier, block) for block in engines.values())
            _require(not any((Tier.DEVICE, block) in held for block in state.predicted), "predicted and exact")
            _require(state.n_exact == held.total(), "a worker's number of entries")
            _require({key: n - 1 for key, n in held.items() if n > 1} == dict(state.extra_refs), "extra references")
            for tier, block in (*held, *((Tier.DEVICE, block) for block in state.predicted)):
                truth[tier][block] = truth[tier].get(block, 0) | state.bit
            _require(self._slots[state.slot] is (None if state.retired else state), "a worker's slot")
        _require(truth == self._tables, "the masks")
        slots = [state.slot for state in (*self._workers.values(), *self._retired)] + self._free_slots
        _require(sorted(slots) == list(range(len(self._slots))), "each slot in use, being swept, or free")
        _require(self._size == sum(map(_size, self._workers.values())), "the size")
        _require(self._n_stale == sum(map(_size, self._retired)), "what is to be swept")
        _require(self._size + self._n_stale <= self.max_blocks, "the bound")
        _require(
            self._n_predicted == sum(len(state.predicted) for state in self._workers.values()),
            "the predictions",
        )
        _require(self._n_queued == sum(len(entry[3]) for entry in self._expiries), "the queue's length")
        queued = {(id(state), block, deadline) for deadline, _, state, blocks in self._expiries for block in blocks}
        _require(
            all(
                (id(state), block, deadline) in queued
                for state in self._workers.values()
                for block, deadline in state.predicted.items()
            ),
            "a prediction that never expires",
        )


def _size(state: WorkerBlocks) -> int:
    return state.size


def _require(holds: bool, what: str) -> None:  # reads as a sentence where it is called
    if not holds:
        message = f"the prefix index contradicts itself: {what}"
        raise RuntimeError(message)
