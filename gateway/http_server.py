"""Accepts clients, keeps their deadlines, and hands whole requests to the pipeline.

There is no timer per request: one sweep over all connections looks after every deadline, with a resolution of
`SWEEP` seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from backends.tls_transport import TlsTransport
from gateway.client_connection import ClientConnection
from gateway.exchange import Pipeline
from gateway.forwarding import Forwarding
from gateway.tls import ServerTls

if TYPE_CHECKING:
    from gateway.background_client import BackgroundClient

log = logging.getLogger(__name__)

SWEEP: Final = 0.25


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may make this server hold, and for how long. Sizes in bytes, times in seconds."""

    head_bytes: int = 32 << 10
    body_bytes: int = 32 << 20
    total_body_bytes: int = 1 << 30
    head_timeout: float = 10.0
    body_timeout: float = 60.0
    idle_timeout: float = 75.0
    max_connections: int = 10_000
    buffer_bytes: int = 256 << 10
    pipelined_bytes: int = 64 << 10
    first_byte_timeout: float = 600.0
    response_idle_timeout: float = 300.0
    request_timeout: float = 3600.0


class _Refusal(asyncio.Protocol):
    """A connection that is closed as it comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()


class HttpServer:
    """Accepts clients, keeps their deadlines, and hands whole requests to the pipeline."""

    def __init__(
        self,
        pipeline: Pipeline,
        limits: Limits,
        loop: asyncio.AbstractEventLoop,
        *,
        via: bytes,
        worker_header: str | None = None,
        forwarding: Forwarding | None = None,
    ) -> None:
        """`via` is this gateway's name in `Via` fields, its own among all; `worker_header` names the response field
        that tells a client its worker, None keeps it untold; without `forwarding` no proxy is trusted.
        """
        self.pipeline = pipeline
        self.limits = limits
        self.loop = loop
        self.worker_header = worker_header.encode() if worker_header else b""
        self.first_byte_timeout = limits.first_byte_timeout
        self.response_idle_timeout = limits.response_idle_timeout
        self.request_timeout = limits.request_timeout
        self.connections: set[ClientConnection] = set()
        self.background: set[BackgroundClient] = set()  # requests of nobody that is connected
        self.held_bytes = 0  # of request bodies, over all connections
        self.via = via
        self.forwarding = forwarding or Forwarding()
        self.failed_handshakes = 0
        self._handshakes: set[TlsTransport] = set()
        self._serial = 0
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self.draining = False  # once True, no connection is kept alive any more
        self._on_sweep: list[Callable[[float], object]] = []

    async def start(
        self,
        host: str,
        port: int,
        *,
        backlog: int = 1024,
        reuse_port: bool = False,
        tls: ServerTls | None = None,
    ) -> int:
        """Listen; returns the port, which is new where `port` was 0. Each connection asks `tls` for its context."""
        accept = self._plain if tls is None else lambda: self._encrypted(tls)
        self._server = await self.loop.create_server(accept, host, port, backlog=backlog, reuse_port=reuse_port or None)
        self._sweep()
        return int(self._server.sockets[0].getsockname()[1])

    def configure(self, limits: Limits, *, worker_header: str | None, forwarding: Forwarding) -> None:
        """Take up other settings, for what happens from now on."""
        self.limits = limits
        self.worker_header = worker_header.encode() if worker_header else b""
        self.first_byte_timeout = limits.first_byte_timeout
        self.response_idle_timeout = limits.response_idle_timeout
        self.request_timeout = limits.request_timeout
        self.forwarding = forwarding

    def every_sweep(self, callback: Callable[[float], object]) -> None:
        """Call `callback(now)` at each sweep, about four times a second."""
        self._on_sweep.append(callback)

    async def close(self, grace: float) -> None:
        """Stop listening, let exchanges finish for up to `grace` seconds, then close what is left."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        for handshake in list(self._handshakes):
            handshake.abort()
        for connection in list(self.connections):
            connection.close_if_idle()
        deadline = self.loop.time() + grace
        while self.connections and self.loop.time() < deadline:  # noqa: ASYNC110 - once, at the end
            await asyncio.sleep(0.02)
        for connection in list(self.connections):
            connection.transport.abort()
        for client in list(self.background):
            client.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await asyncio.sleep(0)

    def _plain(self) -> asyncio.Protocol:
        return ClientConnection(self)

    def _encrypted(self, tls: ServerTls) -> asyncio.Protocol:
        if len(self._handshakes) >= self.limits.max_connections:
            return _Refusal()  # a handshake costs more than to be told that there is no room
        transport = TlsTransport(
            ClientConnection(self), tls.context, self.loop, timeout=self.limits.head_timeout, shaken=self._shaken
        )
        self._handshakes.add(transport)
        return transport

    def _shaken(self, transport: TlsTransport, error: Exception | None) -> None:
        self._handshakes.discard(transport)
        if error is not None:
            self.failed_handshakes += 1
            log.debug("TLS handshake with %s failed: %s", transport.get_extra_info("peername"), error)

    def new_request_id(self) -> bytes:
        """An id unique to this process and request."""
        self._serial += 1
        return b"%b-%x" % (self.via, self._serial)

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in list(self.connections):
            connection.sweep(now)
        for client in list(self.background):
            client.sweep(now)
        for callback in self._on_sweep:
            callback(now)
        self._sweeper = self.loop.call_later(SWEEP, self._sweep)
