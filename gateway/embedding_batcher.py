"""The event loop's way to vectors: one thread embeds, in batches; whoever asks gets a vector in time, or none.

Without a vector a request is a miss of the semantic cache and nothing else. So every trouble is a None, with a reason
that is counted: the queue is full, the deadline passed, the embedder failed, rests, or refused the text.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cache.embedding import Embedder, EmbeddingError
from gateway.embedding_queue import Key, TextQueue
from gateway.embedding_thread import Batch, EmbeddingThread, Outcome
from policies.tier_rest import TierRest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]

log = logging.getLogger(__name__)

Miss = Literal["closed", "failed", "full", "late", "long", "refused", "resting"]
"""Why there was no vector."""

MISSES: Final[tuple[Miss, ...]] = ("closed", "failed", "full", "late", "long", "refused", "resting")


NICENESS: Final = 5
"""A thread suffices: on one core, another process, with the model in memory once more, delays the event loop as much,
since most of the delay is the kernel's time slice and not the interpreter's lock. A lower priority is what helps (see
tests/bench/embedding.py); a much lower one would leave it nothing where other processes keep all cores busy.
"""


class BatcherStats(NamedTuple):
    """Counted since the start."""

    asked: int
    remembered: int
    """Answered from memory."""
    texts: int
    """Embedded."""
    batches: int
    failed_batches: int
    seconds: float
    """In the embedder."""
    misses: Mapping[Miss, int]
    waiting: int
    """Texts in the queue now."""


@dataclass(slots=True, eq=False)
class _Job:
    """One text and all who wait for it."""

    key: Key
    text: str
    deadline: float
    """The latest of theirs."""
    epoch: int
    """What was asked before it was forgotten is not remembered after."""
    waiters: set[asyncio.Future[Vector | Miss]] = field(default_factory=set)


class EmbeddingBatcher:
    """Belongs to one event loop, in which all methods are called; owns `embedder`, which its thread closes at the end.

    Equal texts of one scope that wait at the same time are embedded once.
    """

    def __init__(
        self,
        embedder: Embedder,
        *,
        gather_s: float = 0.002,
        max_batch: int = 8,
        max_waiting: int = 256,
        max_chars: int = 32_768,
        remembered: int = 1024,
        rest: TierRest | None = None,
        niceness: int = NICENESS,
    ) -> None:
        """A text that finds the thread idle waits `gather_s` for others. Up to `max_waiting` texts of `max_chars` wait
        for their turn; `remembered` vectors are kept. `rest` says when failures are enough. `niceness`
        is the thread's, on Linux.
        """
        self._embedder = embedder
        self._gather_s = gather_s
        self._max_batch = max_batch
        self._max_chars = max_chars
        self._memory = _Memory(remembered)
        self._epoch = 0
        self._rest = rest or TierRest()
        self._queue = TextQueue[_Job](max_waiting)
        self._batch: dict[Key, _Job] = {}
        """What the thread has."""
        self._gathering: asyncio.TimerHandle | None = None
        self._thread = EmbeddingThread(embedder, niceness)
        self._closed = False
        self._counts: Counter[str] = Counter()
        self._misses: Counter[Miss] = Counter()
        self._seconds = 0.0

    @property
    def name(self) -> str:
        """See `Embedder.name`."""
        return self._embedder.name

    @property
    def dim(self) -> int:
        """See `Embedder.dim`."""
        return self._embedder.dim

    @property
    def running(self) -> bool:
        """Does its thread run? For a while after `close`, and not before the first text."""
        return self._thread.alive

    def stats(self) -> BatcherStats:
        """As of now."""
        return BatcherStats(
            asked=self._counts["asked"],
            remembered=self._counts["remembered"],
            texts=self._counts["texts"],
            batches=self._counts["batches"],
            failed_batches=self._counts["failed_batches"],
            seconds=self._seconds,
            misses={miss: self._misses[miss] for miss in MISSES},
            waiting=len(self._queue),
        )

    async def embed(self, text: str, deadline_s: float, *, scope: str = "") -> Vector | None:
        """The text's vector, [dim], of length 1, read-only; None where it cannot be had within `deadline_s` seconds.

        `scope` is whose text it is: no scope can tell from the time it takes what another has asked, and each gets its
        turn. A text that nobody waits for any more is not embedded, unless it has begun.
        """
        self._counts["asked"] += 1
        if len(text) > self._max_chars:
            self._misses["long"] += 1
            return None
        key = Key.of(scope, text)
        known = self._memory.get(key)
        if known is not None:
            self._counts["remembered"] += 1
            return known
        found = await self._asked(key, text, deadline_s)
        if isinstance(found, str):
            self._misses[found] += 1
            return None
        return found

    def forget(self) -> None:
        """Vectors of earlier texts are remembered no longer, nor those that are under way."""
        self._epoch += 1
        self._memory.clear()

    def close(self) -> None:
        """Whoever waits gets None; the thread ends after the batch that it is at."""
        if self._closed:
            return
        self._closed = True
        if self._gathering is not None:
            self._gathering.cancel()
        while (job := self._queue.pop()) is not None:
            _settle(job, "closed")
        for job in self._batch.values():
            _settle(job, "closed")
        self._thread.stop()

    async def _asked(self, key: Key, text: str, deadline_s: float) -> Vector | Miss:
        loop = asyncio.get_running_loop()
        found = self._job(key, text, loop, deadline_s)
        if isinstance(found, str):
            return found
        job, waiter = found, loop.create_future()
        job.waiters.add(waiter)
        try:
            async with asyncio.timeout(deadline_s):
                vector: Vector | Miss = await waiter
                return vector
        except TimeoutError:
            return "late"
        finally:
            job.waiters.discard(waiter)
            if not job.waiters and self._queue.get(key) is job:
                self._queue.remove(key)

    def _job(self, key: Key, text: str, loop: asyncio.AbstractEventLoop, deadline_s: float) -> _Job | Miss:
        """The text's place in the queue or in the batch, a new one where it has none."""
        if self._closed:
            return "closed"
        if deadline_s <= 0:
            return "late"
        now = loop.time()
        job = self._batch.get(key) or self._queue.get(key)
        if job is not None:
            job.deadline = max(job.deadline, now + deadline_s)
            return job
        # While a batch tries an embedder that rested, texts may wait for what becomes of it.
        if not self._batch and not self._rest.ready(now):
            return "resting"
        job = _Job(key, text, now + deadline_s, self._epoch)
        entered, gone = self._queue.add(key, job)
        if gone is not None:
            _settle(gone, "full")
        if not entered:
            return "full"
        if not self._batch and self._gathering is None:
            self._gathering = loop.call_later(self._gather_s, self._begin, loop)
        return job

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give the thread what is next; only called while it has nothing."""
        self._gathering = None
        now = loop.time()
        ready = self._rest.ready(now)
        while len(self._batch) < self._max_batch and (job := self._queue.pop()) is not None:
            if not ready:
                _settle(job, "resting")
            elif job.deadline <= now:
                _settle(job, "late")
            else:
                self._batch[job.key] = job
        if self._batch:
            self._rest.begin()
            texts = [job.text for job in self._batch.values()]
            self._thread.put(Batch(texts, loop, lambda outcome: self._done(outcome, loop)))

    def _done(self, outcome: Outcome, loop: asyncio.AbstractEventLoop) -> None:
        """A batch has ended."""
        batch, self._batch = self._batch, {}
        self._counts["batches"] += 1
        self._seconds += outcome.seconds
        self._judge(outcome.error, loop.time())
        for (key, job), row in zip(batch.items(), outcome.rows, strict=True):
            if row is None:
                _settle(job, "refused" if outcome.error is None else "failed")
                continue
            self._counts["texts"] += 1
            if job.epoch == self._epoch:
                self._memory.put(key, row)
            _settle(job, row)
        if not self._closed:
            self._begin(loop)

    def _judge(self, error: Exception | None, now: float) -> None:
        """Does the embedder rest, or is it well again? One line in the log for each change."""
        if error is None:
            if self._rest.succeeded():
                log.info("embeddings are to be had again")
            return
        self._counts["failed_batches"] += 1
        was_resting = self._rest.resting
        if self._rest.failed(now) and not was_resting:
            # Of what is not ours, the text could quote a prompt.
            reason = str(error) if isinstance(error, EmbeddingError) else type(error).__name__
            log.warning("embeddings keep failing, and are left alone for a while: %s", reason)


def _settle(job: _Job, found: Vector | Miss) -> None:
    """It is over for this text: tell all who wait."""
    for waiter in job.waiters:
        if not waiter.done():
            waiter.set_result(found)


class _Memory:
    """The vectors of the texts used last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows: OrderedDict[Key, Vector] = OrderedDict()

    def get(self, key: Key) -> Vector | None:
        row = self._rows.get(key)
        if row is not None:
            self._rows.move_to_end(key)
        return row

    def clear(self) -> None:
        self._rows.clear()

    def put(self, key: Key, row: Vector) -> None:
        self._rows[key] = row
        while len(self._rows) > self._most:
            self._rows.popitem(last=False)
