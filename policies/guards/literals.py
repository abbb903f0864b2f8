"""What stands for itself: code, addresses, identifiers, quoted words."""

from __future__ import annotations

from policies.guards.alignment import Pair


class LiteralGuard:
    """Refuses unless the same literals stand in both texts, as often, letter by letter."""

    name = "literal"

    def refuses(self, pair: Pair) -> str:
        """See `Guard`."""
        stored, new = pair.stored, pair.new
        return "" if stored.literals == new.literals else "literal"
