"""Reading a trace file of any known format into arrivals."""

from __future__ import annotations

import gzip
import itertools
import lzma
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, cast

from gateway.replay import agent_sessions, azure, conversations, mooncake
from gateway.replay.arrival import Arrival, Record, TraceError
from gateway.replay.rows import json_array, json_lines, lines

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DEMO_TRACE", "Arrival", "TraceError", "read_times", "read_trace"]

DEMO_TRACE: Final = "demo"
"""The name that stands for the small trace inside the package."""

_CHUNK: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class _Options:
    limit: int | None
    block_tokens: int
    session_gap: float
    max_pause: float | None
    think_time: float


def read_trace(
    path: Path | str,
    limit: int | None = None,
    *,
    block_tokens: int = mooncake.BLOCK_TOKENS,
    session_gap: float = 10.0,
    max_pause: float | None = None,
    think_time: float = 0.0,
) -> list[Arrival]:
    """The first ``limit`` arrivals of the trace at ``path``, sorted by time, the first one at 0 s.

    The format is recognised from how the file begins: Mooncake JSONL (blocks of ``block_tokens``), compact agent
    sessions (one begins every ``session_gap`` seconds, pauses cut to ``max_pause`` seconds), conversations (one begins
    every ``session_gap`` seconds, people think for ``think_time``) or Azure's CSV. ``.gz`` and ``.xz`` are unpacked.
    ``"demo"`` is the trace inside the package. Raises `TraceError`.
    """
    options = _Options(limit, block_tokens, session_gap, max_pause, think_time)
    with _open(path) as file:
        try:
            found = list(itertools.islice(_arrivals(path, file, options), limit))
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise TraceError(f"{path}: cannot be read: {error}") from error
    if not found:
        raise TraceError(f"{path}: no requests in it")
    found.sort(key=lambda arrival: arrival.at)
    start = found[0].at
    return [replace(arrival, at=arrival.at - start) for arrival in found] if start else found


def read_times(path: Path | str, count: int) -> list[float]:
    """When the first ``count`` requests of the trace at ``path`` arrived, ascending, the first one at 0 s.

    Raises `TraceError`, also where the trace has fewer or its requests have no times of their own.
    """
    found = read_trace(path, count)
    if any(arrival.session is not None for arrival in found):
        raise TraceError(f"{path}: its sessions have no recorded arrivals; expected Azure's CSV or Mooncake JSONL")
    if len(found) < count:
        raise TraceError(f"{path}: has {len(found):,} arrivals, and {count:,} are needed; lower --limit")
    return [arrival.at for arrival in found]


def _arrivals(path: Path | str, file: IO[bytes], options: _Options) -> Iterator[Arrival]:
    chunks: Iterator[bytes] = iter(lambda: file.read(_CHUNK), b"")
    head = next((chunk for chunk in chunks if chunk.strip()), b"")
    every = itertools.chain([head], chunks)
    match head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]:
        case b"":
            return iter(())
        case b"[":
            return _from_records(json_array(path, _without_mark(every)), options)
        case b"{":
            return _from_records(json_lines(path, _without_mark(every)), options)
        case _:
            rows = lines(path, every)
            number, first = next(rows)
            if azure.is_azure(first):
                return azure.arrivals(path, rows)
            raise TraceError(
                f"{path}, line {number}: not a known trace format: expected JSON, one object a line or an array of"
                f" objects, or CSV that begins with {azure.HEADER.decode()}"
            )


def _without_mark(chunks: Iterator[bytes]) -> Iterator[bytes]:
    first = next(chunks)
    return itertools.chain([first.removeprefix(b"\xef\xbb\xbf")], chunks)


def _from_records(records: Iterator[Record], options: _Options) -> Iterator[Arrival]:
    first = next(records, None)
    if first is None:
        return iter(())
    every = itertools.chain([first], records)
    if mooncake.is_mooncake(first):
        return mooncake.arrivals(every, block_tokens=options.block_tokens)
    if agent_sessions.is_agent_session(first):
        return agent_sessions.arrivals(
            every, session_gap=options.session_gap, max_pause=options.max_pause, limit=options.limit
        )
    if conversations.is_conversation(first):
        return conversations.arrivals(
            every, session_gap=options.session_gap, think_time=options.think_time, limit=options.limit
        )
    raise TraceError(
        f"{first.place}: not a known trace format: a row of Mooncake JSONL has timestamp, input_length,"
        f" output_length and hash_ids; an agent session has id, block_size and requests; a conversation has messages,"
        f" traj or a tree in prompt; this one has {', '.join(first.fields) or 'no fields'}"
    )


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
