"""The thread in which an embedder blocks: batches in, outcomes back into the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cache.embedding import Embedder, EmbeddingError, EmbeddingRefusedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Outcome(NamedTuple):
    """Of one batch."""

    rows: Sequence[NDArray[np.float32] | None]
    """One for each text, read-only; None where the text was refused, or something failed."""
    error: Exception | None
    """What failed, if anything did; that texts were refused is no failure."""
    seconds: float


class Batch(NamedTuple):
    """Texts, and who is told of the outcome, in which loop."""

    texts: Sequence[str]
    loop: asyncio.AbstractEventLoop
    done: Callable[[Outcome], object]


class EmbeddingThread:
    """Owns `embedder`. Starts with the first batch; does not keep the program from ending."""

    def __init__(self, embedder: Embedder, niceness: int) -> None:
        """`niceness` is added to that of the process, for this thread alone; on Linux."""
        self._embedder = embedder
        self._niceness = niceness
        self._queue: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Does it run?"""
        return self._thread is not None and self._thread.is_alive()

    def put(self, batch: Batch) -> None:
        """Whoever puts one waits for its outcome before the next."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="embedding", daemon=True)
            self._thread.start()
        self._queue.put(batch)

    def stop(self) -> None:
        """End after the batch that is under way, and close the embedder. Does not wait."""
        if self._thread is None:
            self._embedder.close()
        self._queue.put(None)

    def _run(self) -> None:
        be_nice(self._niceness)
        while (batch := self._queue.get()) is not None:
            begun = time.perf_counter()
            rows, error = embed_each(self._embedder, batch.texts)
            outcome = Outcome(rows, error, time.perf_counter() - begun)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                batch.loop.call_soon_threadsafe(batch.done, outcome)
        self._embedder.close()


def embed_each(embedder: Embedder, texts: Sequence[str]) -> tuple[list[NDArray[np.float32] | None], Exception | None]:
    """A row for each text, or None; and what failed. One text that is refused does not spoil the others'."""
    try:
        return _rows(embedder, texts), None
    except EmbeddingRefusedError:
        pass
    except Exception as error:  # noqa: BLE001 - whatever it is, a request must not fail of it
        return [None] * len(texts), error
    rows: list[NDArray[np.float32] | None] = []
    for text in texts if len(texts) > 1 else ():
        try:
            rows += _rows(embedder, [text])
        except EmbeddingRefusedError:
            rows.append(None)
        except Exception as error:  # noqa: BLE001 - as above
            return rows + [None] * (len(texts) - len(rows)), error
    return rows or [None], None


def _rows(embedder: Embedder, texts: Sequence[str]) -> list[NDArray[np.float32] | None]:
    matrix = embedder.embed(texts)
    if matrix.shape != (len(texts), embedder.dim):
        raise EmbeddingError(f"{list(matrix.shape)} numbers for {len(texts)} texts")
    rows: list[NDArray[np.float32] | None] = []
    for row in matrix:
        own = row.copy()  # one that is kept must not keep the others
        own.setflags(write=False)
        rows.append(own)
    return rows


def be_nice(niceness: int) -> None:
    """Lower the priority of the calling thread; on Linux, where it has its own."""
    if sys.platform == "linux" and niceness:
        with contextlib.suppress(OSError):
            own = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + niceness)
