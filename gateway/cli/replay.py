"""`prefixgate replay`: a request trace against any OpenAI endpoint, open loop, with a report."""

from __future__ import annotations

import re
import sys
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import uvloop
from rich.console import Console
from rich.text import Text

from gateway.replay.client import ReplayError, Target
from gateway.replay.live import watch
from gateway.replay.report import print_report, report
from gateway.replay.results import to_json
from gateway.replay.run import replay as run_replay
from gateway.replay.stats import Slos, summarize
from gateway.replay.traces import TraceError, read_trace

_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0}


class EndpointChoice(StrEnum):
    """Which of the two text endpoints is asked."""

    chat = "chat"
    completions = "completions"


def parse_duration(text: str) -> float:
    """Seconds from "2s", "100ms", "1.5 min" or a bare number of seconds. Raises typer.BadParameter."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]*)\s*", text)
    if match is None or match[2] not in _UNITS or not float(match[1]):
        raise typer.BadParameter(f"{text!r} is not a length of time above 0 such as 2s, 100ms or 1.5min")
    return float(match[1]) * _UNITS[match[2]]


def _option(panel: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


def _time(panel: str, text: str) -> Any:
    return _option(panel, text, parser=parse_duration, metavar="TIME")


_target = partial(_option, "Target")
_trace = partial(_option, "Trace")
_report = partial(_option, "Report")


def replay(
    trace: Annotated[
        str,
        typer.Argument(help="Trace file (Mooncake JSONL or agent sessions; .gz, .xz), or 'demo': a small one inside."),
    ],
    url: Annotated[str, _target("Base URL of an OpenAI endpoint.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, _target("Model to ask for. Default: the first one listed.", metavar="NAME")] = None,
    endpoint: Annotated[EndpointChoice, _target("Which endpoint to ask.")] = EndpointChoice.chat,
    api_key: Annotated[
        str | None, _target("Sent as a bearer token.", envvar="PREFIXGATE_API_KEY", metavar="KEY")
    ] = None,
    timeout: Annotated[float, _time("Target", "Deadline of each request.")] = "10min",  # type: ignore[assignment]  # is parsed
    ignore_eos: Annotated[bool, _target("Ask for exact output lengths; strict endpoints may refuse the field.")] = True,
    speed: Annotated[float, _trace("Replay so many times faster than recorded.", min=1e-6)] = 1.0,
    limit: Annotated[int | None, _trace("Only the first N requests.", min=1, metavar="N")] = None,
    max_output: Annotated[int | None, _trace("At most N output tokens a request.", min=1, metavar="N")] = None,
    block_tokens: Annotated[int, _trace("Mooncake: tokens in a block.", min=1, metavar="N")] = 512,
    session_gap: Annotated[float, _time("Trace", "Agent sessions: one begins every TIME.")] = "10s",  # type: ignore[assignment]  # is parsed
    max_pause: Annotated[float | None, _time("Trace", "Agent sessions: longer pauses are cut to TIME.")] = None,
    slo_ttft: Annotated[float | None, _time("Report", "Goodput: longest time to first token, such as 2s.")] = None,
    slo_itl: Annotated[
        float | None, _time("Report", "Goodput: longest mean time between tokens, such as 100ms.")
    ] = None,
    slo_e2e: Annotated[float | None, _time("Report", "Goodput: longest time to the last token.")] = None,
    worker_header: Annotated[str, _report("Response header that names the worker.", metavar="NAME")] = "x-worker-id",
    workers: Annotated[
        int | None, _report("Fleet size, so that idle workers count in max ÷ mean.", min=1, metavar="N")
    ] = None,
    json_file: Annotated[
        str | None,
        _report("Write summary and every request's row here; - is stdout.", "--json", metavar="FILE"),
    ] = None,
    allow_errors: Annotated[bool, _report("Exit with 0 although requests failed.", "--allow-errors")] = False,
) -> None:
    """Replay a request trace against an OpenAI endpoint, and report latencies and hits.

    Each request is sent at its own time, whatever has become of the others. Prompts are made from the
    trace's block ids, the same text for every target. Ctrl-C stops early and reports what was measured so far.

    For a first look: prefixgate replay demo --url http://127.0.0.1:8000 --slo-ttft 500ms
    """
    try:
        arrivals = read_trace(trace, limit, block_tokens=block_tokens, session_gap=session_gap, max_pause=max_pause)
        target = Target(url, model, endpoint.value, timeout, api_key, ignore_eos, worker_header)
        outcome = uvloop.run(
            run_replay(
                target,
                arrivals,
                speed=speed,
                max_output=max_output,
                watch=partial(watch, console=Console(stderr=True)),
            )
        )
    except (TraceError, ReplayError) as error:
        _stop(str(error))
    slos = Slos(ttft=slo_ttft, itl=slo_itl, e2e=slo_e2e)
    summary = summarize(outcome.records, slos=slos, fleet_size=workers)
    print_report(
        Console(stderr=json_file == "-"),
        report(summary, trace=Path(trace).name, url=url, model=outcome.model, speed=speed, slos=slos),
    )
    if json_file:
        settings = {
            "trace": trace,
            "url": url,
            "model": outcome.model,
            "endpoint": endpoint.value,
            "speed": speed,
            "limit": limit,
            "max_output": max_output,
            "timeout": timeout,
            "ignore_eos": ignore_eos,
            "worker_header": worker_header,
            "workers": workers,
            "block_tokens": block_tokens,
            "session_gap": session_gap,
            "max_pause": max_pause,
            "slo_ttft": slo_ttft,
            "slo_itl": slo_itl,
            "slo_e2e": slo_e2e,
        }
        _write(
            json_file,
            to_json(settings=settings, summary=summary, records=outcome.records, interrupted=outcome.interrupted),
        )
    if outcome.interrupted:
        raise typer.Exit(130)
    if summary.failed and not allow_errors:
        raise typer.Exit(1)


def _write(file: str, content: bytes) -> None:
    if file == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    try:
        Path(file).write_bytes(content)
    except OSError as error:
        _stop(f"{file}: cannot be written: {error.strerror}")


def _stop(message: str) -> NoReturn:
    Console(stderr=True).print(Text.assemble(("replay: ", "bold red"), message), soft_wrap=True)
    raise typer.Exit(2)


if __name__ == "__main__":
    typer.run(replay)
