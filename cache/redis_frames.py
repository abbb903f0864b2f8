"""KV frames in Redis, and whose they are: nobody keeps a list of them, so each is asked."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Final

from cache.kv_codec import TENANT
from cache.redis_node import RedisNode
from cache.redis_replies import Reason, Redirect, RedisStoreError, command
from cache.redis_store import RedisStore
from cache.resp_socket import RespSocket
from cache.store import ChunkKey, OwnFrames, tenant_digest

_ASKED_AT_ONCE: Final = 128
"""Questions sent before the first answer is read: few enough to fit into the kernel's buffers."""
_FIRST, _LAST = b"%d" % TENANT.start, b"%d" % (TENANT.stop - 1)


class RedisFrames(RedisStore):
    """A `RedisStore` that is a `TenantStore`. Its user needs `+scan +getrange` for that."""

    def of_tenants(self, tenants: Collection[str], seconds: float) -> OwnFrames:
        """See `TenantStore`. A name and 16 bytes of each frame of all workers come over the wire."""
        until = time.monotonic() + seconds
        digests = set(map(tenant_digest, tenants))
        found: dict[ChunkKey, None] = {}  # SCAN may tell a name twice
        names = self.keys()
        try:
            while time.monotonic() < until:
                some = list(islice(names, _ASKED_AT_ONCE))
                if not some:
                    return OwnFrames(list(found))
                told = zip(some, self._tenants(some), strict=True)
                found.update((key, None) for key, digest in told if digest in digests)
        except RedisStoreError as error:
            if error.reason is not Reason.NOPERM:
                raise
            return OwnFrames((), untold=True)  # who may not look may still read and write
        return OwnFrames(list(found), complete=False)

    def _tenants(self, keys: Sequence[ChunkKey]) -> list[bytes]:
        """What each tells of whose it is; empty where it is gone. Raises StoreError."""
        names = [self._name(key) for key in keys]
        questions = [command(b"GETRANGE", name, _FIRST, _LAST) for name in names]
        told: list[bytes | None] = [None] * len(names)
        with self._counted() as deadline:
            for node, places in self._nodes.by_node(names, deadline):
                asked = b"".join([questions[i] for i in places])
                for i, digest in zip(places, self._told_by(node, asked, len(places), deadline), strict=True):
                    told[i] = digest
        # None: a node of a cluster does not have it any more.
        return [
            self.part(name, TENANT.start, TENANT.stop - 1) if digest is None else digest
            for name, digest in zip(names, told, strict=True)
        ]

    def _told_by(self, node: RedisNode, asked: bytes, count: int, deadline: float) -> list[bytes | None]:
        def read(conn: RespSocket, deadline: float) -> list[bytes | None]:
            return [self._or_elsewhere(conn, deadline) for _ in range(count)]

        return node.ask([asked], count, read, deadline)

    def _or_elsewhere(self, conn: RespSocket, deadline: float) -> bytes | None:
        try:
            return self._whole(conn, deadline) or b""
        except Redirect:
            return None
