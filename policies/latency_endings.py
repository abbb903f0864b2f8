"""When running requests end: the chance that the next token is the last, by how many there are already.

Answers of a few tokens are many, and those that are long already are seldom nearly over; so the chance is learnt for
each doubling of the length, over the whole fleet.
"""

from __future__ import annotations

from typing import Final

_BINS: Final = 20
_MEMORY: Final = 0.995
"""Share of the past that each end keeps: about the last two hundred count."""
_PRIOR_ENDS: Final = 1.0
_PRIOR_TOKENS: Final = 256.0


class Endings:
    """Piecewise constant: ends ÷ tokens made at that length."""

    __slots__ = ("_chances", "_ends", "_tokens")

    def __init__(self) -> None:
        self._ends = [0.0] * _BINS
        self._tokens = [0.0] * _BINS
        self._chances = [_PRIOR_ENDS / _PRIOR_TOKENS] * _BINS

    def chance(self, tokens: float) -> float:
        """Of the next token to be the last after so many."""
        return self._chances[min(int(tokens).bit_length(), _BINS - 1)]

    def observe(self, tokens: int) -> None:
        """An answer ended after so many, at least 1."""
        last = min(tokens.bit_length(), _BINS - 1)
        for place in range(last + 1):
            low = (1 << place) >> 1
            self._ends[place] = self._ends[place] * _MEMORY + (place == last)
            made = tokens - low + 1 if place == last else (1 << place) - low
            self._tokens[place] = self._tokens[place] * _MEMORY + made
            self._chances[place] = (self._ends[place] + _PRIOR_ENDS) / (self._tokens[place] + _PRIOR_TOKENS)
