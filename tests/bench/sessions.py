"""Coding-agent sessions over simulated workers, in virtual time: how much of what one cache could serve each routing
policy finds, and how long it takes to find it again after a worker was lost and an empty one came.

`python -m tests.bench.sessions` replays 60 recorded sessions (about 100,000 input tokens a request) over eight workers
whose caches hold a million tokens each. Exact and repeatable; about six minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from backends.simulated.engine import EngineConfig
from gateway.replay.arrival import Arrival
from gateway.replay.records import RequestRecord
from gateway.replay.stats import in_order, one_cache_hit_share
from gateway.replay.traces import read_trace
from gateway.replay.virtual_fleet import Added, Lost, VirtualResult, replay_virtually
from policies.routing import POLICIES, make_policy

TRACE: Final = Path(__file__).parents[1] / "data/traces/agent_sessions_60.compact.jsonl.xz"
BACK: Final = 0.95
_POLICIES: Final = "cost,prefix_affinity,consistent_hash,power_of_two"


@dataclass(frozen=True)
class Recovery:
    """Shares of one cache's hits, before a change and at the worst after it; seconds until `BACK` of the first."""

    before: float
    lowest: float
    seconds: float | None


class HitsInTime:
    """Hits ÷ one cache's hits between any two moments, from running sums."""

    def __init__(self, records: Sequence[RequestRecord]) -> None:
        rows = [record for record in in_order(records) if record.ok]
        self.times = [record.sent or 0.0 for record in rows]
        self._cached = [0, *accumulate(record.cached_tokens or 0 for record in rows)]
        self._limit = [0, *accumulate(record.limit_tokens for record in rows)]

    def share(self, start: float, stop: float) -> float | None:
        first, last = bisect_left(self.times, start), bisect_left(self.times, stop)
        limit = self._limit[last] - self._limit[first]
        return (self._cached[last] - self._cached[first]) / limit if limit else None


def recovery(hits: HitsInTime, at: float, window: float) -> Recovery:
    """The level is that of the four `window`s before the change. The worst `window` is looked for in the four after it,
    for sessions notice the loss only when they speak again; from there on, the first one to reach `BACK` of the level.
    """
    before = hits.share(at - 4 * window, at) or 0.0
    moments = [at + step for step in range(int(hits.times[-1] - window - at))]
    shares = [(moment, share) for moment in moments if (share := hits.share(moment, moment + window)) is not None]
    dip = [row for row in shares if row[0] < at + 4 * window]
    if not dip:
        return Recovery(before, before, None)
    worst, lowest = min(dip, key=lambda row: row[1])
    if lowest >= BACK * before:
        return Recovery(before, lowest, 0.0)
    back = next((moment - at for moment, share in shares if moment > worst and share >= BACK * before), None)
    return Recovery(before, lowest, back)


def main() -> None:
    """Replay with every policy and print two tables."""
    options = _options()
    arrivals = read_trace(options.trace, options.limit, session_gap=options.session_gap, max_pause=options.max_pause)
    engine = EngineConfig(blocks=options.blocks, block_size=64, max_model_len=2_000_000)
    console = Console(width=110)
    policies = options.policies.split(",")
    limit = one_cache_hit_share(arrivals)
    middle = [arrivals[int(part * len(arrivals))].at for part in options.moments]
    with ProcessPoolExecutor(options.processes) as pool:
        whole = {policy: pool.submit(_replay, arrivals, policy, engine, options) for policy in policies}
        parts = {
            policy: [pool.submit(_replay, arrivals, policy, engine, options, at) for at in middle]
            for policy in policies
        }
        results = {policy: future.result() for policy, future in whole.items()}
        console.print(_hits_table(results, arrivals, limit, options))
        changed = {
            policy: [
                recovery(HitsInTime(future.result().records), at, options.window)
                for at, future in zip(middle, futures, strict=True)
            ]
            for policy, futures in parts.items()
        }
    console.print(_recovery_table(changed, middle, options))
    if options.json:
        document = {
            "limit": limit,
            "hits": {policy: result.hit_share for policy, result in results.items()},
            "recovery": {policy: [vars(row) for row in rows] for policy, rows in changed.items()},
        }
        Path(options.json).write_text(json.dumps(document, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default=_POLICIES, help=f"of {', '.join(POLICIES)}; default: %(default)s")
    parser.add_argument("--trace", default=TRACE)
    parser.add_argument("--limit", type=int, help="only the first N requests")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=16_384, help="of 64 tokens, in each worker's cache")
    parser.add_argument("--session-gap", type=float, default=20.0, help="seconds from one session's start to the next")
    parser.add_argument("--max-pause", type=float, default=30.0, help="longer pauses in a session are cut to this")
    parser.add_argument("--window", type=float, default=30.0, help="seconds over which a level of hits is measured")
    parser.add_argument("--moments", type=float, nargs="+", default=[0.5], help="of the requests, when a worker goes")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="replays at once; results do not differ")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


def _replay(
    arrivals: Sequence[Arrival], policy: str, engine: EngineConfig, options: argparse.Namespace, at: float | None = None
) -> VirtualResult:
    changes: list[Lost | Added] = [] if at is None else [Lost(at, 0), Added(at)]
    return replay_virtually(arrivals, make_policy(policy), workers=options.workers, engine=engine, changes=changes)


def _hits_table(
    results: dict[str, VirtualResult], arrivals: Sequence[Arrival], limit: float, options: argparse.Namespace
) -> Table:
    table = Table(
        title=f"{len(arrivals):,} requests of agent sessions over {options.workers} workers;"
        f" one cache for all could serve {limit:.1%}"
    )
    for column in ("policy", "hits", "of the limit", "mean TTFT", "P90 TTFT", "max ÷ mean"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for policy, result in results.items():
        table.add_row(
            policy, f"{result.hit_share:.1%}", f"{result.hit_share / limit:.1%}", f"{result.mean_ttft:.3f} s",
            f"{result.ttft_at(0.9):.3f} s", f"{result.imbalance:.2f}",
        )  # fmt: skip
    return table


def _recovery_table(changed: dict[str, list[Recovery]], moments: Sequence[float], options: argparse.Namespace) -> Table:
    table = Table(
        title=f"A worker lost and an empty one added: hits of the limit before →"
        f" in the worst {options.window:g} s after,"
        f" and how long until {BACK:.0%} of the level before"
    )
    table.add_column("policy")
    for at in moments:
        table.add_column(f"at {at:,.0f} s", justify="right")
    for policy, rows in changed.items():
        table.add_row(policy, *(_recovered(row) for row in rows))
    return table


def _recovered(row: Recovery) -> str:
    back = "never" if row.seconds is None else f"{row.seconds:.0f} s"
    return f"{row.before:.1%} → {row.lowest:.1%}, {back}"


if __name__ == "__main__":
    main()
