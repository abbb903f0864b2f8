"""How well times to first token and per output token are predicted, on simulated engines in virtual time, near and
above saturation, beside what the gateway's queue alone would say; how soon a slower worker is known; what it costs.

`python -m tests.bench latency_model` takes about five minutes. Each request is sent at once, and in a second replay
when a worker has room, as under admission. What is judged is said when it is sent; "on arrival" is what was said when
one came that then waited. The first 500 requests, or a third of fewer, are not counted. `--azure FILE` and
`--mooncake FILE` take the whole recordings instead of the slices in `tests/data`. `--floor N` also tells how well the
time of every N-th request could be known at all: see `tests/latency_floor.py`; with 4 that takes about as long again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from rich.console import Console
from rich.table import Table

from backends.simulated.engine import EngineConfig
from gateway.replay.arrival import Arrival
from gateway.replay.traces import read_trace
from policies.latency_model import FleetLatency, WorkerLatency
from tests.latency_replay import Judged, capacity_speed, judged, requests, slowed, spread

DATA: Final = Path(__file__).parents[1] / "data"
LOADS: Final = (0.5, 0.8, 1.0, 1.3)
TARGET: Final = 0.15
_MOONCAKE: Final = EngineConfig(blocks=20_000, block_size=512, max_model_len=200_000)

Key = tuple[float, bool]
"""A load, and whether requests wait in the gateway until a worker has room."""


@dataclass(frozen=True)
class Workload:
    """A trace, and the fleet that it goes to."""

    arrivals: Sequence[Arrival]
    engine: EngineConfig
    workers: int


def workloads(options: argparse.Namespace) -> dict[str, Workload]:
    """By name."""
    azure = read_trace(options.azure, options.limit)
    mooncake = read_trace(options.mooncake, options.limit)
    agents = read_trace(options.agents, options.limit and options.limit // 2, session_gap=20.0, max_pause=30.0)
    long = EngineConfig(blocks=16_384, block_size=64, max_model_len=2_000_000)
    return {
        "Azure": Workload(azure, EngineConfig(), 4 if len(azure) >= 1_000 else 1),
        "Mooncake, spread": Workload(spread(mooncake), _MOONCAKE, 4),
        "Mooncake, in bursts": Workload(mooncake, _MOONCAKE, 4),
        "agent sessions": Workload(agents, long, 8),
    }


def main() -> None:
    """Run everything and print three tables."""
    options = _options()
    console = Console(width=160)
    named = {name: one for name, one in workloads(options).items() if not options.only or name in options.only}
    found: dict[str, dict[Key, Future[Judged]]] = {}
    with ProcessPoolExecutor(options.processes) as pool:
        speeds = {
            name: pool.submit(capacity_speed, one.arrivals, workers=one.workers, engine=one.engine)
            for name, one in named.items()
        }
        for name, one in named.items():
            full = speeds[name].result()
            found[name] = {
                (load, waits): pool.submit(_judged, one, load * full, waits, options.floor)
                for load in options.loads
                for waits in (False, True)
            }
        results = {name: {key: each.result() for key, each in row.items()} for name, row in found.items()}
    console.print(_errors_table(results))
    if options.floor:
        console.print(_floors_table(results))
    console.print(_slowed_table())
    console.print(_costs_table())
    if options.json:
        document = {
            name: {f"{load} {'gate' if waits else 'at once'}": asdict(one) for (load, waits), one in row.items()}
            for name, row in results.items()
        }
        Path(options.json).write_text(json.dumps(document, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--azure", default=DATA / "arrivals/azure_conv_300.csv")
    parser.add_argument("--mooncake", default=DATA / "traces/mooncake_conversation_2000.jsonl.xz")
    parser.add_argument("--agents", default=DATA / "traces/agent_sessions_60.compact.jsonl.xz")
    parser.add_argument("--limit", type=int, default=4_000, help="requests of each trace; of agents half as many")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="replays at once; results do not differ")
    parser.add_argument("--loads", nargs="*", type=float, default=LOADS, help="shares of capacity")
    parser.add_argument("--floor", type=int, default=0, metavar="N")
    parser.add_argument("--only", nargs="*", help="of the traces, by name")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


def _judged(one: Workload, speed: float, waits: bool, floor_every: int) -> Judged:
    rows = requests(
        one.arrivals, workers=one.workers, engine=one.engine, speed=speed, waits=waits, floor_every=floor_every
    )
    return judged(rows, warm_up=min(500, len(rows) // 3))


def _errors_table(results: dict[str, dict[Key, Judged]]) -> Table:
    table = Table(title="Mean absolute percentage error, and share at or below the predicted P90")
    columns = ("trace", "load", "sent", "requests", "TTFT", "median", "MAE s", "within 15%", "on arrival",
               "queue ÷ rate", "P90", "TPOT", "P90", "TTFT by situation")  # fmt: skip
    for column in columns:
        table.add_column(column, justify="left" if column in {"trace", "sent", "TTFT by situation"} else "right")
    for name, row in results.items():
        for (load, waits), one in row.items():
            kinds = ", ".join(f"{kind} {error:.0%} of {n:,}" for kind, (n, error, _) in one.by_situation.items())
            table.add_row(
                name, f"{load:g}", "when there is room" if waits else "at once", f"{one.n:,}", f"{one.ttft:.1%}",
                f"{one.ttft_median:.1%}", f"{one.ttft_s:.3f}",
                "yes" if one.ttft <= TARGET else "no", _share(one.on_arrival), _share(one.naive_ttft),
                f"{one.ttft_p90:.1%}", f"{one.tpot:.1%}", f"{one.tpot_p90:.1%}", kinds,
            )  # fmt: skip
    return table


def _floors_table(results: dict[str, dict[Key, Judged]]) -> Table:
    table = Table(title="TTFT error beside that of a copy of the engine, run on without what comes later")
    columns = ("trace", "load", "sent", "requests", "predicted", "lengths known", "lengths drawn")
    for column in columns:
        table.add_column(column, justify="left" if column in {"trace", "sent"} else "right")
    for name, row in results.items():
        for (load, waits), one in row.items():
            if one.floors is not None:
                n, *errors = one.floors
                sent = "when there is room" if waits else "at once"
                table.add_row(name, f"{load:g}", sent, f"{n:,}", *(f"{error:.1%}" for error in errors))
    return table


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _slowed_table() -> Table:
    table = Table(title="One worker becomes slower after 500 requests: TTFT error by requests since")
    windows = ((-100, 0), (0, 10), (10, 20), (20, 40), (40, 80), (80, 200))
    table.add_column("slower by")
    for start, stop in windows:
        table.add_column(f"{start} to {stop}", justify="right")
    for factor in (0.5, 1.5, 2.0, 4.0):
        pairs = slowed(per_second=4.0, before=500, after=200, factor=factor)
        errors = [abs(said / measured - 1.0) for said, measured in pairs]
        table.add_row(f"{factor:g} ×", *(f"{fmean(errors[500 + a : 500 + b]):.1%}" for a, b in windows))
    return table


def _costs_table() -> Table:
    worker = WorkerLatency(FleetLatency(), kv_tokens=1e6)
    count = 20_000
    predict = _cpu_us(lambda i: worker.predict(i * 0.1, 1_000.0, 200.0), count)
    said = worker.predict(0.0, 1_000.0, 200.0)

    def whole(i: int) -> None:
        worker.sent(i, said, i * 0.1)
        worker.first_token(i, i * 0.1 + 0.05)
        worker.ended(i, i * 0.1 + 1.0, 50)

    load = worker.load(0.0)
    model = worker.model
    table = Table(title="CPU µs a call (this thread's time)")
    for column in ("predict", "of which the model", "observe TTFT", "observe TPOT", "sent, first token and end"):
        table.add_column(column, justify="right")
    table.add_row(
        f"{predict:.1f}",
        f"{_cpu_us(lambda _: model.predict(load, 1_000.0, 200.0), count):.1f}",
        f"{_cpu_us(lambda i: model.observe_ttft(said, 0.05 + i % 7 * 0.001), count):.1f}",
        f"{_cpu_us(lambda i: model.observe_tpot(said, 50, 1.0 + i % 7 * 0.01), count):.1f}",
        f"{_cpu_us(whole, count):.1f}",
    )
    return table


def _cpu_us(call: Callable[[int], object], count: int) -> float:
    """The least of five rounds: others use the machine too."""
    rounds = []
    for _ in range(5):
        start = time.thread_time()
        for i in range(count):
            call(i)
        rounds.append((time.thread_time() - start) / count * 1e6)
    return min(rounds)


if __name__ == "__main__":
    main()
