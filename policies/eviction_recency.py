"""Orders by the time of the last use: LRU, and LRU that spares long conversations."""

from __future__ import annotations

from policies.eviction_line import RecencyLine
from policies.eviction_types import Entry, Order


class LruOrder(Order):
    """Least recently used first."""

    def __init__(self) -> None:
        self._line = RecencyLine()

    def use(self, entry: Entry) -> None:
        """See `Order.use`."""
        self._line.used(entry)

    def offer(self, entry: Entry, *, due: bool, since: int) -> None:  # noqa: ARG002 - as `Order` has it
        """It goes where its last use puts it."""
        self._line.push(entry)

    def withdraw(self, entry: Entry) -> None:
        """See `Order.withdraw`."""
        self._line.discard(entry)

    def choose(self, now: float) -> Entry | None:  # noqa: ARG002 - as `Order` has it
        """See `Order.choose`."""
        return self._line.lowest()


class TailLruOrder(Order):
    """Tail-optimised LRU (Zhang, Li, Moallemi and Peng, arXiv 2510.15152): first whatever can go without making the
    next turn of its conversation slow, which is to compute more than `threshold`; then LRU. Among the former LRU too.

    A conversation whose history costs L, and whose next turn is expected to bring `next_turn`, is slow only if less
    than L + next_turn - threshold is still here. So the last `threshold` of every history can go, and short ones as a
    whole, while the heads of long ones stay. Where the original knows conversations, this knows chains: L is how far
    the longest chain through an entry reached since the entry was used last, evicted ends included. An entry that
    several conversations share is judged when it is the end, by what was evicted behind it.

    The original takes what can go at any age, so that the ends of live conversations go before the heads of dead ones,
    and a large cache finds less than under LRU. Here what can go counts as unused for `haste` times as long as it is.

    `threshold` and `next_turn` are in the unit of the entries' cost.
    """

    def __init__(self, threshold: float, next_turn: float = 0.0, haste: float = 4.0) -> None:
        self._spare = threshold - next_turn
        self._haste = haste
        self._safe = RecencyLine()
        self._rest = RecencyLine()

    def offer(self, entry: Entry, *, due: bool, since: int) -> None:  # noqa: ARG002 - as `Order` has it
        """It goes among those that can go, or among the rest."""
        if entry in self._safe or entry in self._rest:
            return
        lost = entry.reach - entry.end + entry.cost  # to be computed again if this one goes too
        (self._safe if lost <= self._spare else self._rest).push(entry)

    def use(self, entry: Entry) -> None:
        """What was lost behind it was not asked for, or comes back."""
        self._safe.used(entry)
        if entry in self._rest:
            self._rest.discard(entry)
            self.offer(entry, due=False, since=entry.seq)

    def withdraw(self, entry: Entry) -> None:
        """See `Order.withdraw`."""
        self._safe.discard(entry)
        self._rest.discard(entry)

    def choose(self, now: float) -> Entry | None:
        """See `Order.choose`."""
        safe, rest = self._safe.lowest(), self._rest.lowest()
        if safe is None or rest is None:
            return safe or rest
        return safe if self._haste * (now - safe.used) >= now - rest.used else rest
