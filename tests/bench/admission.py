"""The admission queue: microseconds of CPU a request, by how many wait.

`python -m tests.bench admission` keeps so many requests waiting, of 50 tenants in three classes with deadlines, while
one after the other is offered, dispatched and finished. *all of it* is the three together, and so what a request costs
the gateway; *pause* is the longest of these anywhere. *cancel* is an offer that is cancelled. About 30 seconds.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Final

from rich.console import Console
from rich.table import Table

from policies.admission import ADMISSION_POLICIES, AdmissionQueue, make_admission
from policies.admission_types import AdmissionSettings, Dispatched, Queued, Request, ServiceClass

TENANTS: Final = 50
LIMITS: Final = AdmissionSettings(max_waiting=1_000_000, max_bytes=1 << 40)


@dataclass(frozen=True)
class Costs:
    """Microseconds of CPU time."""

    offer: float
    dispatch: float
    finish: float
    whole: float
    """Of the three, timed together."""
    pause_ms: float
    cancel: float
    ahead: float
    """`tokens_ahead`, asked before each offer."""


def traffic(count: int, seed: int, models: int) -> list[Request]:
    """Requests with deadlines from 0 on."""
    draw = Random(seed)
    classes = list(ServiceClass)
    return [
        Request(
            f"tenant {draw.randrange(TENANTS)}",
            f"model {draw.randrange(models)}",
            draw.uniform(10, 4_000),
            service_class := draw.choice(classes),
            draw.choice((0.5, 1.0, 2.0)),
            inf if service_class is ServiceClass.BATCH else draw.uniform(1_000, 2_000),
            0.1,
            draw.randrange(1_000, 100_000),
            1_000,
        )
        for _ in range(count)
    ]


def filled(policy: str, waiting: int, models: int) -> AdmissionQueue:
    """So many wait."""
    queue = make_admission(policy, LIMITS)
    for request in traffic(waiting, 1, models):
        assert isinstance(queue.offer(request, 0.0), Queued)
    return queue


def room(model: str) -> int:
    """Always."""
    return 8


def one(queue: AdmissionQueue, request: Request, now: float) -> None:
    """What a request costs; the one that is dispatched is another."""
    queue.offer(request, now, 0.5)
    picked = queue.next(now, room)
    assert picked is not None
    queue.finished(picked.ticket, 700.0)


def measure(policy: str, waiting: int, rounds: int, models: int) -> Costs:
    """With that many waiting throughout; medians over rounds of 2,000 requests."""
    queue = filled(policy, waiting, models)
    batch, now = 2_000, 1.0
    times: dict[str, list[float]] = {"whole": [], "offer": [], "dispatch": [], "finish": [], "cancel": [], "ahead": []}

    def timed(name: str, start: int) -> None:
        times[name].append((time.process_time_ns() - start) / batch / 1e3)

    gc.collect()
    gc.freeze()  # as a program does with what it keeps
    longest = 0
    for number in range(rounds):
        requests = traffic(batch, number + 2, models)
        start = time.process_time_ns()
        for request in requests:
            one(queue, request, now)
        timed("whole", start)
        for request in requests:
            start = time.process_time_ns()
            one(queue, request, now)
            longest = max(longest, time.process_time_ns() - start)
        start = time.process_time_ns()
        for request in requests:
            queue.tokens_ahead(request)
        timed("ahead", start)
        start = time.process_time_ns()
        offered = [queue.offer(request, now) for request in requests]
        timed("offer", start)
        start = time.process_time_ns()
        picked: Sequence[Dispatched | None] = [queue.next(now, room) for _ in requests]
        timed("dispatch", start)
        start = time.process_time_ns()
        for each in picked:
            assert each is not None
            queue.finished(each.ticket, 700.0)
        timed("finish", start)
        del offered, picked
        start = time.process_time_ns()
        for request in requests:
            answer = queue.offer(request, now)
            assert isinstance(answer, Queued)
            queue.cancel(answer.ticket)
        timed("cancel", start)
        assert len(queue) == waiting
        now += 0.1
    gc.unfreeze()
    median = {name: statistics.median(each) for name, each in times.items()}
    return Costs(pause_ms=longest / 1e6, **median)


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="fair,priority,fcfs", help=f"of {', '.join(sorted(ADMISSION_POLICIES))}")
    parser.add_argument("--waiting", default="0,100,10000,100000", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=7, help="of 2,000 requests each; default: %(default)s")
    parser.add_argument("--models", type=int, default=3, help="default: %(default)s")
    options = parser.parse_args()
    table = Table(title=f"Admission: µs of CPU a request, {TENANTS} tenants, {options.models} models")
    for column in (
        "policy",
        "waiting",
        "all of it",
        "offer",
        "dispatch",
        "finish",
        "cancel",
        "tokens ahead",
        "pause ms",
    ):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for policy in options.policies.split(","):
        for waiting in map(int, options.waiting.split(",")):
            costs = measure(policy, waiting, options.rounds, options.models)
            figures = (costs.whole, costs.offer, costs.dispatch, costs.finish, costs.cancel, costs.ahead)
            table.add_row(policy, f"{waiting:,}", *(f"{each:.1f}" for each in figures), f"{costs.pause_ms:.2f}")
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
