"""Stands where a client's connection would, for an exchange whose answer goes to no socket: one that is kept for
others, or that others took over from a client who left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.exchange import Exchange

if TYPE_CHECKING:
    from backends.http1 import RequestHead
    from gateway.http_server import HttpServer

_NEVER: Final = float("inf")


class BackgroundClient:
    """Reads as fast as anybody writes, and never leaves of its own accord; the server's sweep keeps its deadlines."""

    __slots__ = ("_deadline", "_timeout", "exchange", "paused", "server", "transport")

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.transport = _Nowhere()
        self.exchange: Exchange | None = None
        self.paused = False
        self._deadline = _NEVER
        self._timeout = 0.0
        server.background.add(self)

    def ask(self, head: RequestHead, body: bytes) -> Exchange:
        """A new request, not begun."""
        exchange = self.exchange = Exchange(self, head, body, self.server.new_request_id())
        return exchange

    def adopt(self, exchange: Exchange) -> None:
        """Take the place of a client that has left."""
        server = self.server
        self.exchange = exchange
        exchange.client = self
        exchange.write = self.transport.write
        exchange.resume()  # it may have waited for that client to read
        self.watch(server.response_idle_timeout if exchange.streaming else server.first_byte_timeout)

    def close(self) -> None:
        """Whatever works for it stops."""
        exchange, self.exchange = self.exchange, None
        self.server.background.discard(self)
        if exchange is not None:
            exchange.client_gone()

    # -- what an exchange wants of its client

    def watch(self, timeout: float) -> None:
        """The worker must make progress at least every `timeout` seconds from now on."""
        self._timeout = timeout
        self._deadline = self.server.loop.time() + timeout

    def sweep(self, now: float) -> None:
        """Look after the deadline."""
        exchange = self.exchange
        if exchange is None:
            self.close()
        elif exchange.progress:
            exchange.progress = False
            self._deadline = now + self._timeout
        elif now > self._deadline:
            self._deadline = _NEVER
            exchange.stalled()

    def keep_up(self, _: int) -> None:
        """It does."""

    def drop_body(self) -> None:
        """Its body counts with nobody: there are few such requests at a time."""

    def forwarded_fields(self, _: RequestHead) -> bytes:
        """It came from nowhere."""
        return b""

    def exchange_over(self, _: Exchange) -> None:
        """The exchange has ended."""
        self.exchange = None
        self.server.background.discard(self)


class _Nowhere:
    """Takes all bytes."""

    def write(self, _: bytes) -> None:
        """Drop them."""
