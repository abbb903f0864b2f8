"""KV that outlives the pool: kept in stores when a sequence ends, looked for there when one arrives.

One state machine for each arrival: *looking* (which chunks does a store hold?), *reading* (they are copied into
reserved blocks), *done* (blocks whose frames are as they were written can be found in the prefix cache, and the
sequence joins the queue). Looking, reading and writing happen on I/O threads while others compute; everything that
changes the block manager happens on the engine's thread, in `settle`.

Nothing here can fail a request: what is late, damaged, foreign or gone is not restored, and computed instead.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final, Protocol

from backends.worker.engine.block_manager import BlockManager
from backends.worker.engine.sequence import Sequence, Status
from backends.worker.kv.chunks import Chunking
from backends.worker.kv.restore_choice import RestorePrice
from cache.kv_codec import HEADER_BYTES, FrameError, FrameSpec, check, encode_header
from cache.store import BlockStore, Buffer, FrameInfo, StoreError
from policies.restore_price import RestorableChunk

log = logging.getLogger(__name__)

_LEAST_PATIENCE: Final = 0.05
"""Seconds: threads do not run to the millisecond."""
_HELD: Final = 0.5
"""Share of the pool that may be held while it is written to stores; what comes beyond is not kept."""


class BlockMemory(Protocol):
    """The pool's blocks as bytes that I/O threads read and write."""

    def view(self, block: int) -> memoryview:
        """One block's bytes; writable."""
        ...

    def wipe(self, block: int) -> None:
        """Make it zeros: a pool holds numbers only, and what came from a store may be none."""
        ...


@dataclass(slots=True)
class _Arrival:
    sequence: Sequence
    deadline: float
    first: int
    """Number of the first chunk that the pool lacks."""
    chunks: list[tuple[FrameSpec, BlockStore]] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    """Blocks of the pool that the restored ones follow."""
    n_read: int = 0
    reading: bool = False
    released: bool = False
    """The sequence waits no longer."""


@dataclass(frozen=True, slots=True)
class _Kept:
    sequence: Sequence
    held: list[int]
    """Its leading blocks, whole chunks."""


class KvTiers:
    """`stores` in the order of their speed. Methods are for the engine's thread."""

    def __init__(
        self,
        stores: Items[BlockStore],
        chunking: Chunking,
        memory: BlockMemory,
        blocks: BlockManager,
        *,
        price: RestorePrice,
        threads: int = 2,
        patience: float = 2.0,
    ) -> None:
        """`patience`: seconds that a sequence waits for its KV."""
        self._stores = list(stores)
        self._chunking = chunking
        self._memory = memory
        self._blocks = blocks
        self._price = price
        self._patience = patience
        self._most_held = int(blocks.n_blocks * _HELD)
        self.held = 0
        """Blocks that are held because they are being written."""
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="kv-io")
        self._done: SimpleQueue[_Arrival | _Kept] = SimpleQueue()
        self._arrivals: dict[str, _Arrival] = {}
        self.counts: Counter[str] = Counter()
        """`restored_tokens`, `kept_tokens`, `late`, and refused frames and failures by reason."""
        self._counting = threading.Lock()

    @property
    def idle(self) -> bool:
        """Is nothing read or written, and no block held?"""
        return not (self.held or self._arrivals)

    def worth_looking(self, n_prompt: int) -> bool:
        """Is a prompt of so many tokens long enough to have a chunk in a store?"""
        return bool(self._stores) and n_prompt > self._chunking.n_tokens

    def look(self, sequence: Sequence, now: float) -> None:
        """A sequence was put aside: look for what the pool lacks of its prompt."""
        matched = self._blocks.match(sequence)
        first = len(matched) // self._chunking.n_blocks
        arrival = _Arrival(sequence, now + self._patience, first)
        self._arrivals[sequence.id] = arrival
        self._threads.submit(self._guarded, self._look, arrival)

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
                self.held -= len(done.held)
            elif not done.reading and self._begin_reading(done, now, waiting):
                continue
            else:
                self._end(done, ready)
        for arrival in self._arrivals.values():
            if now >= arrival.deadline and not arrival.released:
                self._count("late")
                self._release(arrival, ready)
        return ready

    def keep(self, sequence: Sequence) -> None:
        """A sequence has ended: write its chunks to the stores that lack them, as many as may be held at a time."""
        found = self._blocks.match(sequence)
        size = self._chunking.n_blocks
        n_chunks = min(len(found), self._most_held - self.held) // size
        if n_chunks <= 0:
            return
        # From the first on: no prefix may outlive the one that it continues.
        held = found[: n_chunks * size]
        self._blocks.hold(held)
        self.held += len(held)
        self._threads.submit(self._write, _Kept(sequence, held))

    def computed(self, n_tokens: int, pairs: float, seconds: float) -> None:
        """A step took so long, see `RestorePrice.computed`."""
        self._price.computed(n_tokens, pairs, seconds)

    def close(self) -> None:
        """Wait for what is being written, and close the stores."""
        self._threads.shutdown(wait=True)
        for store in self._stores:
            store.close()

    # --- on the engine's thread ---

    def _begin_reading(self, arrival: _Arrival, now: float, waiting: int) -> bool:
        """Reserve blocks for what was found, as far as it pays; False where there is nothing to read."""
        if arrival.released or arrival.sequence.status is Status.FINISHED or not arrival.chunks:
            return False
        matched = self._blocks.match(arrival.sequence)
        size = self._chunking.n_blocks
        if len(matched) < arrival.first * size:
            return False  # evicted meanwhile
        arrival.chunks = arrival.chunks[max(0, len(matched) // size - arrival.first) :]  # or computed meanwhile
        arrival.first = len(matched) // size
        before = arrival.first * size
        context = len(matched) * self._blocks.block_size
        plan = self._price.plan(
            [
                RestorableChunk(
                    spec.first_token + spec.n_tokens - max(context, spec.first_token), spec.frame_bytes, store.tier
                )
                for spec, store in arrival.chunks
            ],
            arrival.sequence.n_tokens - context,
            context=context,
            waiting=waiting,
        )
        if plan.probe is not None:
            self._threads.submit(self._probe, *arrival.chunks[plan.probe])
        n_chunks = plan.n_chunks
        arrival.chunks = arrival.chunks[:n_chunks]
        arrival.deadline = min(arrival.deadline, now + max(plan.deadline_s, _LEAST_PATIENCE))
        blocks = self._blocks.reserve(n_chunks * size, after=matched[:before]) if n_chunks else None
        if blocks is None:
            return False
        arrival.held = matched[:before]
        arrival.blocks = blocks
        arrival.reading = True
        self._threads.submit(self._guarded, self._read, arrival)
        return True

    def _end(self, arrival: _Arrival, ready: list[Sequence]) -> None:
        size = self._chunking.n_blocks
        good = arrival.blocks[: arrival.n_read * size]
        if good:
            after = arrival.held[-1] if arrival.held else None
            entered = self._blocks.adopt(arrival.sequence, arrival.first * size, good, after=after)
            self._count("restored_tokens", entered * self._blocks.block_size)
        self._blocks.let_go(arrival.blocks)
        self._blocks.let_go(arrival.held)
        self._release(arrival, ready)
        del self._arrivals[arrival.sequence.id]

    @staticmethod
    def _release(arrival: _Arrival, ready: list[Sequence]) -> None:
        if not arrival.released:
            arrival.released = True
            ready.append(arrival.sequence)

    # --- on the I/O threads ---

    def _guarded(self, work: Callable[[_Arrival], None], arrival: _Arrival) -> None:
        try:
            work(arrival)
        except Exception:  # whatever it is: the sequence must not wait for ever
            log.exception("KV could not be restored")
            self._count("failed")
        self._done.put(arrival)

    def _look(self, arrival: _Arrival) -> None:
        sequence = arrival.sequence
        specs = self._chunking.frames(sequence, (sequence.n_prompt - 1), first=arrival.first)
        at = 0
        while at < len(specs):
            for store in self._stores:
                try:
                    n_here = store.contains([spec.key for spec in specs[at:]])
                except StoreError as error:
                    self._failed(store, error)
                    continue
                if n_here:
                    arrival.chunks += [(spec, store) for spec in specs[at : at + n_here]]
                    at += n_here
                    break
            else:
                return

    def _read(self, arrival: _Arrival) -> None:
        try:
            self._read_all(arrival)
        finally:  # after a bug in a store too
            for block in arrival.blocks[arrival.n_read * self._chunking.n_blocks :]:
                self._memory.wipe(block)

    def _read_all(self, arrival: _Arrival) -> None:
        """Tier by tier, as the chunks lie: what each run of one tier took is what the tier is known by."""
        at, chunks = 0, arrival.chunks
        while at < len(chunks):
            tier = chunks[at][1].tier
            end = next((n for n in range(at, len(chunks)) if chunks[n][1].tier is not tier), len(chunks))
            start = time.perf_counter()
            last = self._read_run(arrival, at, end)
            if n_bytes := sum(spec.frame_bytes for spec, _ in chunks[at:last]):
                self._price.read(tier, n_bytes, time.perf_counter() - start)
            if last != end:
                return
            at = last

    def _read_run(self, arrival: _Arrival, first: int, end: int) -> int:
        """Read chunks `first:end`; the number of the first that could not be had."""
        size = self._chunking.n_blocks
        header = memoryview(bytearray(HEADER_BYTES))
        for number in range(first, end):
            spec, store = arrival.chunks[number]
            if not self._read_chunk(spec, store, header, arrival.blocks[number * size : (number + 1) * size]):
                return number
            arrival.n_read += 1
        return end

    def _probe(self, spec: FrameSpec, store: BlockStore) -> None:
        """Read a chunk for nothing but to learn how fast its tier is now."""
        start = time.perf_counter()
        try:
            if store.read_into(spec.key, [memoryview(bytearray(spec.frame_bytes))]):
                self._price.read(store.tier, spec.frame_bytes, time.perf_counter() - start)
        except StoreError as error:
            self._failed(store, error)

    def _read_chunk(self, spec: FrameSpec, store: BlockStore, header: memoryview, blocks: list[int]) -> bool:
        pieces = [self._memory.view(block) for block in blocks]
        try:
            if not store.read_into(spec.key, [header, *pieces]):
                self._count("gone")
                return False
            check(header, pieces, spec)
        except FrameError as error:
            self._count(f"refused: {error.reason}")
            self._drop(spec, store)
            return False
        except StoreError as error:
            self._failed(store, error)
            return False
        return True

    def _drop(self, spec: FrameSpec, store: BlockStore) -> None:
        """What was refused once is refused always, and keeps a good one out."""
        try:
            store.remove(spec.key)
        except StoreError as error:
            self._failed(store, error)

    def _write(self, kept: _Kept) -> None:
        size, n_tokens = self._chunking.n_blocks, len(kept.held) * self._blocks.block_size
        try:
            for number, spec in enumerate(self._chunking.frames(kept.sequence, n_tokens)):
                self._write_chunk(spec, kept.held[number * size : (number + 1) * size])
        except Exception:  # whatever it is: the blocks must not be held for ever
            log.exception("KV could not be kept")
            self._count("failed")
        self._done.put(kept)

    def _write_chunk(self, spec: FrameSpec, blocks: Items[int]) -> None:
        frame: list[Buffer] = []
        for store in self._stores:
            try:
                if store.contains([spec.key]):
                    continue
                if not frame:
                    pieces = [self._memory.view(block) for block in blocks]
                    frame = [encode_header(spec, pieces), *pieces]
                info = FrameInfo(parent=spec.parent, tenant=spec.salt.hex(), n_tokens=spec.n_tokens)
                if store.write(spec.key, frame, info):
                    self._count("kept_tokens", spec.n_tokens)
            except StoreError as error:
                self._failed(store, error)

    def _count(self, what: str, n: int = 1) -> int:
        """Count it, and how many there are now."""
        with self._counting:
            self.counts[what] += n
            return self.counts[what]

    def _failed(self, store: BlockStore, error: StoreError) -> None:
        if self._count(f"failed: {store.tier}") == 1:
            log.warning("the %s tier fails: %s", store.tier, error)
