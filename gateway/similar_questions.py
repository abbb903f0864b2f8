"""The one thread in which questions are searched for, compared by guards, added and forgotten.

What waits is bounded; who has given up is not searched for, but counts until it is its turn. Whatever fails is as if
nothing had been found.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cache.one_core import keep_to_one_core
from cache.response_key import KEY_BYTES, TAG_BYTES, ResponseKey
from cache.similarity import SimilarityIndex, SimilarityStats
from cache.store import StoreError
from gateway.embedding_batcher import NICENESS
from gateway.embedding_thread import be_nice
from gateway.semantic_call import Similar
from gateway.thread_line import ThreadLine
from policies.guards.check import check
from policies.guards.profile import Profile
from policies.guards.reading import profile
from policies.guards.strength import LOOSE

if TYPE_CHECKING:
    from gateway.semantic_call import Vector

log = logging.getLogger(__name__)

_NEAREST: Final = 5
_SLICE: Final = 8
"""Entries that go into a graph between two searches: some milliseconds."""
_PROFILES: Final = 2_048
_TIME: Final = Struct("<d")
_DIGEST: Final = slice(TAG_BYTES, TAG_BYTES + 24)


class Searched(NamedTuple):
    """What a search has found."""

    similar: list[Similar]
    """The most alike first."""
    refusals: list[str]
    """Guards that refused others."""


class SimilarQuestions:
    """Belongs to one event loop; owns the index."""

    def __init__(self, index: SimilarityIndex) -> None:
        keep_to_one_core()
        self._index = index
        self._executor = ThreadPoolExecutor(1, "questions", be_nice, (NICENESS,))
        self._line = ThreadLine(self._executor)
        self._works = False
        self._failed = False
        self._profile = lru_cache(maxsize=_PROFILES)(profile)
        self.refusals: Counter[str] = Counter()
        """By guard."""
        if len(index):
            self._work()

    def stats(self) -> SimilarityStats:
        """As of now."""
        return self._index.stats()

    @property
    def waiting(self) -> int:
        """What the thread has still to do."""
        return self._line.length

    async def search(
        self, partition: bytes, vector: Vector, text: str, floor: float, *, least: int = LOOSE
    ) -> list[Similar]:
        """Questions of the partition that no guard refuses by rules of at least that strength: those that the guards
        find most alike, and of these the most similar first. Raises BusyError.
        """
        searched = await self._line.begin(lambda: self._search(partition, vector, text, floor, least))
        self.refusals.update(searched.refusals)
        return searched.similar

    async def add(
        self,
        partition: bytes,
        key: ResponseKey,
        stored_at: float,
        vector: Vector,
        text: str,
        *,
        still: Callable[[], bool],
    ) -> bool:
        """Keep a question whose answer is kept, unless what came before was forgotten meanwhile. Raises BusyError."""
        added = await self._line.begin(lambda: still() and self._add(partition, key, stored_at, vector, text))
        self._work()
        return added

    def remove(self, entry_id: bytes) -> None:
        """Its answer is gone, or was wrong. Waits for nothing."""
        self._submit(lambda: self._index.remove(entry_id))

    def touch(self, entry_id: bytes) -> None:
        """It was of use. Waits for nothing."""
        self._submit(lambda: self._index.touch(entry_id))

    async def forget(
        self, prefix: bytes, *, model: bytes | None = None, before: float | None = None, dry_run: bool = False
    ) -> int:
        """Remove, or count, what partitions hold that begin so, of one model, of answers stored before then. Raises
        StoreError where the file keeps what should be gone.
        """
        return await asyncio.wrap_future(
            self._executor.submit(self._forget, prefix, model=model, before=before, dry_run=dry_run)
        )

    async def flush(self) -> None:
        """Have what was added and removed survive a crash of the machine."""
        await self._line.begin(self._index.flush)

    def close(self) -> None:
        """Do what is to be done, and give the file back. Blocks."""
        self._executor.shutdown(wait=True)
        try:
            self._index.close()
        except StoreError as error:
            log.warning("questions could not be kept: %s", error)

    # -- in the thread

    def _search(self, partition: bytes, vector: Vector, text: str, floor: float, least: int) -> Searched:
        matches = self._index.search(partition, vector, _NEAREST, floor)
        if not matches:
            return Searched([], [])
        asked, similar, refusals = self._profile(text), [], []
        for match in matches:
            key, stored_at, stored = _read(match.id, match.meta)
            known = self._profile(stored)
            verdict = check(known, asked, least=least)
            if verdict.same:
                similar.append(Similar(match.id, key, stored_at, match.similarity, verdict.strength))
            else:
                refusals.append(verdict.guard)
        similar.sort(key=lambda each: -each.guard)
        return Searched(similar, refusals)

    def _add(self, partition: bytes, key: ResponseKey, stored_at: float, vector: Vector, text: str) -> bool:
        if self._too_long(self._profile(text)):
            return False
        return self._index.add(partition, _id(key, stored_at), vector, key + text.encode())

    @staticmethod
    def _too_long(told: Profile) -> bool:
        return told.too_long

    def _forget(self, prefix: bytes, *, model: bytes | None, before: float | None, dry_run: bool) -> int:
        if not dry_run:
            self._profile.cache_clear()

        def meant(partition: bytes) -> bool:
            return partition.startswith(prefix) and model in {None, partition[TAG_BYTES : 2 * TAG_BYTES]}

        return self._index.forget_entries(
            meant, lambda entry_id: before is None or _stored_at(entry_id) < before, dry_run=dry_run
        )

    # -- the way there

    def _submit(self, work: Callable[[], object]) -> None:
        try:
            self._executor.submit(work).add_done_callback(self._tell)
        except RuntimeError:  # closed
            return

    def _tell(self, done: Future[object]) -> None:
        """One line where the file fails; the index goes on without it."""
        error = None if done.cancelled() else done.exception()
        if error is not None and not self._failed:
            self._failed = True
            log.warning("a question could not be removed from the index: %s", error)

    def _work(self) -> None:
        if not self._works:
            self._works = True
            self._submit(self._slice)

    def _slice(self) -> None:
        """A slice of what large partitions need; searches that wait come before the next one."""
        more = self._index.work(_SLICE)
        self._works = more
        if more:
            self._submit(self._slice)


def open_questions(index: SimilarityIndex, path: Path | None, embedder: str) -> SimilarQuestions:
    """Blocks. A file that cannot be used is told in the log, and all is in memory alone."""
    if path is not None:
        try:
            path.mkdir(parents=True, exist_ok=True)
            index.open(path, embedder)
        except (StoreError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            log.warning("semantic_cache.path cannot be used, questions are in memory alone: %s", reason)
    return SimilarQuestions(index)


def _id(key: ResponseKey, stored_at: float) -> bytes:
    """Of an answer: another one to the same request has another."""
    return key[_DIGEST] + _TIME.pack(stored_at)


def _stored_at(entry_id: bytes) -> float:
    stored_at: float = _TIME.unpack(entry_id[24:])[0]
    return stored_at


def _read(entry_id: bytes, meta: bytes) -> tuple[ResponseKey, float, str]:
    return ResponseKey(meta[:KEY_BYTES]), _stored_at(entry_id), meta[KEY_BYTES:].decode("utf-8", "replace")
