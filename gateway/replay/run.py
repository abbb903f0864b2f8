"""One replay from arrivals to records: the page to read first."""

from __future__ import annotations

import asyncio
import resource
import signal
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gateway.replay.client import ReplayClient, ReplayError, Target, find_model, open_session
from gateway.replay.plan import plan, session_chains, timed_chains
from gateway.replay.records import RequestRecord
from gateway.replay.schedule import MonotonicClock, run_closed_loop, run_open_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from contextlib import AbstractContextManager

    from gateway.replay.arrival import Arrival

    Watch = Callable[[Sequence[RequestRecord], MonotonicClock], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The records in order of arrival, the model asked for, and whether someone stopped the replay."""

    records: list[RequestRecord]
    model: str
    interrupted: bool


async def replay(
    target: Target,
    arrivals: Sequence[Arrival],
    *,
    speed: float = 1.0,
    max_output: int | None = None,
    concurrency: int | None = None,
    watch: Watch,
) -> Outcome:
    """Send every arrival at its time and wait for all answers; SIGINT or SIGTERM ends it early with what
    there is. With ``concurrency`` so many users send instead, each its next request after the answer.

    ``watch`` is entered around the replay, with the records as they fill. Raises `ReplayError` when the model
    is not named and cannot be found, and where conversations are to go to an endpoint without messages.
    """
    if target.endpoint != "chat" and any(arrival.chat for arrival in arrivals):
        raise ReplayError("recorded conversations are messages: they can only be sent with --endpoint chat")
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
                if concurrency is None:
                    turns = _Turns(timed_chains(arrivals), arrivals, records, clock, client.send, speed)
                    due = [records[chain[0]].scheduled for chain in turns.chains]
                    await run_open_loop(due, clock, turns.send, stop=stop)
                else:
                    turns = _Turns(session_chains(arrivals), arrivals, records, clock, client.send, speed)
                    await run_closed_loop(len(turns.chains), concurrency, turns.send_now, stop=stop)
    return Outcome(records, target.model or "", interrupted=stop.is_set())


@dataclass(frozen=True, slots=True)
class _Turns:
    """Requests that follow each other, sent in order, each after the answer before it and its pause."""

    chains: Sequence[Sequence[int]]
    arrivals: Sequence[Arrival]
    records: Sequence[RequestRecord]
    clock: MonotonicClock
    send_one: Callable[[int], Coroutine[object, object, None]]
    speed: float

    async def send_now(self, number: int) -> None:
        """Chain ``number`` to its end, due from this moment on."""
        self.records[self.chains[number][0]].scheduled = self.clock.now()
        await self.send(number)

    async def send(self, number: int) -> None:
        """Chain ``number`` to its end; the caller kept the time of its first request."""
        first, *rest = self.chains[number]
        await self.send_one(first)
        for index in rest:
            pause = (self.arrivals[index].pause or 0.0) / self.speed
            self.records[index].scheduled = self.clock.now() + pause
            if pause:
                await self.clock.sleep_until(self.records[index].scheduled)
            await self.send_one(index)


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
