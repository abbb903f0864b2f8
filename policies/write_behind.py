"""Which frames a slow tier gets, when, and in which order. Pure.

The fastest tier gets every frame when it is complete. A slower one costs bandwidth, and mostly for frames that nobody
comes back for: it gets those that are used again, those that somebody is known to come back for, and the others while
there is nothing better to do, or before the end.

A chunk is of use only with all those before it, so of a chain the head is written first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRules:
    """Raises ValueError for numbers below 1."""

    uses: int = 2
    """A frame goes to the slow tiers when it was written or used so often; 1: always."""
    most_pending: int = 65_536
    """Frames at most that are held back or due, for each slow tier. Of more the oldest are dropped."""
    attempts: int = 8
    """How often a frame is tried with a tier that answers but fails to take it."""

    def __post_init__(self) -> None:
        """Check what types cannot."""
        if min(self.uses, self.most_pending, self.attempts) < 1:
            raise ValueError("a frame is used, kept in mind and tried at least once")


@dataclass(slots=True)
class Pending(Generic[P]):
    """A frame that a tier has still to get."""

    key: bytes
    parent: bytes | None
    payload: P
    uses: int = 0
    attempts: int = 0
    due: bool = False


class Backlog(Generic[P]):
    """What one slow tier has still to get, oldest first. `payload` is whatever it takes to write a frame, not its
    bytes. Not safe for several threads.
    """

    def __init__(self, rules: WriteRules) -> None:
        self._rules = rules
        self._held: dict[bytes, Pending[P]] = {}
        self._due: OrderedDict[bytes, Pending[P]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held) + len(self._due)

    def has_work(self, *, everything: bool) -> bool:
        """Is there something for `take`?"""
        return bool(self._due or (everything and self._held))

    def add(self, key: bytes, parent: bytes | None, payload: P, *, wanted: bool = False) -> int:
        """A frame was written or used once more, of which the latest `payload` counts; `wanted`: it is due at once.
        Returns how many had to be dropped.
        """
        pending = self._held.get(key) or self._due.get(key)
        if pending is None:
            pending = self._held[key] = Pending(key, parent, payload)
        pending.payload = payload
        pending.uses += 1
        if wanted or pending.uses >= self._rules.uses:
            self._make_due(pending)
        n_dropped = max(0, len(self) - self._rules.most_pending)
        for _ in range(n_dropped):
            self._drop_oldest()
        return n_dropped

    def take(self, *, everything: bool) -> Pending[P] | None:
        """The next one, which is not here any more then; with `everything` those held back too, once none is due."""
        if not self._due and everything and self._held:
            self._make_due(next(iter(self._held.values())))
        return self._due.popitem(last=False)[1] if self._due else None

    def put_back(self, pending: Pending[P]) -> None:
        """It could not be written now: it is the next one again."""
        self.remove(pending.key)
        self._due[pending.key] = pending
        self._due.move_to_end(pending.key, last=False)

    def failed(self, pending: Pending[P]) -> bool:
        """The tier answers but fails to take it: False where that was its last attempt, else it is put back."""
        pending.attempts += 1
        if pending.attempts >= self._rules.attempts:
            return False
        self.put_back(pending)
        return True

    def remove(self, key: bytes) -> bool:
        """Nobody writes it any more; False where it was not here."""
        return (self._held.pop(key, None) or self._due.pop(key, None)) is not None

    def _make_due(self, pending: Pending[P]) -> None:
        """It, and before it those before it in its chain. Each frame is walked once in its time here."""
        chain: list[Pending[P]] = []
        node: Pending[P] | None = pending
        while node is not None and not node.due:
            node.due = True
            chain.append(node)
            node = self._held.get(node.parent) if node.parent is not None else None
        for one in reversed(chain):
            del self._held[one.key]
            self._due[one.key] = one

    def _drop_oldest(self) -> None:
        if self._held:
            del self._held[next(iter(self._held))]
        else:
            self._due.popitem(last=False)
