"""When requests start. Open loop: each at its own time, whatever has become of the others. Closed loop: each when one
of a fixed number of users is free.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

_BURST: Final = 32  # requests started in one turn of the loop when late; then answers are read


class Clock(Protocol):
    """Time in seconds since some fixed moment, and waiting in it."""

    def now(self) -> float:
        """Seconds."""
        ...

    async def sleep_until(self, moment: float) -> None:
        """Return at ``moment`` or soon after, never before."""
        ...


class MonotonicClock:
    """The system's finest monotonic clock (uvloop's own time has whole milliseconds only)."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin again at 0."""
        self._start = time.perf_counter()

    def now(self) -> float:
        """Seconds since the last (re)start."""
        return time.perf_counter() - self._start

    async def sleep_until(self, moment: float) -> None:
        """Return at ``moment`` or soon after, never before."""
        await asyncio.sleep(max(0.0, moment - self.now()))
        while (left := moment - self.now()) > 0:  # noqa: ASYNC110 - timers fire up to a millisecond early
            await asyncio.sleep(left)


async def run_open_loop(
    due: Iterable[float],
    clock: Clock,
    send: Callable[[int], Coroutine[object, object, None]],
    *,
    stop: asyncio.Event,
) -> None:
    """Start ``send(index)`` as a task at each moment of ``due`` (ascending); return when all have ended.

    Once ``stop`` is set nothing more is sent and what is in flight is cancelled. An exception that escapes
    ``send`` is a bug: it ends everything and is raised in an ExceptionGroup.
    """
    await _until(stop, _send_all(due, clock, send))


async def run_closed_loop(
    count: int, users: int, send: Callable[[int], Coroutine[object, object, None]], *, stop: asyncio.Event
) -> None:
    """``users`` users: each takes the next index below ``count``, awaits ``send(index)``, and takes another.

    Never more than ``users`` are awaited at a time. Stop and errors are as with `run_open_loop`.
    """
    await _until(stop, _serve_users(count, users, send))


async def _until(stop: asyncio.Event, work: Coroutine[object, object, None]) -> None:
    stopping = asyncio.ensure_future(stop.wait())
    sending = asyncio.ensure_future(work)
    try:
        await asyncio.wait([stopping, sending], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        sending.cancel()  # no effect when it is done
        with suppress(asyncio.CancelledError):
            await sending


async def _send_all(due: Iterable[float], clock: Clock, send: Callable[[int], Coroutine[object, object, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for index, moment in enumerate(due):
            if moment > clock.now() or index % _BURST == 0:
                await clock.sleep_until(moment)
            group.create_task(send(index))


async def _serve_users(count: int, users: int, send: Callable[[int], Coroutine[object, object, None]]) -> None:
    left = iter(range(count))

    async def user() -> None:
        for index in left:
            await send(index)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(users, count)):
            group.create_task(user())
