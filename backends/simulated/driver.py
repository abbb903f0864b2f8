"""Drive one engine in real time: one timer for all its requests, each output to its request's callback.

An engine that hangs stands still: its clock stops too, so that the time lost is not made up for afterwards.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from backends.simulated.engine import KvBatch, SimulatedEngine
from backends.simulated.sequence import SimRequest, TokenOut

OnTokens = Callable[[TokenOut], None]

_TIMER_RESOLUTION = 1000  # uvloop's timers count milliseconds


class EngineDriver:
    """Belongs to the running loop. A late timer shifts nothing: the engine lives its own exact times."""

    def __init__(self, engine: SimulatedEngine, on_kv: Callable[[list[KvBatch]], None] | None = None) -> None:
        self.engine = engine
        self._on_kv = on_kv
        self._loop = asyncio.get_running_loop()
        self._callbacks: dict[str, OnTokens] = {}
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._soon = False
        self._closed = False
        self._hung_at: float | None = None
        self._lost = 0.0
        self._resume_timer: asyncio.TimerHandle | None = None

    @property
    def hung(self) -> bool:
        """Whether it stands still."""
        return self._hung_at is not None

    def hang(self, seconds: float | None = None) -> None:
        """Make no more progress, for so long or until `resume`. Requests are still taken."""
        if self._closed:
            return
        if self._hung_at is None:
            self._hung_at = time.monotonic()
        if self._resume_timer is not None:
            self._resume_timer.cancel()
        self._resume_timer = None if seconds is None else self._loop.call_later(seconds, self.resume)

    def resume(self) -> None:
        """Go on where it hung, with everything that has come since."""
        if self._resume_timer is not None:
            self._resume_timer.cancel()
            self._resume_timer = None
        if self._hung_at is not None:
            self._lost += time.monotonic() - self._hung_at
            self._hung_at = None
            self._turn_soon()

    def _now(self) -> float:
        """The engine's clock."""
        return (time.monotonic() if self._hung_at is None else self._hung_at) - self._lost

    def submit(self, request: SimRequest, on_tokens: OnTokens) -> None:
        """Start a request; `on_tokens` gets its outputs in the loop. Raises as the engine does."""
        self.engine.submit(request, self._now())
        self._callbacks[request.id] = on_tokens
        self._turn_soon()

    def cancel(self, request_id: str) -> None:
        """Stop a request if it still runs; its callback is not called again."""
        if self._callbacks.pop(request_id, None) is not None:
            self.engine.cancel(request_id, self._now())
            self._turn_soon()

    def clear_cache(self) -> bool:
        """Forget all cached blocks; False while a request runs."""
        cleared = self.engine.clear_cache(self._now())
        self._turn_soon()
        return cleared

    def close(self) -> None:
        """No further timers or callbacks."""
        self._closed = True
        self._callbacks.clear()
        for timer in (self._timer, self._resume_timer):
            if timer is not None:
                timer.cancel()

    def _turn_soon(self) -> None:
        # Requests that arrive in one turn of the loop are scheduled into one step.
        if not self._soon and not self._closed:
            self._soon = True
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._soon = False
        self._timer = None
        if self._hung_at is not None:
            return
        engine, callbacks = self.engine, self._callbacks
        now = self._now()
        for out in engine.advance(now):
            callback = callbacks.pop(out.id, None) if out.finished else callbacks.get(out.id)
            if callback is not None:
                callback(out)
        batches = engine.take_kv_events()
        if batches and self._on_kv is not None:
            self._on_kv(batches)
        at = engine.next_event_at()
        if at is None or self._soon or self._closed:
            return
        delay = max(1, math.ceil((at - self._now()) * _TIMER_RESOLUTION)) / _TIMER_RESOLUTION
        self._timer = self._loop.call_later(delay, self._turn)
