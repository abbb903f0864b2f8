"""One connection to Redis for payloads: pieces of memory go out and come in without a copy in between.

It counts the replies that it is owed. Once one of them is not read as a whole, or is not what was expected, the
connection is of no use any more: so no reply can ever be taken for that to another command.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from cache.redis_replies import MAX_LINE, Line, Reason, Redirect, RedisStoreError, parse_line, protocol_failure
from cache.store import Buffer

_AT_ONCE: Final = 512
"""Pieces in one system call; Linux takes 1024."""


def seconds_left(deadline: float) -> float:
    """Until `deadline` of the monotonic clock. Raises RedisStoreError when it is over."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise RedisStoreError(Reason.TIMEOUT, "Redis took too long")
    return left


class RespSocket:
    """For one thread at a time. All methods raise RedisStoreError, by `deadline` at the latest."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._scatters = not isinstance(sock, ssl.SSLSocket)
        self._ahead = bytearray(MAX_LINE)
        self._view = memoryview(self._ahead)
        self._start = self._end = 0
        self._owed = 0
        self._spoiled = False
        self.answered = False
        """Whether any byte has come for what was sent last."""

    @property
    def reusable(self) -> bool:
        """All that was asked has been answered, and no more than that."""
        return self._owed == 0 and not self._spoiled and self._start == self._end

    def is_quiet(self) -> bool:
        """Whether an idle connection still stands and nobody has sent anything unasked."""
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            return False
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return not poll.poll(0)

    def spoil(self) -> None:
        """Never use it again: what comes next is not known."""
        self._spoiled = True

    def close(self) -> None:
        """Now, without a word."""
        self._spoiled = True
        with contextlib.suppress(OSError):
            self._sock.close()

    def send(self, parts: Sequence[Buffer], replies: int, deadline: float) -> None:
        """Commands that will be answered by so many replies."""
        self._owed += replies
        self.answered = False
        waiting = deque(memoryview(part) for part in parts if len(part))
        with self._translated():
            while waiting:
                self._sock.settimeout(seconds_left(deadline))
                if self._scatters:
                    sent = self._sock.sendmsg(list(islice(waiting, _AT_ONCE)))
                else:
                    sent = self._sock.send(waiting[0])
                _advance(waiting, sent)

    def line(self, deadline: float) -> Line:
        """The first line of the next reply; after `$` and a length its bytes are read by `fill`. Raises Redirect."""
        try:
            line = parse_line(self._read_line(deadline))
        except (Redirect, RedisStoreError) as error:
            if isinstance(error, RedisStoreError) and error.reason is Reason.PROTOCOL:
                self.spoil()
            else:
                self._owed -= 1
            raise
        if line.kind != "$" or line.number < 0:
            self._owed -= 1
        return line

    def fill(self, pieces: Sequence[memoryview], deadline: float) -> None:
        """The bytes of a reply, which are as many as the pieces take, and its end."""
        end = bytearray(2)
        waiting = deque(piece for piece in (*pieces, memoryview(end)) if len(piece))
        while waiting and self._start < self._end:
            n = min(len(waiting[0]), self._end - self._start)
            waiting[0][:n] = self._view[self._start : self._start + n]
            self._start += n
            _advance(waiting, n)
        with self._translated():
            while waiting:
                self._sock.settimeout(seconds_left(deadline))
                if self._scatters:
                    received = self._sock.recvmsg_into(list(islice(waiting, _AT_ONCE)))[0]
                else:
                    received = self._sock.recv_into(waiting[0])
                if received == 0:
                    raise _closed()
                _advance(waiting, received)
        if end != b"\r\n":
            self.spoil()
            raise protocol_failure()
        self._owed -= 1

    def _read_line(self, deadline: float) -> bytes:
        while (at := self._ahead.find(b"\r\n", self._start, self._end)) < 0:
            if self._start:
                rest = bytes(self._view[self._start : self._end])
                self._start, self._end = 0, len(rest)
                self._view[: self._end] = rest
            if self._end == MAX_LINE:
                self.spoil()
                raise protocol_failure()
            with self._translated():
                self._sock.settimeout(seconds_left(deadline))
                received = self._sock.recv_into(self._view[self._end :])
                if received == 0:
                    raise _closed()
            self.answered = True
            self._end += received
        line = bytes(self._view[self._start : at])
        self._start = at + 2
        return line

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except RedisStoreError:
            self.spoil()
            raise
        except TimeoutError:
            self.spoil()
            raise RedisStoreError(Reason.TIMEOUT, "Redis took too long") from None
        except OSError:
            self.spoil()
            raise _closed() from None


def _closed() -> RedisStoreError:
    return RedisStoreError(Reason.CLOSED, "Redis closed the connection")


def _advance(waiting: deque[memoryview], done: int) -> None:
    while done:
        first = waiting[0]
        if done < len(first):
            waiting[0] = first[done:]
            return
        done -= len(first)
        waiting.popleft()
