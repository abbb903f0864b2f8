"""Similarity search: exact and by a graph, beside a plain `matrix @ vector` of numpy in the same run.

`python -m tests.bench.similarity` fills one partition with vectors of 384 numbers, asks for the ten best, and shows
times (p50 and p99 by the clock, `cpu` by the thread's own time, which other work on the machine does not count in;
ratios are of the latter), recall and memory. *random*: all directions alike, which is as hard as it gets and like
no text. *near*: the same vectors, and questions next to one of them (0.9): what a cache is asked. *clustered*: fifty
wordings of each of many questions, asked in one more. Graphs take a minute or two to build at 100,000.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from cache.similarity import Limits, SimilarityIndex
from cache.vector_rows import Floats

DIM: Final = 384
_NO_LIMITS: Final = Limits(entries=1 << 30, bytes=1 << 50)
_PARTITION: Final = bytes(32)
_THREADS: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_META: Final = 64

console = Console(width=130)


def unit(vectors: Floats) -> Floats:
    """Of length 1."""
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True), np.float32)


def noise(random: np.random.Generator, count: int) -> Floats:
    """Directions at random."""
    return unit(random.standard_normal((count, DIM), np.float32))


def near(random: np.random.Generator, vectors: Floats, similarity: float) -> Floats:
    """One next to each, about that similar."""
    return unit(vectors + noise(random, len(vectors)) * np.float32(np.sqrt(1 / similarity**2 - 1)))


def workload(kind: str, count: int, n_queries: int) -> tuple[Floats, Floats]:
    """Vectors and questions."""
    random = np.random.default_rng(count)
    vectors = noise(random, count)
    if kind == "clustered":
        middles = vectors[: max(count // 50, 1)]
        vectors = near(random, middles[random.integers(0, len(middles), count)], 0.85)
    if kind == "random":
        return vectors, noise(random, n_queries)
    return vectors, near(random, vectors[random.integers(0, count, n_queries)], 0.9)


def entry_id(number: int) -> bytes:
    """Of the vector with that number."""
    return number.to_bytes(32)


def filled(vectors: Floats, exact_entries: int) -> SimilarityIndex:
    """All in one partition."""
    index = SimilarityIndex(DIM, _NO_LIMITS, exact_entries=exact_entries)
    for number, vector in enumerate(vectors):
        index.add(_PARTITION, entry_id(number), vector)
    return index


def timed(run: Callable[[Floats], object], queries: Floats) -> list[tuple[float, float]]:
    """Milliseconds of each, by the clock and of the thread."""
    run(queries[0])
    times = []
    for query in queries:
        start, thread = time.perf_counter(), time.thread_time()
        run(query)
        times.append(((time.perf_counter() - start) * 1e3, (time.thread_time() - thread) * 1e3))
    return times


def build(index: SimilarityIndex) -> tuple[float, float]:
    """Seconds of the thread for all of the graph; milliseconds of the longest slice of 64."""
    slices = []
    more = True
    while more:
        start = time.thread_time()
        more = index.work()
        slices.append(time.thread_time() - start)
    return sum(slices), max(slices) * 1e3


def recall(index: SimilarityIndex, vectors: Floats, queries: Floats) -> tuple[float, float]:
    """Of the best, and of the ten best."""
    first = ten = 0
    for query in queries:
        truth = np.argsort(-(vectors @ query))[:10].tolist()
        found = [int.from_bytes(match.id) for match in index.search(_PARTITION, query, 10)]
        first += found[0] == truth[0]
        ten += len(set(found) & set(truth))
    return first / len(queries), ten / len(queries) / 10


def row(table: Table, index: SimilarityIndex, kind: str, n_queries: int, *, built: str = "") -> None:
    """Measure it and show it."""
    count = len(index)
    vectors, queries = workload(kind, count, n_queries)
    # In turns, so that what else the machine does meets both.
    ours: list[tuple[float, float]] = []
    plain: list[tuple[float, float]] = []
    for part in np.array_split(queries, 10):
        plain += timed(lambda query: vectors @ query, part)
        ours += timed(lambda query: index.search(_PARTITION, query, 10), part)
    at_1, at_10 = recall(index, vectors, queries)
    clock = sorted(wall for wall, _ in ours)
    cpu, numpy_cpu = (statistics.median(thread for _, thread in times) for times in (ours, plain))
    table.add_row(
        "graph" if built else "exact",
        f"{count:,}",
        kind,
        f"{statistics.median(clock):.2f} / {clock[len(clock) * 99 // 100]:.2f}",
        f"{cpu:.2f}",
        f"{numpy_cpu:.2f}",
        f"{cpu / numpy_cpu:.2f}",
        f"{at_1:.3f} / {at_10:.3f}",
        built,
    )


def searches(options: argparse.Namespace) -> None:
    """Exact ones, and those by graphs."""
    table = Table(title=f"the ten best of one partition, {DIM} numbers, {options.queries} questions each")
    heads = ("search", "entries", "vectors", "p50 / p99 ms", "cpu ms", "numpy", "ratio", "recall@1 / @10", "built")
    for head in heads:
        table.add_column(head, justify="left" if head in {"search", "vectors", "built"} else "right")
    for count in options.exact:
        index = filled(workload("random", count, 1)[0], 1 << 30)
        row(table, index, "random", options.queries)
    for count, kinds in itertools.product(options.graph, (("random", "near"), ("clustered",))):
        index = filled(workload(kinds[0], count, 1)[0], count // 2)
        seconds, longest = build(index)
        graph_bytes = index.stats().bytes - filled_bytes(count)
        built = f"{seconds:.0f} s, ≤ {longest:.0f} ms a slice, {graph_bytes / count:,.0f} B/entry"
        for kind in kinds:
            row(table, index, kind, options.queries, built=built)
    console.print(table)


def filled_bytes(count: int) -> int:
    """What so many entries are charged without a graph."""
    index = filled(workload("random", 1, 1)[0], 1)
    return index.stats().bytes * count


def memory(per_partition: int, count: int) -> None:
    """In a process of its own: what so many entries take, and are charged."""
    vectors = workload("random", 1_000, 1)[0]
    index = SimilarityIndex(DIM, _NO_LIMITS)
    before = resident()
    start = time.perf_counter()
    for number in range(count):
        partition = (number // per_partition % 1_000).to_bytes(16) + (number // per_partition).to_bytes(16)
        index.add(partition, os.urandom(32), vectors[number % 1_000], os.urandom(_META))
    seconds = time.perf_counter() - start
    print((resident() - before) / count, index.stats().bytes / count, seconds / count * 1e6)


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memories(options: argparse.Namespace) -> None:
    """By how many entries there are in a partition."""
    table = Table(title=f"memory of {options.memory:,} entries in 1,000 scopes, {_META} bytes of metadata each")
    for head in ("entries a partition", "bytes an entry", "charged", "× float32 alone", "µs to add"):
        table.add_column(head, justify="right")
    for per_partition in (1, 4, 16, 1_000):
        command = [sys.executable, "-m", "tests.bench.similarity", "--measure", str(per_partition), str(options.memory)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        taken, charged, micros = map(float, output.split())
        table.add_row(
            f"{per_partition:,}", f"{taken:,.0f}", f"{charged:,.0f}", f"{taken / DIM / 4:.2f}", f"{micros:.0f}"
        )
    console.print(table)


def files(options: argparse.Namespace) -> None:
    """Adding, opening and forgetting with a file."""
    vectors = workload("random", 1_000, 1)[0]
    count = options.memory
    with tempfile.TemporaryDirectory() as directory:
        index = SimilarityIndex(DIM, _NO_LIMITS)
        index.open(Path(directory), "")
        start = time.perf_counter()
        for number in range(count):
            index.add(number.to_bytes(32), entry_id(number), vectors[number % 1_000], bytes(_META))
        added = (time.perf_counter() - start) / count * 1e6
        n_bytes = index.stats().file_bytes / count
        index.close()
        again = SimilarityIndex(DIM, _NO_LIMITS)
        start = time.perf_counter()
        again.open(Path(directory), "")
        opened = (time.perf_counter() - start) / count * 1e6
        start = time.perf_counter()
        again.forget(b"")
        gone = (time.perf_counter() - start) / count * 1e6
        again.close()
    console.print(
        f"with a file, {count:,} entries: {added:.0f} µs to add one, {opened:.0f} µs an entry to open, {gone:.0f} µs an"
        f" entry to forget all, {n_bytes:,.0f} bytes of file an entry"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exact", type=int, nargs="*", default=[1_000, 10_000, 50_000, 100_000], metavar="N")
    parser.add_argument("--graph", type=int, nargs="*", default=[10_000, 100_000], metavar="N")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--memory", type=int, default=100_000, metavar="N", help="entries; 0: not measured")
    parser.add_argument("--measure", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        memory(*options.measure)
        return
    if any(os.environ.get(name) != "1" for name in _THREADS):
        # numpy reads it when it is loaded.
        os.environ.update(dict.fromkeys(_THREADS, "1"))
        os.execv(sys.executable, [sys.executable, "-m", "tests.bench.similarity", *sys.argv[1:]])
    searches(options)
    if options.memory:
        memories(options)
        files(options)


if __name__ == "__main__":
    main()
