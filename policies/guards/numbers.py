"""Numbers with their units, and dates: the same values, however they are written."""

from __future__ import annotations

from typing import Final

from policies.guards.alignment import is_statement
from policies.guards.profile import Profile

_ONE: Final = "n:1"


class NumberGuard:
    """Refuses another number, another unit, one more or one less. Nothing is converted: 1 km is not 1000 m here."""

    name = "number"

    def refuses(self, stored: Profile, new: Profile) -> str:
        """See `Guard`."""
        if stored.numbers == new.numbers:
            return ""
        if is_statement(stored, new):
            # "One can", "one or more": in statements a lone "one" counts nothing.
            before, after = ([key for key in p.numbers if key != _ONE] for p in (stored, new))
            if before == after:
                return ""
        return "number"


class DateGuard:
    """Refuses another day, month, weekday or time of day."""

    name = "date"

    def refuses(self, stored: Profile, new: Profile) -> str:
        """See `Guard`."""
        return "" if stored.dates == new.dates else "date"
