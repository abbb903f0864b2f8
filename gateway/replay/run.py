"""One replay from arrivals to records: the page to read first."""

from __future__ import annotations

import asyncio
import resource
import signal
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gateway.replay.client import ReplayClient, Target, find_model, open_session
from gateway.replay.records import RequestRecord
from gateway.replay.schedule import MonotonicClock, run_open_loop
from gateway.replay.stats import one_cache_hits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from gateway.replay.arrival import Arrival

    Watch = Callable[[Sequence[RequestRecord], MonotonicClock], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The records in order of arrival, the model asked for, and whether someone stopped the replay."""

    records: list[RequestRecord]
    model: str
    interrupted: bool


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
        )
        for index, (arrival, limit_tokens) in enumerate(zip(arrivals, one_cache_hits(arrivals), strict=True))
    ]


async def replay(
    target: Target,
    arrivals: Sequence[Arrival],
    *,
    speed: float = 1.0,
    max_output: int | None = None,
    watch: Watch,
) -> Outcome:
    """Send every arrival at its time and wait for all answers; SIGINT or SIGTERM ends it early with what
    there is.

    ``watch`` is entered around the replay, with the records as they fill. Raises `ReplayError` when the model
    is not named and cannot be found.
    """
    raise_file_limit()
    records = plan(arrivals, speed=speed, max_output=max_output)
    async with open_session(target.api_key) as session:
        if target.model is None:
            target = replace(target, model=await find_model(session, target.url))
        stop = asyncio.Event()
        with _stop_on_signal(stop):
            clock = MonotonicClock()
            client = ReplayClient(target, arrivals, records, session=session, clock=clock)
            clock.restart()  # what the client prepared is not part of the replay
            with watch(records, clock):
                await run_open_loop([record.scheduled for record in records], clock, client.send, stop=stop)
    return Outcome(records, target.model or "", interrupted=stop.is_set())


def raise_file_limit() -> None:
    """An open loop may hold thousands of connections: take all the file descriptors the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(ValueError, OSError):  # some systems state a hard limit that they do not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def _stop_on_signal(stop: asyncio.Event) -> Iterator[None]:
    """Set ``stop`` at the first SIGINT or SIGTERM; a second one acts as if this were not here."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def restore() -> None:
        for number in signals:
            loop.remove_signal_handler(number)

    def handle() -> None:
        stop.set()
        restore()

    for number in signals:
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        restore()
