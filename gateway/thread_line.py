"""A bounded line in front of an executor's threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

MOST_IN_LINE: Final = 256


class BusyError(Exception):
    """Too much waits for the threads, or they are no more."""


class ThreadLine:
    """Work that is in threads or waits for them, at most so much. Belongs to the running event loop.

    What is given up keeps its place until a thread comes by, for only a thread takes it out of the executor's line:
    while a disk hangs it would pile up there. It does nothing then, and nothing of what it was about is held.
    """

    def __init__(self, executor: Executor, most: int = MOST_IN_LINE) -> None:
        self.executor = executor
        self.length = 0
        """How much there is, what was given up included."""
        self._most = most

    def begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """What comes of it; whoever cancels that gives it up. Raises BusyError."""
        if self.length >= self._most:
            raise BusyError
        todo = [work]

        def turn() -> T | None:
            try:
                mine = todo.pop()
            except IndexError:
                return None
            return mine()

        try:
            working = asyncio.get_running_loop().run_in_executor(self.executor, turn)
        except RuntimeError:  # it was shut down
            raise BusyError from None
        self.length += 1
        working.add_done_callback(self._left)
        wanted = asyncio.shield(working)
        wanted.add_done_callback(lambda _: todo.clear())
        return cast("asyncio.Future[T]", wanted)  # None comes of what nobody wants any more

    def _left(self, done: asyncio.Future[Any]) -> None:
        self.length -= 1
        if not done.cancelled():
            done.exception()  # of what was given up nobody else asks
