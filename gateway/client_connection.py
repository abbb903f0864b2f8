"""One client's connection: strict HTTP/1.1 under limits and deadlines, one exchange at a time.

A connection is in one of six phases. HEAD: nothing, or part of a head, has come. BODY: a body of known length is
coming. CHUNKS: a chunked one is. BUSY: an exchange is running; what the client pipelines behind it waits, bounded.
DRAIN: a refusal is out and what still arrives is thrown away, so that the client gets to read it. CLOSED.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
import struct
from dataclasses import replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, cast

import httptools

from backends.http1 import CRLF2, HttpError, HttpParser, RequestHead, render_response, request_heads
from gateway.api_error import ApiError
from gateway.dialects.openai import OPENAI
from gateway.exchange import Exchange
from gateway.routes import dialect_of

if TYPE_CHECKING:
    from gateway.http_server import HttpServer

_HEADS: Final = request_heads()
_NEVER: Final = float("inf")
_UNSENT_BYTES: Final = 128 << 10
_DRAIN_SECONDS: Final = 2.0
_DRAIN_BYTES: Final = 64 << 20
_without_empty_lines: Final = re.compile(rb"\A(?:\r\n)+").sub
_NOTHING: Final = (b"", b"\r")
_RESET: Final = struct.pack("ii", 1, 0)
_TLS_RECORD: Final = b"\x16"
_NO_METHOD: Final = (b"\n", _TLS_RECORD)
_HUNG_UP: Final = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class _Phase(Enum):
    HEAD = auto()
    BODY = auto()
    CHUNKS = auto()
    BUSY = auto()
    DRAIN = auto()
    CLOSED = auto()


# An enum's member costs more to look up by its class than these do.
_BODY: Final = _Phase.BODY
_BUSY: Final = _Phase.BUSY
_CHUNKS: Final = _Phase.CHUNKS
_CLOSED: Final = _Phase.CLOSED
_DRAIN: Final = _Phase.DRAIN
_HEAD: Final = _Phase.HEAD


class ClientConnection(asyncio.Protocol):
    """One client's connection."""

    __slots__ = (
        "_body", "_buffer", "_complete", "_deadline", "_head", "_held", "_left", "_parser", "_phase", "_reading",
        "_taking", "_timeout", "_trusted", "_unread", "_unread_since", "exchange", "paused", "peer", "server",
        "transport",
    )  # fmt: skip

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.exchange: Exchange | None = None
        self._phase = _HEAD
        self._buffer = b""  # a partial head, or what was pipelined behind the exchange
        self._head: RequestHead | None = None
        self._body = bytearray()  # one buffer: a list of many small pieces would weigh many times their bytes
        self._held = 0  # bytes of a body that count against the server's total
        self._left = 0
        self._parser: HttpParser | None = None
        self._complete = False
        self._taking = False
        self._reading = True
        self.paused = False
        self._deadline = _NEVER
        self._timeout = 0.0
        self._unread = 0  # bytes that the client had left unread when last looked at, and since when
        self._unread_since = 0.0
        self.peer = ""  # address of whoever is connected
        self._trusted = False  # is that a proxy whose word on its own clients counts?

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self.transport = cast("asyncio.Transport", transport)
        server = self.server
        server.connections.add(self)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Else the kernel takes megabytes of an answer for each client that does not read it.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer = str(peer[0])
            self._trusted = server.forwarding.trusts(self.peer)
        self.transport.set_write_buffer_limits(high=server.limits.buffer_bytes)
        self._deadline = server.loop.time() + server.limits.idle_timeout
        if len(server.connections) > server.limits.max_connections:
            self._write_error(
                ApiError(503, "The gateway has reached its limit of connections.", code="too_many_connections")
            )
            self._drain()

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        phase = self._phase
        if phase is _BUSY:
            self._hold(data)
        elif phase is _DRAIN:
            self._left -= len(data)
            if self._left < 0:
                self.transport.abort()
        elif phase is not _CLOSED:
            self._take(data)

    def eof_received(self) -> bool:
        """The client sends no more, which is taken for leaving."""
        return False

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Whatever works for this client stops."""
        self._phase = _CLOSED
        self.server.connections.discard(self)
        self._parser = None
        self._body = bytearray()
        self.drop_body()
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.client_gone()

    def pause_writing(self) -> None:
        """The client reads more slowly than its answer comes."""
        self.paused = True
        if self.exchange is not None:
            self.exchange.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.paused = False
        if self.exchange is not None:
            self.exchange.resume()
        elif self._phase is _HEAD:
            self._go_on()

    # -- httptools, for chunked bodies

    def on_body(self, data: bytes) -> None:
        """A part of a chunked body."""
        self._body += data

    def on_message_complete(self) -> None:
        """The end of a chunked body."""
        self._complete = True

    # -- requests in

    def _take(self, data: bytes) -> None:
        """Take bytes until they are used up or an exchange is running."""
        self._taking = True
        try:
            while data and self._phase is not _DRAIN:
                if self._phase is _HEAD and not self.paused:
                    data = self._take_head(data)
                elif self._phase is _BODY:
                    data = self._take_body(data)
                elif self._phase is _CHUNKS:
                    data = self._take_chunks(data)
                else:  # an exchange is running, or earlier answers wait for the client to read them
                    self._hold(data)
                    return
        except HttpError as error:
            self._refuse(ApiError(error.status, _sentence(error.message)))
        finally:
            self._taking = False

    def _hold(self, data: bytes) -> None:
        """Keep what is pipelined behind the exchange, and stop reading when that is enough."""
        self._buffer += data
        if len(self._buffer) > self.server.limits.pipelined_bytes and self._reading:
            self._reading = False
            self.transport.pause_reading()

    def _take_head(self, data: bytes) -> bytes:
        found = self._find_head(data)
        if found is None:
            return b""
        raw, data = found
        limits = self.server.limits
        head, length, parser = _HEADS.read(raw, self)
        self._complete = False
        self._head = head
        if (head.chunked or (length or 0) > len(data)) and self.server.pipeline.unwelcome(head):
            self._begin(replace(head, keep_alive=False), b"")  # refused, and what comes of its body is dropped
            return b""
        if head.chunked:
            self._parser = parser
            self._phase = _CHUNKS
        elif not length:
            self._begin(head, b"")
            return data
        elif length > limits.body_bytes:
            raise HttpError(413, f"the request body of {length} bytes is longer than {limits.body_bytes} bytes")
        elif len(data) >= length:
            self._begin(head, data[:length])
            return data[length:]
        else:
            self._left = length
            self._phase = _BODY
        self._deadline = self.server.loop.time() + limits.body_timeout
        if head.expects_continue and not data:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return data

    def _find_head(self, data: bytes) -> tuple[bytes, bytes] | None:
        """The next head and what is behind it; None until it has come whole. Raises HttpError."""
        limits = self.server.limits
        held = self._buffer
        if held:
            data = held + data
            self._buffer = b""
        if data[:1] == b"\r":  # RFC 9112 §2.2: empty lines before a request are let pass
            data = _without_empty_lines(b"", data)
            if data in _NOTHING:  # nor do they count as its beginning
                self._buffer = data
                return None
        if held in _NOTHING:
            self._deadline = self.server.loop.time() + limits.head_timeout
        end = data.find(CRLF2) + 4
        whole = end >= 4
        if (end if whole else len(data)) > limits.head_bytes:
            raise HttpError(431, f"the request head is longer than {limits.head_bytes} bytes")
        if data[:1] in _NO_METHOD or not (whole or _ends_lines_well(data)):
            if data[:1] == _TLS_RECORD:
                raise HttpError(400, "this port speaks plain HTTP, not TLS")
            raise HttpError(400, "malformed HTTP request: lines must end with CRLF")
        if not whole:
            self._buffer = data
            return None
        return data[:end], data[end:]

    def _take_body(self, data: bytes) -> bytes:
        left = self._left - len(data)
        # What has come, not what was promised: a few heads with great promises would shut out everybody else.
        self._claim(min(len(data), self._left))
        if left > 0:
            self._left = left
            self._body += data
            return b""
        self._body += data if left == 0 else data[:left]
        self._begin_with_body()
        return b"" if left == 0 else data[left:]

    def _take_chunks(self, data: bytes) -> bytes:
        """Feed llhttp so that it never reads past this request: a chunked body ends with an empty line, so the
        bytes are fed up to each empty line in turn.
        """
        parser = self._parser
        assert parser is not None, "set together with the CHUNKS phase"
        at = 0
        while at < len(data) and not self._complete:
            # An empty line may have begun in the previous read, so the first three bytes are fed one at a time.
            end = at + 1 if at < 3 else data.find(CRLF2, at - 3) + 4
            if end < 4 and at >= 3:
                end = len(data)
            try:
                parser.feed_data(data[at:end])
            except httptools.HttpParserError as error:
                raise HttpError(400, f"malformed chunked body: {error}") from None
            at = end
            if len(self._body) > self.server.limits.body_bytes:
                raise HttpError(413, f"the request body is longer than {self.server.limits.body_bytes} bytes")
        self._claim(len(self._body) - self._held)
        if self._complete:
            self._parser = None
            self._begin_with_body()
        return data[at:]

    def _begin_with_body(self) -> None:
        assert self._head is not None, "a body follows a head"
        body, self._body = bytes(self._body), bytearray()
        self._begin(self._head, body)

    def _claim(self, n_bytes: int) -> None:
        """Count bytes of a body against the server's total. Raises HttpError where that is used up."""
        server = self.server
        self._held += n_bytes
        server.held_bytes += n_bytes
        if server.held_bytes > server.limits.total_body_bytes:
            raise HttpError(503, "the gateway holds as many request bodies as it may")

    def drop_body(self) -> None:
        """The request's body is needed no longer."""
        self.server.held_bytes -= self._held
        self._held = 0

    def _begin(self, head: RequestHead, body: bytes) -> None:
        server = self.server
        self._phase = _BUSY
        self._deadline = _NEVER
        self._head = None
        if body and not self._held:
            self._claim(len(body))
        if head.via is not None and server.via in head.via:
            raise HttpError(508, "this request has come through this gateway before")
        exchange = self.exchange = Exchange(self, head, body, head.request_id or server.new_request_id())
        server.pipeline.begin(exchange)

    # -- responses out

    def exchange_over(self, exchange: Exchange) -> None:
        """The exchange has ended: go on with the next request, or close."""
        if self.exchange is not exchange:
            return  # the client is gone
        self.exchange = None
        self.drop_body()
        if exchange.cut_short:
            self._phase = _CLOSED
            if exchange.until_close or self.paused:
                self._reset()
            else:
                self.transport.close()
        elif not exchange.keep_alive or self.server.draining:
            self._drain()
        else:
            self._phase = _HEAD
            self._deadline = self.server.loop.time() + self.server.limits.idle_timeout
            self._go_on()

    def forwarded_fields(self, head: RequestHead) -> bytes:
        """Header lines that tell a worker where the request came from, each led by CRLF."""
        if head.forwarded is None or not self._trusted:
            return b""
        return self.server.forwarding.fields(self.peer, head)

    def client_address(self, head: RequestHead) -> str:
        """Who made the request, as far as that is known."""
        if head.forwarded is None or not self._trusted:
            return self.peer
        return self.server.forwarding.client_address(self.peer, head)

    def keep_up(self, most: int) -> None:
        """Leave a client behind that has more than so many bytes to read: others do not wait for it."""
        if self.paused and self.transport.get_write_buffer_size() > most:
            self.transport.abort()

    def watch(self, timeout: float) -> None:
        """The worker must make progress at least every `timeout` seconds from now on."""
        self._timeout = timeout
        self._deadline = self.server.loop.time() + timeout

    def sweep(self, now: float) -> None:
        """Look after this connection's deadline, and after a client that leaves while it is not being read."""
        exchange = self.exchange
        if not self._reading and self._hung_up():
            self.transport.abort()
        elif exchange is not None and exchange.progress:
            exchange.progress = False
            self._deadline = now + self._timeout
        elif now > self._deadline:
            self._deadline = _NEVER
            self._expire(exchange, now)

    def close_if_idle(self) -> None:
        """Close unless a request has begun."""
        if self._phase is _HEAD and not self._buffer:
            self.transport.close()

    def _expire(self, exchange: Exchange | None, now: float) -> None:
        if exchange is not None:
            if self.paused:
                self.transport.abort()  # it is the client that does not read
            else:
                exchange.stalled()
        elif waiting := self.transport.get_write_buffer_size():
            # The end of an answer is not read yet. As long as the client reads, this is no idle connection.
            if waiting != self._unread:
                self._unread, self._unread_since = waiting, now
            if now - self._unread_since > self.server.response_idle_timeout:
                self.transport.abort()
            else:
                self._deadline = now  # look again at the next sweep
        elif self._phase is _HEAD and not self._buffer:
            self.transport.close()
        elif self._phase in (_HEAD, _BODY, _CHUNKS):
            what = "head" if self._phase is _HEAD else "body"
            self._refuse(ApiError(408, f"The request {what} did not arrive in time.", code="request_timeout"))
        else:
            self.transport.abort()

    def _refuse(self, error: ApiError) -> None:
        """Answer what cannot become an exchange, and close."""
        self._parser = None
        self._body = bytearray()
        self.drop_body()
        self._buffer = b""
        self._write_error(error)
        self._drain()

    def _write_error(self, error: ApiError) -> None:
        request_id = self.server.new_request_id()
        dialect = OPENAI if self._head is None else dialect_of(self._head.path)
        self.transport.write(render_response(error.status, dialect.error_body(error), request_id, keep_alive=False))

    def _drain(self) -> None:
        """Close once everything is written. What the client still sends is read and dropped for a moment, because
        closing on unread bytes would reset the connection under the answer.
        """
        self._phase = _DRAIN
        self._buffer = b""
        self._left = _DRAIN_BYTES
        self._deadline = self.server.loop.time() + _DRAIN_SECONDS
        self._resume_reading()
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()

    def _go_on(self) -> None:
        """Take up what was held back."""
        self._resume_reading()
        if self._buffer and not self._taking:
            data, self._buffer = self._buffer, b""
            self._take(data)

    def _reset(self) -> None:
        """Close with a reset: an orderly end would say that the answer is complete."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def _resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self.transport.resume_reading()

    def _hung_up(self) -> bool:
        sock = self.transport.get_extra_info("socket")
        if sock is None:
            return False
        poll = select.poll()
        poll.register(sock.fileno(), _HUNG_UP)
        return bool(poll.poll(0))


def _sentence(message: str) -> str:
    return message[:1].upper() + message[1:] + "."


def _ends_lines_well(part: bytes) -> bool:
    """Does every line of a partial head end with CRLF? The last CR may still wait for its LF."""
    pairs = part.count(b"\r\n")
    return part.count(b"\n") == pairs and part.count(b"\r") == pairs + part.endswith(b"\r")
