"""KV in Redis, shared by all workers: it outlives each of them.

Frames go straight between the kernel and the caller's memory (`resp_socket`). Redis bounds its own bytes and evicts by
its own policy, since nobody else knows what all workers have written: `FrameInfo` is of no use here, and what stats()
says of size is Redis' own count of everything in it. There are no quotas of tenants in this tier.

Who fails rests, server by server (`redis_rest`): after a failure that is likely to repeat itself calls are refused
without being tried, until a single one has found it well again. Whether a tier that answers, but too seldom or too
slowly, is worth asking at all is for those to say who know the other tiers.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from cache.redis_control import Usage
from cache.redis_node import RedisNode
from cache.redis_nodes import RedisNodes
from cache.redis_replies import Line, Reason, Redirect, RedisStoreError, command, protocol_failure, set_around
from cache.redis_settings import RedisSettings
from cache.resp_socket import RespSocket
from cache.store import Buffer, ChunkKey, FrameInfo, StoreStats
from policies.types import Tier

_EXISTS_AT_ONCE: Final = 128
"""Questions sent before the first answer is read: few enough to fit into the kernel's buffers."""


class RedisStore:
    """A `BlockStore`. All calls end within `settings.timeout`, whatever the server does."""

    def __init__(self, settings: RedisSettings) -> None:
        """Connects to nobody yet. Raises StoreError where the TLS files are of no use."""
        self._settings = settings
        self._nodes = RedisNodes(settings)
        self._prefix = settings.prefix.encode()
        self._ttl_ms = None if settings.ttl is None else round(settings.ttl * 1000)
        self._renewed_ms = self._ttl_ms if settings.renew else None
        self._lock = threading.Condition()
        self._closed = False
        self._n_calls = 0
        self._hits = self._misses = self._writes = 0
        self._failures: Counter[Reason] = Counter()
        self._usage = Usage()
        self._evicted_before: int | None = None

    @property
    def tier(self) -> Tier:
        """Redis."""
        return Tier.REDIS

    def contains(self, keys: Sequence[ChunkKey]) -> int:
        """See `BlockStore`. Asked in few turns, of each node of a cluster."""
        with self._counted() as deadline:
            for at in range(0, len(keys), _EXISTS_AT_ONCE):
                names = [self._name(key) for key in keys[at : at + _EXISTS_AT_ONCE]]
                n = self._n_leading(names, deadline)
                if n < len(names):
                    return at + n
        return len(keys)

    def read_into(self, key: ChunkKey, pieces: Sequence[memoryview]) -> bool:
        """See `BlockStore`. Puts off when the frame expires."""
        length = sum(map(len, pieces))
        name = self._name(key)

        def read(conn: RespSocket, deadline: float) -> bool:
            line = conn.line(deadline)
            if line.kind != "$":
                raise _unexpected(conn)
            if line.number != length:
                if line.number >= 0:
                    # Of no use, and what follows might be anything: to connect again is cheaper than to read it.
                    conn.spoil()
                return False
            conn.fill(pieces, deadline)
            return True

        with self._counted() as deadline:
            here = length <= self._settings.max_frame_bytes and self._nodes.ask(name, [self._get(name)], read, deadline)
            with self._lock:
                self._hits += here
                self._misses += not here
            return here

    def read(self, key: ChunkKey, limit: int | None = None) -> bytes | None:
        """See `EntryStore`. Puts off when the frame expires, as `read_into` does; not with a `limit`."""
        name = self._name(key)
        if limit is not None:
            # Of one that is not here Redis gives the empty beginning.
            return self.part(name, 0, max(0, limit - 1)) or None
        with self._counted() as deadline:
            frame = self._nodes.ask(name, [self._get(name)], self._whole, deadline)
            with self._lock:
                self._hits += frame is not None
                self._misses += frame is None
            return frame

    def keys(self, prefix: bytes = b"") -> Iterator[ChunkKey]:
        """See `EntryStore`. In pages, each a call of its own as far as time goes."""
        begins = len(self._prefix)
        literal = re.sub(rb"([*?\[\]\\^-])", rb"\\\1", self._prefix)
        pages = self._nodes.scan(literal + prefix.hex().encode() + b"*", self._settings.timeout)
        while True:
            with self._counted():
                page = next(pages, None)
            if page is None:
                return
            for name in page:
                with suppress(ValueError):  # somebody else's, under the same prefix
                    yield ChunkKey(bytes.fromhex(name[begins:].decode("ascii")))

    def part(self, name: bytes, first: int, last: int) -> bytes:
        """Bytes `first` to `last` of the value of that name, both included and counted from the end where negative;
        empty where there are none. Raises StoreError.
        """
        with self._counted() as deadline:
            asked = command(b"GETRANGE", name, b"%d" % first, b"%d" % last)
            return self._nodes.ask(name, [asked], self._whole, deadline) or b""

    def append(self, name: bytes, value: bytes) -> int:
        """Append to the value of that name, in one step whoever else does; returns its length then. Never expires.
        Raises StoreError.
        """
        with self._counted() as deadline:
            return self._nodes.ask(name, [command(b"APPEND", name, value)], _number, deadline)

    def write(self, key: ChunkKey, pieces: Sequence[Buffer], info: FrameInfo) -> bool:  # noqa: ARG002 - see above
        """See `BlockStore`. Asks first whether it is here, and if so puts off when it expires."""
        length = sum(map(len, pieces))
        name = self._name(key)
        head, tail = set_around(name, length, self._ttl_ms)

        def stored(conn: RespSocket, deadline: float) -> bool:
            line = conn.line(deadline)
            if line.text != b"OK" and (line.kind, line.number) != ("$", -1):
                raise _unexpected(conn)
            return line.text == b"OK"

        with self._counted() as deadline:
            if not 0 < length <= self._settings.max_frame_bytes or self._nodes.ask(
                name, [self._touch(name)], _yes, deadline
            ):
                return False
            kept = self._nodes.ask(name, [head, *pieces, tail], stored, deadline, payload=True)
            with self._lock:
                self._writes += kept
            return kept

    def remove(self, key: ChunkKey) -> bool:
        """See `BlockStore`."""
        return self.drop(self._name(key))

    def drop(self, name: bytes) -> bool:
        """Remove the value of that name; False where there is none. Raises StoreError."""
        with self._counted() as deadline:
            return self._nodes.ask(name, [command(b"UNLINK", name)], _yes, deadline)

    def stats(self) -> StoreStats:
        """Sizes are of the whole server, or of all nodes of the cluster, as it tells them now, or told them last:
        keys in the database, memory in use, `maxmemory` (0: no bound), evictions since this store first asked.
        """
        with self._lock:
            closed = self._closed
        if not closed:
            try:
                usage = self._nodes.usage(time.monotonic() + self._settings.timeout)
            except RedisStoreError as error:
                self._count(error)
            else:
                self._used(usage)
        with self._lock:
            usage = self._usage
            return StoreStats(
                entries=usage.entries, bytes=usage.bytes, capacity=usage.capacity, hits=self._hits,
                misses=self._misses, writes=self._writes, evictions=usage.evictions - (self._evicted_before or 0),
                errors=self._failures.total(),
            )  # fmt: skip

    def failures(self) -> Mapping[str, int]:
        """How many calls have failed, by reason."""
        with self._lock:
            return {str(reason): n for reason, n in self._failures.items()}

    def close(self) -> None:
        """See `BlockStore`. What was written is in Redis. Takes no longer than a call may."""
        with self._lock:
            self._closed = True
            self._lock.wait_for(lambda: self._n_calls == 0, self._settings.timeout)
        self._nodes.close()

    def _name(self, key: ChunkKey) -> bytes:
        return self._prefix + key.hex().encode()

    def _get(self, name: bytes) -> bytes:
        if self._renewed_ms is None:
            return command(b"GET", name)
        return command(b"GETEX", name, b"PX", b"%d" % self._renewed_ms)

    def _touch(self, name: bytes) -> bytes:
        if self._renewed_ms is None:
            return command(b"EXISTS", name)
        return command(b"PEXPIRE", name, b"%d" % self._renewed_ms)

    def _whole(self, conn: RespSocket, deadline: float) -> bytes | None:
        """A reply of any length up to the bound; None: there is nothing."""
        line = conn.line(deadline)
        if line.kind != "$":
            raise _unexpected(conn)
        if line.number < 0:
            return None
        if line.number > self._settings.max_frame_bytes:
            conn.spoil()
            return None
        value = bytearray(line.number)
        conn.fill([memoryview(value)], deadline)
        return bytes(value)

    def _n_leading(self, names: list[bytes], deadline: float) -> int:
        n = len(names)
        for node, places in self._nodes.by_node(names, deadline):
            before = [i for i in places if i < n]
            if before:
                n = min(n, self._first_missing(node, names, before, deadline))
        return n

    def _first_missing(self, node: RedisNode, names: list[bytes], places: list[int], deadline: float) -> int:
        """The first of `places` whose name is not here; as many as there are names where all are."""

        def read(conn: RespSocket, deadline: float) -> list[bool | None]:
            return [_yes_or_elsewhere(conn, deadline) for _ in places]

        asked = b"".join([command(b"EXISTS", names[i]) for i in places])
        for i, here in zip(places, node.ask([asked], len(places), read, deadline), strict=True):
            if here is None:
                here = self._nodes.ask(names[i], [command(b"EXISTS", names[i])], _yes, deadline)  # noqa: PLW2901 - it is what was not known
            if not here:
                return i
        return len(names)

    def _used(self, usage: Usage) -> None:
        with self._lock:
            self._usage = usage
            if self._evicted_before is None or usage.evictions < self._evicted_before:
                self._evicted_before = usage.evictions

    @contextmanager
    def _counted(self) -> Iterator[float]:
        """Around a call; yields its deadline."""
        with self._lock:
            if self._closed:
                raise RedisStoreError(Reason.SHUT, "the store is closed")
            self._n_calls += 1
        try:
            yield time.monotonic() + self._settings.timeout
        except RedisStoreError as error:
            self._count(error)
            raise
        finally:
            with self._lock:
                self._n_calls -= 1
                self._lock.notify_all()

    def _count(self, error: RedisStoreError) -> None:
        with self._lock:
            self._failures[error.reason] += 1


def _yes(conn: RespSocket, deadline: float) -> bool:
    """The reply to a question that is answered by 0 or 1."""
    line: Line = conn.line(deadline)
    if line.kind != ":" or line.number not in {0, 1}:
        raise _unexpected(conn)
    return line.number == 1


def _number(conn: RespSocket, deadline: float) -> int:
    line: Line = conn.line(deadline)
    if line.kind != ":":
        raise _unexpected(conn)
    return line.number


def _yes_or_elsewhere(conn: RespSocket, deadline: float) -> bool | None:
    try:
        return _yes(conn, deadline)
    except Redirect:
        return None


def _unexpected(conn: RespSocket) -> RedisStoreError:
    """A reply to something else: nothing that follows can be trusted."""
    conn.spoil()
    return protocol_failure()
