"""One tier as the tiered store sees it: what fails is a None, and what keeps failing rests."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, TypeVar

from cache.store import (
    BlockStore,
    Buffer,
    ChunkKey,
    FrameInfo,
    Keeper,
    Lender,
    OwnFrames,
    StoreError,
    StoreStats,
    TenantStore,
)
from policies.tier_rest import TierRest

R = TypeVar("R")

log = logging.getLogger(__name__)


class Scratch:
    """Room for one frame, used again and again. For one thread."""

    def __init__(self) -> None:
        self._room = bytearray()

    def view(self, length: int) -> memoryview:
        """So many bytes; they hold whatever they held."""
        if len(self._room) < length:
            self._room = bytearray(length)
        return memoryview(self._room)[:length]


class GuardedTier:
    """Safe for many threads; its lock is not held while the store works. Methods do not raise StoreError: they return
    None where the store has failed, or rests and was not asked.

    Writes rest by themselves: a full store that can be read is still of use.
    """

    def __init__(
        self,
        store: BlockStore,
        clock: Callable[[], float],
        count: Callable[[str], None],
        *,
        longest_rest_s: float = 60.0,
    ) -> None:
        """`count` is told `failed: <tier>` and `rests: <tier>`."""
        self.tier: Final = store.tier
        self._store = store
        self._keeper = store if isinstance(store, Keeper) else None
        self._clock = clock
        self._count = count
        self._lock = threading.Lock()
        self._rest = TierRest(longest_s=longest_rest_s)
        self._write_rest = TierRest(longest_s=longest_rest_s)
        self._stats = StoreStats()

    def ready_to_write(self) -> bool:
        """Would a write be tried now?"""
        with self._lock:
            now = self._clock()
            return self._rest.ready(now) and self._write_rest.ready(now)

    def write_rest_left(self) -> float:
        """Seconds until a write may be tried; 0 where one may, or does."""
        with self._lock:
            now = self._clock()
            return max(self._rest.left(now), self._write_rest.left(now))

    def contains(self, keys: Sequence[ChunkKey]) -> int | None:
        """See `BlockStore`."""
        return self.ask(lambda: self._store.contains(keys))

    def read_into(self, key: ChunkKey, pieces: Sequence[memoryview], *, expires: float | None = None) -> bool | None:
        """See `BlockStore`."""
        return self.ask(lambda: self._store.read_into(key, pieces, expires=expires))

    def write(self, key: ChunkKey, pieces: Sequence[Buffer], info: FrameInfo) -> bool | None:
        """See `BlockStore`."""
        return self.ask(lambda: self._store.write(key, pieces, info), writes=True)

    def remove(self, key: ChunkKey) -> bool | None:
        """See `BlockStore`."""
        return self.ask(lambda: self._store.remove(key))

    def renew(self, key: ChunkKey, info: FrameInfo) -> None:
        """See `Keeper`; other stores are not asked."""
        keeper = self._keeper
        if keeper is not None:
            self.ask(lambda: keeper.renew(key, info))

    def expire(self, most: int) -> int | None:
        """See `Keeper`; other stores are not asked."""
        keeper = self._keeper
        return 0 if keeper is None else self.ask(lambda: keeper.expire(most))

    def of_tenants(self, tenants: Collection[str], seconds: float) -> OwnFrames | None:
        """See `TenantStore`; other stores are not asked."""
        store = self._store
        if not isinstance(store, TenantStore):
            return OwnFrames((), untold=True)
        return self.ask(lambda: store.of_tenants(tenants, seconds))

    @contextmanager
    def frame(self, key: ChunkKey, length: int, scratch: Scratch) -> Iterator[Sequence[Buffer] | None]:
        """The frame's bytes until the context is left: where they lie, if the store lends, else in `scratch`, where
        the frame must have that length. None: it is not here.
        """
        with ExitStack() as lent:
            store = self._store
            if isinstance(store, Lender):
                yield self.ask(lambda: lent.enter_context(store.lend(key)))
                return
            view = scratch.view(length)
            yield [view] if self.read_into(key, [view]) else None

    def stats(self) -> StoreStats:
        """As of now; of a tier that rests, as of before."""
        with self._lock:
            if self._rest.resting:
                return self._stats
        stats = self._store.stats()
        with self._lock:
            self._stats = stats
        return stats

    def close(self) -> None:
        """See `BlockStore`."""
        self._store.close()

    def ask(self, call: Callable[[], R], *, writes: bool = False) -> R | None:
        """What `call` returns, which uses the store; None where that has failed, or rests."""
        with self._lock:
            now = self._clock()
            rests = [self._rest, self._write_rest] if writes else [self._rest]
            if not all(rest.ready(now) for rest in rests):
                return None
            for rest in rests:
                rest.begin()
        try:
            result = call()
        except StoreError as error:
            self._failed(error, writes=writes)
            return None
        except BaseException as error:
            self._failed(error, writes=writes)
            raise
        with self._lock:
            news = [rest.succeeded() for rest in rests]
        if any(news):
            log.info("the %s tier is well again", self.tier)
        return result

    def _failed(self, error: BaseException, *, writes: bool) -> None:
        with self._lock:
            # A write that tried the tier as a whole has an answer for both.
            was_resting = self._rest.resting or self._write_rest.resting
            rests = [self._write_rest] if writes else [self._rest]
            if writes and self._rest.resting:
                rests.append(self._rest)
            now = self._clock()
            begins = [rest.failed(now) for rest in rests]
        self._count(f"failed: {self.tier}")
        if any(begins):
            self._count(f"rests: {self.tier}")
            if not was_resting:
                log.warning("the %s tier keeps failing and is left alone for a while: %s", self.tier, error)
