"""A million unique prefixes and ten million events: does memory stay flat? `python -m tests.bench churn [--prompts N]`.

Each prompt is new: it is looked up, tokenized, matched and predicted, as the gateway does with every request, once of a
worker with events and once of one without, which is kept at its capacity. Then the first worker tells that it has
stored the prompt, goes on a block at a time, and drops what it held long ago: ten events a prompt. Printed, at a fifth
of the way, two and so on: resident memory, and the gauges beside what a recount of the index finds.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from backends.simulated.model_text import EMBEDDED_TOKENIZER
from cache.block_hash import ChainKey
from cache.kv_events import BlockRemoved, BlockStored, EngineHash, KvEvent
from cache.prefix_index import PrefixIndex
from cache.prompt_blocks import PromptBlockCache
from cache.tokenizer import Tokenizer
from policies.types import TokenIds, WorkerId

WORDS: Final = (EMBEDDED_TOKENIZER / "words.txt").read_text().split()
SIZE: Final = 16
KEY: Final = ChainKey("m", SIZE)
TELLING: Final = [WorkerId(f"events-{at}") for at in range(8)]
SILENT: Final = [WorkerId(f"silent-{at}") for at in range(8)]
EVENTS_PER_PROMPT: Final = 10
_BLOCKS: Final = 3
_STORES: Final = 5
"""Of the ten events: the prompt, four blocks that follow it, one or four removals."""


@dataclass
class Reading:
    """What is held at one moment."""

    prompts: int
    events: int
    rss_mb: float
    cache_bytes: int
    entries: int
    """The index's own gauge."""
    recounted: int


@dataclass
class Churn:
    """One index, one token cache and what the engines hold."""

    max_blocks: int
    cache_bytes: int
    events: int = 0
    held: dict[WorkerId, deque[tuple[EngineHash, ...]]] = field(
        default_factory=lambda: {worker: deque() for worker in TELLING}
    )

    def __post_init__(self) -> None:
        """The fleet's blocks, all told, are twice as many as the index has room for."""
        self.cache = PromptBlockCache(Tokenizer.load(EMBEDDED_TOKENIZER), max_bytes=self.cache_bytes)
        self.index = PrefixIndex(max_blocks=self.max_blocks)
        self.engine_prompts = self.max_blocks // len(TELLING) // (_BLOCKS + _STORES - 1)
        for worker in TELLING:
            self.index.add_worker(worker, model="m", block_size=SIZE)
        for worker in SILENT:
            self.index.add_worker(worker, model="m", block_size=SIZE, capacity=self.max_blocks // len(SILENT) // 2)

    def run(self, n_prompts: int, *, n_readings: int = 5) -> Iterator[Reading]:
        """Pass that many prompts, each new; a reading after each `n_readings`th of them."""
        step = max(n_prompts // n_readings, 1)
        for number, words in enumerate(itertools.islice(itertools.product(WORDS, repeat=3), n_prompts), 1):
            self._request(number, " ".join(words * 17))
            if number % step == 0:
                yield self.read(number)

    def _request(self, number: int, text: str) -> None:
        index, now = self.index, number / 1000
        scan = self.cache.start(KEY, text, add_special_tokens=False)
        scan = self.cache.finish(scan, self.cache.encode(scan))
        hashes = scan.known.hashes
        index.match(hashes)
        worker = TELLING[number % len(TELLING)]
        index.predict(worker, hashes, start=0, now=now, ttl=5.0)
        index.predict(SILENT[number % len(SILENT)], hashes, start=0, now=now, ttl=5.0)
        for event in self._told(worker, number):
            index.apply(worker, event)
            self.events += 1

    def _told(self, worker: WorkerId, number: int) -> Iterator[KvEvent]:
        """The prompt and four blocks of an answer; and five removals, once the engine is full."""
        names = tuple([EngineHash((number << 8) + at) for at in range(_BLOCKS + _STORES - 1)])
        ids = array("I", [number & 0xFFFF, number >> 16] * (SIZE * len(names) // 2)).tobytes()
        prompt = 4 * SIZE * _BLOCKS
        yield BlockStored(names[:_BLOCKS], None, TokenIds(ids[:prompt]), SIZE)
        for at in range(_BLOCKS, len(names)):
            yield BlockStored(
                names[at : at + 1], names[at - 1], TokenIds(ids[4 * SIZE * at : 4 * SIZE * (at + 1)]), SIZE
            )
        held = self.held[worker]
        held.append(names)
        gone = held.popleft() if len(held) > self.engine_prompts else ()
        for at in range(EVENTS_PER_PROMPT - _STORES):
            # Leaves first; the last event takes what is left.
            cut = len(gone) - at
            yield BlockRemoved(gone[cut - 1 : cut] if at < EVENTS_PER_PROMPT - _STORES - 1 else gone[:cut])

    def read(self, number: int) -> Reading:
        """Recounts the whole index; raises RuntimeError where it contradicts itself."""
        self.index.check_integrity()
        gc.collect()
        recounted = sum(map(self.index.block_count, (*TELLING, *SILENT)))
        return Reading(number, self.events, rss_mb(), self.cache.bytes, len(self.index), recounted)


def rss_mb() -> float:
    """Memory of this process that is resident."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=1_000_000)
    parser.add_argument("--cache-mb", type=int, default=32)
    parser.add_argument("--max-blocks", type=int, default=100_000)
    options = parser.parse_args()
    churn = Churn(options.max_blocks, options.cache_mb << 20)
    table = Table(title=f"{options.prompts:,} unique prefixes, {EVENTS_PER_PROMPT} events each")
    for column in ("prompts", "events", "RSS", "token cache", "index entries", "recounted", "bound"):
        table.add_column(column, justify="right")
    for at in churn.run(options.prompts):
        table.add_row(
            f"{at.prompts:,}", f"{at.events:,}", f"{at.rss_mb:.0f} MB",
            f"{at.cache_bytes / 2**20:.1f} of {options.cache_mb} MiB",
            f"{at.entries:,}", f"{at.recounted:,}", f"{options.max_blocks:,}",
        )  # fmt: skip
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
