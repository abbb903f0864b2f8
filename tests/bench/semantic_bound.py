"""Whether the semantic cache's bound holds: how often it serves a wrong answer in simulated worlds where that is known.

`python -m tests.bench semantic_bound` takes about four minutes for each scenario on two cores (200 seeds × 20,000
requests × three δ); `--scenario` names one or more, `--seeds` takes fewer. All figures are shares. A *fixed threshold*
sees the same candidates behind the same guards. What one who knows everything would serve is the share of candidates
whose answer fits.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Final

from rich.console import Console
from rich.table import Table

from policies.semantic import SemanticSettings
from tests.semantic_world import SCENARIOS, THRESHOLDS, Simulation, Tally

DELTAS: Final = (0.01, 0.02, 0.05)


@dataclass(frozen=True)
class Run:
    """One seed."""

    scenario: str
    delta: float
    seed: int
    tally: Tally


@dataclass(frozen=True)
class Row:
    """All seeds of a scenario and a δ."""

    scenario: str
    delta: float
    seeds: int
    kept: float
    """Share of seeds with wrong ÷ served ≤ δ; one that served nothing has kept it."""
    kept_of_all: float
    """The same for wrong ÷ all requests."""
    few: float
    """Share of seeds that served so few (below 5 ÷ δ) that hardly one wrong answer was allowed."""
    kept_by_many: float
    """Kept by the others; 1 where there are none."""
    idle: float
    """Share of seeds that served nothing."""
    error: float
    """Wrong ÷ served, over all seeds."""
    error_95: float
    """The seed that one in twenty exceeds."""
    hits: float
    """Served ÷ all requests."""
    possible: float
    """By one who knows everything."""
    labels: float
    """Comparisons ÷ all requests."""
    fixed: dict[float, tuple[float, float]]
    """By threshold: served ÷ all requests, wrong ÷ served."""


def simulate(scenario: str, delta: float, seed: int, requests: int) -> Run:
    """One seed of a scenario."""
    return Run(
        scenario, delta, seed, Simulation(SCENARIOS[scenario], SemanticSettings(delta=delta), seed).run(requests)
    )


def summary(runs: Sequence[Run]) -> Row:
    """Of all seeds of one scenario and one δ."""
    delta = runs[0].delta
    tallies = [run.tally for run in runs]
    requests = sum(each.requests for each in tallies)
    served = sum(each.served for each in tallies)
    errors = sorted(each.error for each in tallies)
    many = [each.error <= delta for each in tallies if each.served >= 5 / delta]
    return Row(
        scenario=runs[0].scenario,
        delta=delta,
        seeds=len(runs),
        kept=fmean(error <= delta for error in errors),
        kept_of_all=fmean(each.wrong <= delta * each.requests for each in tallies),
        few=1.0 - len(many) / len(tallies),
        kept_by_many=fmean(many) if many else 1.0,
        idle=fmean(not each.served for each in tallies),
        error=sum(each.wrong for each in tallies) / max(served, 1),
        error_95=errors[min(int(0.95 * len(errors)), len(errors) - 1)],
        hits=served / requests,
        possible=sum(each.right for each in tallies) / requests,
        labels=sum(each.explored for each in tallies) / requests,
        fixed={threshold: _fixed(tallies, threshold, requests) for threshold in THRESHOLDS},
    )


def _fixed(tallies: Sequence[Tally], threshold: float, requests: int) -> tuple[float, float]:
    served = sum(each.by_threshold[threshold][0] for each in tallies)
    wrong = sum(each.by_threshold[threshold][1] for each in tallies)
    return served / requests, wrong / max(served, 1)


def main() -> None:
    """Run everything and print two tables."""
    options = _options()
    started = time.monotonic()
    jobs = [(name, delta, seed) for name in options.scenario for delta in DELTAS for seed in range(options.seeds)]
    names, deltas, seeds = zip(*jobs, strict=True)
    with ProcessPoolExecutor(options.processes) as pool:
        runs = list(pool.map(simulate, names, deltas, seeds, [options.requests] * len(jobs), chunksize=4))
    rows = [summary(list(group)) for _, group in groupby(runs, lambda run: (run.scenario, run.delta))]
    console = Console(width=132)
    console.print(bound_table(rows))
    console.print(fixed_table(rows))
    console.print(f"{len(runs)} runs of {options.requests:,} requests in {time.monotonic() - started:.0f} s")
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(row) for row in rows], indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", nargs="*", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="results do not differ")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


def bound_table(rows: Sequence[Row]) -> Table:
    """What the policy did."""
    table = Table(title="Served by the bound")
    for column in (
        "scenario",
        "δ",
        "kept",
        "of all",
        "error",
        "error 95%",
        "hits",
        "possible",
        "compared",
        "few",
        "kept by many",
        "idle",
    ):
        table.add_column(column, justify="left" if column == "scenario" else "right")
    for row in rows:
        table.add_row(
            row.scenario if row.delta == DELTAS[0] else "",
            f"{row.delta:.0%}",
            f"{row.kept:.1%}",
            f"{row.kept_of_all:.1%}",
            f"{row.error:.2%}",
            f"{row.error_95:.2%}",
            f"{row.hits:.1%}",
            f"{row.possible:.1%}",
            f"{row.labels:.1%}",
            f"{row.few:.0%}",
            f"{row.kept_by_many:.1%}",
            f"{row.idle:.0%}",
        )
    return table


def fixed_table(rows: Sequence[Row]) -> Table:
    """What fixed thresholds would have done with the same candidates."""
    table = Table(title="Served by a fixed threshold, and wrong of these")
    table.add_column("scenario")
    for threshold in THRESHOLDS:
        table.add_column(f"{threshold:.2f}", justify="right")
    for row in rows:
        if row.delta == DELTAS[-1]:
            table.add_row(row.scenario, *(f"{hits:.1%}, {wrong:.2%}" for hits, wrong in row.fixed.values()))
    return table


if __name__ == "__main__":
    main()
