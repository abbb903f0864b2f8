"""What the prefix index costs: `python tests/bench/index.py [--blocks N]`.

Prints nanoseconds per decoded, applied, removed, predicted and matched block, and bytes per block, for fleets in
which each block is held by one worker or by two. Best of several rounds; memory by tracemalloc, without the prompts
themselves.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import tracemalloc
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2]))

from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.kv_events import (
    BlockRemoved,
    BlockStored,
    Encoding,
    EngineHash,
    EventBatch,
    decode_batch,
    encode_batch,
)
from cache.prefix_index import PrefixIndex
from policies.types import TokenIds, WorkerId

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK_SIZE = 16
PROMPT_BLOCKS = 125
"""Blocks of a prompt: 2,000 tokens."""
ROUNDS = 7
sample = random.Random(1)  # reproducible, not secret


def prompt(n_blocks: int) -> BlockStored:
    """A prompt nobody has seen, as one event."""
    return BlockStored(
        tuple([EngineHash(sample.getrandbits(64)) for _ in range(n_blocks)]),
        None,
        TokenIds(array("I", [sample.randrange(150_000) for _ in range(BLOCK_SIZE * n_blocks)]).tobytes()),
        BLOCK_SIZE,
    )


def best(work: Callable[[], object]) -> float:
    """Nanoseconds of the fastest round."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - start)
    return min(times)


def row(name: str, value: float, unit: str) -> None:
    print(f"{name:<58}{value:>10,.1f} {unit}")  # a bench prints


def decoding() -> None:
    """Batches of one prompt each, in two encodings."""
    batch = EventBatch(0.0, (prompt(PROMPT_BLOCKS),))
    for encoding in (Encoding.ARRAY, Encoding.MAP):
        payload = encode_batch(batch, encoding)
        row(f"decode, {encoding.value}", best(lambda: decode_batch(payload)) / PROMPT_BLOCKS, "ns/block")  # noqa: B023 - called within the same turn of the loop


def writing(n_blocks: int) -> None:
    """Prompts stored and removed again in an index that has room, and stored in one that is full."""
    events = [prompt(PROMPT_BLOCKS) for _ in range(max(1, n_blocks // PROMPT_BLOCKS // 4))]
    removals = [BlockRemoved(event.block_hashes) for event in events]
    total, worker = len(events) * PROMPT_BLOCKS, WorkerId("w")
    stores: list[int] = []
    removes: list[int] = []
    full: list[int] = []
    for _ in range(ROUNDS):
        index = PrefixIndex(max_blocks=n_blocks)
        index.add_worker(worker, model="m")
        for name, work in ((stores, events), (removes, removals)):
            start = time.perf_counter_ns()
            for event in work:
                index.apply(worker, event)
            name.append(time.perf_counter_ns() - start)
        index = PrefixIndex(max_blocks=total // 4)
        index.add_worker(worker, model="m")
        start = time.perf_counter_ns()
        for event in events:
            index.apply(worker, event)
        full.append(time.perf_counter_ns() - start)
    row("apply BlockStored, hashing included", min(stores) / total, "ns/block")
    row("apply BlockStored to a full index", min(full) / total, "ns/block")
    row("apply BlockRemoved", min(removes) / total, "ns/block")


def predicting(n_blocks: int) -> None:
    """Prompts predicted of a worker with events, and of one without that has room for a quarter of them."""
    prompts = [
        extend_chain(root_hash(ChainKey("m")), prompt(PROMPT_BLOCKS).token_ids, BLOCK_SIZE)
        for _ in range(max(1, n_blocks // PROMPT_BLOCKS // 8))
    ]
    total, worker = len(prompts) * PROMPT_BLOCKS, WorkerId("w")
    for name, capacity in (("", None), (", capacity", max(PROMPT_BLOCKS, total // 4))):
        times: dict[str, list[int]] = {"new": [], "used again": [], "used again at once": []}
        for _ in range(ROUNDS):
            index = PrefixIndex(max_blocks=8 * n_blocks)
            index.add_worker(worker, model="m", capacity=capacity)
            start = time.perf_counter_ns()
            for at, hashes in enumerate(prompts):
                index.predict(worker, hashes, start=0, now=float(at), ttl=1e9)
            times["new"].append(time.perf_counter_ns() - start)
            held = [hashes for hashes in prompts if index.match(hashes).get(worker) == PROMPT_BLOCKS]
            for later, again in ((1e6, "used again"), (1e6, "used again at once")):
                start = time.perf_counter_ns()
                for hashes in held:
                    index.predict(worker, hashes, start=0, now=later, ttl=1e9)
                times[again].append((time.perf_counter_ns() - start) * len(prompts) // len(held))
        for what, taken in times.items():
            each = min(taken) / total
            row(f"predict{name}, {what}", each, f"ns/block = {each * PROMPT_BLOCKS / 1000:,.1f} us a prompt")


def matching(n_blocks: int) -> None:
    """Hits of a short, a usual and a 100,000-token prompt among many others, held by 1, 8 and 64 workers."""
    index = PrefixIndex(max_blocks=2 * n_blocks + 64 * 8192)
    workers = [WorkerId(f"w{at}") for at in range(64)]
    for worker in workers:
        index.add_worker(worker, model="m")
    for at in range(n_blocks // PROMPT_BLOCKS):
        index.apply(workers[at % 64], prompt(PROMPT_BLOCKS))
    for length in (12, PROMPT_BLOCKS, 6250):
        for n_holders in (1, 8, 64):
            event = prompt(length)
            for at, worker in enumerate(workers[:n_holders]):
                # Each worker holds a little less than the one before.
                kept = length - at * length // 128
                index.apply(worker, BlockStored(event.block_hashes[:kept], None, event.token_ids, BLOCK_SIZE))
            hashes = extend_chain(root_hash(ChainKey("m")), event.token_ids, BLOCK_SIZE)
            taken = best(lambda: index.match(hashes))  # noqa: B023 - called within the same turn of the loop
            row(
                f"match {length:,} blocks held by {n_holders}",
                taken / length,
                f"ns/block = {taken / 1000:,.1f} us",
            )


def memory(n_blocks: int) -> None:
    """Bytes of the index itself once `n_blocks` entries are in it."""
    for n_holders in (1, 2):
        index = PrefixIndex(max_blocks=n_blocks)
        workers = [WorkerId(f"w{at}") for at in range(8)]
        for worker in workers:
            index.add_worker(worker, model="m")
        tracemalloc.start()
        for at in range(n_blocks // PROMPT_BLOCKS // n_holders):
            event = prompt(PROMPT_BLOCKS)
            for holder in range(n_holders):
                hashes = tuple([EngineHash(value ^ holder) for value in event.block_hashes])
                index.apply(workers[(at + holder) % 8], BlockStored(hashes, None, event.token_ids, BLOCK_SIZE))
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        row(f"memory, each block held by {n_holders}", used / len(index), "bytes/(block, worker)")
    for name, capacity in (("", None), (" of a worker with a capacity", n_blocks)):
        index = PrefixIndex(max_blocks=4 * n_blocks)
        index.add_worker(WorkerId("w"), model="m", capacity=capacity)
        tracemalloc.start()
        for _ in range(n_blocks // PROMPT_BLOCKS):
            chain = extend_chain(root_hash(ChainKey("m")), prompt(PROMPT_BLOCKS).token_ids, BLOCK_SIZE)
            index.predict(WorkerId("w"), chain, start=0, now=0.0, ttl=1e9)
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        row(f"memory, predicted{name}", used / len(index), "bytes/block")


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=200_000, help="entries in the index")
    n_blocks = parser.parse_args().blocks
    decoding()
    writing(n_blocks)
    predicting(n_blocks)
    matching(n_blocks)
    memory(n_blocks)


if __name__ == "__main__":
    main()
