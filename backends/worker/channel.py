"""The channel between server and engine: ZMQ PAIR over a socket file that only this user can reach.

One msgpack message a frame. Both directions are bounded: the engine's end waits while the server does not
read, the server's end keeps what a busy engine has not taken yet, up to a bound. Nothing is dropped silently.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Final

import msgspec
import zmq
import zmq.asyncio

from backends.worker.messages import Submit, ToEngine, ToServer

_HIGH_WATER_MARK: Final = 1000
_MOST_UNSENT: Final = 1000
_MOST_RECEIVED: Final = 4096
_SOCKET_NAME: Final = "engine"

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_to_server: msgspec.msgpack.Decoder[ToServer] = msgspec.msgpack.Decoder(ToServer)


class ChannelError(Exception):
    """The other end sends what is no message, or takes nothing any more."""


class ChannelFullError(ChannelError):
    """The engine is far behind with what it was sent."""


class ServerEnd:
    """Binds on construction; `endpoint` is what the engine connects to. Of one event loop."""

    def __init__(self) -> None:
        """Raise OSError or zmq.ZMQError where no socket file can be made."""
        self._folder = Path(tempfile.mkdtemp(prefix="prefixgate-"))  # mode 0700
        self.endpoint = f"ipc://{self._folder / _SOCKET_NAME}"
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._unsent: set[asyncio.Future[zmq.MessageTracker | None]] = set()
        _bound(self._socket)
        self._socket.set(zmq.LINGER, 0)
        try:
            self._socket.bind(self.endpoint)
        except zmq.ZMQError:
            self.close()
            raise

    def send(self, message: ToEngine) -> None:
        """Send it now, or as soon as the engine takes it; in order.

        Raises ChannelFullError for a `Submit` where too much waits already; what ends or clears is always taken.
        """
        if isinstance(message, Submit) and len(self._unsent) >= _MOST_UNSENT:
            raise ChannelFullError("the engine does not take what it is sent")
        sent = asyncio.ensure_future(self._socket.send(_encoder.encode(message)))  # sent at once where there is room
        if not sent.done():
            self._unsent.add(sent)
            sent.add_done_callback(self._was_sent)

    async def receive(self) -> ToServer:
        """The next message. Raises ChannelError for what is none."""
        frame: bytes = await self._socket.recv()
        try:
            return _to_server.decode(frame)
        except msgspec.MsgspecError as error:
            raise ChannelError(f"no message of an engine: {error}") from None

    def close(self) -> None:
        """Close the socket and remove its file; what was not sent is lost with the engine."""
        self._socket.close()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _was_sent(self, sent: asyncio.Future[zmq.MessageTracker | None]) -> None:
        self._unsent.discard(sent)
        if not sent.cancelled():
            sent.exception()  # a closed socket; looked at, so that nobody complains


class EngineEnd:
    """The engine's end, synchronous: of one thread."""

    def __init__(self, endpoint: str) -> None:
        """Connect to the server's `endpoint`."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        _bound(self._socket)
        self._socket.connect(endpoint)

    def receive(self, timeout_s: float) -> list[ToEngine]:
        """All that is there, in order; waits up to `timeout_s` for the first. Raises ChannelError for no message."""
        received: list[ToEngine] = []
        if not self._socket.poll(round(timeout_s * 1000)):
            return received
        while len(received) < _MOST_RECEIVED:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            try:
                received.append(_to_engine.decode(frame))
            except msgspec.MsgspecError as error:
                raise ChannelError(f"no message of a server: {error}") from None
        return received

    def send(self, message: ToServer, *, timeout_s: float = 30.0) -> None:
        """Send it; waits while the server is behind. Raises ChannelError when it takes nothing for so long."""
        frame = _encoder.encode(message)
        if not self._socket.poll(round(timeout_s * 1000), zmq.POLLOUT):
            raise ChannelError("the server takes nothing any more")
        self._socket.send(frame, zmq.NOBLOCK)

    def close(self, *, linger_s: float = 1.0) -> None:
        """Close it; the last messages have so long to leave."""
        self._socket.close(linger=round(linger_s * 1000))
        self._context.term()


def _bound(socket: zmq.Socket[bytes] | zmq.asyncio.Socket) -> None:
    socket.set(zmq.SNDHWM, _HIGH_WATER_MARK)
    socket.set(zmq.RCVHWM, _HIGH_WATER_MARK)
