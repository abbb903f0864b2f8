"""A full index makes room with the oldest entries of a worker, looked up many at once and dropped one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cache.kv_events import EngineHash
from policies.types import BlockHash

if TYPE_CHECKING:
    from cache.exact_blocks import ExactBlocks
    from cache.predictions import Predictions
    from cache.worker_blocks import WorkerBlocks

_FRACTION: Final = 32
"""The oldest 1/32 of a worker's entries are looked up at once: the head of a dict is only cheap to reach now and
then."""


def evict(state: WorkerBlocks, n_blocks: int, exact: ExactBlocks, predictions: Predictions) -> None:
    """Drop up to `n_blocks` of its victims, those chosen before or new ones."""
    if not state.n_exact and (recency := state.recency):
        predictions.drop_oldest(state, recency, min(n_blocks, len(recency)))
        return
    if not state.victims.hashes:
        state.choose_victims(max(n_blocks, state.size // _FRACTION))
    tier, engines, hashes = state.victims
    if engines is not None:
        state.tear()
    while n_blocks and hashes:
        victim = hashes.pop()
        # It may have gone by itself meanwhile.
        if engines is None:
            if victim in state.predicted:
                predictions.drop(state, BlockHash(victim))
                n_blocks -= 1
        elif victim in engines:
            exact.forget(state, tier, engines, EngineHash(victim))
            n_blocks -= 1
