"""What it is worth to know the slower tiers when routing: agent sessions and the Mooncake trace, in virtual time.

`python -m tests.bench.tiers` replays both over eight simulated workers with small device caches, host memory behind
each and one store behind all. Workers restore by themselves whatever the gateway knows; so the second row is the same
policy on the same fleet, of which only the gateway's knowledge of the tiers is missing. Exact and repeatable.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from backends.simulated.engine import EngineConfig
from backends.simulated.kv_tiers import TierConfig
from gateway.replay.arrival import Arrival
from gateway.replay.traces import read_trace
from gateway.replay.virtual_fleet import VirtualResult, replay_virtually
from policies.routing import CHOICES, make_policy

_TRACES: Final = Path(__file__).parents[1] / "data/traces"
BLOCK: Final = 64
ROWS: Final = (
    ("cost, knows the tiers", "cost", True),
    ("cost, blind to them", "cost", False),
    ("prefix_affinity", "prefix_affinity", False),
    ("least_loaded", "least_loaded", False),
)


def main() -> None:
    """Replay both traces in every way and print a table for each."""
    options = _options()
    wanted = {name: _trace(name, options) for name in options.traces}
    found: dict[str, object] = {}
    with ProcessPoolExecutor(options.processes) as pool:
        running = {
            name: [pool.submit(_replay, trace, policy, knows, options) for _, policy, knows in ROWS]
            for name, trace in wanted.items()
        }
        for name, futures in running.items():
            results = {row[0]: future.result() for row, future in zip(ROWS, futures, strict=True)}
            Console(width=120).print(_table(name, results, wanted[name][2], options))
            found[name] = {
                row: {
                    "mean": result.mean_ttft,
                    "p90": result.ttft_at(0.9),
                    "computed": sum(result.load),
                    "choices": dict(result.choices),
                }
                for row, result in results.items()
            }
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))


def _trace(name: str, options: argparse.Namespace) -> tuple[list[Arrival], float, int]:
    """Arrivals, how many times faster than life, tokens in each device cache."""
    if name == "mooncake":
        path = _TRACES / "mooncake_conversation_2000.jsonl.xz"
        return read_trace(path, options.limit), options.speed, options.mooncake_tokens
    path = _TRACES / "agent_sessions_60.compact.jsonl.xz"
    arrivals = read_trace(path, options.limit, session_gap=options.session_gap, max_pause=options.max_pause)
    return arrivals, 1.0, options.agent_tokens


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", nargs="+", default=["agent", "mooncake"], choices=["agent", "mooncake"])
    parser.add_argument("--limit", type=int, default=2000, help="only the first N requests of each")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--agent-tokens", type=int, default=1_000_000, help="of each device cache, agent sessions")
    parser.add_argument("--mooncake-tokens", type=int, default=500_000, help="of each device cache, Mooncake")
    parser.add_argument("--host-factor", type=float, default=2.0, help="host memory of each, in device caches")
    parser.add_argument("--store-factor", type=float, default=16.0, help="the shared store, in device caches")
    parser.add_argument("--host-rate", type=float, default=300_000, help="tokens/s from the host")
    parser.add_argument("--store-rate", type=float, default=100_000, help="tokens/s from the store")
    parser.add_argument("--speed", type=float, default=3.5, help="of the Mooncake trace")
    parser.add_argument("--session-gap", type=float, default=20.0, help="seconds from one session's start to the next")
    parser.add_argument("--max-pause", type=float, default=30.0, help="longer pauses in a session are cut to this")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="replays at once; results do not differ")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


def _replay(
    trace: tuple[Sequence[Arrival], float, int], policy: str, knows_tiers: bool, options: argparse.Namespace
) -> VirtualResult:
    arrivals, speed, tokens = trace
    blocks = tokens // BLOCK
    host = TierConfig(max(1, round(blocks * options.host_factor)), s_per_token=1 / options.host_rate)
    store = TierConfig(max(1, round(blocks * options.store_factor)), s_per_token=1 / options.store_rate)
    engine = EngineConfig(blocks=blocks, block_size=BLOCK, max_model_len=2_000_000, host=host)
    return replay_virtually(
        arrivals,
        make_policy(policy),
        workers=options.workers,
        engine=engine,
        speed=speed,
        store=store,
        knows_tiers=knows_tiers,
    )


def _table(name: str, results: dict[str, VirtualResult], tokens: int, options: argparse.Namespace) -> Table:
    first = next(iter(results.values()))
    table = Table(
        title=f"{name}: {len(first.records):,} requests ({first.input_tokens / 1e6:.1f} M input tokens) over"
        f" {options.workers} workers with device caches of {tokens:,} tokens"
    )
    for column in ("policy", "mean TTFT", "P90 TTFT", "computed", "most ÷ mean", *CHOICES):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for row, result in results.items():
        table.add_row(
            row, f"{result.mean_ttft:.3f} s", f"{result.ttft_at(0.9):.3f} s", f"{sum(result.load) / 1e6:.2f} M",
            f"{result.imbalance:.2f}", *(f"{result.choices.get(choice, 0):,}" for choice in CHOICES),
        )  # fmt: skip
    return table


if __name__ == "__main__":
    main()
