"""What routing by promises is worth beside the other policies: requests within their objectives, in virtual time.

`python -m tests.bench slo_routing` sends recorded requests to simulated workers at 0.5 to 1.3 of what they get through.
Once all are promised the same, and once every second one has twenty times (Mooncake: seven times) as long until its
first token. `--azure`, `--mooncake` and `--agents` take whole recordings instead of the slices in `tests/data`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from rich.console import Console
from rich.table import Table

from backends.simulated.engine import EngineConfig
from gateway.replay.arrival import Arrival
from gateway.replay.slo import Slos
from gateway.replay.traces import read_trace
from gateway.replay.virtual_fleet import VirtualResult, replay_virtually
from policies.routing import make_policy
from tests.admission_load import Workload
from tests.bench.admission_slo import repeated
from tests.latency_replay import spread

DATA: Final = Path(__file__).parents[1] / "data"


@dataclass(frozen=True)
class Case:
    """Requests, and what the even and the odd ones are promised."""

    arrivals: Sequence[Arrival]
    engine: EngineConfig
    workers: int
    tight: Slos
    loose: Slos
    users: int | None = None

    def capacity(self) -> float:
        """The speed at which requests come as fast as the fleet gets through."""
        return Workload(self.arrivals, self.engine, self.workers, 1.0, 1.0, users=self.users).capacity()

    def run(self, policy: str, speed: float, seed: int, *, mixed: bool) -> VirtualResult:
        """One replay."""
        return replay_virtually(
            self.arrivals, make_policy(policy), workers=self.workers, engine=self.engine, speed=speed, seed=seed,
            slos=lambda number: self.slos(number, mixed=mixed),
        )  # fmt: skip

    def slos(self, number: int, *, mixed: bool) -> Slos:
        """Of one request."""
        return self.loose if mixed and number % 2 else self.tight


def cases(options: argparse.Namespace) -> dict[str, Case]:
    """By name."""
    chats = EngineConfig(blocks=1_024, block_size=256, max_model_len=32_768)
    long = EngineConfig(blocks=4_096, block_size=256, max_model_len=262_144)
    coding = EngineConfig(blocks=16_384, block_size=64, max_model_len=2_000_000)
    azure = repeated(read_trace(options.azure, options.limit), min(options.limit, 4_000))
    mooncake = spread(read_trace(options.mooncake, options.limit // 2))
    agents = read_trace(options.agents, options.limit // 2, max_pause=30.0)
    return {
        "Azure": Case(azure, chats, 4, Slos(ttft=0.4, tpot=0.1), Slos(ttft=8.0, tpot=0.1)),
        "Mooncake": Case(mooncake, long, 4, Slos(ttft=3.0, tpot=0.2), Slos(ttft=20.0, tpot=0.2)),
        "agent sessions": Case(agents, coding, 8, Slos(ttft=4.0, tpot=0.2), Slos(ttft=30.0, tpot=0.2), users=4),
    }


def main() -> None:
    """Run everything and print a table."""
    options = _options()
    named = {name: case for name, case in cases(options).items() if not options.only or name in options.only}
    table = Table(title=f"within objectives, mean of {options.seeds} seeds: all tight | every second one loose")
    for column in ("trace", "load", "policy", "within", "mean TTFT", "hits", "within", "tight", "loose", "mean TTFT"):
        table.add_column(column, justify="left" if column in {"trace", "policy"} else "right")
    with ProcessPoolExecutor(options.processes) as pool:
        full = {name: pool.submit(Case.capacity, case) for name, case in named.items()}
        found = {
            (name, load, policy): [
                [
                    pool.submit(_figures, case, policy, full[name].result() * load, seed, mixed)
                    for seed in range(options.seeds)
                ]
                for mixed in (False, True)
            ]
            for name, case in named.items()
            for load in options.loads
            for policy in options.policies.split(",")
        }
        for (name, load, policy), runs in found.items():
            same, mixed = (
                [fmean(column) for column in zip(*(run.result() for run in each), strict=True)] for each in runs
            )
            table.add_row(
                name, f"{load:g}", policy, f"{same[0]:.1%}", f"{same[3]:.3f} s", f"{same[4]:.1%}",
                *(f"{share:.1%}" for share in mixed[:3]), f"{mixed[3]:.3f} s",
            )  # fmt: skip
    Console(width=130).print(table)


def _figures(case: Case, policy: str, speed: float, seed: int, mixed: bool) -> tuple[float, float, float, float, float]:
    """Shares of all, of the even and of the odd requests within their objectives; mean TTFT, hits."""
    result = case.run(policy, speed, seed, mixed=mixed)
    met = [case.slos(number, mixed=mixed).met(record) for number, record in enumerate(result.records)]
    return fmean(met), fmean(met[::2]), fmean(met[1::2]), result.mean_ttft, result.hit_share


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--azure", default=DATA / "arrivals/azure_conv_300.csv")
    parser.add_argument("--mooncake", default=DATA / "traces/mooncake_conversation_2000.jsonl.xz")
    parser.add_argument("--agents", default=DATA / "traces/agent_sessions_60.compact.jsonl.xz")
    parser.add_argument("--limit", type=int, default=4_000, help="requests of Azure's, twice as many as of the others")
    parser.add_argument("--policies", default="cost,slo,prefix_affinity,least_loaded")
    parser.add_argument("--loads", nargs="*", type=float, default=(0.5, 0.8, 1.0, 1.15, 1.3), help="shares of capacity")
    parser.add_argument("--only", nargs="*", help="of the traces, by name")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    return parser.parse_args()


if __name__ == "__main__":
    main()
