"""A raw connection to one worker, and the splice: what the worker sends is handed on in the same callback.

A connection is in one of five states. IDLE: in the pool, nothing may arrive. HEAD: a request is out and the answer's
head is not complete. Then the body, by how it is framed: LENGTH (bytes are counted), CHUNKED (llhttp takes the
chunks apart; all that one read brought goes on together) or STREAM (until the worker closes). After the body: IDLE
again, or closed. The sink gets the body without its framing, which belongs to this hop alone.
"""

from __future__ import annotations

import asyncio
import socket
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol, cast

import httptools

from backends.errors import UpstreamFault
from backends.http1 import CRLF2, HttpError, HttpParser, ResponseHead, response_heads

if TYPE_CHECKING:
    from backends.upstream_pool import UpstreamPool

_HEAD_LIMIT: Final = 65_536
_NOT_THE_LAST_LINE: Final = (b"", b"\r", b"\n")
"""What does not stand before the end of a chunked body: its last line is not empty."""
_FIRST_FINAL_STATUS: Final = 200
_HEADS: Final = response_heads()


class ResponseSink(Protocol):
    """Where one answer goes. Each attempt ends with exactly one of `response_end` and `response_fault`."""

    def connected(self, connection: UpstreamConnection) -> None:
        """The request has been written to this connection."""

    def response_head(self, head: ResponseHead, length: int | None, body: bytes) -> None:
        """The answer's head, its Content-Length, and the body bytes that came in the same read. From here on the
        sink may call `abort`.
        """

    def response_data(self, data: bytes) -> None:
        """More of the body."""

    def response_end(self) -> None:
        """The answer is complete."""

    def response_fault(self, fault: UpstreamFault, detail: str) -> None:
        """The attempt failed; no other call follows."""


class _State(Enum):
    IDLE = auto()
    HEAD = auto()
    LENGTH = auto()
    CHUNKED = auto()
    STREAM = auto()
    CLOSED = auto()


# An enum's member costs more to look up by its class than these do.
_CHUNKED: Final = _State.CHUNKED
_CLOSED: Final = _State.CLOSED
_HEAD: Final = _State.HEAD
_IDLE: Final = _State.IDLE
_LENGTH: Final = _State.LENGTH
_STREAM: Final = _State.STREAM


class UpstreamConnection(asyncio.Protocol):
    """One keep-alive connection to a worker; carries one exchange at a time."""

    __slots__ = (
        "_begun", "_complete", "_ended", "_head", "_keep", "_left", "_n_pieces", "_parser", "_paused", "_pieces",
        "_pool", "_sink", "_state", "idle_since", "on_body", "started", "transport", "uses",
    )  # fmt: skip

    def __init__(self, pool: UpstreamPool) -> None:
        self._pool = pool
        self._state = _IDLE
        self._sink: ResponseSink | None = None
        self._parser: HttpParser | None = None
        self._head = b""
        self._left = 0
        self._begun = 0
        self._complete = False
        self._pieces: list[bytes] = []  # of the body, from the chunks of one read
        self._n_pieces = 0  # those of them that belong to the answer, once it is complete
        self.on_body = self._pieces.append  # llhttp's, for parts of a chunk: the cheapest call there is
        self._ended = False
        self._keep = False
        self._paused = False
        self.started = False
        self.idle_since = 0.0
        self.uses = 0
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)

    # -- used by the pool and the sink

    def send(self, request: bytes, sink: ResponseSink) -> None:
        """Write one request; its answer goes to `sink`."""
        if self._state is _CLOSED:  # lost between its opening and now
            sink.response_fault(UpstreamFault.RESET, "end of stream")
            return
        self._sink = sink
        self._state = _HEAD
        self.started = False
        self.uses += 1
        self.transport.write(request)
        sink.connected(self)

    def abort(self) -> None:
        """Close at once; the sink hears nothing more."""
        self._sink = None
        self._close()

    def pause(self) -> None:
        """Read no more of the answer for now."""
        if not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Go on reading the answer."""
        if self._paused and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self.transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer, or bytes that nobody asked for."""
        sink = self._sink
        if sink is None:
            self._close()  # nobody asked: whatever this is, it must not be taken for the next answer
            return
        state = self._state
        if state is _CHUNKED:
            self._chunked(sink, data)
        elif state is _LENGTH:
            self._counted(sink, data)
        elif state is _HEAD:
            self.started = True
            self._take_head(sink, data)
        else:
            sink.response_data(data)

    def eof_received(self) -> bool:
        """The worker sends no more: close."""
        self._ended = True
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Tell whoever waits for an answer."""
        self._pool.closed(self)
        sink, state = self._sink, self._state
        self._state = _CLOSED
        self._sink = None
        self._parser = None
        if sink is None:
            return
        if state is _STREAM and error is None and self._ended:
            sink.response_end()
        elif state is _HEAD and not self.started:
            sink.response_fault(UpstreamFault.RESET, str(error or "end of stream"))
        else:
            sink.response_fault(UpstreamFault.TRUNCATED, str(error or "end of stream"))

    # -- httptools, for chunked bodies

    def on_message_begin(self) -> None:
        """Llhttp sees the beginning of an answer."""
        self._begun += 1

    def on_message_complete(self) -> None:
        """Llhttp sees the end of the answer."""
        if not self._complete:
            self._complete = True
            self._n_pieces = len(self._pieces)

    # -- the answer

    def _take_head(self, sink: ResponseSink, data: bytes) -> None:
        try:
            while True:
                found = self._find_head(data)
                if found is None:
                    return
                raw, body = found
                head, length, parser = _HEADS.read(raw, self)
                if head.status >= _FIRST_FINAL_STATUS:
                    break
                data = body  # an interim answer ends here: this gateway has promised its client none
        except HttpError as error:
            self._fault(UpstreamFault.MALFORMED, error.message)
            return
        self._keep = head.keep_alive
        if head.chunked:
            self._parser = parser
            self._state = _CHUNKED
            self._begin_chunked(sink, head, body)
        elif length is None and not head.bodiless:
            self._state = _STREAM
            sink.response_head(head, length, body)
        else:
            self._state = _LENGTH
            left = self._left = (0 if head.bodiless or length is None else length) - len(body)
            if left < 0:
                body = body[:left]
                self._keep = False
            sink.response_head(head, length, body)
            if left <= 0 and self._sink is sink:
                self._end(sink)

    def _find_head(self, data: bytes) -> tuple[bytes, bytes] | None:
        """The next head and what is behind it; None until it has come whole. Raises HttpError where it is too long."""
        if self._head:
            data = self._head + data
            self._head = b""
        end = data.find(CRLF2) + 4
        if end > _HEAD_LIMIT or (end < 4 and len(data) > _HEAD_LIMIT):
            raise HttpError(502, f"head longer than {_HEAD_LIMIT} bytes")
        if end < 4:
            self._head = data
            return None
        self._begun = 0
        self._complete = False
        return data[:end], data[end:]

    def _begin_chunked(self, sink: ResponseSink, head: ResponseHead, data: bytes) -> None:
        pieces = self._pieces
        if data and not self._follow(data):
            return
        body = b"".join(pieces)
        pieces.clear()
        sink.response_head(head, None, body)
        if self._complete and self._sink is sink:
            self._end(sink)

    def _counted(self, sink: ResponseSink, data: bytes) -> None:
        left = self._left = self._left - len(data)
        if left < 0:
            data = data[:left]
            self._keep = False
        sink.response_data(data)
        if left <= 0 and self._sink is sink:
            self._end(sink)

    def _chunked(self, sink: ResponseSink, data: bytes) -> None:
        pieces = self._pieces
        if not self._follow(data):
            return
        if pieces:
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            sink.response_data(body)
        if self._complete and self._sink is sink:
            self._end(sink)

    def _follow(self, data: bytes) -> bool:
        """Let llhttp take the chunks apart. False where they break off into something that is no chunk."""
        try:
            self._parser.feed_data(data)  # type: ignore[union-attr]  # set together with the CHUNKED state
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:
                self._pieces.clear()
                self._fault(UpstreamFault.MALFORMED, str(error))
                return False
            self._keep = False
        if self._complete:
            del self._pieces[self._n_pieces :]
            if self._begun > 1 or data[-4:] != CRLF2 or data[-5:-4] in _NOT_THE_LAST_LINE:
                self._keep = False  # bytes behind the answer, or too few to tell: nobody asked for them
        return True

    def _end(self, sink: ResponseSink) -> None:
        self._sink = None
        self._parser = None
        self._state = _IDLE
        self.resume()
        if self._keep and not self.transport.get_write_buffer_size():
            self._pool.put(self)
        else:
            self._close()
        sink.response_end()

    def _fault(self, fault: UpstreamFault, detail: str) -> None:
        sink, self._sink = self._sink, None
        self._close()
        if sink is not None:
            sink.response_fault(fault, detail)

    def _close(self) -> None:
        self._state = _CLOSED
        self._parser = None
        self.transport.abort()
