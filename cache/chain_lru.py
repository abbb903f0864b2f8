"""What decides which frames leave a full store: the interface, and the simplest policy, LRU along chains.

A chunk's frame is worth nothing without those before it, so of a chain the tail leaves before the head, whichever was
used last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple, Protocol


class EvictionPolicy(Protocol):
    """Knows every entry of one store, and its order. Not for several threads at once: the store has a lock."""

    def admit(self, key: bytes, size: int, now: float, *, parent: bytes | None, tenant: str, cost: float) -> None:
        """A new entry of `size` bytes; `cost` is what it takes to make it again."""
        ...

    def touch(self, key: bytes, now: float) -> None:
        """It was used; an unknown key is nobody's mistake."""
        ...

    def remove(self, key: bytes) -> None:
        """It is gone, and its pins with it."""
        ...

    def pin(self, key: bytes) -> None:
        """No victim until it is unpinned as often."""
        ...

    def unpin(self, key: bytes) -> None:
        """Takes back one `pin`."""
        ...

    def victims(self, need_bytes: int, now: float) -> list[bytes]:
        """Entries to evict, in this order, that make up `need_bytes`, or as many as may go. It forgets none of them."""
        ...


class _Entry(NamedTuple):
    size: int
    parent: bytes | None


class ChainLru:
    """The least recently used entry goes, but after all that follow it in its chain."""

    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()  # the least recently used first
        self._children: dict[bytes, dict[bytes, None]] = {}
        self._pins: dict[bytes, int] = {}

    def admit(self, key: bytes, size: int, now: float, *, parent: bytes | None, tenant: str, cost: float) -> None:  # noqa: ARG002 - LRU asks for order alone
        """See `EvictionPolicy`."""
        self._entries[key] = _Entry(size, parent)
        if parent is not None:
            self._children.setdefault(parent, {})[key] = None

    def touch(self, key: bytes, now: float) -> None:  # noqa: ARG002 - LRU asks for order alone
        """See `EvictionPolicy`."""
        entry = self._entries.get(key)
        if entry is None:
            return
        self._entries.move_to_end(key)
        if entry.parent is not None:
            siblings = self._children[entry.parent]
            siblings[key] = siblings.pop(key)

    def remove(self, key: bytes) -> None:
        """See `EvictionPolicy`."""
        self._pins.pop(key, None)
        entry = self._entries.pop(key, None)
        if entry is None or entry.parent is None:
            return
        siblings = self._children[entry.parent]
        del siblings[key]
        if not siblings:
            del self._children[entry.parent]

    def pin(self, key: bytes) -> None:
        """See `EvictionPolicy`."""
        self._pins[key] = self._pins.get(key, 0) + 1

    def unpin(self, key: bytes) -> None:
        """See `EvictionPolicy`."""
        if self._pins[key] == 1:
            del self._pins[key]
        else:
            self._pins[key] -= 1

    def victims(self, need_bytes: int, now: float) -> list[bytes]:  # noqa: ARG002 - LRU asks for order alone
        """See `EvictionPolicy`."""
        chosen: list[bytes] = []
        for key in self._in_order():
            if need_bytes <= 0:
                break
            chosen.append(key)
            need_bytes -= self._entries[key].size
        return chosen

    def _in_order(self) -> Iterator[bytes]:
        """All that may go: each after its children, and those before it in the order of their use."""
        done: set[bytes] = set()
        kept: set[bytes] = set()  # pinned, or with one after them that is
        for oldest in self._entries:
            if oldest in done:
                continue
            walk = [(oldest, iter(self._children.get(oldest, ())))]
            while walk:
                key, children = walk[-1]
                child = next((one for one in children if one not in done), None)
                if child is not None:
                    walk.append((child, iter(self._children.get(child, ()))))
                    continue
                walk.pop()
                done.add(key)
                if key in self._pins or not kept.isdisjoint(self._children.get(key, ())):
                    kept.add(key)
                else:
                    yield key
