"""Stores that can be watched, held up and broken, and everything closed afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cache.memory_store import MemoryStore
from cache.store import BlockStore, Buffer, ChunkKey, FrameInfo, StoreError, StoreStats
from policies.types import Tier
from tests.store_contract import frame_of

SIZE = 20_000
MANY = 8 << 20


class Watched:
    """A store in which writes can be held up, and which can fail; it tells what it was asked."""

    def __init__(self, store: BlockStore, tier: Tier | None = None) -> None:
        self.store = store
        self._tier = store.tier if tier is None else tier
        self.asked: list[tuple[str, ChunkKey]] = []
        self.fails: dict[str, Exception] = {}
        """By the method's name."""
        self.go_on = threading.Event()
        self.go_on.set()
        self.held = threading.Event()
        """Has a write been held up?"""

    @property
    def tier(self) -> Tier:
        return self._tier

    def contains(self, keys: Sequence[ChunkKey]) -> int:
        self._asked("contains", keys[-1])
        return self.store.contains(keys)

    def read_into(self, key: ChunkKey, pieces: Sequence[memoryview], *, expires: float | None = None) -> bool:
        self._asked("read_into", key)
        return self.store.read_into(key, pieces, expires=expires)

    def write(self, key: ChunkKey, pieces: Sequence[Buffer], info: FrameInfo) -> bool:
        self._asked("write", key)
        if not self.go_on.is_set():
            self.held.set()
            assert self.go_on.wait(60)
        return self.store.write(key, pieces, info)

    def remove(self, key: ChunkKey) -> bool:
        self._asked("remove", key)
        return self.store.remove(key)

    def stats(self) -> StoreStats:
        return self.store.stats()

    def close(self) -> None:
        self.store.close()

    def written(self) -> list[ChunkKey]:
        return [key for name, key in self.asked if name == "write"]

    def breaks(self, *names: str, error: Exception | None = None) -> None:
        """From now on these fail; none: all of them."""
        for name in names or ("contains", "read_into", "write", "remove"):
            self.fails[name] = StoreError("broken") if error is None else error

    def _asked(self, name: str, key: ChunkKey) -> None:
        self.asked.append((name, key))
        if (error := self.fails.get(name)) is not None:
            raise error


class Lending(Watched):
    """Lends frames; it copies them for that: what a lender promises is that nobody changes them."""

    def __init__(self, store: BlockStore) -> None:
        super().__init__(store)
        self.n_lent = self.n_returned = 0
        self.lengths: dict[ChunkKey, int] = {}

    def write(self, key: ChunkKey, pieces: Sequence[Buffer], info: FrameInfo) -> bool:
        self.lengths[key] = sum(map(len, pieces))
        return super().write(key, pieces, info)

    @contextmanager
    def lend(self, key: ChunkKey) -> Iterator[Sequence[memoryview] | None]:
        self._asked("lend", key)
        frame = memoryview(bytearray(self.lengths.get(key, 0)))
        if not self.store.read_into(key, [frame]):
            yield None
            return
        self.n_lent += 1
        half = len(frame) // 2
        yield [frame[:half].toreadonly(), frame[half:].toreadonly()]
        self.n_returned += 1


class Clock:
    """Stands still, until somebody moves it."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Movements:
    """What a tiered store tells."""

    def __init__(self) -> None:
        self.all: list[tuple[Tier, ChunkKey, bool]] = []

    def __call__(self, tier: Tier, key: ChunkKey, here: bool) -> None:
        self.all.append((tier, key, here))

    def known(self) -> set[tuple[Tier, ChunkKey]]:
        """What somebody believes who was told; each of them must have been news."""
        known: set[tuple[Tier, ChunkKey]] = set()
        for tier, key, here in self.all:
            assert ((tier, key) in known) is not here, "only changes are told"
            (known.add if here else known.remove)((tier, key))
        return known


def in_memory(tier: Tier = Tier.HOST, capacity: int = MANY) -> Watched:
    """A memory store, as whatever tier; it does not lend."""
    return Watched(MemoryStore(capacity, page_bytes=4_096, prefault=False), tier)


def write(store: BlockStore, key: ChunkKey, *, parent: ChunkKey | None = None, wanted: bool = False) -> bool:
    return store.write(key, [frame_of(key, SIZE)], FrameInfo(parent=parent, n_tokens=16, wanted=wanted))
