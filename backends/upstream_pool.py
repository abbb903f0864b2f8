"""The connections to one worker: opened under a deadline, kept while they are of use, taken youngest first."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from typing import Final

from backends.errors import UpstreamFault
from backends.tls import TlsFiles, problem_of
from backends.tls_transport import TlsTransport
from backends.upstream import ResponseSink, UpstreamConnection

_REMOVED: Final = "the worker has been removed"


class UpstreamPool:
    """The connections to one worker: the one used last is taken first, so that the others can grow old and close."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        connect_timeout: float,
        keepalive: float,
        max_idle: int,
        loop: asyncio.AbstractEventLoop,
        tls: TlsFiles | None = None,
        server_name: str | None = None,
    ) -> None:
        """`connect_timeout`, handshake included, and `keepalive` in seconds; at most `max_idle` connections wait in
        the pool. With `tls`, whose context each new connection asks for, the worker's certificate must carry
        `server_name`, or else `host`.
        """
        self.host = host
        self.port = port
        self._connect_timeout = connect_timeout
        self._keepalive = keepalive
        self._max_idle = max_idle
        self._loop = loop
        self._idle: deque[UpstreamConnection] = deque()
        self._open: set[UpstreamConnection] = set()
        self._connecting: dict[ResponseSink, asyncio.Task[None]] = {}
        self._tls = tls
        self._server_name = server_name or host
        self._session: tuple[ssl.SSLContext, ssl.SSLSession] | None = None
        self._retired = False

    def configure(self, *, connect_timeout: float, keepalive: float, max_idle: int) -> None:
        """Take up other settings, for what happens from now on."""
        self._connect_timeout, self._keepalive, self._max_idle = connect_timeout, keepalive, max_idle

    @property
    def connecting(self) -> int:
        """Connections that are being opened."""
        return len(self._connecting)

    @property
    def idle(self) -> int:
        """Connections that wait for a request."""
        return len(self._idle)

    @property
    def open_connections(self) -> int:
        """Connections that are open, idle ones included."""
        return len(self._open)

    def send(self, request: bytes, sink: ResponseSink, *, fresh: bool = False) -> None:
        """Send one request, on an idle connection where there is one and `fresh` does not ask for a new one."""
        while self._idle and not fresh:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                connection.send(request, sink)
                return
        steps = self._refuse(sink) if self._retired else self._connect(request, sink)
        self._connecting[sink] = self._loop.create_task(steps)

    def cancel(self, sink: ResponseSink) -> None:
        """Give up on a connection that is still being opened for `sink`."""
        task = self._connecting.pop(sink, None)
        if task is not None:
            task.cancel()

    def expire(self, now: float) -> None:
        """Close what has been idle for longer than `keepalive`; the oldest stand at the left."""
        while self._idle and now - self._idle[0].idle_since > self._keepalive:
            self._idle.popleft().abort()

    def close_idle(self) -> None:
        """Close what is idle, and from now on whatever becomes so. What is in use or being opened finishes; further
        requests are told that the worker refuses them.
        """
        self._retired = True
        while self._idle:
            self._idle.popleft().abort()

    async def close(self) -> None:
        """Close every connection and give up on those being opened; nothing is opened any more."""
        self._retired = True
        tasks = list(self._connecting.values())
        self._connecting.clear()
        for task in tasks:
            task.cancel()
        for connection in list(self._open):
            connection.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _refuse(self, sink: ResponseSink) -> None:
        # As a step of its own: who sends has not always come to the end of sending.
        self._connecting.pop(sink, None)
        sink.response_fault(UpstreamFault.REFUSED, _REMOVED)

    async def _connect(self, request: bytes, sink: ResponseSink) -> None:
        connection = UpstreamConnection(self)
        try:
            async with asyncio.timeout(self._connect_timeout):
                if self._tls is None:
                    await self._loop.create_connection(lambda: connection, self.host, self.port)
                else:
                    await self._connect_tls(connection, self._tls.context)
        except TimeoutError:
            fault, detail = UpstreamFault.CONNECT_TIMEOUT, f"after {self._connect_timeout:g} s"
        except ssl.SSLError as error:
            fault, detail = UpstreamFault.REFUSED, f"TLS: {problem_of(error)}"
        except (OSError, ValueError) as error:  # ValueError: a host name that no resolver can take
            fault, detail = UpstreamFault.REFUSED, getattr(error, "strerror", None) or str(error)
        except asyncio.CancelledError:
            self.closed(connection)  # uvloop closes what was cancelled without a call of connection_lost
            raise
        else:
            del self._connecting[sink]
            connection.send(request, sink)
            return
        self.closed(connection)
        del self._connecting[sink]
        sink.response_fault(fault, detail)

    async def _connect_tls(self, connection: UpstreamConnection, context: ssl.SSLContext) -> None:
        """Connect and shake hands. Raises what went wrong."""
        over: asyncio.Future[None] = self._loop.create_future()

        def shaken(_: TlsTransport, error: Exception | None) -> None:
            if over.done():
                return
            if error is None:
                over.set_result(None)
            else:
                over.set_exception(error)

        known = self._session
        transport = TlsTransport(
            connection,
            context,
            self._loop,
            server_name=self._server_name,
            session=known[1] if known is not None and known[0] is context else None,
            timeout=self._connect_timeout,
            shaken=shaken,
        )
        await self._loop.create_connection(lambda: transport, self.host, self.port)
        try:
            await over
        except BaseException:
            transport.abort()
            raise

    def _remember_session(self, transport: object) -> None:
        """The next handshake with this worker can be a short one."""
        if isinstance(transport, TlsTransport) and transport.session is not None:
            self._session = (transport.context, transport.session)

    # -- called by the connections

    def opened(self, connection: UpstreamConnection) -> None:
        """Count a connection."""
        self._open.add(connection)

    def closed(self, connection: UpstreamConnection) -> None:
        """Forget a connection."""
        self._open.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    def put(self, connection: UpstreamConnection) -> None:
        """Take back a connection that can serve again."""
        if self._tls is not None and connection.uses == 1:
            self._remember_session(connection.transport)
        if not self._max_idle or self._retired:
            connection.abort()
            return
        if len(self._idle) >= self._max_idle:
            self._idle.popleft().abort()
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
