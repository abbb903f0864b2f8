"""The options of commands that take a trace, and what they read with them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, TypeAlias

from gateway.cli.options import option, told
from gateway.replay.arrival import Arrival
from gateway.replay.plan import starts, with_times
from gateway.replay.slo import parse_seconds
from gateway.replay.traces import read_times, read_trace

parse_duration = told(parse_seconds)


def time_option(panel: str, text: str) -> Any:
    """A length of time, with its unit."""
    return option(panel, text, parser=parse_duration, metavar="TIME")


_trace = partial(option, "Trace")
_trace_time = partial(time_option, "Trace")

Limit: TypeAlias = Annotated[int | None, _trace("Only the first N requests.", min=1, metavar="N")]
MaxOutput: TypeAlias = Annotated[int | None, _trace("At most N output tokens a request.", min=1, metavar="N")]
BlockTokens: TypeAlias = Annotated[int, _trace("Mooncake: tokens in a block.", min=1, metavar="N")]
SessionGap: TypeAlias = Annotated[float, _trace_time("Sessions, conversations: one begins every TIME.")]
MaxPause: TypeAlias = Annotated[float | None, _trace_time("Agent sessions: longer pauses are cut to TIME.")]
ThinkTime: TypeAlias = Annotated[float | None, _trace_time("Conversations: TIME from an answer to what is said next.")]
ArrivalsFile: TypeAlias = Annotated[
    str | None, option("Load", "Start times from another trace, such as Azure's CSV.", "--arrivals", metavar="FILE")
]


def read_arrivals(
    trace: str,
    limit: int | None,
    arrivals_file: str | None,
    *,
    block_tokens: int,
    session_gap: float,
    max_pause: float | None,
    think_time: float | None,
) -> list[Arrival]:
    """As the options say. Raises `TraceError`."""
    arrivals = read_trace(
        trace,
        limit,
        block_tokens=block_tokens,
        session_gap=session_gap,
        max_pause=max_pause,
        think_time=think_time or 0.0,
    )
    if arrivals_file is None:
        return arrivals
    return with_times(arrivals, read_times(arrivals_file, starts(arrivals)))
