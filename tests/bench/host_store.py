"""Frames to and from the host memory tier beside plain copies: `python -m tests.bench host_store [--mib N]`.

Each step does everything once, one frame after the other, so that all see the same machine: a copy by numpy, one by
memoryview, SET, GET. Frames come from, and go to, more memory than the CPU's caches hold, all of it touched before. A
frame is a header and pieces of a block of Qwen3-0.6B's, as a worker has them. GB are 10⁹ bytes of payload.

`ratio`: the median, over steps, of the faster copy's time ÷ the store's: 1 is as fast as one thread can copy. `full`:
each SET has to evict. `two threads`: half of the frames each, at once, beside two that copy by numpy.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np

from cache.kv_codec import HEADER_BYTES
from cache.memory_store import MemoryStore
from cache.store import ChunkKey, FrameInfo
from tests.store_contract import chunk_key

SIZES_MIB = (2, 3, 4)
PIECE = 16 * 114_688
"""A block of 16 tokens."""
HEADER = bytes(HEADER_BYTES)


class Frames:
    """Two areas of so many bytes, cut into frames."""

    def __init__(self, size: int, total: int) -> None:
        self.size = size
        self.count = max(2, total // size)
        self.source = np.random.default_rng(size).integers(0, 256, (self.count, size), dtype=np.uint8)
        self.target = np.ones((self.count, size), dtype=np.uint8)
        self._from = [memoryview(row).cast("B") for row in self.source]
        self._to = [memoryview(row).cast("B") for row in self.target]  # type: ignore[arg-type]  # buffers from 3.12 on
        self._sources = [_pieces(row) for row in self._from]
        self._targets = [_pieces(row) for row in self._to]

    def by_numpy(self, at: int) -> None:
        np.copyto(self.target[at], self.source[at])

    def by_memoryview(self, at: int) -> None:
        self._to[at][:] = self._from[at]

    def write(self, store: MemoryStore, key: ChunkKey, at: int) -> None:
        assert store.write(key, [HEADER, *self._sources[at]], FrameInfo(n_tokens=16))

    def read(self, store: MemoryStore, key: ChunkKey, at: int) -> None:
        assert store.read_into(key, [memoryview(bytearray(HEADER_BYTES)), *self._targets[at]])


def _pieces(row: memoryview) -> list[memoryview]:
    return [row[at : at + PIECE] for at in range(0, len(row), PIECE)]


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def one_thread(frames: Frames, rounds: int) -> dict[str, list[float]]:
    """Seconds of each step, by what was done. What is done side by side is done with frames far from each other."""
    store, full = MemoryStore(2 * frames.count * frames.size), MemoryStore(frames.count * frames.size // 2)
    fresh = count()
    work: dict[str, Callable[[int], object]] = {
        "numpy": frames.by_numpy,
        "SET": lambda at: frames.write(store, chunk_key(at), at),
        "memoryview": frames.by_memoryview,
        "SET, full": lambda at: frames.write(full, chunk_key(next(fresh)), at),
        "GET": lambda at: frames.read(store, chunk_key(at), at),
    }
    for at in range(frames.count):
        frames.write(store, chunk_key(at), at)
        frames.write(full, chunk_key(next(fresh)), at)
    steps: dict[str, list[float]] = defaultdict(list)
    for step in range(rounds * frames.count):
        for number, (name, run) in enumerate(work.items()):
            at = (step + number * frames.count // len(work)) % frames.count
            if name == "SET":
                store.remove(chunk_key(at))
            steps[name].append(seconds(lambda: run(at)))  # noqa: B023 - called at once
    frames.target[:] = 0
    for at in range(frames.count):
        frames.read(store, chunk_key(at), at)
    if not np.array_equal(frames.source, frames.target):
        raise SystemExit("what was read is not what was written")
    store.close()
    full.close()
    return steps


def two_threads(frames: Frames, rounds: int) -> dict[str, list[float]]:
    """Seconds of a step each, so many frames at a time that starting threads does not count."""
    store = MemoryStore(2 * frames.count * frames.size)
    for at in range(frames.count):
        frames.write(store, chunk_key(at), at)
    steps: dict[str, list[float]] = defaultdict(list)
    with ThreadPoolExecutor(2) as pool:

        def halves(run: Callable[[int], object]) -> None:
            list(pool.map(lambda first: [run(at) for at in range(first, frames.count, 2)], (0, 1)))

        for _ in range(rounds + 1):
            steps["numpy"].append(seconds(lambda: halves(frames.by_numpy)) / frames.count)
            steps["GET"].append(
                seconds(lambda: halves(lambda at: frames.read(store, chunk_key(at), at))) / frames.count
            )
    store.close()
    return {name: each[1:] for name, each in steps.items()}


def row(frames: Frames, name: str, steps: dict[str, list[float]], what: str) -> None:
    """One of the table: `what` beside the copies in the same steps."""
    copies = [steps[copy] for copy in ("numpy", "memoryview") if copy in steps]
    fastest = [min(times) for times in zip(*copies, strict=True)]
    ratio = statistics.median(plain / ours for plain, ours in zip(fastest, steps[what], strict=True))

    def rate(times: Sequence[float]) -> str:
        return f"{frames.size / statistics.median(times) / 1e9:>8.2f}"

    others = "".join(rate(steps[copy]) if copy in steps else f"{'':>8}" for copy in ("numpy", "memoryview"))
    print(
        f"{frames.size >> 20} MiB  {name:<18}{frames.size / min(steps[what]) / 1e9:>8.2f}{rate(steps[what])}{others}"
        f"{ratio:>9.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="memory that frames come from, and go to")
    parser.add_argument("--rounds", type=int, default=5, help="over all of it")
    arguments = parser.parse_args()
    print(f"{'GB/s':<25}{'best':>8}{'median':>8}{'numpy':>8}{'mview':>8}{'ratio':>9}")
    for size in SIZES_MIB:
        frames = Frames(size << 20, arguments.mib << 20)
        steps = one_thread(frames, arguments.rounds)
        for what in ("SET", "SET, full", "GET"):
            row(frames, what, steps, what)
        row(frames, "GET, two threads", two_threads(frames, arguments.rounds), "GET")


if __name__ == "__main__":
    main()
