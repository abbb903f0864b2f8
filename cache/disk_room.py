"""Room on the disk: who goes for a new record, by the policy and at the granularity of the log. Pure: no file is
touched.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from cache import disk_segment as fmt
from cache.disk_log import RECORD_OVERHEAD, SEGMENT_OVERHEAD, STORE_OVERHEAD, Garbage, Log, Next, Segment
from cache.disk_segment import Record
from cache.frame_expiry import FrameExpiry
from cache.frame_pins import FramePins
from cache.pinned_heads import PinnedHeads
from cache.store import ChunkKey, FrameInfo
from policies.eviction import EvictionPolicy
from policies.kv_policy import KvPolicy
from policies.types import Tier

_GROW = 8
"""After the file system was full, the store grows again by this part of what it writes."""


class Room:
    """The log and the policy, kept in step. Not safe to call from several threads.

    Tenants are known by their digests in hex, in `FrameInfo` too. `now` is the policy's clock, `wall` that of
    `FrameInfo.expires`.
    """

    def __init__(self, log: Log, policy: EvictionPolicy, *, capacity: int, tenant_bytes: int | None) -> None:
        self._log = log
        self._policy = policy
        self._capacity = self._limit = capacity
        self._tenant_bytes = tenant_bytes
        # Where whole segments go a small pin could hold a large one: there are none.
        self._pins = FramePins(capacity // 2 if log.by_record else -1, self._extent_of)
        self._heads = PinnedHeads(Tier.DISK, capacity, self.pin, self.unpin)
        self._expiry = FrameExpiry()
        self.evictions = 0
        self.expirations = 0

    def can_hold(self, key: ChunkKey, length: int, info: FrameInfo) -> bool:
        """Whether a frame of that many bytes fits, whoever makes room for it."""
        extent = fmt.extent(length)
        alone = STORE_OVERHEAD + SEGMENT_OVERHEAD + RECORD_OVERHEAD + extent
        self._policy.limit(info.tenant, info.policy.quota(Tier.DISK))
        if alone > self._capacity or extent > self._quota(info.tenant):
            return False
        return self._pins.allows(key, extent, info.parent)

    def end(self, key: ChunkKey) -> float | None:
        """When it ends, see `FrameInfo.expires`."""
        return self._expiry.end(key)

    def expired(self, wall: float, most: int) -> list[Garbage]:
        """Drop those whose time is over, at most so many."""
        due = self._expiry.due(wall, most) if self._expiry else []
        self.expirations += len(due)
        return [one for key in due for one in self.drop(self._log.index[key])]

    def used(self, key: ChunkKey, now: float, expires: float | None) -> None:
        """It is here, and was read."""
        self._policy.touch(key, now)
        self._heads.used(key, now)
        self._expiry.set(key, expires)

    def renew(self, record: Record, info: FrameInfo, now: float) -> None:
        """See `Keeper`; it is here."""
        self._policy.limit(info.tenant, info.policy.quota(Tier.DISK))
        self._expiry.set(record.key, info.expires)
        self._heads.here(record.key, record.extent, info, now)

    def found(self, record: Record, end: float | None, now: float) -> None:
        """It was here when the store was opened."""
        self.tell(record, now)
        self._expiry.set(record.key, end)
        if record.head:
            info = FrameInfo(parent=record.parent, tenant=record.tenant.hex(), policy=KvPolicy(pin=True))
            self._heads.here(record.key, record.extent, info, now)

    def pin(self, key: ChunkKey) -> bool:
        """Never evict it, nor those before it; False where it is not here, or would be more than half of the room."""
        if not self._pins.pin(key):
            return False
        self._policy.pin(key)
        return True

    def unpin(self, key: ChunkKey) -> None:
        """Take one `pin` back, if there is one."""
        if self._pins.unpin(key):
            self._policy.unpin(key)

    def tell(self, record: Record, now: float) -> None:
        """It is there: the policy counts it."""
        tenant = record.tenant.hex()
        cost = float(record.n_tokens)
        self._policy.admit(record.key, record.extent, now, parent=record.parent, tenant=tenant, cost=cost)

    def admit(self, record: Record, now: float) -> list[Garbage]:
        """Drop what must go for it. It and those before it are pinned until `wrote` or `refuse`."""
        self.tell(record, now)
        self._policy.pin(record.key)
        garbage = self._drop_own(record.tenant, now)
        # Above its quota even now, it is not kept: nobody else goes for it.
        while self._over_quota(record.tenant) <= 0 and (short := self._over_bound(record, garbage)) > 0:
            dropped = self._drop_worst(short, now)
            if not dropped:
                break
            garbage += dropped
        return garbage

    def fits(self, record: Record, garbage: list[Garbage]) -> bool:
        """Whether there is room for it, once `garbage` is given back."""
        return self._over_bound(record, garbage) <= 0 and self._over_quota(record.tenant) <= 0

    def wrote(self, segment: Segment, record: Record, info: FrameInfo, now: float) -> None:
        """It is written."""
        segment.pending -= 1
        self._log.publish(segment, record)
        self._policy.unpin(record.key)
        self._pins.came(record.key)
        self._expiry.set(record.key, record.expires)
        self._heads.here(record.key, record.extent, info, now)
        self._limit = min(self._capacity, self._limit + record.extent // _GROW)

    def refuse(self, key: ChunkKey) -> None:
        """It is not kept after all."""
        self._policy.remove(key)

    def failed(self, segment: Segment, record: Record, *, full: bool) -> list[Garbage]:
        """It could not be written. `full`: there is less room than the capacity promises."""
        segment.pending -= 1
        self.refuse(record.key)
        if full:
            self._limit = min(self._limit, self._log.bytes - record.extent)
        elif self._log.active is segment:
            self._log.roll()
        return [self._log.waste(segment, record)]

    def shrink(self, garbage: list[Garbage], now: float) -> None:
        """Drop what is above the bound or a tenant's quota, into `garbage`."""
        for tenant in {record.tenant for record in self._log.index.values()}:
            garbage += self._drop_own(tenant, now)
        while (above := self._log.bytes - sum(one.bytes for one in garbage) - self._limit) > 0:
            dropped = self._drop_worst(above, now)
            if not dropped:
                return
            garbage += dropped

    def drop(self, record: Record, *, evicted: bool = False, removed: bool = False) -> list[Garbage]:
        """Forget one record; `removed`: as was asked for."""
        segment = self._log.segments[record.segment]
        self._policy.remove(record.key)
        self.evictions += evicted
        garbage = replace(self._log.drop(record), lost=None if removed else record.key)
        self._pins.went(record.key, record.extent, record.parent)
        self._heads.gone(record.key)
        self._expiry.drop(record.key)
        return [garbage, *self._deleted(segment)]

    def drop_all(self, segment: Segment, *, evicted: bool = False) -> list[Garbage]:
        """Forget all of a segment; nothing more is written to it."""
        if segment is self._log.active:
            self._log.roll()
        return [one for record in list(segment.live.values()) for one in self.drop(record, evicted=evicted)]

    def _extent_of(self, key: ChunkKey) -> tuple[int, ChunkKey | None] | None:
        record = self._log.index.get(key)
        return None if record is None else (record.extent, record.parent)

    def _over_bound(self, record: Record, garbage: list[Garbage]) -> int:
        freed = sum(one.bytes for one in garbage)
        return self._log.bytes + self._log.cost(record.extent) - freed - self._limit

    def _quota(self, tenant: str) -> float:
        most = inf if self._tenant_bytes is None else self._tenant_bytes
        return min(most, self._policy.quota_of(tenant))

    def _over_quota(self, tenant: bytes) -> int:
        name = tenant.hex()
        quota = self._quota(name)
        return 0 if quota == inf else self._policy.bytes_of(name) - int(quota)

    def _drop_worst(self, n_bytes: int, now: float) -> list[Garbage]:
        """Evict records of that size together, or a segment of them; nothing where nothing can go."""
        garbage: list[Garbage] = []
        for key in self._policy.victims(n_bytes, now):
            victim = self._log.index.get(ChunkKey(key))
            if victim is None:
                self._policy.remove(key)
            elif self._log.by_record:
                garbage += self.drop(victim, evicted=True)
            else:
                return self._evict_segment(self._log.segments[victim.segment])
        if not garbage and (active := self._log.active) is not None and not active.live and active.placed:
            # Its records are gone, what was kept to find them is not.
            self._log.roll()
            garbage += self._deleted(active)
        return garbage

    def _drop_own(self, tenant: bytes, now: float) -> list[Garbage]:
        """Evict of this tenant what is above its quota, and of nobody else. Its pins are against others alone."""
        garbage: list[Garbage] = []
        for again in (False, True):
            over = self._over_quota(tenant)
            if over <= 0 or (again and not self._heads.give_way(tenant.hex(), over, now)):
                break
            for key in self._policy.victims(over, now, tenant=tenant.hex()):
                garbage += self.drop(self._log.index[ChunkKey(key)], evicted=True)
        return garbage

    def _evict_segment(self, segment: Segment) -> list[Garbage]:
        if segment.pending:
            idle = (one for one in self._log.segments.values() if not one.pending)
            segment = next(idle, segment)
        return [] if segment.pending else self.drop_all(segment, evicted=True)

    def _deleted(self, segment: Segment) -> list[Garbage]:
        """The segment, if nothing lives in it any more."""
        if segment.live or self._log.settle(segment) is not Next.DELETE:
            return []
        return [Garbage(segment, None, segment.charge)]
