"""Which records go first where no other policy is given: the ends of chains, the one longest unused first.

A store asks a policy under its own lock; policies do no I/O and need not be safe to call from several threads.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from typing import Protocol


class EvictionPolicy(Protocol):
    """What the disk store asks of one. `now` in seconds; a key stays until `remove`."""

    def admit(self, key: bytes, size: int, now: float, *, parent: bytes | None, tenant: str, cost: float) -> None:
        """It is here now."""
        ...

    def touch(self, key: bytes, now: float) -> None:
        """It was used."""
        ...

    def remove(self, key: bytes) -> None:
        """It is gone."""
        ...

    def victims(self, need_bytes: int, now: float) -> Iterable[bytes]:
        """Who goes, in this order; those of tenants above their quota first. Each may be removed as it is named."""
        ...

    def pin(self, key: bytes) -> None:
        """Not to be named, nor its ancestors."""
        ...

    def unpin(self, key: bytes) -> None:
        """It may be named again."""
        ...

    def bytes_of(self, tenant: str) -> int:
        """Of all that is here of this tenant's."""
        ...


class _Entry:
    __slots__ = ("key", "parent", "pinned", "size", "tenant", "used")

    def __init__(self, key: bytes, size: int, parent: bytes | None, tenant: str, used: int) -> None:
        self.key, self.size, self.parent, self.tenant, self.used = key, size, parent, tenant, used
        self.pinned = False


class TailFirstLru:
    """Of one chain the tail goes first; of several ends the one longest unused."""

    def __init__(self, *, tenant_bytes: int | None = None) -> None:
        """`tenant_bytes`: more than that a tenant has only until victims are asked for."""
        self._quota = tenant_bytes
        self._entries: dict[bytes, _Entry] = {}
        self._children: Counter[bytes] = Counter()
        self._ends: OrderedDict[bytes, None] = OrderedDict()
        """Entries without a child here, the one longest unused first."""
        self._tenants: Counter[str] = Counter()
        self._uses = 0

    def admit(self, key: bytes, size: int, now: float, *, parent: bytes | None, tenant: str, cost: float) -> None:  # noqa: ARG002 - a policy's signature
        """See `EvictionPolicy`."""
        self.remove(key)
        self._uses += 1
        self._entries[key] = _Entry(key, size, parent, tenant, self._uses)
        self._tenants[tenant] += size
        if parent is not None:
            self._children[parent] += 1
            self._ends.pop(parent, None)
        if not self._children[key]:
            del self._children[key]
            self._ends[key] = None

    def touch(self, key: bytes, now: float) -> None:  # noqa: ARG002 - a policy's signature
        """See `EvictionPolicy`."""
        entry = self._entries.get(key)
        if entry is not None:
            self._uses += 1
            entry.used = self._uses
            if key in self._ends:
                self._ends.move_to_end(key)

    def remove(self, key: bytes) -> None:
        """See `EvictionPolicy`."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self._ends.pop(key, None)
        self._tenants[entry.tenant] -= entry.size
        if not self._tenants[entry.tenant]:
            del self._tenants[entry.tenant]
        above = entry.parent
        if above is None:
            return
        self._children[above] -= 1
        if self._children[above]:
            return
        del self._children[above]
        parent = self._entries.get(above)
        if parent is not None:
            # It takes its child's turn, unless it was used without it.
            self._ends[above] = None
            self._ends.move_to_end(above, last=parent.used > entry.used)

    def victims(self, need_bytes: int, now: float) -> Iterator[bytes]:  # noqa: ARG002 - a policy's signature
        """See `EvictionPolicy`. Named one by one: remove each before the next."""
        while need_bytes > 0:
            chosen = self._above_quota() or self._first(None)
            if chosen is None:
                return
            need_bytes -= chosen.size
            yield chosen.key
            if chosen.key in self._entries:
                return

    def pin(self, key: bytes) -> None:
        """See `EvictionPolicy`."""
        self._pin(key, pinned=True)

    def unpin(self, key: bytes) -> None:
        """See `EvictionPolicy`."""
        self._pin(key, pinned=False)

    def bytes_of(self, tenant: str) -> int:
        """See `EvictionPolicy`."""
        return self._tenants.get(tenant, 0)

    def _pin(self, key: bytes, *, pinned: bool) -> None:
        entry = self._entries.get(key)
        if entry is not None:
            entry.pinned = pinned

    def _above_quota(self) -> _Entry | None:
        quota = self._quota
        if quota is None:
            return None
        above = [tenant for tenant, size in self._tenants.items() if size > quota]
        return next((entry for tenant in above if (entry := self._first(tenant))), None)

    def _first(self, tenant: str | None) -> _Entry | None:
        entries = (self._entries[key] for key in self._ends)
        return next((one for one in entries if not one.pinned and tenant in {None, one.tenant}), None)
