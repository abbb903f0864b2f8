"""Drive one engine in real time: one timer for all its requests, each output to its request's callback."""

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

    def submit(self, request: SimRequest, on_tokens: OnTokens) -> None:
        """Start a request; `on_tokens` gets its outputs in the loop. Raises as the engine does."""
        self.engine.submit(request, time.monotonic())
        self._callbacks[request.id] = on_tokens
        self._turn_soon()

    def cancel(self, request_id: str) -> None:
        """Stop a request if it still runs; its callback is not called again."""
        if self._callbacks.pop(request_id, None) is not None:
            self.engine.cancel(request_id, time.monotonic())
            self._turn_soon()

    def clear_cache(self) -> bool:
        """Forget all cached blocks; False while a request runs."""
        cleared = self.engine.clear_cache(time.monotonic())
        self._turn_soon()
        return cleared

    def close(self) -> None:
        """No further timers or callbacks."""
        self._closed = True
        self._callbacks.clear()
        if self._timer is not None:
            self._timer.cancel()

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
        engine, callbacks = self.engine, self._callbacks
        now = time.monotonic()
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
        delay = max(1, math.ceil((at - time.monotonic()) * _TIMER_RESOLUTION)) / _TIMER_RESOLUTION
        self._timer = self._loop.call_later(delay, self._turn)
