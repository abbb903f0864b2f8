"""Frames to and from a local Redis, ours beside redis-py with hiredis: `python -m tests.bench redis_store [--quick]`.

Each round does all four things once, ours and redis-py's, so that both see the same machine. A round writes a frame
that is not there, reads it, and removes it. Both clients get what suits them: ours reads into memory that is there;
redis-py makes bytes of its own. GB are 10⁹ bytes. `best` is that of the fastest round; `ratio` the median over rounds
of redis-py's time ÷ ours, which holds on a busy machine as well.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import redis
from rich.console import Console
from rich.table import Table

from cache.redis_settings import RedisSettings
from cache.redis_store import RedisStore
from tests.redis_fixtures import redis_server
from tests.store_contract import ALONE, chunk_key

SIZES_MB = (2, 3, 4)


@dataclass
class Rounds:
    """Seconds of each round, by what was done."""

    size: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def take(self, name: str, run: Callable[[], object]) -> None:
        began = time.perf_counter()
        done = run()
        self.seconds[name].append(time.perf_counter() - began)
        if not done:
            raise SystemExit(f"{name} was refused")

    def best(self, name: str) -> str:
        return f"{self.size / min(self.seconds[name]) / 1e9:.2f}"

    def median(self, name: str) -> str:
        return f"{self.size / statistics.median(self.seconds[name]) / 1e9:.2f}"

    def ratio(self, ours: str, theirs: str) -> str:
        pairs = zip(self.seconds[theirs], self.seconds[ours], strict=True)
        return f"{statistics.median(slow / fast for slow, fast in pairs):.1f}×"


def measured(url: str, size: int, rounds: int) -> Rounds:
    frame = memoryview(bytearray(random.Random(size).randbytes(size)))
    target = memoryview(bytearray(size))
    store = RedisStore(RedisSettings(url=url, timeout=20.0))
    result = Rounds(size)
    with redis.Redis.from_url(url, protocol=2) as other:
        for n in range(rounds + 3):
            key, name = chunk_key(n), f"other{n}"
            if n == 3:
                result.seconds.clear()  # what came before has warmed everything up
            result.take("SET", partial(store.write, key, [frame], ALONE))
            result.take("SET redis-py", partial(other.set, name, frame, px=86_400_000, nx=True))
            result.take("GET", partial(store.read_into, key, [target]))
            result.take("GET redis-py", partial(other.getex, name, px=86_400_000))
            store.remove(key)
            other.unlink(name)
    store.close()
    if target != frame:
        raise SystemExit("what was read is not what was written")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="20 rounds")
    arguments = parser.parse_args()
    table = Table("", "frame", "", "best GB/s", "median GB/s", "redis-py best", "redis-py median", "ratio")
    with redis_server() as server:
        for place, url in (("TCP", server.url), ("Unix socket", server.unix_url)):
            for size in SIZES_MB:
                result = measured(url, size << 20, 20 if arguments.quick else arguments.rounds)
                for name in ("SET", "GET"):
                    other = f"{name} redis-py"
                    table.add_row(
                        place, f"{size} MiB", name, result.best(name), result.median(name), result.best(other),
                        result.median(other), result.ratio(name, other),
                    )  # fmt: skip
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
