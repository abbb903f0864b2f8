"""Writes answers to one slow tier, behind the requests: in order, in a thread of its own, bounded in bytes."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from cache.entry_tier import EntryTier
from cache.response_entry import HEAD_BYTES, ResponseEntry
from cache.response_key import ResponseKey, store_key, tag_of
from cache.store import FrameInfo

log = logging.getLogger(__name__)

ENTRY_BYTES: Final = 1_024
"""What an entry that waits is counted for besides its body."""


class Waiting(NamedTuple):
    """An entry on its way."""

    key: ResponseKey
    entry: ResponseEntry

    @property
    def n_bytes(self) -> int:
        """What it is counted for."""
        texts = sum(map(len, self.entry.openings or ()))
        return HEAD_BYTES + ENTRY_BYTES + 4 * texts + len(self.entry.body)


class EntryWriter:
    """What does not fit is dropped and counted, as is what the tier does not take: nobody waits for either."""

    def __init__(
        self,
        tier: EntryTier,
        *,
        encode: Callable[[ResponseKey, ResponseEntry], bytes],
        readable: Callable[[ResponseKey, ResponseEntry], bool],
        count: Callable[[str], None],
        most_bytes: int,
    ) -> None:
        """`readable`: has it not been forgotten meanwhile? `count` is told `dropped: <tier>`."""
        self._tier = tier
        self._encode = encode
        self._readable = readable
        self._count = count
        self._most_bytes = most_bytes
        self._queue: deque[Waiting] = deque()
        self._n_bytes = 0
        self._busy = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, key: ResponseKey, entry: ResponseEntry) -> bool:
        """It will be written. Waits for nothing; False where there is no room."""
        waiting = Waiting(key, entry)
        with self._changed:
            fits = not self._closed and self._n_bytes + waiting.n_bytes <= self._most_bytes
            if fits:
                self._queue.append(waiting)
                self._n_bytes += waiting.n_bytes
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=f"answers-{self._tier.tier}", daemon=True)
                    self._thread.start()
                self._changed.notify_all()
        if not fits:
            self._count(f"dropped: {self._tier.tier}")
        return fits

    def drop(self, unwanted: Callable[[Waiting], bool], seconds: float) -> int:
        """Forget those that wait and are unwanted, and wait for the one under way. Returns how many they were."""
        with self._changed:
            kept = deque(waiting for waiting in self._queue if not unwanted(waiting))
            n_dropped = len(self._queue) - len(kept)
            self._queue = kept
            self._n_bytes = sum(waiting.n_bytes for waiting in kept)
            self._changed.wait_for(lambda: not self._busy, seconds)
        return n_dropped

    def flush(self, seconds: float) -> bool:
        """Wait until nothing waits any more; False where that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._busy, seconds)

    def close(self, seconds: float) -> None:
        """Write what waits, for so long, and end."""
        self.flush(seconds)
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._n_bytes = 0
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while (waiting := self._next()) is not None:
            written = False
            try:
                written = self._write(waiting)
            except Exception:  # the others go on
                log.exception("an answer could not be written to the %s tier", self._tier.tier)
            finally:
                if not written:
                    self._count(f"dropped: {self._tier.tier}")
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _next(self) -> Waiting | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            if not self._queue:
                return None
            waiting = self._queue.popleft()
            self._n_bytes -= waiting.n_bytes
            self._busy = True
            return waiting

    def _write(self, waiting: Waiting) -> bool:
        key, entry = waiting
        if not self._tier.ready_to_write() or not self._readable(key, entry):
            return False
        at = store_key(key)
        if not self._tier.replace(at, self._encode(key, entry), frame_info(key, entry)):
            return False
        # Forgotten while it was written, and perhaps after the tier was purged.
        if not self._readable(key, entry):
            self._tier.remove(at)
            return False
        return True


def frame_info(key: ResponseKey, entry: ResponseEntry) -> FrameInfo:
    """What stores are told of an entry. Tenants are known to them by the hex of their scope's tag."""
    n_tokens = (entry.prompt_tokens or 0) + (entry.completion_tokens or 0)
    return FrameInfo(tenant=tag_of(key).hex(), n_tokens=n_tokens)
