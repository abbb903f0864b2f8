"""`prefixgate plan`: how many workers a trace needs, from replays in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from backends.simulated.engine import EngineConfig
from backends.simulated.kv_tiers import TierConfig
from backends.simulated.timing import LinearPrefill, PublishedTiming
from gateway.cli import trace_options
from gateway.cli.options import option, told
from gateway.cli.output import stop, write
from gateway.cli.trace_options import time_option
from gateway.replay.arrival import Arrival, TraceError
from gateway.replay.capacity import Scenario, Verdict, coarse, fewest, fitting, judge
from gateway.replay.capacity_report import Answer, Findings, plan_html, plan_json, render
from gateway.replay.customers import Customer, customers_of, parse_classes, parse_tenants
from gateway.replay.report import bounds, print_report
from gateway.replay.slo import Slos, parse_slos
from policies.admission import ADMISSION_POLICIES
from policies.admission_types import ServiceClass
from policies.routing import POLICIES

_NONE: Final = "none"
_DEFAULT_ROUTING: Final = ("cost", "round_robin", "least_loaded")
_MOST_WORKERS: Final = 1024


def parse_workers(text: str) -> tuple[int, int]:
    """The smallest and the largest fleet from "8" or "1-32". Raises ValueError."""
    first, dash, last = (part.strip() for part in text.partition("-"))
    numbers = [first, last] if dash else [first, first]
    if not all(number.isdecimal() and len(number) < 6 for number in numbers):
        raise ValueError(f"{text!r} is neither a number of workers such as 8 nor a range such as 1-32")
    least, most = int(numbers[0]), int(numbers[1])
    if not 1 <= least <= most <= _MOST_WORKERS:
        raise ValueError(f"{text!r}: expected 1 to {_MOST_WORKERS:,} workers, the smaller number first")
    return least, most


_load = partial(option, "Load")
_promise = partial(option, "Promise")
_fleet = partial(option, "Fleet")
_engine = partial(option, "Engine")
_report = partial(option, "Report")


def plan(
    trace: Annotated[
        str,
        typer.Argument(
            help="Trace file (Mooncake JSONL, agent sessions, conversations, Azure's CSV; .gz, .xz), or 'demo'."
        ),
    ],
    workers: Annotated[str, _fleet("A number, or a range to search.", "-n", "--workers", metavar="N|N-M")] = "1-64",
    policy: Annotated[
        list[str] | None, _fleet("Routing; may be given several times, the first one leads.", metavar="NAME")
    ] = None,
    admission: Annotated[
        str, _fleet("How requests wait: fair, fcfs, priority; none: all go to a worker at once.", metavar="NAME")
    ] = _NONE,
    cache: Annotated[bool, _fleet("Also ask what prefix caches are worth.")] = True,
    slo_ttft: Annotated[float | None, time_option("Promise", "Longest time to first token.")] = "2s",  # type: ignore[assignment]  # is parsed
    slo_tpot: Annotated[float | None, time_option("Promise", "Longest time per output token.")] = "100ms",  # type: ignore[assignment]  # is parsed
    slo: Annotated[
        list[Slos] | None,
        _promise(
            "Another promise for one class: batch:ttft=10min; may be given several times.",
            parser=told(parse_slos),
            metavar="CLASS:BOUNDS",
        ),
    ] = None,
    target: Annotated[float, _promise("Share of each class's requests that must be within.", min=0.01, max=1.0)] = 0.95,
    limit: trace_options.Limit = None,
    max_output: trace_options.MaxOutput = None,
    block_tokens: trace_options.BlockTokens = 512,
    session_gap: trace_options.SessionGap = "10s",  # type: ignore[assignment]  # is parsed
    max_pause: trace_options.MaxPause = None,
    think_time: trace_options.ThinkTime = None,
    arrivals_file: trace_options.ArrivalsFile = None,
    speed: Annotated[float | None, _load("So many times faster than recorded.", min=1e-6)] = None,
    rate: Annotated[float | None, _load("So many requests per second on average.", min=1e-6, metavar="N")] = None,
    classes: Annotated[str | None, _load("Share of requests: interactive=0.6,batch=0.4.", metavar="SHARES")] = None,
    tenants: Annotated[str | None, _load("A number, or share of requests: a=1,b=1,c=4.", metavar="N|SHARES")] = None,
    blocks: Annotated[int, _engine("KV blocks an engine holds.", min=1)] = 16_384,
    block_size: Annotated[int, _engine("Tokens in a block.", min=1, max=1024)] = 16,
    exact: Annotated[bool, _engine("Simulate these very blocks, not larger ones: slower.", "--exact")] = False,
    max_model_len: Annotated[int, _engine("Longest prompt plus answer, in tokens.", min=2)] = 131_072,
    max_num_seqs: Annotated[int, _engine("Sequences an engine runs at once.", min=1, max=8192)] = 256,
    max_batched_tokens: Annotated[int, _engine("Tokens a step computes at most.", min=1)] = 8_192,
    prefill_tokens_per_s: Annotated[
        float | None, _engine("Plain timing instead: prefill in turn at this rate, decoding free.", min=1)
    ] = None,
    host_blocks: Annotated[int, _engine("KV blocks in host memory behind each cache. 0: none.", min=0)] = 0,
    store_blocks: Annotated[int, _engine("KV blocks in a store that all share. 0: none.", min=0)] = 0,
    host_tokens_per_s: Annotated[float, _engine("How fast host memory is restored.", min=1)] = 300_000,
    store_tokens_per_s: Annotated[float, _engine("How fast the shared store is restored.", min=1)] = 100_000,
    seed: Annotated[int, _load("Of who is of which tenant and class, and of ties.", min=0)] = 0,
    out: Annotated[str | None, _report("Write all figures here as JSON; - is stdout.", "--out", metavar="FILE")] = None,
    html_file: Annotated[
        str | None, _report("Write a report with plots here: one file, no network.", "--html", metavar="FILE")
    ] = None,
) -> None:
    r"""Say how many workers a trace needs, what each routing gives, and what caches are worth.

    The gateway's own routing and admission, in front of simulated engines, in virtual time: minutes
    of traffic take seconds. Searches for the fewest workers that keep the promise.

    [dim]Examples:[/]

        prefixgate plan demo --rate 20 --slo-ttft 500ms

        prefixgate plan mooncake.jsonl -n 4-64 --admission fair \
            --classes interactive=0.6,batch=0.4
    """
    routings = _known("routing", policy or _DEFAULT_ROUTING, POLICIES)
    _known("admission", [admission], [*ADMISSION_POLICIES, _NONE])
    if speed is not None and rate is not None:
        stop("plan", "--speed and --rate both say how fast requests come: give one of them")
    if out == html_file == "-":
        stop("plan", "only one of --out and --html can be written to stdout")
    try:
        least, most = parse_workers(workers)
        of_class = parse_classes(classes) if classes else {}
        of_tenant = parse_tenants(tenants) if tenants else {}
        arrivals = trace_options.read_arrivals(
            trace,
            limit,
            arrivals_file,
            block_tokens=block_tokens,
            session_gap=session_gap,
            max_pause=max_pause,
            think_time=think_time,
        )
        if max_output is not None:
            arrivals = [replace(each, output_tokens=min(each.output_tokens, max_output)) for each in arrivals]
        engine = EngineConfig(
            blocks=blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_batched_tokens=max_batched_tokens,
            max_model_len=max_model_len,
            timing=PublishedTiming() if prefill_tokens_per_s is None else LinearPrefill(prefill_tokens_per_s),
            host=TierConfig(host_blocks, s_per_token=1 / host_tokens_per_s) if host_blocks else None,
        )
        slos = _slos(Slos(ttft=slo_ttft, tpot=slo_tpot), slo or ())
    except (TraceError, ValueError) as error:
        stop("plan", str(error))
    store = TierConfig(store_blocks, s_per_token=1 / store_tokens_per_s) if store_blocks else None
    fit = fitting(arrivals, engine)
    if not fit:
        stop(
            "plan",
            f"no request of {trace} fits into {engine.context_tokens:,} tokens: raise --blocks or --max-model-len",
        )
    speed, per_second = _pace(fit, speed, rate)
    if not exact:
        engine, store = coarse(engine, fit, store)
    scenario = Scenario(
        fit,
        engine,
        slos,
        _customers(fit, of_class, of_tenant, seed),
        None if admission == _NONE else admission,
        speed=speed,
        store=store,
        seed=seed,
    )
    with _Bar(len(fit)) as bar:
        answers = _answers(scenario, routings, least, most, target, cache=cache, bar=bar)
    found = Findings(
        trace=Path(trace).name,
        requests=len(fit),
        per_second=per_second,
        objectives=_words(slos, scenario.customers),
        target=target,
        most=most,
        admission=admission,
        answers=answers,
        notes=_notes(len(arrivals) - len(fit), engine),
    )
    print_report(Console(stderr="-" in {out, html_file}), render(found))
    if out:
        settings = {
            "trace": trace,
            "limit": limit,
            "speed": speed,
            "arrivals": arrivals_file,
            "workers": [least, most],
            "routing": routings,
            "admission": admission,
            "objectives": {
                each.name.lower(): {"ttft": s.ttft, "tpot": s.tpot, "itl": s.itl, "e2e": s.e2e}
                for each, s in slos.items()
            },
            "classes": {each.name.lower(): share for each, share in of_class.items()},
            "tenants": of_tenant,
            "kv_tokens": blocks * block_size,
            "simulated_block_size": engine.block_size,
            "max_num_seqs": max_num_seqs,
            "max_batched_tokens": max_batched_tokens,
            "seed": seed,
        }
        write("plan", out, plan_json(found, settings))
    if html_file:
        write("plan", html_file, plan_html(found).encode())


def _notes(left_out: int, engine: EngineConfig) -> list[str]:
    if not left_out:
        return []
    limit = f"{engine.context_tokens:,} tokens (--max-model-len, --blocks)"
    return [f"{left_out:,} requests do not fit into {limit} and are left out."]


def _known(what: str, names: Sequence[str], there: Any) -> list[str]:
    for name in names:
        if name not in there:
            stop("plan", f"no {what} policy {name!r}; there are {', '.join(sorted(there))}")
    return list(dict.fromkeys(names))


def _slos(promise: Slos, others: Sequence[Slos]) -> dict[ServiceClass, Slos]:
    """For every class; batch is promised nothing unless it is named. Raises ValueError for a name that is no class."""
    named = {each.name.lower(): each for each in ServiceClass}
    slos = {ServiceClass.INTERACTIVE: promise, ServiceClass.STANDARD: promise}
    for each in others:
        if each.name not in named:
            raise ValueError(f"--slo {each.name}: expected CLASS:BOUNDS with a class of {', '.join(named)}")
        slos[named[each.name]] = each
    return slos


def _words(slos: dict[ServiceClass, Slos], customers: Sequence[Customer]) -> list[str]:
    there = {customer.service_class for customer in customers} or {ServiceClass.STANDARD}
    texts = {each: bounds(replace(slos[each], name="slo")) for each in sorted(there) if slos.get(each)}
    if len(there) == 1:
        return list(texts.values())
    return [f"{each.name.lower()}: {text}" for each, text in texts.items()]


def _pace(arrivals: Sequence[Arrival], speed: float | None, rate: float | None) -> tuple[float, float]:
    """How many times faster than recorded, and how many requests a second that makes."""
    span = max(arrival.at for arrival in arrivals)
    recorded = len(arrivals) / span if span else 0.0
    if rate is not None:
        if not recorded:
            stop("plan", "--rate: all requests of this trace come at the same time")
        return rate / recorded, rate
    return speed or 1.0, recorded * (speed or 1.0)


def _customers(
    arrivals: Sequence[Arrival],
    classes: dict[ServiceClass, float],
    tenants: dict[str, float],
    seed: int,
) -> list[Customer]:
    if not classes and not tenants:
        return []
    shares = {
        Customer(tenant, service_class): of_tenant * of_class
        for tenant, of_tenant in (tenants or {"default": 1.0}).items()
        for service_class, of_class in (classes or {ServiceClass.STANDARD: 1.0}).items()
    }
    return customers_of(arrivals, shares, seed=seed)


class _Bar:
    """A bar for each replay; on anything but a terminal, nothing."""

    def __init__(self, requests: int) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=requests)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, text: str) -> Callable[[int], None]:
        """Another replay begins; call the result with how many requests have come."""
        self._progress.reset(self._task, description=text)
        return lambda done: self._progress.update(self._task, completed=done)


def _answers(
    scenario: Scenario, routings: Sequence[str], least: int, most: int, target: float, *, cache: bool, bar: _Bar
) -> list[Answer]:
    ways = [(routing, True) for routing in routings] + ([(routings[0], False)] if cache else [])
    answers: list[Answer] = []
    for routing, prefix_cache in ways:

        def judged(workers: int, routing: str = routing, prefix_cache: bool = prefix_cache) -> Verdict:
            name = routing if prefix_cache else f"{routing}, no prefix cache"
            watch = bar.begin(f"{name}, {workers} worker{'' if workers == 1 else 's'}")
            return judge(scenario, workers, routing, prefix_cache=prefix_cache, watch=watch)

        needed, tried = fewest(least, most, target, judged)
        if answers and (fleet := answers[0].needed or most) not in tried:
            tried[fleet] = judged(fleet)
        answers.append(Answer(routing, prefix_cache, needed, tried))
    return answers


if __name__ == "__main__":
    typer.run(plan)
