"""Names of people, places, products: words written with a capital that no sentence begins with."""

from __future__ import annotations

from typing import Final

from policies.guards.alignment import Pair
from policies.guards.profile import Profile
from policies.guards.stemming import stem
from policies.guards.word_lists import listed

# Written small, these are other words.
_TWO_WORDS: Final = frozenset(
    "w:" + stem(word)[0]
    for word in listed(
        "may march august polish turkey china apple amazon java python oracle us who it chad jordan bill mark rob will "
        "frank grant pat sue rose lily amber ruby crystal dick jack john bob art gene miles"
    )
)


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
            small &= _TWO_WORDS
        return "" if small <= self._opening(stored, new) else "case"

    @staticmethod
    def _opening(stored: Profile, new: Profile) -> set[str]:
        """Words that open a sentence, so that their capitals say nothing."""
        return {item.key for profile in (stored, new) for item in profile.items if item.first}
