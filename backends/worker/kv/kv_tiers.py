"""KV that outlives the pool: kept in stores when a sequence ends, looked for there when one arrives.

One state machine for each arrival: *looking* (which chunks does a store hold?), *reading* (they are copied into
reserved blocks), *done* (blocks whose frames are as they were written can be found in the prefix cache, and the
sequence joins the queue). Looking, reading and writing happen on I/O threads while others compute; everything that
changes the block manager happens on the engine's thread, in `settle`.

Nothing here can fail a request: what is late, damaged, foreign or gone is not restored, and computed instead.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from queue import Empty, SimpleQueue
from typing import Final

from backends.worker.engine.block_manager import BlockManager
from backends.worker.engine.sequence import Sequence, Status
from backends.worker.kv.chunks import Chunking, owner_tenant, tenant_of
from backends.worker.kv.residency import Residency
from backends.worker.kv.restore_choice import RestorePrice
from backends.worker.kv.tier_report import TierReport
from backends.worker.kv.transfer import Progress, Transfer
from backends.worker.messages import ForgetKv, KvForgotten, TierStats
from cache.kv_codec import FrameSpec
from cache.kv_events import KvEvent
from cache.store import StoreError
from cache.tiered_store import TieredStore
from policies.restore_price import RestorableChunk
from policies.types import Tier

_LEAST_PATIENCE: Final = 0.05
"""Seconds: threads do not run to the millisecond."""
_HELD: Final = 0.5
"""Share of the pool that may be held while it is written to stores; what comes beyond is not kept."""
_QUIET_AFTER: Final = 1.0
"""Seconds without work after which the stores write what they have put off."""
_MOST_FORGOTTEN: Final = 4_096
"""Salts under which nothing is kept any more: as many as sequences could still be under way with."""
_READERS: Final = 2
_WRITERS: Final = 1
"""Apart from the readers: what is kept must not hold up what is waited for."""


@dataclass(slots=True, eq=False)
class _Arrival:
    sequence: Sequence
    deadline: float
    first: int
    """Number of the first chunk that the pool lacks."""
    chunks: list[tuple[FrameSpec, Tier]] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    """Blocks of the pool that the restored ones follow."""
    progress: Progress = field(default_factory=Progress)
    n_adopted: int = 0
    """Of the chunks, those that can be found."""
    reading: bool = False
    released: bool = False
    """The sequence waits no longer."""


@dataclass(frozen=True, slots=True)
class _Kept:
    sequence: Sequence
    held: list[int]
    """Its leading blocks, whole chunks."""


class KvTiers:
    """Methods are for the engine's thread."""

    def __init__(
        self,
        store: TieredStore,
        transfer: Transfer,
        chunking: Chunking,
        blocks: BlockManager,
        *,
        residency: Residency,
        price: RestorePrice,
        report: TierReport,
        patience: float = 2.0,
    ) -> None:
        """`patience`: seconds that a sequence waits for its KV."""
        self._store = store
        self._transfer = transfer
        self._residency = residency
        self._report = report
        self._chunking = chunking
        self._blocks = blocks
        self._price = price
        self._patience = patience
        self._most_held = int(blocks.n_blocks * _HELD)
        self._held = 0
        """Blocks that are held because they are being written."""
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="kv-read")
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="kv-write")
        self._done: SimpleQueue[_Arrival | _Kept] = SimpleQueue()
        self._arrivals: set[_Arrival] = set()
        self._roomless: list[_Arrival] = []
        """Those for whose KV the pool has no room yet."""
        self._releases = 0
        self._busy_at = -inf
        self._counts: Counter[str] = Counter()
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        self._told_forgotten: SimpleQueue[KvForgotten] = SimpleQueue()
        self._forgetting = 0

    @property
    def idle(self) -> bool:
        """Is nothing read or written, and no block held?"""
        return not (self._held or self._arrivals)

    @property
    def counts(self) -> Counter[str]:
        """`restored_tokens`, `late`, and what `Transfer` counts; a copy."""
        return self._counts + self._transfer.counts

    def worth_looking(self, n_prompt: int) -> bool:
        """Is a prompt of so many tokens long enough to have a chunk in a store?"""
        return n_prompt > self._chunking.n_tokens

    def look(self, sequence: Sequence, now: float) -> bool:
        """A sequence was put aside: look for what the pool lacks of its prompt. False where that is no whole chunk, or
        nothing of its tenant's is kept.
        """
        if not sequence.request.kv.keeps:
            return False
        first = len(self._blocks.match(sequence)) // self._chunking.n_blocks
        if not self.worth_looking(sequence.n_prompt - first * self._chunking.n_tokens):
            return False
        arrival = _Arrival(sequence, now + self._patience, first)
        self._arrivals.add(arrival)
        self._readers.submit(self._look, arrival)
        return True

    def settle(self, now: float, waiting: int = 0) -> list[Sequence]:
        """Take what the I/O threads have done. Returns the sequences that wait no longer. `waiting`: in the queue."""
        ready: list[Sequence] = []
        while True:
            try:
                done = self._done.get_nowait()
            except Empty:
                break
            if isinstance(done, _Kept):
                self._blocks.let_go(done.held)
                self._held -= len(done.held)
            elif done.reading or not self._begin_reading(done, now, waiting):
                self._end(done, ready)
        self._look_for_room(now, waiting, ready)
        for arrival in self._arrivals:
            if now >= arrival.deadline and not arrival.released:
                self._counts["late"] += 1
                arrival.progress.stop = True
                self._adopt(arrival)  # what has come is better than nothing
                self._release(arrival, ready)
        return ready

    def keep(self, sequence: Sequence) -> None:
        """A sequence has ended: write its chunks to the stores that lack them, as many as may be held at a time."""
        if not sequence.request.kv.keeps or sequence.request.salt in self._forgotten:
            return
        found = self._blocks.match(sequence)
        size = self._chunking.n_blocks
        n_chunks = min(len(found), self._most_held - self._held) // size
        if n_chunks <= 0:
            return
        # From the first on: no prefix may outlive the one that it continues.
        held = found[: n_chunks * size]
        self._blocks.hold(held)
        self._held += len(held)
        self._writers.submit(self._write, _Kept(sequence, held))

    def forget_salts(self, asked: ForgetKv) -> None:
        """Remove what stores have under these salts, behind what is being written; see `take_forgotten`. Nobody comes
        with them any more but who is under way already.
        """
        for salt in () if asked.dry_run else asked.salts:
            self._forgotten[salt] = None
            self._forgotten.move_to_end(salt)
        while len(self._forgotten) > _MOST_FORGOTTEN:
            self._forgotten.popitem(last=False)
        self._forgetting += 1
        self._writers.submit(self._forget, asked)

    @property
    def forgets(self) -> bool:
        """Is something being forgotten, of which is still to be told?"""
        return self._forgetting > 0

    def take_forgotten(self) -> list[KvForgotten]:
        """What has become of it since the last call."""
        told = []
        while not self._told_forgotten.empty():
            told.append(self._told_forgotten.get_nowait())
        self._forgetting -= len(told)
        return told

    def computed(self, n_tokens: int, pairs: float, seconds: float) -> None:
        """A step took so long, see `RestorePrice.computed`."""
        self._price.computed(n_tokens, pairs, seconds)

    def breathe(self, now: float, *, busy: bool) -> None:
        """Call it often, and say whether there is work: without it for a while, the stores catch up."""
        if busy:
            self._busy_at = now
        self._store.quiet(now - self._busy_at >= _QUIET_AFTER)
        self._report.refresh(now, self._writers)

    def forget(self) -> None:
        """The prefix cache was cleared, and whoever follows the events has forgotten the stores as well."""
        self._residency.forget()

    @property
    def has_news(self) -> bool:
        """Are there events?"""
        return self._residency.has_news

    def take_events(self) -> tuple[KvEvent, ...]:
        """What the stores have got and lost since the last call."""
        return self._residency.take_events()

    def stats(self) -> tuple[TierStats, ...]:
        """Of each store, the fastest first."""
        return self._report.stats()

    def close(self, within: float) -> None:
        """Wait for what is being read and written, let the stores catch up for so many seconds, and close them."""
        self._readers.shutdown(wait=True)
        self._writers.shutdown(wait=True)
        self._store.flush(within)
        self._store.close()

    # --- on the engine's thread ---

    def _begin_reading(self, arrival: _Arrival, now: float, waiting: int) -> bool:
        """Reserve blocks for what was found, as far as it pays, and read it, or wait until there are as many: the
        sequence could not be admitted either. False where there is nothing to read.
        """
        if arrival.released or arrival.sequence.status is Status.FINISHED or not arrival.chunks:
            return False
        matched = self._blocks.match(arrival.sequence)
        size = self._chunking.n_blocks
        if len(matched) < arrival.first * size:
            return False  # evicted meanwhile
        arrival.chunks = arrival.chunks[len(matched) // size - arrival.first :]  # or computed meanwhile
        arrival.first = len(matched) // size
        before = arrival.first * size
        context = len(matched) * self._blocks.block_size
        plan = self._price.plan(
            [_restorable(spec, tier, context) for spec, tier in arrival.chunks],
            arrival.sequence.n_tokens - context,
            context=context,
            waiting=waiting,
        )
        if plan.probe is not None:
            self._readers.submit(self._transfer.probe, *arrival.chunks[plan.probe], arrival.sequence.request.kv)
        n_chunks = plan.n_chunks
        arrival.chunks = arrival.chunks[:n_chunks]
        if not n_chunks:
            return False
        blocks = self._blocks.reserve(n_chunks * size, after=matched[:before])
        if blocks is None:
            self._roomless.append(arrival)
            return True
        arrival.deadline = min(arrival.deadline, now + max(plan.deadline_s, _LEAST_PATIENCE))
        arrival.held = matched[:before]
        arrival.blocks = blocks
        arrival.reading = True
        self._readers.submit(self._read, arrival)
        return True

    def _look_for_room(self, now: float, waiting: int, ready: list[Sequence]) -> None:
        """Try again with those that found none, once blocks were given back or they have waited long enough."""
        if not self._roomless or (
            self._releases == self._blocks.releases and all(now < each.deadline for each in self._roomless)
        ):
            return
        self._releases = self._blocks.releases
        again, self._roomless = self._roomless, []
        for arrival in again:
            if now >= arrival.deadline or not self._begin_reading(arrival, now, waiting):
                self._end(arrival, ready)

    def _adopt(self, arrival: _Arrival) -> None:
        """What was read until now can be found from now on."""
        size = self._chunking.n_blocks
        first, end = arrival.n_adopted * size, arrival.progress.n_read * size
        if first == end:
            return
        before = arrival.held + arrival.blocks[:first]
        good = arrival.blocks[first:end]
        entered = self._blocks.adopt(
            arrival.sequence, arrival.first * size + first, good, after=before[-1] if before else None
        )
        arrival.n_adopted = end // size
        self._counts["restored_tokens"] += entered * self._blocks.block_size

    def _end(self, arrival: _Arrival, ready: list[Sequence]) -> None:
        self._adopt(arrival)
        self._blocks.let_go(arrival.blocks)
        self._blocks.let_go(arrival.held)
        self._release(arrival, ready)
        self._arrivals.remove(arrival)

    @staticmethod
    def _release(arrival: _Arrival, ready: list[Sequence]) -> None:
        if not arrival.released:
            arrival.released = True
            ready.append(arrival.sequence)

    # --- on the I/O threads ---

    def _look(self, arrival: _Arrival) -> None:
        try:
            arrival.chunks = self._transfer.look(arrival.sequence, arrival.first)
        finally:
            self._done.put(arrival)

    def _read(self, arrival: _Arrival) -> None:
        self._transfer.read(arrival.chunks, arrival.blocks, arrival.progress, arrival.sequence.request.kv)
        self._done.put(arrival)

    def _forget(self, asked: ForgetKv) -> None:
        names = [*map(tenant_of, asked.salts), *map(owner_tenant, asked.owners)]
        told = KvForgotten(id=asked.id, found={}, complete=False)
        try:
            done = self._store.forget_tenants(names, dry_run=asked.dry_run, seconds=asked.within)
            found = {tier.value: n for tier, n in done.found.items()}
            left = tuple(tier.value for tier in done.left)
            told = KvForgotten(id=asked.id, found=found, left=left, complete=done.complete)
        except StoreError:
            pass  # closed
        finally:
            self._told_forgotten.put(told)

    def _write(self, kept: _Kept) -> None:
        self._transfer.write(kept.sequence, kept.held)
        self._done.put(kept)


def _restorable(spec: FrameSpec, tier: Tier, context: int) -> RestorableChunk:
    """What the price sees of a chunk, of which the leading tokens may be among the `context`."""
    n_tokens = spec.first_token + spec.n_tokens - max(context, spec.first_token)
    return RestorableChunk(n_tokens, spec.frame_bytes, tier)
