"""A million unique prefixes: does memory stay flat? `python -m tests.bench.churn [--prompts N]`.

Each prompt is new: it is looked up, tokenized, stored, matched and predicted, as the gateway does with every request.
Printed: resident memory and the gauges, every tenth of the way. About a minute for a million.
"""

from __future__ import annotations

import argparse
import itertools
import os
from pathlib import Path

from rich.console import Console
from rich.table import Table

from backends.simulated.model_text import EMBEDDED_TOKENIZER
from cache.block_hash import ChainKey
from cache.prefix_index import PrefixIndex
from cache.prompt_blocks import PromptBlockCache
from cache.tokenizer import Tokenizer
from policies.types import WorkerId

WORDS = (EMBEDDED_TOKENIZER / "words.txt").read_text().split()
KEY = ChainKey("m", 16)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=1_000_000)
    parser.add_argument("--cache-mb", type=int, default=32)
    parser.add_argument("--max-blocks", type=int, default=100_000)
    options = parser.parse_args()
    tokenizer = Tokenizer.load(EMBEDDED_TOKENIZER)
    cache = PromptBlockCache(tokenizer, max_bytes=options.cache_mb << 20)
    index = PrefixIndex(max_blocks=options.max_blocks)
    workers = [WorkerId(f"w{i}") for i in range(8)]
    for worker in workers:
        index.add_worker(worker, model="m", block_size=16)
    table = Table(title=f"{options.prompts:,} unique prefixes of 3 blocks")
    for column in ("prompts", "RSS", "token cache", "index entries", "index bound"):
        table.add_column(column, justify="right")
    step = max(options.prompts // 10, 1)
    texts = itertools.islice(itertools.product(WORDS, repeat=3), options.prompts)
    for number, words in enumerate(texts, 1):
        text = " ".join(words * 17)
        scan = cache.start(KEY, text, add_special_tokens=False)
        scan = cache.finish(scan, cache.encode(scan))
        index.match(scan.known.hashes)
        index.predict(workers[number % 8], scan.known.hashes, start=0, now=number / 1000, ttl=300.0)
        if number % step == 0:
            table.add_row(
                f"{number:,}", f"{_rss_mb():.0f} MB", f"{cache.bytes / 2**20:.1f} of {options.cache_mb} MiB",
                f"{len(index):,}", f"{options.max_blocks:,}",
            )  # fmt: skip
    Console(width=100).print(table)


def _rss_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
