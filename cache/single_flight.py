"""Identical requests at the same time: one of them makes the call, the others wait for its answer. Pure.

For each key there is at most one leader, who has the call, and a line of those who wait. Whoever has to be told of a
change is returned, and it is the caller who tells it. A leader that leaves hands its call to the first in line: the
call may go on under it, or begin again. A leader that ends tells all the others at once, whether its answer is one for
all or for none of them; then each goes by itself, for if they took turns the last would wait for as many calls as there
are others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from enum import Enum, auto
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
W = TypeVar("W", bound=Hashable)
"""Who asks, such as the future that it waits on; each at most once at a time."""


class Role(Enum):
    """What becomes of one that asks."""

    LEADER = auto()
    """It makes the call, and then says `finish` or `leave`."""
    WAITER = auto()
    """It waits until it is told, or says `leave`."""
    ALONE = auto()
    """There is no room in line: it goes by itself, and has nothing to say."""


class SingleFlight(Generic[K, W]):
    """Not safe for several threads. Steps take constant time, but for `finish`, which takes the length of a line."""

    def __init__(self, *, most_flights: int = 10_000, most_waiting: int = 1_000) -> None:
        """Keys with a leader at most, and waiters of one key at most. Raises ValueError below 0."""
        if min(most_flights, most_waiting) < 0:
            raise ValueError("there are no fewer than no flights")
        self._most_flights = most_flights
        self._most_waiting = most_waiting
        self._flights: dict[K, OrderedDict[W, None]] = {}
        """The leader comes first, then the line."""
        self._n_waiting = 0

    def __len__(self) -> int:
        """Keys with a leader."""
        return len(self._flights)

    @property
    def waiting(self) -> int:
        """Those in all lines together."""
        return self._n_waiting

    def line(self, key: K) -> int:
        """How many wait for this key."""
        flight = self._flights.get(key)
        return 0 if flight is None else len(flight) - 1

    def join(self, key: K, who: W) -> Role:
        """Somebody asks. Raises ValueError where it does so already."""
        flight = self._flights.get(key)
        if flight is None:
            if len(self._flights) >= self._most_flights:
                return Role.ALONE
            self._flights[key] = OrderedDict({who: None})
            return Role.LEADER
        if who in flight:
            raise ValueError("it asks already")
        if len(flight) > self._most_waiting:
            return Role.ALONE
        flight[who] = None
        self._n_waiting += 1
        return Role.WAITER

    def leader(self, key: K) -> W | None:
        """Who has the call."""
        flight = self._flights.get(key)
        return None if flight is None else next(iter(flight))

    def leads(self, key: K, who: W) -> bool:
        """Is it the leader?"""
        flight = self._flights.get(key)
        return flight is not None and next(iter(flight)) == who

    def leave(self, key: K, who: W) -> W | None:
        """It does not want the answer any more. Where it was the leader, returns who leads now, if anybody is left;
        that one has to be told. Nothing happens where it does not ask.
        """
        flight = self._flights.get(key)
        if flight is None or who not in flight:
            return None
        led = self.leads(key, who)
        del flight[who]
        if not flight:
            del self._flights[key]
            return None
        self._n_waiting -= 1
        return next(iter(flight)) if led else None

    def finish(self, key: K, who: W) -> list[W]:
        """The leader's call is over: returns those who wait, in their order, all of whom have to be told. Nobody where
        it is not the leader. The key is free from now on.
        """
        if not self.leads(key, who):
            return []
        flight = self._flights.pop(key)
        del flight[who]
        self._n_waiting -= len(flight)
        return list(flight)

    def check(self) -> None:
        """Raises AssertionError where the books contradict each other."""
        assert all(self._flights.values())
        assert self._n_waiting == sum(len(flight) - 1 for flight in self._flights.values())
        assert all(len(flight) <= self._most_waiting + 1 for flight in self._flights.values())
        assert len(self._flights) <= self._most_flights
