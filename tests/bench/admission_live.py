"""What admission is worth under overload, over the wire: the live counterpart of `admission_slo`, and that beside it.

`python -m tests.bench admission_live` sends recorded requests to `prefixgate serve` in front of simulated engines, each
a process: HTTP streams, tenants with keys, KV events. Tenants, classes and loads are those of `admission_slo`; beside
each row stands what virtual time says of the same requests and engines. So that two cores can stream them and a run is
short, tokens are a quarter or an eighth as many and engines faster than life, with objectives in proportion. A run on
which this machine did not keep up is repeated once, and then its figures do not count.
A quarter of an hour on two cores; `--only Azure` takes a third of it, `--quick` a minute.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import uvloop
from rich.console import Console
from rich.table import Table

from backends.simulated.engine import EngineConfig
from backends.simulated.timing import PublishedTiming
from gateway.replay.arrival import Arrival
from gateway.replay.customers import Customer, customers_of
from gateway.replay.records import RequestRecord
from tests.admission_load import BATCH, RESERVE, Outcome, Workload, demand, judged, virtual_run
from tests.bench.admission_slo import DATA, LOADS, POLICIES, repeated, workloads
from tests.bench.live_fleet import Setup
from tests.bench.live_run import LiveRun, Machine, live_run


class Scale(NamedTuple):
    """What a recording is made of for live engines."""

    fewer: int
    """So many times fewer tokens than recorded, each of which takes so many times as long."""
    speed: float
    """How many times faster than life the engines are then; a step of theirs is `fewer` ÷ `speed` times as long."""
    smaller: int
    """So many times smaller the engines: fewer blocks, slower prefill; a step that decodes takes as long as before."""
    seconds: float
    """In which the requests of a run come: several times as long as one is in an engine, so that these fill."""


SCALES: Final = {
    "Azure": Scale(4, 2.0, 2, 20.0),
    "Mooncake": Scale(4, 2.0, 1, 16.0),
    "agent sessions": Scale(8, 8.0, 1, 14.0),
}
"""So that each fleet gets through some 15 to 30 requests/s."""
_BATCH_TTFT: Final = 4.0
"""What batch work is promised, in objectives of interactive work: short, so that a short run shows overload."""
_LIMIT: Final = 2_400
_FEWEST: Final = 50


@dataclass(frozen=True)
class Case:
    """One load on one fleet."""

    trace: str
    load: float
    workload: Workload
    capacity: float
    """Of `workload`, as a speed."""

    @property
    def customers(self) -> list[Customer]:
        """Whose each request is, as in virtual time."""
        return customers_of(self.workload.arrivals, demand(self.load), seed=1)

    @property
    def speed(self) -> float:
        """At which requests come."""
        return self.capacity * self.load

    @property
    def span(self) -> float:
        """Seconds in which they come."""
        return max(arrival.at for arrival in self.workload.arrivals) / self.speed

    def judged(self, records: Sequence[RequestRecord]) -> Outcome:
        """What came of a run."""
        return judged(self.workload, self.load, BATCH, self.customers, records, self.span)


@dataclass(frozen=True)
class Row:
    """One case under one policy."""

    case: Case
    policy: str
    live: Outcome
    virtual: Outcome
    machine: Machine
    kept_up: bool
    hits: tuple[float, float]
    """Share of the prompt tokens that came from a cache, live and virtual."""
    statuses: dict[int, int]
    faults: list[str]


def lighter(workload: Workload, scale: Scale) -> Workload:
    """The same work in fewer tokens, and all of it faster.

    Prompts and caches shrink together with the blocks; an answer takes fewer and longer steps. Objectives follow.
    """
    engine, timing = workload.engine, workload.engine.timing
    fewer, speed, smaller, _ = scale
    assert isinstance(timing, PublishedTiming), "the only one that is known how to stretch"
    stretched = replace(
        timing,
        prefill_square=timing.prefill_square * fewer**2 * smaller,
        prefill_linear=timing.prefill_linear * fewer * smaller,
        prefill_constant=timing.prefill_constant * smaller,
        decode_square=timing.decode_square * fewer,
        decode_linear=timing.decode_linear * fewer,
        decode_constant=timing.decode_constant * fewer,
        decode_least=timing.decode_least * fewer,
    )
    small = EngineConfig(
        blocks=engine.blocks // smaller,
        block_size=engine.block_size // fewer,
        max_num_seqs=engine.max_num_seqs,
        max_batched_tokens=engine.max_batched_tokens // fewer,
        max_model_len=engine.max_model_len // fewer,
        timing=stretched,
        speed=speed,
    )
    return replace(
        workload,
        arrivals=[_lighter(arrival, fewer) for arrival in workload.arrivals],
        engine=small,
        ttft=workload.ttft / speed,
        tpot=workload.tpot * fewer / speed,
        batch_ttft=workload.ttft * _BATCH_TTFT / speed,
    )


def _lighter(arrival: Arrival, fewer: int) -> Arrival:
    return replace(
        arrival,
        input_tokens=-(-arrival.input_tokens // fewer),
        output_tokens=-(-arrival.output_tokens // fewer),
        block_tokens=arrival.block_tokens // fewer,
    )


def case_of(trace: str, workload: Workload, load: float, seconds: float) -> Case:
    """So many requests that they come in about `seconds`: the first ones, or where sessions begin one after the other
    those after a quarter, when as many go on as ever do.
    """
    arrivals = workload.arrivals if workload.users is None else _later(workload.arrivals)
    workload = replace(workload, arrivals=arrivals)
    count = max(int(load * _per_second(workload) * seconds), _FEWEST)
    arrivals = repeated(list(arrivals), count)
    slice_ = replace(workload, arrivals=arrivals[:count])
    return Case(trace, load, slice_, _per_second(slice_) * slice_.arrivals[-1].at / count)


def _later(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Without the first quarter."""
    rest = arrivals[len(arrivals) // 4 :]
    return [replace(arrival, at=arrival.at - rest[0].at) for arrival in rest]


def _per_second(workload: Workload) -> float:
    """Requests that the fleet gets through when it never runs dry: they are repeated, so that the last ones, which it
    answers without company, hardly count.
    """
    least = _LIMIT if workload.users is None else _LIMIT // 2
    many = replace(workload, arrivals=repeated(list(workload.arrivals), least))
    return len(many.arrivals) / many.arrivals[-1].at * many.capacity()


def _virtually(case: Case, policy: str) -> tuple[Outcome, float]:
    records = virtual_run(case.workload, policy, case.workload.arrivals, case.customers, case.speed, RESERVE)
    return case.judged(records), _hits(records)


def _hits(records: Sequence[RequestRecord]) -> float:
    total = sum(record.prompt_tokens or 0 for record in records)
    return sum(record.cached_tokens or 0 for record in records) / total if total else 0.0


def _live(case: Case, policy: str) -> LiveRun:
    workload = case.workload
    tenants = {each.tenant: each.service_class for each in demand(case.load)}
    setup = Setup(policy, workload.engine, workload.workers, tenants, workload.slos, RESERVE)
    return uvloop.run(live_run(setup, workload.arrivals, case.customers, case.speed))


def row_of(case: Case, policy: str, virtual: tuple[Outcome, float], lag: float) -> Row:
    """Run it, once more where the machine did not keep up."""
    most_lag = lag * case.workload.ttft
    run = _live(case, policy)
    if not run.machine.kept_up(most_lag):
        run = _live(case, policy)
    return Row(
        case,
        policy,
        case.judged(run.records),
        virtual[0],
        run.machine,
        run.machine.kept_up(most_lag),
        (_hits(run.records), virtual[1]),
        dict(run.statuses),
        run.faults,
    )


def main() -> None:
    """Run everything, print a table and whatever ought not to be; exit code 1 where there is something."""
    options = _options()
    console = Console(width=210)
    known = {name: lighter(workload, SCALES[name]) for name, workload in workloads(options).items()
             if not options.only or name in options.only}  # fmt: skip
    with ProcessPoolExecutor(options.processes) as pool:
        made = [pool.submit(case_of, name, workload, load, options.seconds or SCALES[name].seconds)
                for name, workload in known.items() for load in options.loads]  # fmt: skip
        found = [future.result() for future in made]
        asked = {(n, policy): pool.submit(_virtually, found[n], policy) for n in range(len(found))
                 for policy in options.policies}  # fmt: skip
        virtual = {key: future.result() for key, future in asked.items()}
    rows = []
    for (n, policy), said in virtual.items():
        row = row_of(found[n], policy, said, options.lag)
        rows.append(row)
        console.print(f"[dim]{row.case.trace} {row.case.load:g} {policy}: {_machine(row)}", highlight=False)
    console.print(_table(rows))
    faults = [f"{row.case.trace} {row.case.load:g} {row.policy}: {fault}" for row in rows for fault in row.faults]
    for fault in faults:
        console.print(fault, style="red", markup=False)
    if options.json:
        Path(options.json).write_text(json.dumps([_written(row) for row in rows], indent=1))
    if faults:
        raise SystemExit(1)


def _machine(row: Row) -> str:
    machine = row.machine
    seconds = {"client": machine.client_lag, "probe": machine.probe, "engines": machine.engine_lag}
    lags = ", ".join(f"{name} {each * 1e3:.0f}" for name, each in seconds.items())
    statuses = ", ".join(f"{count} × {status}" for status, count in sorted(row.statuses.items()))
    return f"{row.case.span:.0f} s, {statuses}; lag p99 {lags} ms, gateway {machine.gateway_cpu:.0%} of a core" + (
        "" if row.kept_up else ": did not keep up"
    )


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="d floods in batch; live | virtual")
    names = ("trace", "load", "policy", "goodput/s", "÷ fcfs", "interactive", "TTFT p99, s", "batch", "least batch",
             "Jain", "flood costs a / b / c", "from cache", "refused")  # fmt: skip
    for name in names:
        table.add_column(name, justify="left" if name in {"trace", "policy"} else "right")
    last = rows[-1].policy if rows else ""
    for row in rows:
        live, virtual = _told(row, rows, live=True), _told(row, rows, live=False)
        if not row.kept_up:
            live = ["–"] * len(live)
        both = [f"{one} | {other}" for one, other in zip(live, virtual, strict=True)]
        table.add_row(row.case.trace, f"{row.case.load:g}", row.policy, *both, end_section=row.policy == last)
    return table


def _told(row: Row, rows: Sequence[Row], *, live: bool) -> list[str]:
    def of(other: Row) -> Outcome:
        return other.live if live else other.virtual

    def beside(policy: str, load: float) -> Outcome | None:
        same = (o for o in rows if (o.case.trace, o.case.load, o.policy) == (row.case.trace, load, policy))
        other = next(same, None)
        return None if other is None or (live and not other.kept_up) else of(other)

    one, fcfs, calm = of(row), beside("fcfs", row.case.load), beside(row.policy, min(LOADS))
    return [
        f"{one.goodput:.1f}",
        f"{one.goodput / fcfs.goodput:.2f}" if fcfs is not None and fcfs.goodput else "–",
        f"{one.interactive:.1%}",
        f"{one.ttft_p99:.2f}",
        f"{one.batch:.1%}",
        f"{one.slowest_batch:.1%}",
        f"{one.jain:.3f}",
        "–" if calm is None or calm is one else " / ".join(f"{cost:.1%}" for cost in _costs(one, calm)),
        f"{row.hits[not live]:.1%}",
        f"{one.refused:,}",
    ]


def _costs(one: Outcome, calm: Outcome) -> list[float]:
    """Share of goodput that a, b and c lose to the flood: beside that without, the two brought to the same capacity."""
    return [1 - one.tenants[name] / calm.tenants[name] if calm.tenants[name] else 0.0 for name in "abc"]


def _written(row: Row) -> dict[str, object]:
    return {
        "trace": row.case.trace,
        "load": row.case.load,
        "policy": row.policy,
        "requests": len(row.case.workload.arrivals),
        "seconds": row.case.span,
        "live": asdict(row.live),
        "virtual": asdict(row.virtual),
        "hits": row.hits,
        "machine": asdict(row.machine),
        "kept_up": row.kept_up,
        "statuses": row.statuses,
        "faults": row.faults,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--azure", default=DATA / "arrivals/azure_conv_300.csv")
    parser.add_argument("--mooncake", default=DATA / "traces/mooncake_conversation_2000.jsonl.xz")
    parser.add_argument("--agents", default=DATA / "traces/agent_sessions_60.compact.jsonl.xz")
    parser.add_argument("--limit", type=int, default=_LIMIT, help="requests that are read of each")
    parser.add_argument("--only", nargs="*", help="of the traces, by name")
    parser.add_argument("--loads", nargs="*", type=float, default=LOADS, help="shares of capacity")
    parser.add_argument("--policies", nargs="*", default=POLICIES, help="of admission; none is one too")
    parser.add_argument("--seconds", type=float, help="in which the requests of a run come; some 20")
    parser.add_argument("--lag", type=float, default=0.05, help="the most that any loop may be late (p99) ÷ objective")
    parser.add_argument("--quick", action="store_true", help="Azure at 2.0 alone, twelve seconds a policy")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="for virtual time")
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.quick:
        options.only, options.loads, options.seconds = ["Azure"], [2.0], 12.0
    return options


if __name__ == "__main__":
    main()
