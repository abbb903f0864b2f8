"""Names of people, places, products: words written with a capital that no sentence begins with."""

from __future__ import annotations

from typing import Final

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

    def refuses(self, stored: Profile, new: Profile) -> str:
        """See `Guard`."""
        if stored.names == new.names:
            return ""
        if not (stored.names <= new.keys and new.names <= stored.keys):
            return "name"
        if not _TWO_WORDS.isdisjoint(stored.names ^ new.names) and not self._opens(stored, new):
            return "case"
        return ""

    @staticmethod
    def _opens(stored: Profile, new: Profile) -> bool:
        """The word opens a sentence, so that its capital says nothing."""
        opening = {item.key for profile in (stored, new) for item in profile.items if item.opens}
        return (stored.names ^ new.names) & _TWO_WORDS <= opening
