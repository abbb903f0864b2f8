"""Frames between the pool and the stores, and what their way says of each tier's speed. On I/O threads."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

from backends.worker.engine.sequence import Sequence
from backends.worker.kv.chunks import Chunking, owner_tenant
from backends.worker.kv.framing import Framing
from backends.worker.kv.pool_memory import BlockMemory
from backends.worker.kv.residency import Residency
from backends.worker.kv.restore_choice import RestorePrice
from cache.kv_codec import FrameError, FrameSpec
from cache.store import FrameInfo, tenant_digest
from cache.tiered_store import TieredStore
from policies.kv_policy import NO_KV_POLICY, KvPolicy
from policies.types import Tier

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Progress:
    """Of one restore: written by the thread that reads, but for `stop`."""

    n_read: int = 0
    """Leading chunks that are in the pool, each as it was written."""
    stop: bool = False
    """Nobody waits for more."""


class Transfer:
    """Safe to be used by several threads. No method raises: what cannot be done is counted."""

    def __init__(
        self,
        store: TieredStore,
        chunking: Chunking,
        framing: Framing,
        memory: BlockMemory,
        *,
        residency: Residency,
        price: RestorePrice,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`wall` is the clock of `FrameInfo.expires`."""
        self._store = store
        self._chunking = chunking
        self._framing = framing
        self._memory = memory
        self._residency = residency
        self._price = price
        self._wall = wall
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def counts(self) -> Counter[str]:
        """`kept_tokens`, `gone`, and refused frames and failures by reason; a copy."""
        with self._lock:
            return self._counts + self._store.counts

    def look(self, sequence: Sequence, first: int) -> list[tuple[FrameSpec, Tier]]:
        """Which chunks of its prompt, from number `first` on, are in a store, and in which."""
        found: list[tuple[FrameSpec, Tier]] = []
        with self._safely("looked for"):
            specs = self._chunking.frames(sequence, sequence.n_prompt - 1, first=first)
            self._residency.name(sequence, specs)
            found += zip(specs, self._store.locate([spec.key for spec in specs]), strict=False)
        return found

    def read(
        self,
        chunks: Items[tuple[FrameSpec, Tier]],
        blocks: Items[int],
        progress: Progress,
        policy: KvPolicy = NO_KV_POLICY,
    ) -> None:
        """Fill blocks with these chunks, tier by tier as they lie, until one cannot be had. The blocks of what could
        not are zeros then. What each run of one tier took is what the tier is known by. `policy`: whoever reads.
        """
        with self._safely("restored"):
            expires = policy.expires(self._wall())
            for tier, run in groupby(chunks, key=itemgetter(1)):
                start, n_bytes = time.perf_counter(), 0
                whole = True
                for spec, _ in run:
                    into = self._of_chunk(progress.n_read, blocks)
                    whole = not progress.stop and self._read_chunk(spec, tier, into, expires)
                    if not whole:
                        break
                    progress.n_read += 1
                    n_bytes += spec.frame_bytes
                if n_bytes:
                    self._price.read(tier, n_bytes, time.perf_counter() - start)
                if not whole:
                    break
        for block in blocks[progress.n_read * self._chunking.n_blocks :]:
            self._memory.wipe(block)

    def probe(self, spec: FrameSpec, tier: Tier, policy: KvPolicy = NO_KV_POLICY) -> None:
        """Read a chunk for nothing but to learn how fast its tier is now."""
        start = time.perf_counter()
        pieces = [memoryview(bytearray(spec.frame_bytes))]
        if self._store.read_from(tier, spec.key, pieces, expires=policy.expires(self._wall())):
            self._price.read(tier, spec.frame_bytes, time.perf_counter() - start)

    def write(self, sequence: Sequence, blocks: Items[int]) -> None:
        """Keep what these blocks, whole chunks and the first of the sequence, hold."""
        with self._safely("kept"):
            specs = self._chunking.frames(sequence, len(blocks) * self._chunking.geometry.block_size)
            self._residency.name(sequence, specs)
            expires = sequence.request.kv.expires(self._wall())
            for number, spec in enumerate(specs):
                self._write_chunk(spec, self._of_chunk(number, blocks), _told(spec, sequence, expires))

    def _of_chunk(self, number: int, blocks: Items[int]) -> Items[int]:
        size = self._chunking.n_blocks
        return blocks[number * size : (number + 1) * size]

    def _read_chunk(self, spec: FrameSpec, tier: Tier, blocks: Items[int], expires: float | None) -> bool:
        with self._memory.write(blocks) as pieces, self._framing.reading(spec, pieces) as reading:
            if not self._store.read_from(tier, spec.key, reading.pieces, expires=expires):
                self._count("gone")
                return False
            try:
                reading.finish()
            except FrameError as error:
                self._count(f"refused: {error.reason}")
                self._store.remove(spec.key)  # what was refused once is refused always, and keeps a good one out
                return False
        return True

    def _write_chunk(self, spec: FrameSpec, blocks: Items[int], info: FrameInfo) -> None:
        if self._store.note(spec.key, spec.frame_bytes, info):
            return
        named = replace(spec, tenant=tenant_digest(info.tenant))
        try:
            with self._memory.read(blocks) as pieces, self._framing.encode(named, pieces) as frame:
                if self._store.write(spec.key, frame, info):
                    self._count("kept_tokens", spec.n_tokens)
        except FrameError as error:
            self._count(f"refused: {error.reason}")

    @contextmanager
    def _safely(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception:  # a bug: those who wait must not wait for ever
            log.exception("KV could not be %s", what)
            self._count("failed")

    def _count(self, what: str, n: int = 1) -> None:
        with self._lock:
            self._counts[what] += n


def _told(spec: FrameSpec, sequence: Sequence, expires: float | None) -> FrameInfo:
    """What stores are told of a chunk. A client may have many salts: they count together where their owner is told."""
    policy = sequence.request.kv
    return FrameInfo(
        parent=spec.parent,
        tenant=owner_tenant(policy.owner) if policy.owner else spec.salt.hex(),
        n_tokens=spec.n_tokens,
        wanted=sequence.request.wanted,
        expires=expires,
        policy=policy,
    )
