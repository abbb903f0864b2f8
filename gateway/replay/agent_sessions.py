"""Compact coding-agent sessions (from github.com/callanjfox/kv-cache-tester): one session a line.

Each request has ``t`` (seconds since its list began), ``in`` and ``out`` tokens, and ``hash_ids``, run-length
coded as ``[keep, [start, count], …]``: the first ``keep`` ids of the previous request of the same list, then
the runs. Ids are local to the session and name full 64-token blocks only. A sub-agent is an entry with
``requests`` of its own, whose times count from that entry's ``t``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import xxhash

from gateway.replay.arrival import Arrival, Record, with_tail

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SESSION_SHIFT: Final = 32  # a block id is: 31 bits of the session's name, 32 bits of the local id
_TAIL_BIT: Final = 1 << 31  # set in ids made here for tokens after the last full block


@dataclass(frozen=True, slots=True)
class _Request:
    at: float
    record: Record
    block_ids: list[int]


def is_agent_session(record: Record) -> bool:
    """Whether a trace that begins with this line is one of agent sessions."""
    return "requests" in record.fields and "block_size" in record.fields


def arrivals(
    records: Iterable[Record], *, session_gap: float, max_pause: float | None = None, limit: int | None = None
) -> Iterator[Arrival]:
    """All sessions laid beside each other, in order of arrival: session k of the file begins at ``k *
    session_gap``.

    A pause within a session longer than ``max_pause`` seconds is cut to that. With ``limit``, reading stops
    once no later session can add to the first ``limit`` arrivals.
    """
    merged: list[Arrival] = []
    names: dict[int, str] = {}
    for number, record in enumerate(records):
        start = number * session_gap
        if limit is not None and sum(arrival.at <= start for arrival in merged) >= limit:
            break
        merged.extend(_session(record, names, start=start, max_pause=max_pause))
    return iter(sorted(merged, key=lambda arrival: arrival.at))


def _session(record: Record, names: dict[int, str], *, start: float, max_pause: float | None) -> Iterator[Arrival]:
    name = record.text("id")
    block_tokens = record.integer("block_size", minimum=1)
    digest = xxhash.xxh3_64_intdigest(name.encode()) >> 33
    if names.setdefault(digest, name) != name:
        raise record.error("id", f"{name!r} and {names[digest]!r} have the same 31-bit digest; rename one")
    namespace = digest << _SESSION_SHIFT
    at = start
    previous: float | None = None
    for number, request in enumerate(sorted(_flatten(record, 0.0), key=lambda request: request.at)):
        pause = request.at - previous if previous is not None else request.at
        at += pause if max_pause is None else min(pause, max_pause)
        previous = request.at
        tokens = request.record.integer("in", minimum=1)
        ids = [namespace | local for local in request.block_ids]
        yield Arrival(
            at=at,
            input_tokens=tokens,
            output_tokens=max(1, request.record.integer("out")),
            block_ids=with_tail(
                request.record,
                ids,
                tokens=tokens,
                block_tokens=block_tokens,
                tail_id=namespace | _TAIL_BIT | number,
            ),
            block_tokens=block_tokens,
            session=name,
        )


def _flatten(record: Record, start: float) -> Iterator[_Request]:
    previous: list[int] = []
    for number, item in enumerate(record.items("requests")):
        place = f"{record.place}: requests[{number}]"
        if not isinstance(item, dict):
            raise record.error(f"requests[{number}]", "expected an object")
        request = Record(place, item)
        at = start + request.number("t")
        if "requests" in item:
            yield from _flatten(request, at)
        if "hash_ids" in item:
            previous = _decode(request, previous)
            yield _Request(at, request, previous)


def _decode(request: Record, previous: list[int]) -> list[int]:
    keep, *runs = request.items("hash_ids") or [None]
    if isinstance(keep, bool) or not isinstance(keep, int) or not 0 <= keep <= len(previous):
        raise request.error("hash_ids[0]", f"expected how many of the {len(previous)} ids before to keep, got {keep!r}")
    ids = previous[:keep]
    for position, run in enumerate(runs, start=1):
        match run:
            case [int(first), int(count)] if first >= 0 and count >= 0 and first + count <= _TAIL_BIT:
                ids.extend(range(first, first + count))
            case _:
                raise request.error(f"hash_ids[{position}]", f"expected [start, count], got {run!r}")
    return ids
