"""Everything else here knows English; what is written in another language must be the same text."""

from __future__ import annotations

from policies.guards.alignment import Pair


class LanguageGuard:
    """Refuses what is not, or may not be, English."""

    name = "language"

    def refuses(self, pair: Pair) -> str:
        """See `Guard`."""
        stored, new = pair.stored, pair.new
        return "" if stored.english and new.english else "language"


class LengthGuard:
    """Refuses what is too long to be compared word by word, or says nothing at all."""

    name = "length"

    def refuses(self, pair: Pair) -> str:
        """See `Guard`."""
        stored, new = pair.stored, pair.new
        if stored.too_long or new.too_long:
            return "long"
        return "" if stored.items and new.items else "empty"
