"""Orders that weigh what an entry is worth: GreedyDual-Size-Frequency, and expected hits for the room they take."""

from __future__ import annotations

from collections import OrderedDict
from math import log2
from typing import Final

from policies.eviction_heap import RankHeap
from policies.eviction_line import RecencyLine
from policies.eviction_types import Entry, Key, Order


class GdsfOrder(Order):
    """GreedyDual-Size-Frequency (Cherkasova 1998): rank = clock + uses × cost ÷ size, as of the last use, where the
    clock is the rank of the last one evicted, so that what is not used any longer sinks however dear it is.

    The KV of later tokens costs more to compute, so long prompts stay longer than short ones.
    """

    def __init__(self) -> None:
        self._clock = 0.0
        self._ranks: dict[Entry, float] = {}
        self._heap = RankHeap(self._ranks.__getitem__)

    def add(self, entry: Entry) -> None:
        """See `Order.add`."""
        self._ranks[entry] = self._clock + entry.cost / entry.size

    def use(self, entry: Entry) -> None:
        """See `Order.use`."""
        self._ranks[entry] = self._clock + (entry.hits + 1) * entry.cost / entry.size

    def drop(self, entry: Entry, *, evicted: bool) -> None:
        """See `Order.drop`."""
        rank = self._ranks.pop(entry)
        if evicted:
            self._clock = max(self._clock, rank)

    def offer(self, entry: Entry, *, due: bool, since: int) -> None:  # noqa: ARG002 - as `Order` has it
        """It goes where its rank puts it."""
        self._heap.push(entry)

    def withdraw(self, entry: Entry) -> None:
        """See `Order.withdraw`."""
        self._heap.discard(entry)

    def choose(self, now: float) -> Entry | None:  # noqa: ARG002 - as `Order` has it
        """See `Order.choose`."""
        return self._heap.lowest()


_AGES: Final = 48
"""Classes of age, two for each doubling from a second on: up to half a year."""
_HIT_CLASSES: Final = 4
_DEPTH_CLASSES: Final = 4
_LEARN_EVERY: Final = 512
_MEMORY: Final = 0.9
"""Share of what was seen that is kept each time that it is learnt from."""
_GHOSTS_PER_ENTRY: Final = 2
_PRIOR: Final = 1.0


def age_class(age: float) -> int:
    """0 for what was used within the last second."""
    return min(int(2 * log2(1 + max(age, 0.0))), _AGES - 1)


class _Ages:
    """How often entries of one class were used again, by the age that they had reached, and how often they were not."""

    __slots__ = ("density", "ends", "hits")

    def __init__(self) -> None:
        self.hits = [0.0] * _AGES
        self.ends = [0.0] * _AGES
        self.density = [1.0 / 2 ** (age / 2) for age in range(_AGES)]  # LRU, until there is something to learn from

    def learn(self) -> None:
        """From each age on: hits still to come, for the time still to be spent here."""
        hits, events, spent = 0.0, 0.0, 0.0
        for age in reversed(range(_AGES)):
            spent += events * (2 ** ((age + 1) / 2) - 2 ** (age / 2))
            hits += self.hits[age]
            events += self.hits[age] + self.ends[age]
            # A class with few events looks like LRU: less the older.
            width = 2 ** (age / 2)
            self.density[age] = (hits + _PRIOR / (1 + age)) / (spent + events * width / 4 + _PRIOR * width)
            self.hits[age] *= _MEMORY
            self.ends[age] *= _MEMORY


class HitDensityOrder(Order):
    """Least hit density (LHD: Beckmann, Chen and Cidon, NSDI 2018): the expected number of hits for the time that an
    entry still takes room, × cost ÷ size, learnt for classes of entries by age.

    Classes are by uses so far and by depth in the chain: first turns come back less often than tenth ones. The original
    samples entries; here each class is kept by last use and only its oldest one is looked at, so that it is exact
    where density falls with age, and draws nothing. Evicted entries are remembered for a while, twice as many as are
    here: what comes back among them counts as the hit that it could have been.
    """

    def __init__(self) -> None:
        n_classes = _HIT_CLASSES * _DEPTH_CLASSES
        self._ages = [_Ages() for _ in range(n_classes)]
        self._lines = [RecencyLine() for _ in range(n_classes)]
        self._offered: dict[Entry, int] = {}  # the class whose line it is in
        self._last_used: dict[Entry, float] = {}
        self._ghosts: OrderedDict[Key, tuple[int, float]] = OrderedDict()
        self._events = 0

    def add(self, entry: Entry) -> None:
        """See `Order.add`."""
        self._last_used[entry] = entry.used
        ghost = self._ghosts.pop(entry.key, None)
        if ghost is not None:
            self._saw(self._ages[ghost[0]].hits, entry.used - ghost[1])

    def use(self, entry: Entry) -> None:
        """See `Order.use`."""
        self._saw(self._ages[_class(entry, entry.hits - 1)].hits, entry.used - self._last_used[entry])
        self._last_used[entry] = entry.used
        if entry in self._offered:
            self.withdraw(entry)
            self.offer(entry, due=False, since=entry.seq)

    def drop(self, entry: Entry, *, evicted: bool) -> None:
        """See `Order.drop`."""
        del self._last_used[entry]
        if evicted:
            self._ghosts[entry.key] = (_class(entry, entry.hits), entry.used)
        newest = entry.used
        while len(self._ghosts) > _GHOSTS_PER_ENTRY * (len(self._last_used) + 1):
            _, (kind, used) = self._ghosts.popitem(last=False)
            self._saw(self._ages[kind].ends, newest - used)

    def offer(self, entry: Entry, *, due: bool, since: int) -> None:  # noqa: ARG002 - as `Order` has it
        """It goes into the class that it has now."""
        self._lines[self._offered.setdefault(entry, _class(entry, entry.hits))].push(entry)

    def withdraw(self, entry: Entry) -> None:
        """See `Order.withdraw`."""
        kind = self._offered.pop(entry, None)
        if kind is not None:
            self._lines[kind].discard(entry)

    def choose(self, now: float) -> Entry | None:
        """Looks at the oldest one of each class."""
        chosen, least = None, 0.0
        for line, ages in zip(self._lines, self._ages, strict=True):
            entry = line.lowest()
            if entry is None:
                continue
            worth = ages.density[age_class(now - entry.used)] * entry.cost / entry.size
            if chosen is None or (worth, entry.seq) < (least, chosen.seq):
                chosen, least = entry, worth
        return chosen

    def _saw(self, counts: list[float], age: float) -> None:
        counts[age_class(age)] += 1.0
        self._events += 1
        if self._events >= _LEARN_EVERY:
            self._events = 0
            for ages in self._ages:
                ages.learn()


def _class(entry: Entry, hits: int) -> int:
    seen = min(hits.bit_length(), _HIT_CLASSES - 1)
    depth = min((entry.depth // 4).bit_length(), _DEPTH_CLASSES - 1)
    return seen * _DEPTH_CLASSES + depth
