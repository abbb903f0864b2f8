"""Gives an exchange an answer that is known already, as a worker's connection would give it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from backends.http1 import ResponseHead

if TYPE_CHECKING:
    from gateway.exchange import Exchange

_OK: Final = 200
_STREAM: Final = b"\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache"


def replay_body(exchange: Exchange, body: bytes, content_type: str) -> None:
    """Answer with a body in one piece."""
    fields = b"\r\ncontent-type: " + content_type.encode("ascii", "replace")
    _begin(exchange, fields, len(body))
    if body:
        exchange.response_data(body)
    exchange.response_end()


def replay_stream(exchange: Exchange, events: Sequence[bytes], *, pace: float = 0.0) -> None:
    """Answer with a stream of whole events: all at once, or one every `pace` seconds, the first at once."""
    if pace > 0 and len(events) > 1:
        Replay(exchange, events, pace).start()
        return
    _begin(exchange, _STREAM, None)  # nobody need watch a stream that is whole
    exchange.response_data(b"".join(events))
    exchange.response_end()


def begin_stream(exchange: Exchange) -> None:
    """The head of a stream whose events will be passed on as they come."""
    _begin(exchange, _STREAM, None, watched=True)


def _begin(exchange: Exchange, fields: bytes, length: int | None, *, watched: bool = False) -> None:
    head = ResponseHead(
        status=_OK,
        reason=b"OK",
        keep_alive=True,
        chunked=length is None,
        bodiless=False,
        event_stream=watched,
        plain_json=False,
        fields=fields,
    )
    exchange.response_head(head, length, b"")


class Replay:
    """A stream of events at a pace. Waits while its client does not read."""

    __slots__ = ("_due", "_events", "_exchange", "_loop", "_pace", "uses")

    def __init__(self, exchange: Exchange, events: Sequence[bytes], pace: float) -> None:
        self.uses = 1
        """As of a connection that has served one request."""
        self._exchange = exchange
        self._events = deque(events)
        self._pace = pace
        self._loop = exchange.client.server.loop
        self._due: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Write the head and the first event."""
        self._exchange.connected(self)
        begin_stream(self._exchange)
        self._next()

    def pause(self) -> None:
        """The client reads more slowly than this."""
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def resume(self) -> None:
        """The client has caught up."""
        if self._due is None and self._events:
            self._due = self._loop.call_later(self._pace, self._next)

    def abort(self) -> None:
        """The client is gone."""
        self.pause()
        self._events.clear()

    def _next(self) -> None:
        self._due = None
        if not self._events:
            return
        exchange = self._exchange
        exchange.response_data(self._events.popleft())
        if exchange.finished:
            return
        if not self._events:
            exchange.response_end()
        elif not exchange.client.paused:
            self._due = self._loop.call_later(self._pace, self._next)
