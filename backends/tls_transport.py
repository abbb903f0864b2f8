"""TLS between a TCP transport and a protocol that knows nothing of it.

The loop's own TLS hides what a proxy has to know: how much still waits to be sent, whether the stream ended by a
`close_notify` or was cut off, and that a side which has said its last may still be read from. Here every call of the
protocol on its transport means what it means on TCP:

- `write_eof` sends `close_notify` and a FIN; what still comes is dropped, so that no reset overtakes the answer;
- `close` sends what waits, then `close_notify`; `abort` sends neither, so that nobody takes a part for the whole;
- a stream that ends without `close_notify` is lost with an error;
- buffer sizes and limits are those of the TCP transport, to which everything is handed on at once.

A connection is in one of four states. SHAKING: the handshake, under a deadline; the protocol has not heard of it.
OPEN. ENDED: our end is out. CLOSED.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, cast

from backends.tls import problem_of

_RECORD: Final = 16_384
_DROPPED_BYTES: Final = 64 << 20
_TOO_SLOW: Final = "TLS handshake took too long"
_CUT_OFF: Final = "TLS connection cut off"


class _State(Enum):
    SHAKING = auto()
    OPEN = auto()
    ENDED = auto()
    CLOSED = auto()


_SHAKING: Final = _State.SHAKING
_OPEN: Final = _State.OPEN
_ENDED: Final = _State.ENDED
_CLOSED: Final = _State.CLOSED


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """A protocol towards TCP and a transport towards the protocol within."""

    def __init__(
        self,
        protocol: asyncio.Protocol,
        context: ssl.SSLContext,
        loop: asyncio.AbstractEventLoop,
        *,
        server_name: str | None = None,
        session: ssl.SSLSession | None = None,
        timeout: float,
        shaken: Callable[[TlsTransport, Exception | None], None],
    ) -> None:
        """A client where `server_name` is given, else a server. `shaken` is called once, when the handshake is over:
        with None after the protocol's `connection_made`, else with what was wrong. `timeout` in seconds.
        """
        super().__init__()
        self._protocol = protocol
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.context = context
        self._ssl = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
            session=session,
        )
        self._loop = loop
        self._timeout = timeout
        self._shaken = shaken
        self._state = _SHAKING
        self._error: Exception | None = None
        self._dropped = 0
        self._told = False  # has the protocol heard of a connection?
        self._timer: asyncio.TimerHandle | None = None
        self._tcp: asyncio.Transport = cast("asyncio.Transport", None)

    @property
    def session(self) -> ssl.SSLSession | None:
        """What a later connection to the same server can resume; it comes with the server's first bytes."""
        return self._ssl.session

    @property
    def resumed(self) -> bool:
        """Did the handshake resume an earlier session?"""
        return bool(self._ssl.session_reused)

    # -- asyncio.Protocol, called by TCP

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TCP is connected: shake hands."""
        self._tcp = cast("asyncio.Transport", transport)
        if self._state is _CLOSED:  # given up before it began
            self._tcp.abort()
            return
        self._timer = self._loop.call_later(self._timeout, self._too_slow)
        self._shake()

    def data_received(self, data: bytes) -> None:
        """Bytes of records."""
        state = self._state
        if state is _OPEN:
            self._incoming.write(data)
            self._read()
        elif state is _SHAKING:
            self._incoming.write(data)
            self._shake()
        elif state is _ENDED:
            self._dropped += len(data)
            if self._dropped > _DROPPED_BYTES:
                self.abort()

    def eof_received(self) -> bool:
        """The other side has closed TCP. Where it has not said so within TLS, this may be an attacker's doing."""
        if self._state is _OPEN or self._state is _SHAKING:
            self._error = ConnectionResetError(_CUT_OFF)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """TCP is closed."""
        self._state = _CLOSED
        if self._told:
            self._protocol.connection_lost(self._error or error)
        else:
            self._cancel_timer()
            self._shaken(self, self._error or error or ConnectionResetError(_CUT_OFF))

    def pause_writing(self) -> None:
        """More waits to be sent than should."""
        if self._told:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """It has gone out."""
        if self._told:
            self._protocol.resume_writing()

    # -- asyncio.Transport, called by the protocol

    def get_extra_info(self, name: str, default: object = None) -> object:
        """What TCP knows, and `ssl_object`."""
        return self._ssl if name == "ssl_object" else self._tcp.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Is it closed, or about to be?"""
        return self._state is _CLOSED or self._tcp.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send."""
        if self._state is not _OPEN or not data:
            return
        try:
            done = self._ssl.write(data)
            if done < len(data):  # OpenSSL takes a record at a time
                view = memoryview(data)
                while done < len(data):
                    done += self._ssl.write(view[done:])
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._tcp.write(self._outgoing.read())

    def can_write_eof(self) -> bool:
        """It can."""
        return True

    def write_eof(self) -> None:
        """Say that this was all, and read on to drop it."""
        if self._state is _OPEN:
            self._state = _ENDED
            self._say_end()
            if not self._tcp.is_closing():
                self._tcp.write_eof()

    def close(self) -> None:
        """Send what waits, say that this was all, and close."""
        if self._state is _OPEN:
            self._say_end()
        self._state = _CLOSED
        self._tcp.close()

    def abort(self) -> None:
        """Close at once."""
        self._state = _CLOSED
        if self._tcp is not None:  # else as soon as it is there
            self._tcp.abort()

    def pause_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self._tcp.pause_reading()

    def resume_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self._tcp.resume_reading()

    def is_reading(self) -> bool:
        """See `asyncio.ReadTransport`."""
        return self._tcp.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Bytes of records, which are some more than those within."""
        self._tcp.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Bytes of records that wait to be sent."""
        return self._tcp.get_write_buffer_size()

    # -- within

    def _shake(self) -> None:
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._flush()  # an alert says why
            self._fail(error)
            return
        self._flush()
        self._state = _OPEN
        self._cancel_timer()
        self._told = True
        self._protocol.connection_made(self)
        self._shaken(self, None)
        if self._state is _OPEN and self._incoming.pending:
            self._read()

    def _read(self) -> None:
        """Hand on all that one read of TCP has brought, in one piece."""
        pieces, ended = [], False
        try:
            while True:
                piece = self._ssl.read(_RECORD)
                if not piece:
                    ended = True
                    break
                pieces.append(piece)
                if not self._incoming.pending and not self._ssl.pending():
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            ended = True
        except ssl.SSLError as error:
            self._flush()
            self._fail(error)
            return
        if self._outgoing.pending:
            self._flush()  # keys are changed
        if pieces:
            self._protocol.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if ended and self._state is _OPEN:
            self._protocol.eof_received()
            self.close()

    def _say_end(self) -> None:
        with contextlib.suppress(ssl.SSLError):  # the other side has not said the same yet, and need not
            self._ssl.unwrap()
        self._flush()

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data:
            self._tcp.write(data)

    def _too_slow(self) -> None:
        self._error = TimeoutError(_TOO_SLOW)
        self.abort()

    def _fail(self, error: Exception) -> None:
        self._error = ConnectionError(f"TLS: {problem_of(error)}") if isinstance(error, ssl.SSLError) else error
        self._error.__cause__ = error
        self._state = _CLOSED
        self._tcp.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
