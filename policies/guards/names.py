"""Names of people, places, products: words written with a capital that no sentence begins with."""

from __future__ import annotations

from policies.guards.alignment import Pair
from policies.guards.name_words import TWO_WORDS
from policies.guards.profile import Profile


class NameGuard:
    """Refuses a name that the other text does not have, and one that is a common word there."""

    name = "name"

    def refuses(self, pair: Pair) -> str:
        """See `Guard`."""
        stored, new = pair.stored, pair.new
        if not pair.statement and stored.acronyms != new.acronyms and not (stored.lower or new.lower):
            return "case"
        if stored.names == new.names:
            return ""
        if not (stored.names <= new.keys and new.names <= stored.keys):
            return "name"
        small = stored.names ^ new.names
        if pair.statement or stored.lower or new.lower:
            small &= TWO_WORDS
        return "" if small <= self._opening(stored, new) else "case"

    @staticmethod
    def _opening(stored: Profile, new: Profile) -> set[str]:
        """Words that open a sentence, so that their capitals say nothing."""
        return {item.key for profile in (stored, new) for item in profile.items if item.first}
