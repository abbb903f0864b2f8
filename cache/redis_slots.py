"""Which node of a Redis Cluster serves which slot, as far as it is known. Pure.

https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from cache.redis_control import SlotRange
from cache.redis_settings import Address

N_SLOTS: Final = REDIS_CLUSTER_HASH_SLOTS


class SlotTable:
    """Who shares it takes turns."""

    def __init__(self) -> None:
        self._owners: list[Address | None] = [None] * N_SLOTS

    def owner(self, key: bytes) -> Address | None:
        """Who serves the key's slot; None where nobody is known."""
        return self._owners[key_slot(key)]

    def moved(self, slot: int, address: Address) -> None:
        """It has another owner."""
        self._owners[slot] = address

    def replace(self, ranges: Iterable[SlotRange]) -> None:
        """All that was known is forgotten."""
        self._owners = [None] * N_SLOTS
        for first, last, address in ranges:
            last = min(last, N_SLOTS - 1)  # noqa: PLW2901 - told by a server
            self._owners[first : last + 1] = [address] * (last + 1 - first)

    def addresses(self) -> set[Address]:
        """All owners."""
        return {owner for owner in self._owners if owner is not None}
