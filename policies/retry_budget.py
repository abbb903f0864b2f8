"""How many retries may be in flight: enough for a hiccup, too few to bury a fleet that is failing already."""

from __future__ import annotations

_ROUNDING = 1e-9


class RetryBudget:
    """At most `share` of the active requests may be retries, but always `floor` (Envoy's retry budget: 20%, 3).

    Counted in flight and not per time, it needs no clock.
    """

    __slots__ = ("_floor", "_share", "in_flight")

    def __init__(self, share: float = 0.2, floor: int = 3) -> None:
        """Raises ValueError for a share outside 0 to 1 or a negative floor."""
        if not 0 <= share <= 1 or floor < 0:
            raise ValueError(f"no retry budget: share {share!r}, floor {floor!r}")
        self._share = share
        self._floor = floor
        self.in_flight = 0

    def try_take(self, active: int) -> bool:
        """Whether one more may be retried while `active` requests are in flight; if so, it counts until `give_back`."""
        if self.in_flight + 1 > max(self._floor, self._share * active + _ROUNDING):
            return False
        self.in_flight += 1
        return True

    def give_back(self) -> None:
        """A retry ended, however. Raises ValueError where none is in flight."""
        if not self.in_flight:
            raise ValueError("more retries given back than taken")
        self.in_flight -= 1
