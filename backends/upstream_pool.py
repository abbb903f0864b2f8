"""The connections to one worker: opened under a deadline, kept while they are of use, taken youngest first."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from backends.errors import UpstreamFault
from backends.upstream import ResponseSink, UpstreamConnection


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
    ) -> None:
        """`connect_timeout` and `keepalive` in seconds; at most `max_idle` connections wait in the pool."""
        self.host = host
        self.port = port
        self._connect_timeout = connect_timeout
        self._keepalive = keepalive
        self._max_idle = max_idle
        self._loop = loop
        self._idle: deque[UpstreamConnection] = deque()
        self._open: set[UpstreamConnection] = set()
        self._connecting: dict[ResponseSink, asyncio.Task[None]] = {}

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
        self._connecting[sink] = self._loop.create_task(self._connect(request, sink))

    def cancel(self, sink: ResponseSink) -> None:
        """Give up on a connection that is still being opened for `sink`."""
        task = self._connecting.pop(sink, None)
        if task is not None:
            task.cancel()

    def expire(self, now: float) -> None:
        """Close what has been idle for longer than `keepalive`; the oldest stand at the left."""
        while self._idle and now - self._idle[0].idle_since > self._keepalive:
            self._idle.popleft().abort()

    async def close(self) -> None:
        """Close every connection and give up on those being opened."""
        tasks = list(self._connecting.values())
        self._connecting.clear()
        for task in tasks:
            task.cancel()
        for connection in list(self._open):
            connection.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connect(self, request: bytes, sink: ResponseSink) -> None:
        connection = UpstreamConnection(self)
        try:
            async with asyncio.timeout(self._connect_timeout):
                await self._loop.create_connection(lambda: connection, self.host, self.port)
        except TimeoutError:
            fault, detail = UpstreamFault.CONNECT_TIMEOUT, f"after {self._connect_timeout:g} s"
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
        if not self._max_idle:
            connection.abort()
            return
        if len(self._idle) >= self._max_idle:
            self._idle.popleft().abort()
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
