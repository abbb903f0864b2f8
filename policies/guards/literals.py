"""What stands for itself: code, addresses, identifiers, quoted words."""

from __future__ import annotations

from policies.guards.profile import Profile


class LiteralGuard:
    """Refuses unless the same literals stand in both texts, as often, letter by letter."""

    name = "literal"

    def refuses(self, stored: Profile, new: Profile) -> str:
        """See `Guard`."""
        return "" if stored.literals == new.literals else "literal"
