"""A socket that cannot be opened, with the setting that could choose another one."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


class ListenError(OSError):
    """A port that is taken, or an address that this machine does not have."""

    def __init__(self, error: OSError, host: str, port: int, setting: str) -> None:
        """`setting` is the path of the port's setting."""
        super().__init__(error.errno, error.strerror)
        self.unknown_host = isinstance(error, socket.gaierror)
        self.host = host
        self.port = port
        self.setting = setting


@contextlib.contextmanager
def listening(host: str, port: int, setting: str) -> Iterator[None]:
    """Name the socket that could not be opened: raises ListenError."""
    try:
        yield
    except OSError as error:
        raise ListenError(error, host, port, setting) from error
