"""Whether the higher classes of a model ask by themselves for more than all that can be sent."""

from __future__ import annotations

from math import inf
from typing import Final

_HALF_LIFE_S: Final = 10.0
_TELLING_S: Final = 2.0
_NOTHING: Final = 1.0


class ClassOverload:
    """Tokens by class, of late, from when somebody was turned away first: those that were dispatched, what ran by then
    included, and those of requests that were turned away. What waits will be one or the other. Within the first two
    seconds nothing is said of them.
    """

    __slots__ = ("_away", "_tells", "fades_at", "sent")

    def __init__(self, sent: list[float]) -> None:
        """`sent` is what runs just now; the list is kept."""
        self.sent = sent
        self._away = [0.0] * len(sent)
        self._tells = False
        self.fades_at = inf
        """When `fade` is to be called."""

    def turned_away(self, rank: int, tokens: float, now: float) -> None:
        """A request of that class was refused or given up."""
        self._away[rank] += tokens
        if self.fades_at == inf:
            self.fades_at = now + _TELLING_S

    def excess(self, rank: int) -> float:
        """Of what the classes above that one ask for, the share that they would not get if they alone were served."""
        if not self._tells:
            return 0.0
        sent = max(sum(self.sent), 0.0)  # less than nothing where what went before cost less than was thought
        asked = sum(self.sent[:rank]) + sum(self._away[:rank])
        return 1 - sent / asked if asked > sent else 0.0

    def fade(self, now: float) -> bool:
        """What was long ago counts less and less. False where nothing is left."""
        kept = 0.5 ** (1 + (now - self.fades_at) / _HALF_LIFE_S)
        self.fades_at = now + _HALF_LIFE_S
        self._tells = True
        self.sent = [kept * tokens for tokens in self.sent]
        self._away = [kept * tokens for tokens in self._away]
        return sum(self._away) >= _NOTHING
