"""What runs beside the requests, and how anything is ended in bounded time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine

log = logging.getLogger(__name__)


class BackgroundTasks:
    """Tasks that run as long as the program runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, coroutine: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        """Run something; what fails is logged and takes nothing with it."""
        task: asyncio.Task[None] = self._loop.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: stopped by a fault of the gateway's own", task.get_name(), exc_info=error)

    async def cancel(self) -> None:
        """End all of them."""
        await cancelled([*self._tasks])


async def cancelled(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel them, and wait until they are over."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def within(seconds: float, ending: Coroutine[object, object, object], what: str) -> None:
    """Wait for something to end, but not for ever: what fails or hangs is told, and the rest ends all the same."""
    task = asyncio.get_running_loop().create_task(ending, name=f"end of {what}")
    done, _ = await asyncio.wait([task], timeout=seconds)
    if not done:
        task.cancel()
        log.error("%s did not end within %g s", what, seconds)
    elif not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s did not end as they should", what, exc_info=error)
