"""How long prompts wait for room in a KV cache that is full, as a multiple of what they would take with room.

Whether one waits is not certain from outside: what is cached may be in use already, running requests share prefixes,
prompts come in pieces, and nobody knows when answers end. So it is not worked out but looked up: what was needed in the
median where as much was missing, at the rate at which room was made of late, and those ahead were late or not.
"""

from __future__ import annotations

from math import exp, log, sqrt
from typing import Final

_AT: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Seconds until there is room ÷ seconds that it takes with room: bounds of the kinds."""
_GAIN: Final = 0.06
"""Weight of the newest observation once many are known."""
_MOST: Final = 3.0
"""Of a logarithm: no more than twenty times."""
_LEAST_SPREAD: Final = 0.01


class RoomWaits:
    """Medians of (seconds ÷ `base`), by kind. Of a fleet: they are rare."""

    __slots__ = ("_bias", "_count", "_spread", "factors")

    def __init__(self) -> None:
        kinds = 2 * (len(_AT) + 1)
        self._bias = [0.0] * kinds
        self._count = [0.0] * kinds
        self._spread = [0.25] * kinds
        self.factors = [1.0] * kinds
        """By what to multiply `base`, of each kind; between 1/20 and 20."""

    @staticmethod
    def base(seconds: float, room_s: float) -> float:
        """The geometric mean of what it takes with room, and of that with the whole `room_s` until there is some."""
        return sqrt(seconds * (seconds + room_s))

    @staticmethod
    def kind(seconds: float, room_s: float, *, late: bool) -> int:
        """Which it is, if it takes `seconds` (above 0) with room, and `room_s` until there is some. `late`: who is
        ahead should have been answered by now.
        """
        place = 0
        for bound in _AT:
            if room_s <= bound * seconds:
                break
            place += 1
        return place + (len(_AT) + 1 if late else 0)

    def observe(self, kind: int, ratio: float) -> None:
        """Measured ÷ `base`, above 0."""
        self._count[kind] += 1.0
        gain = max(1.0 / (self._count[kind] + 1.0), _GAIN)
        error = min(max(log(ratio), -_MOST), _MOST) - self._bias[kind]
        spread = self._spread[kind]
        self._bias[kind] += gain * min(max(error, -spread), spread)
        self._spread[kind] = max(spread + gain * (abs(error) - spread), _LEAST_SPREAD)
        self.factors[kind] = exp(self._bias[kind])
