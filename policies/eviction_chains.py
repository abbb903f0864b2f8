"""The books that all eviction policies share: chains, pins, quotas, expiry. Which of the evictable goes next is told by
an `Order`, of which a policy has one for all entries and one for each tenant with a quota.

Evictable are the ends of chains. Once one of them is chosen it is *condemned*, and the entry before it may be evictable
in turn, so that a long chain is named from its end in one go. A use, a pin or a new child saves a condemned entry and
all before it; whoever the store did not remove takes its place again when victims are asked for the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf, isfinite
from typing import Final

from policies.eviction_line import RecencyLine
from policies.eviction_types import Entry, Key, Order, TenantName

_IDLE_LIMITS: Final = 256
"""Limits of tenants that have nothing here, above twice as many as there are tenants, before they are forgotten."""


class ChainedEviction:
    """An `EvictionPolicy` by an `Order`."""

    def __init__(
        self,
        make_order: Callable[[], Order],
        *,
        quotas: Mapping[TenantName, int] | None = None,
        default_quota: int | None = None,
        ttl: float | None = None,
    ) -> None:
        """`quotas` in bytes; tenants not named there have `default_quota`, or none. `ttl` in seconds since the last
        use. Raises ValueError for a negative quota or a `ttl` not above 0.
        """
        if ttl is not None and not ttl > 0:
            raise ValueError(f"a time to live of {ttl!r} s keeps nothing")
        self._configured: Mapping[TenantName, float] = dict(quotas or {})
        self._quotas: dict[TenantName, float] = dict(self._configured)
        """Those that are in force: the limits set since as well."""
        self._default_quota = inf if default_quota is None else default_quota
        if min([*self._quotas.values(), self._default_quota]) < 0:
            raise ValueError("a quota below 0 bytes")
        self._ttl = inf if ttl is None else ttl
        self._recency = RecencyLine() if ttl is not None else None
        self._make_order = make_order
        self._order = make_order()
        self._tenant_orders: dict[TenantName, Order] = {}
        self._entries: dict[Key, Entry] = {}
        self._live: dict[Key, int] = {}
        """Children of a key that are here and not condemned, whether it is here or not."""
        self._condemned: dict[Entry, None] = {}  # in the order in which they were named
        self._bytes = 0
        self._tenant_bytes: dict[TenantName, int] = {}
        self._above_quota: dict[TenantName, None] = {}  # the one that is above it for the longest time first
        self._uses = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        """Of all entries that are here."""
        return self._bytes

    def bytes_of(self, tenant: TenantName) -> int:
        """Of this tenant's."""
        return self._tenant_bytes.get(tenant, 0)

    def admit(self, key: Key, size: int, now: float, *, parent: Key | None, tenant: TenantName, cost: float) -> None:
        """See `EvictionPolicy.admit`."""
        if size < 1 or not (isfinite(cost) and cost >= 0) or parent == key:
            raise ValueError(f"an entry of {size!r} bytes at a cost of {cost!r}, its parent itself: {parent == key}")
        known = self._entries.get(key)
        if known is not None:
            if (size, cost) != (known.size, known.cost):
                self._change(known, size, cost)
            self._use(known, now)
            return
        entry = self._entries[key] = Entry(key, size, parent, tenant, cost)
        before = self._entries.get(parent) if parent is not None else None
        if before is not None:
            entry.depth = before.depth + 1
            entry.end = entry.reach = before.end + cost
        self._stamp(entry, now)
        self._charge(tenant, size)
        for order in self._orders(entry):
            order.add(entry)
        self._hold(parent)
        if not self._live.get(key):
            self._offer(entry, due=False, since=entry.seq)

    def touch(self, key: Key, now: float) -> None:
        """See `EvictionPolicy.touch`."""
        entry = self._entries.get(key)
        if entry is not None:
            self._use(entry, now)

    def remove(self, key: Key) -> None:
        """See `EvictionPolicy.remove`."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        evicted = entry.condemned
        if evicted:
            del self._condemned[entry]
        else:
            self._withdraw(entry)
            self._release(entry)
        for order in self._orders(entry):
            order.drop(entry, evicted=evicted)
        self._charge(entry.tenant, -entry.size)

    def pin(self, key: Key) -> None:
        """See `EvictionPolicy.pin`."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.pins += 1
            self._save(entry)

    def unpin(self, key: Key) -> None:
        """See `EvictionPolicy.unpin`."""
        entry = self._entries.get(key)
        if entry is not None and entry.pins:
            entry.pins -= 1
            if not entry.pins and not self._live.get(key):
                self._offer(entry, due=False, since=entry.seq)

    def limit(self, tenant: TenantName, n_bytes: int | None) -> None:
        """See `EvictionPolicy.limit`."""
        if n_bytes is not None and n_bytes < 0:
            raise ValueError("a quota below 0 bytes")
        own = self._configured.get(tenant, self._default_quota)
        quota = own if n_bytes is None else min(own, n_bytes)
        before = self._quota(tenant)
        if quota == before:
            return
        self._reprieve()
        if tenant in self._configured or quota != own:
            self._quotas[tenant] = quota
        else:
            del self._quotas[tenant]
        if before == inf:
            self._order_of_its_own(tenant)
        elif quota == inf:
            self._tenant_orders.pop(tenant, None)
        self._compare(tenant)
        if len(self._quotas) > len(self._configured) + 2 * len(self._tenant_bytes) + _IDLE_LIMITS:
            self._forget_limits(but=tenant)

    def quota_of(self, tenant: TenantName) -> float:
        """See `EvictionPolicy.quota_of`."""
        return self._quota(tenant)

    def victims(self, need_bytes: int, now: float, *, tenant: TenantName | None = None) -> list[Key]:
        """See `EvictionPolicy.victims`."""
        self._reprieve()
        named: list[Key] = []
        freed = 0
        gone: dict[TenantName, int] = {}
        in_turn = self._in_turn(gone, now) if tenant is None else self._own(tenant, now)
        for entry in in_turn if need_bytes > 0 else ():
            self._condemn(entry)
            named.append(entry.key)
            gone[entry.tenant] = gone.get(entry.tenant, 0) + entry.size
            freed += entry.size
            if freed >= need_bytes:
                break
        return named

    def expired(self, now: float) -> list[Key]:
        """See `EvictionPolicy.expired`."""
        self._reprieve()
        named = []
        while (entry := self._outlived(now)) is not None:
            self._condemn(entry)
            named.append(entry.key)
        return named

    def _in_turn(self, gone: Mapping[TenantName, int], now: float) -> Iterator[Entry]:
        """Who goes next, while each is condemned before the next one is asked for; `gone`: bytes by tenant."""
        tenants = iter(self._above_quota)
        tenant = next(tenants, None)
        while True:
            chosen = self._outlived(now)
            while chosen is None and tenant is not None:
                if self.bytes_of(tenant) - gone.get(tenant, 0) > self._quota(tenant):
                    chosen = self._tenant_orders[tenant].choose(now)
                if chosen is None:
                    tenant = next(tenants, None)
            chosen = chosen or self._order.choose(now)
            if chosen is None:
                return
            yield chosen
            before = self._entries.get(chosen.parent) if chosen.parent is not None else None
            if before is not None and before.tenant != chosen.tenant:  # it may have stood in its tenant's way
                tenants = iter(self._above_quota)
                tenant = next(tenants, None)

    def _own(self, tenant: TenantName, now: float) -> Iterator[Entry]:
        """The same of one tenant, as far as it has an order."""
        order = self._tenant_orders.get(tenant)
        while order is not None and (chosen := order.choose(now)) is not None:
            yield chosen

    def _outlived(self, now: float) -> Entry | None:
        oldest = self._recency.lowest() if self._recency else None
        return oldest if oldest is not None and oldest.used + self._ttl < now else None

    def _condemn(self, entry: Entry) -> None:
        self._withdraw(entry)
        entry.condemned = True
        self._condemned[entry] = None
        for order in self._orders(entry):
            order.leave(entry)
        self._release(entry)

    def _reprieve(self) -> None:
        """Whoever was condemned and not removed takes its place again, the first one foremost."""
        while self._condemned:
            self._acquit(next(reversed(self._condemned)), due=True)

    def _save(self, entry: Entry) -> None:
        """It is in use: were it condemned, it and those before it no longer are."""
        if entry.condemned:
            self._acquit(entry, due=False)

    def _acquit(self, entry: Entry, *, due: bool) -> None:
        self._spare(entry)
        if not entry.pins and not self._live.get(entry.key):
            self._offer(entry, due=due, since=entry.seq)
        self._hold(entry.parent)

    def _hold(self, key: Key | None) -> None:
        """One child more."""
        while key is not None:
            self._live[key] = self._live.get(key, 0) + 1
            entry = self._entries.get(key)
            if entry is None or self._live[key] > 1:
                return
            if not entry.condemned:
                self._withdraw(entry)
                return
            self._spare(entry)
            key = entry.parent

    def _spare(self, entry: Entry) -> None:
        del self._condemned[entry]
        entry.condemned = False
        for order in self._orders(entry):
            order.stay(entry)

    def _release(self, child: Entry) -> None:
        """One child less; its parent may be evictable now, in its place."""
        key = child.parent
        if key is None:
            return
        self._live[key] -= 1
        entry = self._entries.get(key)
        if entry is not None and child.reach > entry.reach:
            entry.reach = child.reach
        if self._live[key]:
            return
        del self._live[key]
        if entry is not None and not entry.pins:
            self._offer(entry, due=True, since=child.seq)

    def _use(self, entry: Entry, now: float) -> None:
        self._save(entry)
        self._stamp(entry, now)
        entry.hits += 1
        entry.reach = entry.end
        for order in self._orders(entry):
            order.use(entry)
        if self._recency is not None:
            self._recency.used(entry)

    def _change(self, entry: Entry, size: int, cost: float) -> None:
        """Another size or cost may lower its rank: it is offered anew."""
        self._save(entry)
        self._charge(entry.tenant, size - entry.size)
        on_offer = not entry.pins and not self._live.get(entry.key)
        if on_offer:
            self._withdraw(entry)
        for order in self._orders(entry):
            order.drop(entry, evicted=False)
        entry.size = size
        entry.end += cost - entry.cost
        entry.cost = cost
        for order in self._orders(entry):
            order.add(entry)
        if on_offer:
            self._offer(entry, due=False, since=entry.seq)

    def _stamp(self, entry: Entry, now: float) -> None:
        self._uses += 1
        entry.seq = self._uses
        entry.used = now

    def _quota(self, tenant: TenantName) -> float:
        return self._quotas.get(tenant, self._default_quota)

    def _charge(self, tenant: TenantName, size: int) -> None:
        self._bytes += size
        total = self._tenant_bytes.get(tenant, 0) + size
        if total:
            self._tenant_bytes[tenant] = total
        else:
            del self._tenant_bytes[tenant]
            self._tenant_orders.pop(tenant, None)
        self._compare(tenant)

    def _compare(self, tenant: TenantName) -> None:
        if self.bytes_of(tenant) > self._quota(tenant):
            self._above_quota.setdefault(tenant)
        else:
            self._above_quota.pop(tenant, None)

    def _order_of_its_own(self, tenant: TenantName) -> None:
        """It has a quota only now: what is here of it is put in order by its last use."""
        entries = sorted((one for one in self._entries.values() if one.tenant == tenant), key=lambda one: one.seq)
        if not entries:
            return
        order = self._tenant_orders[tenant] = self._make_order()
        for entry in entries:
            order.add(entry)
        for entry in entries:
            if not entry.pins and not self._live.get(entry.key):
                order.offer(entry, due=False, since=entry.seq)

    def _forget_limits(self, *, but: TenantName) -> None:
        self._quotas = {
            tenant: quota
            for tenant, quota in self._quotas.items()
            if tenant in self._configured or tenant in self._tenant_bytes or tenant == but
        }

    def _orders(self, entry: Entry) -> tuple[Order, ...]:
        if self._quota(entry.tenant) == inf:
            return (self._order,)
        order = self._tenant_orders.get(entry.tenant)
        if order is None:
            order = self._tenant_orders[entry.tenant] = self._make_order()
        return self._order, order

    def _offer(self, entry: Entry, *, due: bool, since: int) -> None:
        for order in self._orders(entry):
            order.offer(entry, due=due, since=since)
        if self._recency is not None:
            self._recency.push(entry)

    def _withdraw(self, entry: Entry) -> None:
        for order in self._orders(entry):
            order.withdraw(entry)
        if self._recency is not None:
            self._recency.discard(entry)
