"""What admission is worth under overload: two classes, four tenants, one of them flooding; in virtual time, exact.

`python -m tests.bench admission_slo` sends the recorded requests to simulated workers at 0.8, 1.0, 1.3 and 2.0 of what
these get through, first come first served, by priority alone, and fairly. Tenants a and b ask for a quarter of the
capacity each, interactive; c for 15%, batch; d, the flooding one, for the rest, in batch or (second table) interactive.
Goodput counts requests within their objectives; at most, these are all that come. `--azure`, `--mooncake` and
`--agents` take whole recordings instead of the slices in `tests/data`; `--limit` takes so many requests of each, a
third as many of agent sessions, which are long.
Ten minutes on two cores; `--only Azure` takes two.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from backends.simulated.engine import EngineConfig
from gateway.replay.arrival import Arrival
from gateway.replay.traces import read_trace
from policies.admission_types import ServiceClass
from tests.admission_load import BATCH, INTERACTIVE, RESERVE, Outcome, Workload, outcome
from tests.latency_replay import spread

DATA: Final = Path(__file__).parents[1] / "data"
LOADS: Final = (0.8, 1.0, 1.3, 2.0)
POLICIES: Final = ("fair", "priority", "fcfs")
_RESERVED: Final = "fair, 20% reserved"
"""For batch work."""
_LEAST: Final = 4_000

Key = tuple[str, ServiceClass, float, str]


def workloads(options: argparse.Namespace) -> dict[str, Workload]:
    """By name."""
    azure = read_trace(options.azure, options.limit)
    mooncake = read_trace(options.mooncake, options.limit)
    agents = read_trace(options.agents, options.limit and options.limit // 3, max_pause=30.0)
    chats = EngineConfig(blocks=1_024, block_size=256, max_model_len=32_768)
    long = EngineConfig(blocks=4_096, block_size=256, max_model_len=262_144)
    coding = EngineConfig(blocks=32_768, block_size=64, max_model_len=1_048_576)
    return {
        "Azure": Workload(repeated(azure, _LEAST), chats, 2, 2.0, 0.1),
        "Mooncake": Workload(spread(mooncake), long, 4, 4.0, 0.2),
        "agent sessions": Workload(agents, coding, 4, 15.0, 0.2, users=4),
    }


def repeated(arrivals: list[Arrival], least: int) -> list[Arrival]:
    """One after the other until there are enough; no prompt and no session of one round is known in another."""
    out, rounds = list(arrivals), 0
    span = arrivals[-1].at * (len(arrivals) + 1) / len(arrivals)
    while len(out) < least:
        rounds += 1
        out += [
            replace(
                each,
                at=each.at + rounds * span,
                block_ids=tuple(-1 - rounds - 1_000 * b for b in each.block_ids),
                session=None if each.session is None else f"{each.session} {rounds}",
            )
            for each in arrivals
        ]
    return out


def main() -> None:
    """Run everything and print two tables."""
    options = _options()
    console = Console(width=170)
    named = {name: one for name, one in workloads(options).items() if not options.only or name in options.only}
    found: dict[Key, Future[Outcome]] = {}
    with ProcessPoolExecutor(options.processes) as pool:
        full = {name: pool.submit(Workload.capacity, one) for name, one in named.items()}
        for name, one in named.items():
            for flood in (BATCH, INTERACTIVE):
                for load in (load for load in options.loads if flood is BATCH or load > 1):
                    for policy in POLICIES if flood is BATCH else (_RESERVED, *POLICIES):
                        key = (name, flood, load, policy)
                        how = ("fair", load, full[name].result(), flood, 0.2) if policy == _RESERVED else (
                            policy, load, full[name].result(), flood, RESERVE
                        )  # fmt: skip
                        found[key] = pool.submit(outcome, one, *how)
        results = {key: each.result() for key, each in found.items()}
    for flood in (BATCH, INTERACTIVE):
        console.print(_table({key: each for key, each in results.items() if key[1] is flood}, flood))
    if options.json:
        rows = [
            {"trace": name, "flood": flood.name.lower(), "load": load, "policy": policy, **asdict(each)}
            for (name, flood, load, policy), each in results.items()
        ]
        Path(options.json).write_text(json.dumps(rows, indent=1))


def _table(results: dict[Key, Outcome], flood: ServiceClass) -> Table:
    table = Table(title=f"d floods in {flood.name.lower()}")
    for column in ("trace", "load", "policy", "goodput/s", "÷ fcfs", "at most", "interactive", "TTFT p99", "TPOT p99",
                   "batch", "least batch", "Jain", "flood costs a / b / c", "refused"):  # fmt: skip
        table.add_column(column, justify="left" if column in {"trace", "policy"} else "right")
    for (name, flooding, load, policy), each in results.items():
        fcfs = results[name, flooding, load, "fcfs"].goodput
        table.add_row(
            name,
            f"{load:g}",
            policy,
            f"{each.goodput:.2f}",
            f"{each.goodput / fcfs:.2f}" if fcfs else "–",
            f"{each.came / fcfs:.2f}" if fcfs else "–",
            f"{each.interactive:.1%}",
            f"{each.ttft_p99:.2f} s",
            f"{each.tpot_p99 * 1e3:.0f} ms",
            f"{each.batch:.1%}",
            f"{each.slowest_batch:.1%}",
            f"{each.jain:.3f}",
            " / ".join(f"{cost:.1%}" for cost in each.cost.values()),
            f"{each.refused:,}",
            end_section=policy == POLICIES[-1],
        )
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--azure", default=DATA / "arrivals/azure_conv_300.csv")
    parser.add_argument("--mooncake", default=DATA / "traces/mooncake_conversation_2000.jsonl.xz")
    parser.add_argument("--agents", default=DATA / "traces/agent_sessions_60.compact.jsonl.xz")
    parser.add_argument("--limit", type=int, default=6_000)
    parser.add_argument("--only", nargs="*", help="of the traces, by name")
    parser.add_argument("--loads", nargs="*", type=float, default=LOADS, help="shares of capacity")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
