"""Which workers read the same store: a block that one of them has there, all of them have.

A group is a bit mask of workers for each tier, store and model. A mask of the tier's table is widened by the groups
that it touches, when it is asked for: no entry is copied, and a worker that leaves takes only its own with it.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from policies.types import Tier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cache.worker_blocks import WorkerBlocks

_MAX_REMEMBERED: Final = 4096


class StoreGroups:
    """Every group's mask has exactly the bits of the live workers in it, so that a bit that changes hands means nobody
    here in between.
    """

    def __init__(self) -> None:
        self._groups: dict[Tier, dict[tuple[str, str], int]] = {tier: {} for tier in Tier}
        self._widened: dict[Tier, dict[int, int]] = {tier: {} for tier in Tier}

    def join(self, state: WorkerBlocks) -> None:
        """The worker reads its `stores` from now on."""
        for tier, store in state.stores.items():
            groups = self._groups[tier]
            name = (state.traits.model, store)
            groups[name] = groups.get(name, 0) | state.bit
            self._widened[tier].clear()

    def leave(self, state: WorkerBlocks) -> None:
        """The worker reads none of them any more; nor does its bit from now on."""
        for tier, store in state.stores.items():
            groups = self._groups[tier]
            name = (state.traits.model, store)
            if rest := groups[name] & ~state.bit:
                groups[name] = rest
            else:
                del groups[name]
            self._widened[tier].clear()

    def is_shared(self, tier: Tier) -> bool:
        """Does anybody read a store on that tier?"""
        return bool(self._groups[tier])

    def widen(self, tier: Tier, mask: int) -> int:
        """The workers of a mask, and all who read what those have there."""
        known = self._widened[tier]
        wide = known.get(mask)
        if wide is None:
            if len(known) >= _MAX_REMEMBERED:
                known.clear()
            wide = known[mask] = _widened(mask, self._groups[tier].values())
        return wide

    def check(self, workers: Iterable[WorkerBlocks]) -> bool:
        """Are these the groups of `workers`, the live ones, and what is remembered of them true?"""
        truth: dict[Tier, dict[tuple[str, str], int]] = {tier: {} for tier in Tier}
        for state in workers:
            for tier, store in state.stores.items():
                name = (state.traits.model, store)
                truth[tier][name] = truth[tier].get(name, 0) | state.bit
        return truth == self._groups and all(
            wide == _widened(mask, self._groups[tier].values())
            for tier, known in self._widened.items()
            for mask, wide in known.items()
        )


def _widened(mask: int, groups: Iterable[int]) -> int:
    return reduce(or_, (group for group in groups if group & mask), mask)
