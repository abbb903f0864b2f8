"""Does the prefix index agree with itself: everything it keeps count of, recomputed from the workers' maps."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from policies.types import Tier

if TYPE_CHECKING:
    from collections.abc import Collection

    from cache.block_tables import BlockTables
    from cache.exact_blocks import ExactBlocks
    from cache.predictions import Predictions
    from cache.store_groups import StoreGroups
    from cache.worker_blocks import WorkerBlocks
    from cache.worker_slots import WorkerSlots
    from policies.types import BlockHash


def check_tables(workers: Collection[WorkerBlocks], tables: BlockTables) -> None:
    """The masks say what the workers' maps say; `workers` are the live and the retired ones."""
    truth: dict[Tier, dict[BlockHash, int]] = {tier: {} for tier in Tier}
    for state in workers:
        held: Counter[tuple[Tier, BlockHash]] = Counter()
        for (_, tier), engines in state.engines.items():
            held.update((tier, block) for block in engines.values())
        _require(not any((Tier.DEVICE, block) in held for block in state.predicted), "predicted and exact")
        _require(state.n_exact == held.total(), "a worker's number of entries")
        _require({key: n - 1 for key, n in held.items() if n > 1} == dict(state.extra_refs), "extra references")
        for tier, block in (*held, *((Tier.DEVICE, block) for block in state.predicted)):
            truth[tier][block] = truth[tier].get(block, 0) | state.bit
    _require(truth == tables.of_tier, "the masks")


def check_slots(workers: Collection[WorkerBlocks], slots: WorkerSlots) -> None:
    """Every slot is that of one of `workers`, the live ones, or being swept, or free."""
    for state in workers:
        _require(not state.retired and slots.owners[state.slot] is state, "a worker's slot")
    for state in slots.retired:
        _require(state.retired and slots.owners[state.slot] is None, "a retired worker's slot")
    used = [state.slot for state in (*workers, *slots.retired)] + slots.free
    _require(sorted(used) == list(range(len(slots.owners))), "each slot in use, being swept, or free")


def check_groups(workers: Collection[WorkerBlocks], groups: StoreGroups) -> None:
    """Who reads which store is what `workers`, the live ones, were said to read."""
    _require(groups.check(workers), "the groups of workers that share a store")


def check_counts(
    workers: Collection[WorkerBlocks],
    exact: ExactBlocks,
    predictions: Predictions,
    slots: WorkerSlots,
    max_blocks: int,
) -> None:
    """The numbers of entries are those of `workers`, the live ones, and within the bound."""
    _require(exact.n_held == sum(state.n_exact for state in workers), "the exact entries")
    _require(predictions.n_held == sum(len(state.predicted) for state in workers), "the predictions")
    recent = [state for state in workers if state.traits.capacity is not None]
    _require(predictions.n_recent == sum(len(state.predicted) for state in recent), "those of workers with a capacity")
    for state in workers:
        capacity = state.traits.capacity
        _require((capacity is None) is (state.recency is None), "a worker's order of use")
        _require(capacity is None or len(state.predicted) <= capacity, "a worker's capacity")
    _require(slots.n_stale == sum(state.size for state in slots.retired), "what is to be swept")
    _require(exact.n_held + predictions.n_held + slots.n_stale <= max_blocks, "the bound")


def check_queue(workers: Collection[WorkerBlocks], predictions: Predictions) -> None:
    """Every prediction of `workers`, the live ones, has its place in the queue."""
    _require(predictions.n_queued == sum(len(entry[3]) for entry in predictions.queue), "the queue's length")
    queued = {(id(state), block, deadline) for deadline, _, state, blocks in predictions.queue for block in blocks}
    _require(
        all(
            (id(state), block, deadline) in queued
            for state in workers
            if state.recency is None
            for block, deadline in state.predicted.items()
        ),
        "a prediction that never expires",
    )


def _require(holds: bool, what: str) -> None:  # reads as a sentence where it is called
    if not holds:
        message = f"the prefix index contradicts itself: {what}"
        raise RuntimeError(message)
