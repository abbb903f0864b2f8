"""`prefixgate replay`: a request trace against any OpenAI endpoint, with a report; or two saved results compared."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer
import uvloop
from rich.console import Console

from gateway.cli import trace_options
from gateway.cli.options import option, told
from gateway.cli.output import stop, write
from gateway.cli.trace_options import time_option
from gateway.replay.arrival import TraceError
from gateway.replay.client import ReplayError, Target
from gateway.replay.compare import ComparisonError, compare_files, comparison_json, render_comparison
from gateway.replay.html_report import html_report
from gateway.replay.live import watch
from gateway.replay.plan import digest
from gateway.replay.report import Run, print_report, report
from gateway.replay.results import to_json
from gateway.replay.run import replay as run_replay
from gateway.replay.slo import Slos, WarmUp, parse_slos, parse_warm_up
from gateway.replay.stats import mark_warm_up, summarize


class EndpointChoice(StrEnum):
    """Which of the two text endpoints is asked."""

    chat = "chat"
    completions = "completions"


_target = partial(option, "Target")
_load = partial(option, "Load")
_report = partial(option, "Report")


def replay(
    trace: Annotated[
        str | None,
        typer.Argument(
            help="Trace file (Mooncake JSONL, agent sessions, conversations, Azure's CSV; .gz, .xz), or 'demo': a small"
            " one inside."
        ),
    ] = None,
    url: Annotated[str, _target("Base URL of an OpenAI endpoint.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, _target("Model to ask for. Default: the first one listed.", metavar="NAME")] = None,
    endpoint: Annotated[EndpointChoice, _target("Which endpoint to ask.")] = EndpointChoice.chat,
    api_key: Annotated[
        str | None, _target("Sent as a bearer token.", envvar="PREFIXGATE_API_KEY", metavar="KEY")
    ] = None,
    timeout: Annotated[float, time_option("Target", "Deadline of each request.")] = "10min",  # type: ignore[assignment]  # is parsed
    ignore_eos: Annotated[bool, _target("Ask for exact output lengths; strict endpoints may refuse the field.")] = True,
    limit: trace_options.Limit = None,
    max_output: trace_options.MaxOutput = None,
    block_tokens: trace_options.BlockTokens = 512,
    session_gap: trace_options.SessionGap = "10s",  # type: ignore[assignment]  # is parsed
    max_pause: trace_options.MaxPause = None,
    think_time: trace_options.ThinkTime = None,
    arrivals_file: trace_options.ArrivalsFile = None,
    speed: Annotated[float, _load("Replay so many times faster than recorded.", min=1e-6)] = 1.0,
    concurrency: Annotated[
        int | None,
        _load("Closed loop: N users, each sends its next request after the answer.", min=1, metavar="N"),
    ] = None,
    warm_up: Annotated[
        WarmUp | None,
        _load(
            "Send these first and do not count them: 100 (requests) or 30s.",
            parser=told(parse_warm_up),
            metavar="N|TIME",
        ),
    ] = None,
    slo: Annotated[
        list[Slos] | None,
        _report(
            "Goodput: [NAME:]ttft=2s,tpot=50ms (also itl=, e2e=); may be given several times.",
            parser=told(parse_slos),
            metavar="BOUNDS",
        ),
    ] = None,
    slo_ttft: Annotated[
        float | None, time_option("Report", "Goodput: longest time to first token, such as 2s.")
    ] = None,
    slo_itl: Annotated[
        float | None, time_option("Report", "Goodput: longest mean time between tokens, such as 100ms.")
    ] = None,
    slo_e2e: Annotated[float | None, time_option("Report", "Goodput: longest time to the last token.")] = None,
    worker_header: Annotated[str, _report("Response header that names the worker.", metavar="NAME")] = "x-worker-id",
    workers: Annotated[
        int | None, _report("Fleet size, so that idle workers count in max ÷ mean.", min=1, metavar="N")
    ] = None,
    json_file: Annotated[
        str | None,
        _report("Write summary and every request's row here; - is stdout.", "--json", metavar="FILE"),
    ] = None,
    html_file: Annotated[
        str | None, _report("Write a report with plots here: one file, no network.", "--html", metavar="FILE")
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        _report("Replay nothing; compare two results saved with --json.", "--compare", metavar="A.json B.json"),
    ] = None,
    allow_errors: Annotated[bool, _report("Exit with 0 although requests failed.", "--allow-errors")] = False,
) -> None:
    """Replay a request trace against an OpenAI endpoint, and report latencies and hits.

    Each request is sent at its own time, whatever has become of the others; a turn of a
    conversation after the answer before it. With --concurrency a fixed number of users send
    instead. Prompts are the recorded messages, or made from the trace's block ids, the same text
    for every target. Ctrl-C stops early and reports what was measured so far.

    [dim]For a first look:[/]

        prefixgate replay demo --url http://127.0.0.1:8000 --slo-ttft 500ms
    """
    if compare is not None:
        if trace is not None or html_file is not None:
            _stop("--compare reads two saved results: give neither a trace nor --html with it")
        _compare(compare, json_file)
        return
    if trace is None:
        _stop("name a trace file, or 'demo'; or give --compare A.json B.json")
    if arrivals_file is not None and concurrency is not None:
        _stop("--arrivals says when to send and --concurrency sends after each answer: give one of them")
    if json_file == html_file == "-":
        _stop("only one of --json and --html can be written to stdout")
    try:
        arrivals = trace_options.read_arrivals(
            trace,
            limit,
            arrivals_file,
            block_tokens=block_tokens,
            session_gap=session_gap,
            max_pause=max_pause,
            think_time=think_time,
        )
        target = Target(url, model, endpoint.value, timeout, api_key, ignore_eos, worker_header)
        outcome = uvloop.run(
            run_replay(
                target,
                arrivals,
                speed=speed,
                max_output=max_output,
                concurrency=concurrency,
                watch=partial(watch, console=Console(stderr=True)),
            )
        )
    except (TraceError, ReplayError) as error:
        _stop(str(error))
    mark_warm_up(outcome.records, warm_up or WarmUp())
    slos = [*(slo or ()), Slos(ttft=slo_ttft, itl=slo_itl, e2e=slo_e2e)]
    summary = summarize(outcome.records, slos=slos, fleet_size=workers)
    run = Run(Path(trace).name, url, outcome.model, speed, concurrency)
    print_report(Console(stderr="-" in {json_file, html_file}), report(summary, run))
    if json_file:
        settings = {
            "trace": trace,
            "requests_digest": digest(arrivals),
            "url": url,
            "model": outcome.model,
            "endpoint": endpoint.value,
            "speed": speed,
            "arrivals": arrivals_file,
            "concurrency": concurrency,
            "warm_up": str(warm_up) if warm_up else None,
            "limit": limit,
            "max_output": max_output,
            "timeout": timeout,
            "ignore_eos": ignore_eos,
            "worker_header": worker_header,
            "workers": workers,
            "block_tokens": block_tokens,
            "session_gap": session_gap,
            "max_pause": max_pause,
            "think_time": think_time,
        }
        _write(
            json_file,
            to_json(settings=settings, summary=summary, records=outcome.records, interrupted=outcome.interrupted),
        )
    if html_file:
        _write(html_file, html_report(summary, outcome.records, run).encode())
    if outcome.interrupted:
        raise typer.Exit(130)
    if summary.failed and not allow_errors:
        raise typer.Exit(1)


def _compare(files: Sequence[str], json_file: str | None) -> None:
    first, second = files
    try:
        comparison = compare_files(first, second)
    except ComparisonError as error:
        _stop(str(error))
    print_report(Console(stderr=json_file == "-"), render_comparison(comparison))
    if json_file:
        _write(json_file, comparison_json(comparison))


_write = partial(write, "replay")


def _stop(message: str) -> NoReturn:
    stop("replay", message)


if __name__ == "__main__":
    typer.run(replay)
