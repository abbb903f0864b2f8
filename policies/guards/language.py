"""Everything else here knows English; what is written in another language must be the same text."""

from __future__ import annotations

from policies.guards.profile import Profile


class LanguageGuard:
    """Refuses what is not, or may not be, English."""

    name = "language"

    def refuses(self, stored: Profile, new: Profile) -> str:
        """See `Guard`."""
        return "" if stored.english and new.english else "language"


class LengthGuard:
    """Refuses what is too long to be compared word by word, or says nothing at all."""

    name = "length"

    def refuses(self, stored: Profile, new: Profile) -> str:
        """See `Guard`."""
        if stored.too_long or new.too_long:
            return "long"
        return "" if stored.items and new.items else "empty"
