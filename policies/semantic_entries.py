"""What single entries have shown: how many comparisons found them right since one did not, and which are in quarantine.

Bounded: the entries longest not asked for are forgotten first. A quarantine must not be forgotten, so where there are
too many of them the cache is told to drop the entry itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from policies.semantic_curve import FACTORS

QUARANTINED: Final = -1
_NEAR: Final = (1, 2, 3, 4, 6, 9, 16)
"""So many comparisons in a row that found it right make the next better standing."""
_FAR: Final = (1, 2, 4)
"""The same for questions that are less similar than any that was found right; these standings come next."""
_FARTHER: Final = 0.02
"""Less similar is what is so by more than this."""
_SHAKEN: Final = FACTORS - 2
"""And then those of entries that were found wrong before: the second once so many comparisons found one right since."""
_RECOVERED: Final = 4
_FORGIVEN: Final = 24
"""Comparisons in a row that found an entry right, after which a strike is forgiven."""
_MOST_RIGHT: Final = 1_000


@dataclass(slots=True)
class _Record:
    right: int = 0
    nearest_known: float = 1.0
    """Lowest similarity that was found right."""
    strikes: int = 0
    needed: int = 0
    """Comparisons that must find it right before it is served again; above 0 in quarantine."""
    epoch: int = 0


class Entries:
    """Evidence by entry."""

    __slots__ = ("_held", "_most", "_recovery", "_strikes", "_trusted")

    def __init__(self, most: int, recovery: int, strikes: int) -> None:
        self._most = most
        self._recovery = recovery
        self._strikes = strikes
        self._trusted: dict[str, _Record] = {}
        self._held: dict[str, _Record] = {}

    def __len__(self) -> int:
        return len(self._trusted) + len(self._held)

    def quarantined(self) -> int:
        """How many are."""
        return len(self._held)

    def standing(self, entry: str, similarity: float, epoch: int) -> int:
        """Index of a factor of `RiskCurve`, or `QUARANTINED`. What was shown before this epoch of its category
        does not count.
        """
        if entry in self._held:
            return QUARANTINED
        record = self._trusted.get(entry)
        if record is None:
            return 0
        if record.strikes:
            return _SHAKEN + (record.right >= _RECOVERED)
        if record.epoch != epoch or not record.right:
            return 0
        if similarity < record.nearest_known - _FARTHER:
            return len(_NEAR) + sum(record.right >= step for step in _FAR)
        return sum(record.right >= step for step in _NEAR)

    def observe(self, entry: str, similarity: float, wrong: bool, epoch: int) -> tuple[str, ...]:
        """Learns from a comparison; the entries that the cache shall drop."""
        if wrong:
            return self.condemn(entry)
        held = self._held.get(entry)
        if held is not None:
            held.needed -= 1
            if not held.needed:
                self._keep(entry, self._held.pop(entry))
            return ()
        record = self._trusted.pop(entry, None) or _Record(epoch=epoch)
        if record.epoch != epoch:
            record.right, record.nearest_known, record.epoch = 0, 1.0, epoch
        record.right = min(record.right + 1, _MOST_RIGHT)
        record.nearest_known = min(record.nearest_known, similarity)
        if record.strikes and record.right % _FORGIVEN == 0:
            record.strikes -= 1
        self._keep(entry, record)
        return ()

    def condemn(self, entry: str) -> tuple[str, ...]:
        """Puts an entry into quarantine, or for longer; the entries that the cache shall drop."""
        record = self._held.pop(entry, None) or self._trusted.pop(entry, None) or _Record()
        record.strikes += 1
        if record.strikes >= self._strikes:
            return (entry,)
        record.right, record.nearest_known = 0, 1.0
        record.needed = self._recovery << (record.strikes - 1)
        self._held[entry] = record
        if len(self._held) > max(self._most // 4, 1):
            oldest = next(iter(self._held))
            del self._held[oldest]
            return (oldest,)
        return ()

    def forget(self, entry: str) -> None:
        """The cache has dropped it."""
        self._trusted.pop(entry, None)
        self._held.pop(entry, None)

    def dump(self) -> list[list[Any]]:
        """Plain data for `load`, the oldest first."""
        return [
            [entry, one.right, one.nearest_known, one.strikes, one.needed, one.epoch]
            for told in (self._held, self._trusted)
            for entry, one in told.items()
        ]

    def load(self, rows: Iterable[Sequence[Any]]) -> None:
        """What `dump` returned. Raises ValueError or TypeError for another shape."""
        for entry, right, known, strikes, needed, epoch in rows:
            record = _Record(int(right), float(known), int(strikes), int(needed), int(epoch))
            if min(right, strikes, needed, epoch) < 0:
                raise ValueError("an entry of another shape")
            if record.needed:
                self._held[str(entry)] = record
            else:
                self._keep(str(entry), record)

    def _keep(self, entry: str, record: _Record) -> None:
        self._trusted[entry] = record
        if len(self._trusted) > self._most:
            del self._trusted[next(iter(self._trusted))]
