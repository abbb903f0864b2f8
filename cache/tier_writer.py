"""Write-behind: one thread that copies frames from fast tiers to the slow ones that lack them.

No bytes are queued. When a frame's turn comes they are taken from the fastest tier that has it; where it was evicted
before, nobody misses it. One frame is under way at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

from cache.guarded_tier import GuardedTier, Scratch
from cache.store import ChunkKey, FrameInfo
from cache.tier_told import Told
from policies.types import Tier
from policies.write_behind import Backlog, Pending, WriteRules

log = logging.getLogger(__name__)

_AWAY_POLL: Final = (0.02, 0.5)
"""Seconds between two looks at a tier that rests, at least and at most."""
_IDLE_POLL: Final = 1.0
"""Seconds between two looks whether the program has ended without closing the store."""
_PATIENCE: Final = 5.0
"""Seconds that `forget` waits for a write of the same frame, and `close` for any."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What it takes to copy one."""

    length: int
    info: FrameInfo


@dataclass(slots=True)
class _UnderWay:
    slot: _Slot
    pending: Pending[Frame]
    forgotten: bool = False


@dataclass(frozen=True, slots=True)
class _Slot:
    """A slow tier, what it has still to get, and the tiers that are faster."""

    tier: GuardedTier
    backlog: Backlog[Frame]
    sources: Sequence[GuardedTier]


class _Outcome(Enum):
    SETTLED = auto()
    """Nothing is left to do: it was written, or there already, or gone, or refused."""
    FAILED = auto()
    """The tier answered, and failed to take it."""
    AWAY = auto()
    """The tier did not answer."""


Arrived: TypeAlias = Callable[[GuardedTier, ChunkKey, int], None]
"""A tier has a frame; and the mark of `Told` from before it was asked."""


class TierWriter:
    """Safe for many threads. It runs until `close`, or until the main thread has ended."""

    def __init__(
        self,
        tiers: Sequence[GuardedTier],
        rules: WriteRules,
        told: Told,
        arrived: Arrived,
        count: Callable[[str], None],
    ) -> None:
        """`tiers` with the fastest first."""
        self._slots = [_Slot(tier, Backlog(rules), tiers[:place]) for place, tier in enumerate(tiers) if place]
        self._told = told
        self._arrived = arrived
        self._count = count
        self._scratch = Scratch()
        self._turn = threading.Condition()
        self._under_way: _UnderWay | None = None
        self._next_slot = 0
        self._quiet = False
        self._n_flushing = 0
        self._closed = False
        self._broken = False
        self._thread = threading.Thread(target=self._run, name="kv-write-behind")
        if self._slots:
            self._thread.start()

    def add(self, key: ChunkKey, frame: Frame, *, present: Sequence[Tier]) -> None:
        """A frame was written or used: the slow tiers get it by the rules, but those in which it is `present`."""
        with self._turn:
            if self._closed:
                return
            n_dropped = sum(
                slot.backlog.add(key, frame.info.parent, frame, wanted=frame.info.wanted)
                for slot in self._slots
                if slot.tier.tier not in present
            )
            self._turn.notify_all()
        for _ in range(n_dropped):
            self._count("dropped behind")

    def under_way(self, tenants: Collection[str]) -> list[ChunkKey]:
        """What is being written of these tenants."""
        with self._turn:
            current = self._under_way
            if current is None or current.pending.payload.info.tenant not in tenants:
                return []
            return [ChunkKey(current.pending.key)]

    def forget(self, key: ChunkKey) -> None:
        """Nobody writes it any more once this returns: what is under way is waited for, and taken back if it takes too
        long.
        """
        with self._turn:
            for slot in self._slots:
                slot.backlog.remove(key)
            current = self._under_way
            if current is not None and current.pending.key == key:
                current.forgotten = True
                self._turn.wait_for(lambda: self._under_way is not current, _PATIENCE)

    def quiet(self, quiet: bool) -> None:
        """While it is quiet, what the rules hold back is written too."""
        with self._turn:
            if quiet != self._quiet:
                self._quiet = quiet
                self._turn.notify_all()

    def flush(self, deadline_s: float) -> bool:
        """Write everything. False where time ran out, or where it is clear that it will: who has it to get rests."""
        end = time.monotonic() + deadline_s
        with self._turn:
            self._n_flushing += 1
            self._turn.notify_all()
            try:
                while self._under_way is not None or any(len(slot.backlog) for slot in self._slots):
                    left = end - time.monotonic()
                    if left <= 0 or self._closed or self._hopeless(left):
                        return False
                    self._turn.wait(min(left, _AWAY_POLL[1]))
                return True
            finally:
                self._n_flushing -= 1

    def close(self) -> None:
        """Ends after the frame that is under way; what is left is not written."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()
        if self._slots:
            self._thread.join(_PATIENCE)

    # --- what is next, with the lock held ---

    @property
    def _everything(self) -> bool:
        return self._quiet or self._n_flushing > 0

    def _hopeless(self, left: float) -> bool:
        return self._under_way is None and all(
            slot.tier.write_rest_left() > left for slot in self._slots if len(slot.backlog)
        )

    def _take(self) -> _UnderWay | None:
        """From the tiers in turn, so that none waits for another's long list."""
        for ahead in range(len(self._slots)):
            place = (self._next_slot + ahead) % len(self._slots)
            slot = self._slots[place]
            if not (slot.backlog.has_work(everything=self._everything) and slot.tier.ready_to_write()):
                continue
            pending = slot.backlog.take(everything=self._everything)
            if pending is not None:
                self._next_slot = place + 1
                return _UnderWay(slot, pending)
        return None

    def _pause(self) -> float:
        """Seconds to wait, with nothing to take, if nobody calls."""
        rests = [
            slot.tier.write_rest_left() for slot in self._slots if slot.backlog.has_work(everything=self._everything)
        ]
        return min(max(min(rests), _AWAY_POLL[0]), _AWAY_POLL[1]) if rests else _IDLE_POLL

    # --- on the thread ---

    def _run(self) -> None:
        while (current := self._next()) is not None:
            try:
                outcome = self._write(current)
            except Exception:  # a bug in a store: the others go on
                if not self._broken:
                    log.exception("a frame could not be written to the %s tier", current.slot.tier.tier)
                self._broken = True
                self._count("broken behind")
                outcome = _Outcome.FAILED
            self._end(current, outcome)

    def _next(self) -> _UnderWay | None:
        with self._turn:
            while not self._closed and threading.main_thread().is_alive():
                self._under_way = self._take()
                if self._under_way is not None:
                    return self._under_way
                self._turn.wait(self._pause())
            return None

    def _end(self, current: _UnderWay, outcome: _Outcome) -> None:
        dropped = False
        with self._turn:
            if outcome is not _Outcome.SETTLED and not current.forgotten:
                backlog = current.slot.backlog
                if outcome is _Outcome.AWAY:
                    backlog.put_back(current.pending)
                else:
                    dropped = not backlog.failed(current.pending)
            self._under_way = None
            self._turn.notify_all()
        if dropped:
            self._count("dropped behind")

    def _write(self, current: _UnderWay) -> _Outcome:
        target, key = current.slot.tier, ChunkKey(current.pending.key)
        if (here := self._is_wanted(current)) is not None:
            return here
        mark = self._told.mark()
        kept = self._copy(current)
        if kept is None:
            return _Outcome.FAILED
        with self._turn:
            forgotten = current.forgotten
        if kept and forgotten:
            target.remove(key)
        elif kept:
            self._count("written behind")
            self._arrived(target, key, mark)
        return _Outcome.SETTLED

    def _is_wanted(self, current: _UnderWay) -> _Outcome | None:
        """None: the tier lacks it, and has the one before it."""
        target, key, parent = current.slot.tier, ChunkKey(current.pending.key), current.pending.payload.info.parent
        asked = [key] if parent is None else [parent, key]
        mark = self._told.mark()
        n_here = target.contains(asked)
        if n_here is None:
            return _Outcome.AWAY
        if n_here == len(asked):
            self._arrived(target, key, mark)
            return _Outcome.SETTLED
        if n_here < len(asked) - 1:
            # The one before it was evicted or refused: behind the gap it would be of no use.
            self._told.vanished(target.tier, asked[0], mark)
            self._count("orphaned behind")
            return _Outcome.SETTLED
        return None

    def _copy(self, current: _UnderWay) -> bool | None:
        """Whether the tier has kept it; None: it has failed. False, too, where no faster tier has it any more."""
        key, frame = ChunkKey(current.pending.key), current.pending.payload
        for source in current.slot.sources:
            with source.frame(key, frame.length, self._scratch) as pieces:
                if pieces is not None:
                    kept = current.slot.tier.write(key, pieces, frame.info)
                    if kept is False:
                        self._count("refused behind")
                    return kept
        self._count("evicted before")
        return False
