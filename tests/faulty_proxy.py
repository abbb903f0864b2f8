"""A TCP proxy that does to a stream of bytes what networks do: delay it, cut it, alter it; at an exact byte."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Edit = Callable[[bytes, int], bytes | None]
"""A part of a stream and its place in it since the connection began → what is passed on; None: close both ends."""


def untouched(part: bytes, at: int) -> bytes:
    return part


def cut_at(place: int) -> Edit:
    """The connection ends before this byte."""
    return lambda part, at: part[: max(0, place - at)] if at < place else None


def flipped_at(place: int, mask: int) -> Edit:
    """One byte is another."""

    def edit(part: bytes, at: int) -> bytes:
        altered = bytearray(part)
        if at <= place < at + len(part):
            altered[place - at] ^= mask
        return bytes(altered)

    return edit


def once_at(place: int, action: Callable[[], object]) -> Edit:
    """Something happens just before this byte goes through."""
    done = threading.Event()

    def edit(part: bytes, at: int) -> bytes:
        if at + len(part) > place and not done.is_set():
            done.set()
            action()
        return part

    return edit


@dataclass
class FaultyProxy:
    """In front of a server on this machine; what it does may be changed at any time."""

    target: int
    port: int = 0
    replies: Edit = untouched
    requests: Edit = untouched
    at_once: int = 1 << 16
    """Bytes that it takes in one turn."""
    pause: float = 0.0
    """Seconds before each turn on replies."""
    n_connections: int = 0

    def _serve(self, listener: socket.socket, open_sockets: list[socket.socket]) -> None:
        while True:
            try:
                client = listener.accept()[0]
            except OSError:
                return
            self.n_connections += 1
            server = socket.socket()
            open_sockets += [client, server]
            try:
                server.connect(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            for source, sink, is_reply in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pump, args=(source, sink, is_reply), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_reply: bool) -> None:
        at, wait = 0, threading.Event()
        with contextlib.suppress(OSError):
            while part := source.recv(self.at_once):
                if is_reply and self.pause:
                    wait.wait(self.pause)
                edited = (self.replies if is_reply else self.requests)(part, at)
                if edited is None:
                    break
                sink.sendall(edited)
                if len(edited) < len(part):
                    break
                at += len(part)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def faulty_proxy(target: int) -> Iterator[FaultyProxy]:
    open_sockets: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = FaultyProxy(target, listener.getsockname()[1])
        accepting = threading.Thread(target=proxy._serve, args=(listener, open_sockets), daemon=True)
        accepting.start()
        yield proxy
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(10)
    for each in open_sockets:
        each.close()
