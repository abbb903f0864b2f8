"""KV in Redis, shared by all workers: it outlives each of them.

Frames go straight between the kernel and the caller's memory (`resp_socket`). Redis bounds its own bytes and evicts by
its own policy, since nobody else knows what all workers have written: what stats() says of size is Redis' own count of
everything in it. A frame's end is Redis' to keep, a tenant's quota is kept for what this store has written
(`redis_quotas`), and nothing is pinned.

Who fails rests, server by server (`redis_rest`): after a failure that is likely to repeat itself calls are refused
without being tried, until a single one has found it well again. Whether a tier that answers, but too seldom or too
slowly, is worth asking at all is for those to say who know the other tiers.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from cache.eviction_news import Evicted, EvictionNews
from cache.redis_control import Usage
from cache.redis_node import RedisNode
from cache.redis_nodes import RedisNodes
from cache.redis_quotas import RedisQuotas
from cache.redis_replies import Line, Reason, Redirect, RedisStoreError, command, protocol_failure, set_around
from cache.redis_settings import RedisSettings
from cache.resp_socket import RespSocket
from cache.store import Buffer, ChunkKey, FrameInfo, StoreStats
from policies.types import Tier

_EXISTS_AT_ONCE: Final = 128
"""Questions sent before the first answer is read: few enough to fit into the kernel's buffers."""


class RedisStore:
    """A `BlockStore`. All calls end within `settings.timeout`, whatever the server does."""

    def __init__(
        self,
        settings: RedisSettings,
        *,
        evicted: Evicted | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Connects to nobody yet. `evicted` is told of frames that a tenant's quota drove out; `wall` is the clock of
        `FrameInfo.expires`. Raises StoreError where the TLS files are of no use.
        """
        self._settings = settings
        self._nodes = RedisNodes(settings)
        self._prefix = settings.prefix.encode()
        self._ttl_ms = None if settings.ttl is None else round(settings.ttl * 1000)
        self._quotas = RedisQuotas()
        self._news = EvictionNews(evicted)
        self._wall = wall
        self._n_evicted = 0
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
                    self._missed(keys[at + n])
                    return at + n
        return len(keys)

    def read_into(self, key: ChunkKey, pieces: Sequence[memoryview], *, expires: float | None = None) -> bool:
        """See `BlockStore`. Puts off when the frame expires: without `expires` by the settings' `ttl`."""
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

        get = _get(name, self._renewed(self._left(expires)))
        with self._counted() as deadline:
            here = length <= self._settings.max_frame_bytes and self._nodes.ask(name, [get], read, deadline)
            with self._lock:
                self._hits += here
                self._misses += not here
                if here:
                    self._quotas.used(key, time.monotonic())
                elif length <= self._settings.max_frame_bytes:
                    self._quotas.gone(key)
            return here

    def read(self, key: ChunkKey, limit: int | None = None) -> bytes | None:
        """See `EntryStore`. Puts off when the frame expires, as `read_into` does; not with a `limit`."""
        name = self._name(key)
        if limit is not None:
            # Of one that is not here Redis gives the empty beginning.
            return self.part(name, 0, max(0, limit - 1)) or None
        with self._counted() as deadline:
            frame = self._nodes.ask(name, [_get(name, self._renewed(self._ttl_ms))], self._whole, deadline)
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

    def write(self, key: ChunkKey, pieces: Sequence[Buffer], info: FrameInfo) -> bool:
        """See `BlockStore`. Asks first whether it is here, and if so puts off when it expires."""
        length = sum(map(len, pieces))
        name = self._name(key)
        ttl_ms = self._left(info.expires)
        if info.expires is not None and info.expires <= self._wall():
            return False
        head, tail = set_around(name, length, ttl_ms)

        def stored(conn: RespSocket, deadline: float) -> bool:
            line = conn.line(deadline)
            if line.text != b"OK" and (line.kind, line.number) != ("$", -1):
                raise _unexpected(conn)
            return line.text == b"OK"

        with self._counted() as deadline:
            if not 0 < length <= self._settings.max_frame_bytes or self._nodes.ask(
                name, [_touch(name, self._renewed(ttl_ms))], _yes, deadline
            ):
                return False
            if not self._make_room(length, info, deadline):
                return False
            kept = self._nodes.ask(name, [head, *pieces, tail], stored, deadline, payload=True)
            with self._lock:
                self._writes += kept
                if kept:
                    self._quotas.wrote(key, length, info, time.monotonic())
            return kept

    def remove(self, key: ChunkKey) -> bool:
        """See `BlockStore`."""
        self._missed(key)
        return self.drop(self._name(key))

    def drop(self, name: bytes) -> bool:
        """Remove the value of that name; False where there is none. Raises StoreError."""
        with self._counted() as deadline:
            return self._nodes.ask(name, [command(b"UNLINK", name)], _yes, deadline)

    def renew(self, key: ChunkKey, info: FrameInfo) -> None:
        """See `Keeper`."""
        ttl_ms = self._left(info.expires)
        if ttl_ms is not None:
            name = self._name(key)
            with self._counted() as deadline:
                self._nodes.ask(name, [_touch(name, self._renewed(ttl_ms))], _yes, deadline)

    def expire(self, most: int) -> int:  # noqa: ARG002 - Redis does it
        """See `Keeper`: nothing, since Redis does it by itself."""
        return 0

    def stats(self) -> StoreStats:
        """Sizes are of the whole server, or of all nodes of the cluster, as it tells them now, or told them last:
        keys in the database, memory in use, `maxmemory` (0: no bound), evictions since this store first asked, its own
        for a quota's sake included. Frames that expire are not counted.
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
                misses=self._misses, writes=self._writes,
                evictions=usage.evictions - (self._evicted_before or 0) + self._n_evicted,
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

    def _renewed(self, ttl_ms: int | None) -> int | None:
        """To what a use puts off the end of a frame; None: it does not."""
        return ttl_ms if self._settings.renew else None

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

    def _left(self, expires: float | None) -> int | None:
        """Milliseconds until then, or the settings' where that is sooner; None: without end."""
        if expires is None:
            return self._ttl_ms
        left = max(1, int((expires - self._wall()) * 1000))
        return left if self._ttl_ms is None else min(left, self._ttl_ms)

    def _missed(self, key: ChunkKey) -> None:
        with self._lock:
            self._quotas.gone(key)

    def _make_room(self, length: int, info: FrameInfo, deadline: float) -> bool:
        """Take out what its tenant's quota has no room for besides this frame; False where that is not to be had."""
        with self._lock:
            victims = self._quotas.room(length, info, time.monotonic())
        if not victims:
            return victims is not None
        for key in victims:
            name = self._name(key)
            self._nodes.ask(name, [command(b"UNLINK", name)], _yes, deadline)
            with self._lock:
                self._quotas.gone(key)
                self._n_evicted += 1
        self._news.tell(victims)
        return True

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


def _get(name: bytes, ttl_ms: int | None) -> bytes:
    return command(b"GET", name) if ttl_ms is None else command(b"GETEX", name, b"PX", b"%d" % ttl_ms)


def _touch(name: bytes, ttl_ms: int | None) -> bytes:
    return command(b"EXISTS", name) if ttl_ms is None else command(b"PEXPIRE", name, b"%d" % ttl_ms)


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
