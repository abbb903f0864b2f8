"""The names every floor shares: ids, hashes and tiers, as types that mypy can tell apart."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, NewType

WorkerId = NewType("WorkerId", str)
"""A worker's name, unique in the fleet."""

BlockHash = NewType("BlockHash", int)
"""Chained hash of one full block, 64 bits, unsigned. It only steers: it never fetches data."""

TokenIds = NewType("TokenIds", bytes)
"""Token ids as little-endian unsigned 32-bit integers, four bytes each: hashed without conversion."""


class Tier(StrEnum):
    """Where a worker holds a block, fastest first."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
    REDIS = "redis"


class TierRun(NamedTuple):
    """Consecutive blocks of a prompt that a worker has on one tier."""

    tier: Tier
    blocks: int
