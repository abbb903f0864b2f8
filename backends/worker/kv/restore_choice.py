"""What is learnt of the tiers and of prefill, and what it says about one arrival: how much to restore."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from policies.restore_price import PrefillModel, RestorableChunk, RestorePlan, TierSpeed, plan_restore
from policies.types import Tier

_BELIEVED: Final = {
    Tier.HOST: (20e-6, 5e9),
    Tier.DISK: (200e-6, 1e9),
    Tier.REDIS: (300e-6, 1e9),
}
"""Round trip in seconds and bytes a second, until they have been measured."""
_BELIEVED_TOKENS_PER_S: Final = 1000.0
_MOST_WAITING: Final = 4
"""Sequences that wait behind, as far as they count: each is delayed by what is computed before it."""


class RestorePrice:
    """Safe to be told of reads by several threads."""

    def __init__(self, *, step_tokens: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._speeds = {tier: TierSpeed(*believed) for tier, believed in _BELIEVED.items()}
        self._prefill = PrefillModel(_BELIEVED_TOKENS_PER_S, step_tokens=step_tokens)

    def plan(self, chunks: Sequence[RestorableChunk], n_tokens: int, *, context: int, waiting: int) -> RestorePlan:
        """For a prompt of which `context` tokens are in the pool and `n_tokens` follow, `chunks` first."""
        with self._lock:
            return plan_restore(
                chunks,
                n_tokens,
                self._speeds,
                self._prefill,
                self._clock(),
                rho=float(min(waiting, _MOST_WAITING)),
                context=context,
            )

    def speed(self, tier: Tier) -> tuple[float, float]:
        """Round trip in seconds, and seconds a byte, with the margin that a plan would add."""
        with self._lock:
            speed = self._speeds[tier]
            late = 1.0 + speed.margin
            return speed.rtt * late, late / speed.bandwidth

    def read(self, tier: Tier, n_bytes: int, seconds: float) -> None:
        """So many bytes of one tier were read in one go."""
        with self._lock:
            self._speeds[tier].observe(n_bytes, seconds, self._clock())

    def computed(self, n_tokens: int, pairs: float, seconds: float) -> None:
        """A step took so long; see `PrefillModel.observe`."""
        with self._lock:
            self._prefill.observe(n_tokens, pairs, seconds)
