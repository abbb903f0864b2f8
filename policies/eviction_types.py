"""What a store asks of an eviction policy, and what the orders inside of one see of an entry."""

from __future__ import annotations

from typing import Protocol, TypeAlias

Key: TypeAlias = bytes
"""A chunk's key; chained, so that no key is its own ancestor."""

TenantName: TypeAlias = str


class EvictionPolicy(Protocol):
    """Which entries go when room is needed. It keeps books; the store keeps the bytes.

    An entry with a present child is never named before that child: a chain loses its tail first. `now` is in seconds
    of one clock and does not go backwards. Chains are touched from the head on. Not safe to call from several threads.
    """

    def admit(self, key: Key, size: int, now: float, *, parent: Key | None, tenant: TenantName, cost: float) -> None:
        """It is here now, `size` bytes. `cost`: what it takes to make it again, in seconds or in tokens, the same for
        all. One that is here already is touched and takes the new size and cost; it stays its first tenant's. Raises
        ValueError for a size below 1, a negative or infinite cost, or a parent that is the entry itself.
        """
        ...

    def touch(self, key: Key, now: float) -> None:
        """It was used. Nothing happens where it is not here."""
        ...

    def remove(self, key: Key) -> None:
        """It is gone, pinned or not. Nothing happens where it is not here."""
        ...

    def victims(self, need_bytes: int, now: float, *, tenant: TenantName | None = None) -> list[Key]:
        """Who goes, in this order, to free `need_bytes`; fewer bytes where there is no more to take. They stay until
        `remove`. Never a pinned one, nor one that a pinned one descends from. Expired ones come first, then those of
        tenants above their quota as far as they are above it, then the policy's choice; with a `tenant` its own alone,
        by the policy's choice, and none where it has no quota. Linear in its answer, amortised. Queues age by being
        asked, so that another answer may have another order.
        """
        ...

    def pin(self, key: Key) -> None:
        """Not to be evicted until as many `unpin`. Nothing happens where it is not here."""
        ...

    def unpin(self, key: Key) -> None:
        """Takes one `pin` back. Nothing happens where there is none."""
        ...

    def limit(self, tenant: TenantName, n_bytes: int | None) -> None:
        """From now on the quota of this tenant is `n_bytes`, or what it was made with where that is less; None: that
        alone. Forgotten, sooner or later, once nothing of the tenant's is here. Raises ValueError for less than 0.
        """
        ...

    def quota_of(self, tenant: TenantName) -> float:
        """Its quota in bytes; infinite where it has none."""
        ...

    def expired(self, now: float) -> list[Key]:
        """Those unused for longer than the policy's time to live, children first; none where it has none."""
        ...

    def __len__(self) -> int: ...

    @property
    def bytes(self) -> int:
        """Of all entries that are here."""
        ...

    def bytes_of(self, tenant: TenantName) -> int:
        """Of this tenant's."""
        ...


class Entry:
    """One key and its history, shared by all orders of a policy. They read it; the policy alone writes it."""

    __slots__ = ("condemned", "cost", "depth", "end", "hits", "key", "parent", "pins", "reach", "seq", "size", "tenant",
                 "used")  # fmt: skip

    def __init__(self, key: Key, size: int, parent: Key | None, tenant: TenantName, cost: float) -> None:
        self.key = key
        self.size = size
        self.parent = parent
        self.tenant = tenant
        self.cost = cost
        self.depth = 0
        """Ancestors, as far as they were here when it came."""
        self.end = cost
        """Cost of the chain up to its end."""
        self.reach = cost
        """`end` of the longest chain through it since it was used last."""
        self.hits = 0
        self.seq = 0
        """Counts up with every use of any entry: when it was used last."""
        self.used = 0.0
        """The same by the clock."""
        self.pins = 0
        self.condemned = False
        """Named as a victim and not yet removed."""


class Order:
    """In which order evictable entries go: those on offer, which have no child here. The base does nothing."""

    def add(self, entry: Entry) -> None:
        """It is in the cache now; it is not on offer yet."""

    def use(self, entry: Entry) -> None:
        """It was used once more, on offer or not."""

    def drop(self, entry: Entry, *, evicted: bool) -> None:
        """It left the cache, after having been withdrawn; `evicted` where it was told to `leave`."""

    def leave(self, entry: Entry) -> None:
        """It was chosen and will be dropped, unless it is told to `stay`."""

    def stay(self, entry: Entry) -> None:
        """It was told to `leave`, and will not."""

    def offer(self, entry: Entry, *, due: bool, since: int) -> None:
        """It may be evicted from now on. `due`: it takes the place of a child that was chosen just now, or goes back
        after it was chosen itself; otherwise it is the newest. Uses up to sequence number `since` count as seen.
        Nothing happens where it is on offer.
        """
        raise NotImplementedError

    def withdraw(self, entry: Entry) -> None:
        """It may not be evicted for now. Nothing happens where it is not on offer."""
        raise NotImplementedError

    def choose(self, now: float) -> Entry | None:
        """Who goes next; stays on offer. Pinned ones that it meets it withdraws by itself."""
        raise NotImplementedError
