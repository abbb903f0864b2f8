"""Numbers with their units, and dates: the same values, however they are written."""

from __future__ import annotations

from typing import Final

from policies.guards.alignment import Pair

_ONE: Final = "n:1"


class NumberGuard:
    """Refuses another number, another unit, one more or one less. Nothing is converted: 1 km is not 1000 m here."""

    name = "number"

    def refuses(self, pair: Pair) -> str:
        """See `Guard`."""
        stored, new = pair.stored, pair.new
        if stored.numbers == new.numbers:
            return ""
        if pair.loose:
            # "One can", "one or more": a lone "one" counts nothing.
            before, after = ([key for key in p.numbers if key != _ONE] for p in (stored, new))
            if before == after:
                return ""
        return "number"


class DateGuard:
    """Refuses another day, month, weekday or time of day."""

    name = "date"

    def refuses(self, pair: Pair) -> str:
        """See `Guard`."""
        stored, new = pair.stored, pair.new
        return "" if stored.dates == new.dates else "date"
