"""What is sent, when, and after what: from arrivals to empty records and to chains of requests. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import xxhash

from gateway.replay.arrival import TraceError
from gateway.replay.records import RequestRecord
from gateway.replay.stats import one_cache_hits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.replay.arrival import Arrival


def plan(arrivals: Sequence[Arrival], *, speed: float, max_output: int | None) -> list[RequestRecord]:
    """An empty record for each arrival, scheduled at its time ÷ ``speed``."""
    return [
        RequestRecord(
            index=index,
            session=arrival.session,
            scheduled=arrival.at / speed,
            input_tokens=arrival.input_tokens,
            output_tokens=min(arrival.output_tokens, max_output or arrival.output_tokens),
            limit_tokens=limit_tokens,
            estimated=arrival.chat is not None,
        )
        for index, (arrival, limit_tokens) in enumerate(zip(arrivals, one_cache_hits(arrivals), strict=True))
    ]


def timed_chains(arrivals: Sequence[Arrival]) -> list[list[int]]:
    """For the open loop: each chain begins with a request that has a time of its own; the others wait, one after the
    other, for the answer before them. In order of those times.
    """
    chains: list[list[int]] = []
    latest: dict[str, list[int]] = {}
    for index, arrival in enumerate(arrivals):
        if arrival.session is not None and arrival.pause is not None and arrival.session in latest:
            latest[arrival.session].append(index)
            continue
        chains.append([index])
        if arrival.session is not None:
            latest[arrival.session] = chains[-1]
    return chains


def session_chains(arrivals: Sequence[Arrival]) -> list[list[int]]:
    """For the closed loop: all of a session is one chain, a request without a session is one by itself."""
    chains: dict[object, list[int]] = {}
    for index, arrival in enumerate(arrivals):
        chains.setdefault(index if arrival.session is None else arrival.session, []).append(index)
    return list(chains.values())


def with_times(arrivals: Sequence[Arrival], times: Sequence[float]) -> list[Arrival]:
    """``arrivals`` with other start times: session, or request without one, number k begins at ``times[k]`` seconds and
    keeps its own pauses. Sorted by time. Raises `TraceError` where there are too few times.
    """
    chains = session_chains(arrivals)
    if len(times) < len(chains):
        raise TraceError(f"{len(chains):,} sessions and requests need as many arrivals; there are {len(times):,}")
    moved: list[Arrival] = []
    for chain, start in zip(chains, times, strict=False):
        shift = start - arrivals[chain[0]].at
        moved.extend(replace(arrivals[index], at=arrivals[index].at + shift) for index in chain)
    return sorted(moved, key=lambda arrival: arrival.at)


def starts(arrivals: Sequence[Arrival]) -> int:
    """How many start times `with_times` takes: sessions, and requests without one."""
    return len(session_chains(arrivals))


def digest(arrivals: Sequence[Arrival]) -> str:
    """A name for exactly these requests: what is sent and in which sessions, not when."""
    hasher = xxhash.xxh3_64()
    for arrival in arrivals:
        text = f"{arrival.input_tokens},{arrival.output_tokens},{arrival.session},{arrival.block_ids}"
        hasher.update(text.encode())
    return hasher.hexdigest()
