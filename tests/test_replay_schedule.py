"""The open loop in virtual time: nothing here waits."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count
from typing import TYPE_CHECKING

import pytest

from gateway.replay.arrival import Arrival
from gateway.replay.plan import plan
from gateway.replay.schedule import MonotonicClock, run_open_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class VirtualClock:
    """Time that jumps to the next sleeper once everybody else waits."""

    def __init__(self) -> None:
        self._now = 0.0
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    async def sleep_until(self, moment: float) -> None:
        if moment <= self._now:
            await asyncio.sleep(0)
            return
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (moment, next(self._order), waiter))
        await waiter

    async def drive(self, main: asyncio.Future[None]) -> None:
        while not main.done():
            for _ in range(20):  # let everything that can run do so
                await asyncio.sleep(0)
            while self._sleepers and self._sleepers[0][2].done():
                heapq.heappop(self._sleepers)
            if self._sleepers and not main.done():
                moment, _, waiter = heapq.heappop(self._sleepers)
                self._now = moment
                waiter.set_result(None)
        await main


def run(
    due: list[float],
    send: Callable[[VirtualClock, int], Coroutine[object, object, None]],
    *,
    stop_at: float | None = None,
) -> None:
    async def main() -> None:
        clock, stop = VirtualClock(), asyncio.Event()
        loop = asyncio.ensure_future(run_open_loop(due, clock, lambda index: send(clock, index), stop=stop))

        async def stopper() -> None:
            if stop_at is not None:
                await clock.sleep_until(stop_at)
                stop.set()

        helper = asyncio.ensure_future(stopper())
        await clock.drive(loop)
        helper.cancel()

    asyncio.run(main())


def test_each_request_starts_at_its_time_whatever_the_others_do() -> None:
    started: list[tuple[float, int]] = []
    ended: list[tuple[float, int]] = []

    async def send(clock: VirtualClock, index: int) -> None:
        started.append((clock.now(), index))
        await clock.sleep_until(clock.now() + (100.0 if index == 0 else 1.0))
        ended.append((clock.now(), index))

    run([0.0, 0.5, 0.5, 7.0], send)
    assert started == [(0.0, 0), (0.5, 1), (0.5, 2), (7.0, 3)]
    assert ended == [(1.5, 1), (1.5, 2), (8.0, 3), (100.0, 0)]


def test_stop_sends_nothing_more_and_cancels_what_is_in_flight() -> None:
    started: list[int] = []
    cancelled: list[int] = []

    async def send(clock: VirtualClock, index: int) -> None:
        started.append(index)
        try:
            await clock.sleep_until(50.0)
        except asyncio.CancelledError:
            cancelled.append(index)
            raise

    run([0.0, 1.0, 9.0], send, stop_at=5.0)
    assert started == [0, 1]
    assert sorted(cancelled) == [0, 1]


def test_a_bug_in_sending_is_raised() -> None:
    async def send(_: VirtualClock, index: int) -> None:
        raise KeyError(index)

    with pytest.raises(ExceptionGroup) as caught:
        run([0.0, 1.0], send)
    assert caught.group_contains(KeyError)


def test_plan_divides_times_by_speed_and_caps_the_output() -> None:
    arrivals = [Arrival(3.0, 600, 90, (1, 2), 512, "s"), Arrival(6.0, 600, 5, (1, 2), 512)]
    first, second = plan(arrivals, speed=2.0, max_output=10)
    assert (first.scheduled, first.output_tokens, first.limit_tokens, first.session) == (1.5, 10, 0, "s")
    assert (second.scheduled, second.output_tokens, second.limit_tokens, second.session) == (
        3.0,
        5,
        600,
        None,
    )


def test_the_real_clock_never_wakes_early() -> None:
    async def main() -> None:
        clock = MonotonicClock()
        for step in (0.0, 0.0004, 0.0021):
            moment = clock.now() + step
            await clock.sleep_until(moment)
            assert clock.now() >= moment

    asyncio.run(main())
