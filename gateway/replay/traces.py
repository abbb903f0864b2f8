"""Reading a trace file of any known format into arrivals."""

from __future__ import annotations

import gzip
import itertools
import lzma
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, cast

import orjson

from gateway.replay import agent_sessions, mooncake
from gateway.replay.arrival import Arrival, Record, TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DEMO_TRACE", "Arrival", "TraceError", "read_trace"]

DEMO_TRACE: Final = "demo"
"""The name that stands for the small trace inside the package."""


def read_trace(
    path: Path | str,
    limit: int | None = None,
    *,
    block_tokens: int = mooncake.BLOCK_TOKENS,
    session_gap: float = 10.0,
    max_pause: float | None = None,
) -> list[Arrival]:
    """The first ``limit`` arrivals of the trace at ``path``, sorted by time, the first one at 0 s.

    The format is recognised from the first line: Mooncake JSONL (blocks of ``block_tokens``) or compact agent
    sessions (one begins every ``session_gap`` seconds, pauses cut to ``max_pause`` seconds). ``.gz`` and
    ``.xz`` are unpacked. ``"demo"`` is the trace inside the package. Raises `TraceError`.
    """
    with _open(path) as lines:
        try:
            found = list(_arrivals(_records(path, lines), limit, block_tokens, session_gap, max_pause))
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise TraceError(f"{path}: cannot be read: {error}") from error
    if not found:
        raise TraceError(f"{path}: no requests in it")
    found.sort(key=lambda arrival: arrival.at)
    start = found[0].at
    return [replace(arrival, at=arrival.at - start) for arrival in found] if start else found


def _arrivals(
    records: Iterator[Record],
    limit: int | None,
    block_tokens: int,
    session_gap: float,
    max_pause: float | None,
) -> Iterator[Arrival]:
    first = next(records, None)
    if first is None:
        return iter(())
    every = itertools.chain([first], records)
    if mooncake.is_mooncake(first):
        found = mooncake.arrivals(every, block_tokens=block_tokens)
    elif agent_sessions.is_agent_session(first):
        found = agent_sessions.arrivals(every, session_gap=session_gap, max_pause=max_pause, limit=limit)
    else:
        raise TraceError(
            f"{first.place}: not a known trace format: a line of Mooncake JSONL has timestamp, input_length,"
            f" output_length and hash_ids; an agent session has id, block_size and requests; this one has"
            f" {', '.join(first.fields) or 'no fields'}"
        )
    return itertools.islice(found, limit)


def _records(path: Path | str, lines: IO[bytes]) -> Iterator[Record]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise TraceError(f"{place}: not JSON: {error}") from error
        if not isinstance(value, dict):
            raise TraceError(f"{place}: expected a JSON object, got {type(value).__name__}")
        yield Record(place, value)


def _open(path: Path | str) -> IO[bytes]:
    try:
        if str(path) == DEMO_TRACE:
            return resources.files("gateway.replay").joinpath("demo_trace.jsonl").open("rb")
        match Path(path).suffix:
            case ".gz":
                return cast("IO[bytes]", gzip.open(path, "rb"))
            case ".xz":
                return lzma.open(path, "rb")
            case _:
                return Path(path).open("rb")
    except OSError as error:
        raise TraceError(f"{path}: cannot be opened: {error.strerror or error}") from error
