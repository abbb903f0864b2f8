"""All servers of a Redis store: one, or the nodes of a cluster. A question finds its node, wherever slots move to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from cache.redis_control import RedisControl, Usage
from cache.redis_node import RedisNode
from cache.redis_replies import Reason, Redirect, RedisStoreError, command
from cache.redis_rest import Rest
from cache.redis_settings import Address, RedisSettings
from cache.redis_slots import SlotTable
from cache.resp_connect import RespConnector
from cache.resp_socket import RespSocket
from cache.store import Buffer

T = TypeVar("T")

_MAX_REDIRECTS: Final = 5
_MAX_NODES: Final = 1024
_REFRESH_EVERY: Final = 1.0
_ASKING: Final = command(b"ASKING")


class RedisNodes:
    """Safe for many threads. A cluster's topology is learnt at the first question, and again beside the questions when
    a slot has moved or a node has failed.
    """

    def __init__(self, settings: RedisSettings) -> None:
        """Connects to nobody. Raises StoreError where the TLS files are of no use."""
        self._settings = settings
        self._connector = RespConnector(settings)
        self._control = RedisControl(settings)
        self._lock = threading.Lock()
        self._nodes: dict[Address, RedisNode] = {}
        self._closed = False
        self._slots = SlotTable() if settings.cluster else None
        self._learning = threading.Lock()
        self._learn_rest = Rest(settings.max_rest)
        self._learn_after = float("-inf")

    def ask(
        self,
        key: bytes,
        parts: Sequence[Buffer],
        read: Callable[[RespSocket, float], T],
        deadline: float,
        *,
        payload: bool = False,
    ) -> T:
        """Send one command on `key` to its node, and let `read` take the reply. Raises RedisStoreError."""
        node, asking = self._node_of(key, deadline), False
        for _ in range(_MAX_REDIRECTS):
            try:
                if asking:
                    return node.ask([_ASKING, *parts], 2, _after_asking(read), deadline, payload=payload)
                return node.ask(parts, 1, read, deadline, payload=payload)
            except Redirect as elsewhere:
                node, asking = self._redirected(node, elsewhere), elsewhere.ask
            except RedisStoreError as error:
                if error.means_server:
                    self._learn_beside()
                raise
        raise RedisStoreError(Reason.REDIRECTED, "the cluster sends a key from node to node")

    def by_node(self, keys: Iterable[bytes], deadline: float) -> list[tuple[RedisNode, list[int]]]:
        """Nodes and which of `keys` are theirs, in order, as far as is known. Raises RedisStoreError."""
        places: dict[RedisNode, list[int]] = {}
        for i, key in enumerate(keys):
            places.setdefault(self._node_of(key, deadline), []).append(i)
        return list(places.items())

    def scan(self, pattern: bytes, seconds: float) -> Iterator[list[bytes]]:
        """Names of all servers that match, page by page; `seconds` for each of them. Raises RedisStoreError."""
        if self._slots is not None:
            self._node_of(pattern, time.monotonic() + seconds)  # learns the topology, if nobody has yet
        with self._lock:
            addresses = list(self._settings.nodes[:1] if self._slots is None else self._slots.addresses())
        for address in addresses:
            cursor = 0
            while True:
                cursor, names = self._control.scan(address, pattern, cursor, time.monotonic() + seconds)
                yield names
                if cursor == 0:
                    break

    def usage(self, deadline: float) -> Usage:
        """Of all servers together; `capacity` is 0 where one of them has no bound. Raises RedisStoreError."""
        with self._lock:
            addresses = list(self._settings.nodes[:1] if self._slots is None else self._slots.addresses())
        each = [self._control.usage(address, deadline) for address in addresses]
        capacity = sum(usage.capacity for usage in each) if all(usage.capacity for usage in each) else 0
        return Usage(
            sum(usage.entries for usage in each), sum(usage.bytes for usage in each), capacity,
            sum(usage.evictions for usage in each),
        )  # fmt: skip

    def close(self) -> None:
        """At once. Questions after it raise RedisStoreError."""
        with self._lock:
            self._closed = True
            nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            node.close()

    def _node_of(self, key: bytes, deadline: float) -> RedisNode:
        if self._slots is None:
            return self._node(self._settings.address)
        with self._lock:
            owner = self._slots.owner(key)
            knows_some = owner is not None or bool(self._slots.addresses())
        if owner is None:
            if not knows_some:
                self._learn(deadline)
            else:
                self._learn_beside()
            with self._lock:
                owner = self._slots.owner(key)
        if owner is None:
            raise RedisStoreError(Reason.CLUSTERDOWN, "nobody in the cluster serves this slot")
        return self._node(owner)

    def _node(self, address: Address) -> RedisNode:
        with self._lock:
            if self._closed:
                raise RedisStoreError(Reason.SHUT, "the store is closed")
            node = self._nodes.get(address)
            if node is None:
                if len(self._nodes) >= _MAX_NODES:
                    raise RedisStoreError(Reason.REDIRECTED, "the cluster names too many nodes")
                node = self._nodes[address] = RedisNode(address, self._settings, self._connector)
            return node

    def _redirected(self, node: RedisNode, elsewhere: Redirect) -> RedisNode:
        if self._slots is None:
            raise RedisStoreError(Reason.REDIRECTED, "this Redis is a node of a cluster: set cluster")
        address = Address(elsewhere.address.host or node.address.host, elsewhere.address.port)
        if not elsewhere.ask:
            with self._lock:
                self._slots.moved(elsewhere.slot, address)
            self._learn_beside()
        return self._node(address)

    # --- the topology of a cluster ------------------------------------------------------------------------------

    def _learn(self, deadline: float) -> None:
        if not self._learning.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise RedisStoreError(Reason.TIMEOUT, "the cluster has not told its nodes in time")
        try:
            self._learn_alone(deadline)
        finally:
            self._learning.release()

    def _learn_beside(self) -> None:
        """In a thread of its own; at most one at a time, and one in a while."""
        now = time.monotonic()
        if self._slots is None or now < self._learn_after or not self._learning.acquire(blocking=False):
            return
        self._learn_after = now + _REFRESH_EVERY

        def run() -> None:
            try:
                self._learn_alone(now + self._settings.timeout)
            except RedisStoreError:
                pass  # what was known stays; the next question that fails tries again
            finally:
                self._learning.release()

        threading.Thread(target=run, name="redis-topology", daemon=True).start()

    def _learn_alone(self, deadline: float) -> None:
        assert self._slots is not None
        began = time.monotonic()
        with self._lock:
            known = self._slots.addresses()
            if not known and not self._learn_rest.admits(began, self._settings.timeout):
                raise RedisStoreError(Reason.RESTING, "the cluster has failed and is left alone for now")
        try:
            ranges = self._control.slots(dict.fromkeys([*self._settings.nodes, *known]), deadline)
        except RedisStoreError:
            with self._lock:
                self._learn_rest.failed(time.monotonic(), began)
            raise
        with self._lock:
            self._learn_rest.succeeded()
            self._slots.replace(ranges)
            alive = self._slots.addresses()
            gone = [self._nodes.pop(address) for address in list(self._nodes) if address not in alive]
        for node in gone:
            node.close()


def _after_asking(read: Callable[[RespSocket, float], T]) -> Callable[[RespSocket, float], T]:
    def both(conn: RespSocket, deadline: float) -> T:
        conn.line(deadline)
        return read(conn, deadline)

    return both
