"""The line in front of threads: bounded, whatever is given up, and however work ends."""

from __future__ import annotations

import asyncio
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.thread_line import BusyError, ThreadLine
from tests.gateway_fixtures import eventually


async def test_what_comes_of_work_comes_of_it() -> None:
    with ThreadPoolExecutor(1) as thread:
        line = ThreadLine(thread)
        assert await line.begin(lambda: 7) == 7
        with pytest.raises(ValueError, match="seven"):
            await line.begin(lambda: int("seven"))
        await eventually(lambda: line.length == 0)


async def test_it_is_bounded_and_what_is_given_up_is_not_done(caplog: pytest.LogCaptureFixture) -> None:
    may = threading.Event()
    done = []

    def last() -> None:
        may.wait(5.0)
        raise OSError("too late for anybody")

    with ThreadPoolExecutor(1) as thread:
        line = ThreadLine(thread, most=3)
        running = line.begin(last)
        await eventually(lambda: thread._work_queue.qsize() == 0)
        given_up, waited_for = line.begin(lambda: done.append(1)), line.begin(lambda: done.append(2))
        with pytest.raises(BusyError):
            line.begin(lambda: done.append(3))
        given_up.cancel()
        running.cancel()
        await asyncio.sleep(0)
        with pytest.raises(BusyError):  # they keep their places until a thread comes by
            line.begin(lambda: done.append(4))
        may.set()
        await waited_for
        await eventually(lambda: line.length == 0)
    assert done == [2]
    assert not caplog.records
    with pytest.raises(BusyError):
        line.begin(lambda: None)


async def test_of_what_is_given_up_nothing_is_held() -> None:
    class Long:
        """Of what a request is about."""

    may = threading.Event()
    gone = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        line = ThreadLine(thread)
        first = line.begin(lambda: may.wait(5.0))
        held = Long()
        finalizer = weakref.finalize(held, gone.set)
        waiting = line.begin(lambda held=held: str(held))  # type: ignore[misc]  # a lambda with a default
        del held
        waiting.cancel()
        await asyncio.sleep(0.01)
        assert gone.is_set()
        assert not finalizer.alive
        may.set()
        await first
