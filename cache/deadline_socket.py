"""A socket for `http.client` on which everything together has one deadline: a peer that trickles gains nothing."""

from __future__ import annotations

import io
import socket
import time
from ssl import SSLContext
from typing import TYPE_CHECKING

from cache.bounded_call import call_within

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc has it from Python 3.12 on


class DeadlineSocket:
    """What `http.client.HTTPConnection.sock` needs of a socket. `deadline` is of `time.monotonic`, and may be moved."""

    def __init__(self, host: str, port: int, *, tls: SSLContext | None, deadline: float) -> None:
        """Raises OSError (TimeoutError among them)."""
        self.deadline = deadline
        self._closing = False
        self._read_by: set[_Reading] = set()
        self._socket = _connected(host, port, deadline)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket.settimeout(_left(deadline))
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        except BaseException:
            self._socket.close()
            raise

    def sendall(self, data: Buffer) -> None:
        """All of it, or an error."""
        self._socket.settimeout(_left(self.deadline))  # of `sendall` it is the time in all
        self._socket.sendall(data)

    def recv_into(self, buffer: Buffer) -> int:
        """Bytes read; 0 at the end."""
        self._socket.settimeout(_left(self.deadline))
        return self._socket.recv_into(buffer)

    def makefile(self, _mode: str = "rb") -> io.BufferedReader:
        """For reading alone; the socket stays open for it, as a real one would."""
        reading = _Reading(self)
        self._read_by.add(reading)
        return io.BufferedReader(reading)

    def close(self) -> None:
        """When nothing reads from it any more."""
        self._closing = True
        if not self._read_by:
            self._socket.close()

    def read(self, by: _Reading) -> None:
        """That has ended."""
        self._read_by.discard(by)
        if self._closing:
            self.close()


class _Reading(io.RawIOBase):
    """A response is closed when it was read; the socket stays open for the next."""

    def __init__(self, source: DeadlineSocket) -> None:
        super().__init__()
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        return self._source.recv_into(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._source.read(self)


def _connected(host: str, port: int, deadline: float) -> socket.socket:
    """Each address in turn; the system's look-up of names has no deadline of its own."""
    found = call_within(
        _left(deadline), lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), "embedding-names"
    )
    trouble: OSError | None = None
    for family, kind, protocol, _, address in found:
        trying = socket.socket(family, kind, protocol)
        try:
            trying.settimeout(_left(deadline))
            trying.connect(address)
        except OSError as error:
            trying.close()
            trouble = error
        else:
            return trying
    raise trouble or OSError("no address")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("deadline passed")
    return left
