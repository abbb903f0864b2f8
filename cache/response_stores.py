"""A response cache from what its operator wants: how much memory, which disk, which Redis."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cache.disk_store import DiskStore
from cache.entry_tier import EntryTier, Tally
from cache.epoch_log import EpochLog, FileEpochLog, MemoryEpochLog, RedisEpochLog
from cache.epochs import Epochs
from cache.redis_settings import RedisSettings
from cache.redis_store import RedisStore
from cache.response_cache import ResponseCache
from cache.response_entry import EntryKeys
from cache.small_store import SmallStore
from policies.eviction import make_eviction

REDIS_PREFIX: Final = "prefixgate:answers:"
"""What names in Redis begin with, unless the settings say otherwise."""

_EPOCHS: Final = "forgotten"
_ENTRIES: Final = "entries"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStores:
    """Sizes in bytes, times in seconds."""

    memory_bytes: int = 256 << 20
    disk: Path | None = None
    """A folder, of which one process at a time is the owner; made where it is missing."""
    disk_bytes: int = 4 << 30
    redis: RedisSettings | None = None
    """Its `prefix` is of answers alone; its `ttl` is as long as any answer is of use, counted from when it was stored.
    The user needs, on keys that begin with the prefix:

        ACL SETUSER answers on >password resetchannels ~prefixgate:answers:* -@all +get +set +exists +unlink \
            +getrange +append +scan
    """
    eviction: str = "lru"
    """By what every tier but Redis evicts: a name of `policies.eviction`."""
    tenant_bytes: int | None = None
    """What one tenant's scope may have of memory."""
    tenant_disk_bytes: int | None = None
    """The same of the disk."""
    most_entry_bytes: int = 4 << 20
    most_waiting_bytes: int = 32 << 20
    """Of answers that the disk, and Redis, have still to get."""
    refresh_s: float = 0.2
    """How often Redis is asked what other gateways have forgotten."""
    trusted_s: float = 10.0
    """For how long what is known of that counts, where Redis does not answer."""


def open_response_cache(stores: ResponseStores, keys: EntryKeys | None = None) -> ResponseCache:
    """`keys`: to encrypt what is written to disk and to Redis, which is asked from a thread. Raises StoreError where
    the disk, or the TLS files of Redis, are of no use, and ValueError for an eviction that there is not.
    """
    tally = Tally()
    quota = stores.tenant_bytes
    memory = SmallStore(
        stores.memory_bytes, policy=make_eviction(stores.eviction, default_quota=quota), tenant_bytes=quota
    )
    tiers: list[EntryTier] = []
    log: EpochLog = MemoryEpochLog()
    with ExitStack() as undo:
        if stores.disk is not None:
            most = stores.tenant_disk_bytes
            policy = make_eviction(stores.eviction, default_quota=most)
            disk = DiskStore(stores.disk / _ENTRIES, capacity=stores.disk_bytes, tenant_bytes=most, policy=policy)
            undo.callback(disk.close)
            tiers.append(EntryTier(disk, time.monotonic, tally.add))
            log = FileEpochLog(stores.disk / _EPOCHS)
        if stores.redis is not None:
            settings = replace(stores.redis, renew=False)
            redis = RedisStore(settings)
            undo.callback(redis.close)
            tiers.append(EntryTier(redis, time.monotonic, tally.add))
            log = RedisEpochLog(tiers[-1], redis, settings.prefix.encode() + _EPOCHS.encode())
        epochs = Epochs(log, refresh_s=stores.refresh_s, trusted_s=stores.trusted_s)
        undo.callback(epochs.close)
        cache = ResponseCache(
            memory,
            tiers,
            epochs=epochs,
            keys=keys,
            most_entry_bytes=stores.most_entry_bytes,
            most_waiting_bytes=stores.most_waiting_bytes,
            tally=tally,
        )
        undo.pop_all()
        return cache
