"""One Redis server: a bounded pool of payload connections, and a rest for it when it fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from cache.redis_replies import Reason, Redirect, RedisStoreError
from cache.redis_rest import Rest
from cache.redis_settings import Address, RedisSettings
from cache.resp_connect import RespConnector
from cache.resp_socket import RespSocket
from cache.store import Buffer

T = TypeVar("T")


class RedisNode:
    """Safe for many threads. An idle connection is used by whoever comes next, the one used last first."""

    def __init__(self, address: Address, settings: RedisSettings, connector: RespConnector) -> None:
        self.address = address
        self._settings = settings
        self._connector = connector
        self._turn = threading.Condition()
        self._idle: list[RespSocket] = []
        self._n_in_use = 0
        self._closed = False
        self._rest = Rest(settings.max_rest)
        self._write_rest = Rest(settings.max_rest)

    def ask(
        self,
        parts: Sequence[Buffer],
        replies: int,
        read: Callable[[RespSocket, float], T],
        deadline: float,
        *,
        payload: bool = False,
    ) -> T:
        """Send commands and let `read` take their replies; `payload`: they store something, which may be refused for
        want of room. Raises RedisStoreError, and what `read` raises.
        """
        began = time.monotonic()
        self._admit(began, payload=payload)
        try:
            result = self._ask_once(parts, replies, read, deadline)
        except RedisStoreError as error:
            self._failed(error, began)
            raise
        except Redirect:
            self._succeeded(payload=False)
            raise
        self._succeeded(payload=payload)
        return result

    def close(self) -> None:
        """At once; those in use are closed when they come back."""
        with self._turn:
            self._closed = True
            idle, self._idle = self._idle, []
            self._turn.notify_all()
        for conn in idle:
            conn.close()

    def _ask_once(
        self, parts: Sequence[Buffer], replies: int, read: Callable[[RespSocket, float], T], deadline: float
    ) -> T:
        conn, reused = self._take(deadline)
        try:
            try:
                conn.send(parts, replies, deadline)
                return read(conn, deadline)
            except RedisStoreError as error:
                if not reused or error.reason is not Reason.CLOSED or conn.answered:
                    raise
            # It was closed while nobody looked, before anything was answered: whatever is asked may be asked again.
            conn.close()
            self._drop_idle()
            conn = self._connector.connect(self.address, deadline)
            conn.send(parts, replies, deadline)
            return read(conn, deadline)
        finally:
            self._give_back(conn)

    def _take(self, deadline: float) -> tuple[RespSocket, bool]:
        with self._turn:
            while not self._closed and self._n_in_use >= self._settings.pool_size:
                left = deadline - time.monotonic()
                if left <= 0 or not self._turn.wait(left):
                    raise RedisStoreError(Reason.CROWDED, "all connections to Redis are in use")
            if self._closed:
                raise RedisStoreError(Reason.SHUT, "the store is closed")
            self._n_in_use += 1
            idle = self._idle.pop() if self._idle else None
        try:
            while idle is not None and not idle.is_quiet():
                idle.close()
                with self._turn:
                    idle = self._idle.pop() if self._idle else None
            if idle is not None:
                return idle, True
            return self._connector.connect(self.address, deadline), False
        except BaseException:
            self._give_back(None)
            raise

    def _give_back(self, conn: RespSocket | None) -> None:
        with self._turn:
            self._n_in_use -= 1
            keep = conn is not None and conn.reusable and not self._closed
            if conn is not None and keep:
                self._idle.append(conn)
            self._turn.notify()
        if conn is not None and not keep:
            conn.close()

    def _drop_idle(self) -> None:
        with self._turn:
            idle, self._idle = self._idle, []
        for conn in idle:
            conn.close()

    def _admit(self, now: float, *, payload: bool) -> None:
        with self._turn:
            if not self._rest.admits(now, self._settings.timeout) or (
                payload and not self._write_rest.admits(now, self._settings.timeout)
            ):
                raise RedisStoreError(Reason.RESTING, f"Redis at {self.address} has failed and is left alone for now")

    def _failed(self, error: RedisStoreError, began: float) -> None:
        now = time.monotonic()
        with self._turn:
            if error.means_server:
                self._rest.failed(now, began)
            elif error.reason is Reason.OOM:
                # It answers, and reads go on. It must be sent a whole frame to say this again.
                self._rest.succeeded()
                self._write_rest.failed(now, began)
        if error.means_server:
            # Whatever broke one has most likely broken all of them, or another server is behind this name by now.
            self._drop_idle()

    def _succeeded(self, *, payload: bool) -> None:
        with self._turn:
            self._rest.succeeded()
            if payload:
                self._write_rest.succeeded()
