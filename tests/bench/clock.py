"""Microseconds of CPU time of this process, all of its threads: other work on the machine does not count."""

from __future__ import annotations

import contextlib
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Effort:
    """How often each thing is measured."""

    rounds: int = 15
    """Batches, of which the median counts."""
    round_us: float = 3_000.0
    """About how long a batch takes."""
    fresh: int = 60
    """Inputs that nobody has seen, for what can be measured only once with each."""


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """No garbage collection meanwhile."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def repeated(run: Callable[[], object], effort: Effort) -> float:
    """Median microseconds of one call, in batches."""
    run()
    start = time.process_time_ns()
    run()
    once = max((time.process_time_ns() - start) / 1e3, 0.2)
    batch = max(int(effort.round_us / once), 1)
    times = []
    for _ in range(effort.rounds):
        start = time.process_time_ns()
        for _ in range(batch):
            run()
        times.append((time.process_time_ns() - start) / batch)
    return statistics.median(times) / 1e3


def once_each(run: Callable[[T], object], inputs: Iterable[T], *, between: Callable[[], object] = int) -> float:
    """Median microseconds of one call over `inputs`; `between` is called after each and not counted."""
    nothing = _clock_ns()
    times = []
    for item in inputs:
        start = time.process_time_ns()
        run(item)
        times.append(time.process_time_ns() - start)
        between()
    return max(statistics.median(times) - nothing, 0.0) / 1e3


def _clock_ns() -> float:
    """What reading the clock costs."""
    readings = [time.process_time_ns() for _ in range(400)]
    return statistics.median([after - before for before, after in itertools.pairwise(readings)])
