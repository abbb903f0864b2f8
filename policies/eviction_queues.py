"""Orders that are queues, where a use only leaves a mark: SIEVE and S3-FIFO.

Queues hold the ends of chains. An entry that becomes the end takes the place of the child that went, and is marked
only if it was used after that child: a dead chain goes as a whole, while what several chains share gets its chance.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from policies.eviction_types import Entry, Key, Order

_MOST_HITS: Final = 3


class SieveOrder(Order):
    """SIEVE (Zhang et al., NSDI 2024): a hand goes from the oldest to the newest and around again, takes the mark from
    those used since it came by, and evicts the first that has none. Who survives keeps its place.
    """

    def __init__(self) -> None:
        # Values: the last use that the hand has seen.
        self._ahead: OrderedDict[Entry, int] = OrderedDict()  # from the hand to the newest
        self._passed: OrderedDict[Entry, int] = OrderedDict()  # from the oldest to the hand

    def offer(self, entry: Entry, *, due: bool, since: int) -> None:
        """Newest, or under the hand."""
        if entry in self._ahead or entry in self._passed:
            return
        self._ahead[entry] = since
        if due:
            self._ahead.move_to_end(entry, last=False)

    def withdraw(self, entry: Entry) -> None:
        """See `Order.withdraw`."""
        if self._ahead.pop(entry, None) is None:
            self._passed.pop(entry, None)

    def choose(self, now: float) -> Entry | None:  # noqa: ARG002 - as `Order` has it
        """Moves the hand; it stops at the one that it returns."""
        while self._ahead or self._passed:
            if not self._ahead:
                self._ahead, self._passed = self._passed, self._ahead
            entry = next(iter(self._ahead))
            if entry.pins:
                del self._ahead[entry]
            elif entry.seq > self._ahead[entry]:
                del self._ahead[entry]
                self._passed[entry] = entry.seq
            else:
                return entry
        return None


class S3FifoOrder(Order):
    """S3-FIFO (Yang et al., SOSP 2023): what is new waits in a small queue and must be used `needed_hits` times to get
    into the main one, where each further use, up to three, is one more round. Who was evicted from the small queue and
    comes back within as many evictions as there are entries goes to the main one at once.

    Small is `small_share` of the bytes that are here. Entries within a chain have a queue too, though they wait in
    none: they count, and move to the main one when they are used.
    The original's small queue is a tenth. Conversations come back later than that lets them wait.
    """

    def __init__(self, small_share: float = 0.5, needed_hits: int = 1) -> None:
        self._small_share = small_share
        self._needed = needed_hits
        # Values: the hits that are spent.
        self._small: OrderedDict[Entry, int] = OrderedDict()
        self._main: OrderedDict[Entry, int] = OrderedDict()
        self._new: set[Entry] = set()
        self._new_bytes = 0
        self._bytes = 0
        self._entries = 0
        self._ghosts: OrderedDict[Key, None] = OrderedDict()

    def add(self, entry: Entry) -> None:
        """See `Order.add`."""
        if entry.key in self._ghosts:
            del self._ghosts[entry.key]
        else:
            self._new.add(entry)
        self._count(entry, 1)

    def use(self, entry: Entry) -> None:
        """See `Order.use`."""
        if entry in self._new and entry not in self._small and entry.hits >= self._needed:
            self._promote(entry)

    def leave(self, entry: Entry) -> None:
        """See `Order.leave`."""
        self._count(entry, -1)

    def stay(self, entry: Entry) -> None:
        """See `Order.stay`."""
        self._count(entry, 1)

    def drop(self, entry: Entry, *, evicted: bool) -> None:
        """See `Order.drop`."""
        if not evicted:
            self._count(entry, -1)
        elif entry in self._new:
            self._ghosts[entry.key] = None
        self._new.discard(entry)
        while len(self._ghosts) > self._entries:
            self._ghosts.popitem(last=False)

    def offer(self, entry: Entry, *, due: bool, since: int) -> None:
        """Newest of its queue, or next."""
        if entry in self._small or entry in self._main:
            return
        queue = self._small if entry in self._new else self._main
        queue[entry] = entry.hits - 1 if entry.seq > since else entry.hits
        if due:
            queue.move_to_end(entry, last=False)

    def withdraw(self, entry: Entry) -> None:
        """See `Order.withdraw`."""
        if self._small.pop(entry, None) is None:
            self._main.pop(entry, None)

    def choose(self, now: float) -> Entry | None:  # noqa: ARG002 - as `Order` has it
        """Moves what was used, within its queue or to the main one."""
        while self._small or self._main:
            small = self._small and (not self._main or self._new_bytes > self._small_share * self._bytes)
            queue = self._small if small else self._main
            entry, spent = next(iter(queue.items()))
            hits = min(entry.hits - spent, _MOST_HITS)
            if entry.pins:
                del queue[entry]
            elif small and hits >= self._needed:
                del queue[entry]
                self._promote(entry)
                self._main[entry] = entry.hits
            elif not small and hits:
                del queue[entry]
                self._main[entry] = entry.hits - hits + 1
            else:
                return entry
        return None

    def _count(self, entry: Entry, sign: int) -> None:
        self._entries += sign
        self._bytes += sign * entry.size
        if entry in self._new:
            self._new_bytes += sign * entry.size

    def _promote(self, entry: Entry) -> None:
        self._new.discard(entry)
        self._new_bytes -= entry.size
