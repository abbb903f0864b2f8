"""What every KV store is: frames of bytes by key, read and written in pieces. The contract of all tiers.

A frame is a header and the KV of a chunk of whole blocks (see `kv_codec`). Keys are SHA-256 digests, so whoever holds a
key may have the frame: they contain the tenant's salt and the model's fingerprint. A store does not look into frames.

Stores are synchronous and safe to be called from several threads at once. A miss is a normal answer. A failure of the
store itself is a `StoreError`, which callers count as a miss: no request fails for it. Every call ends within the
store's own deadlines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, NewType, Protocol, TypeAlias, runtime_checkable

from policies.kv_policy import NO_KV_POLICY, KvPolicy
from policies.types import Tier

ChunkKey = NewType("ChunkKey", bytes)
"""SHA-256 of a chunk's typed fields, chained to the chunk before it: 32 bytes."""

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Something contiguous that holds bytes; a memoryview has format B. Those that are read into are writable."""


def tenant_digest(tenant: str) -> bytes:
    """Under what a tenant is written down beside frames: 16 bytes that do not show its name."""
    return hashlib.blake2b(tenant.encode(), digest_size=16, person=b"disk tenant").digest()


class StoreError(Exception):
    """The store could not do it: out of reach, too slow, damaged, full beyond help. Not a miss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """Counters since the store was opened, and its size now."""

    entries: int = 0
    bytes: int = 0
    """All that counts against its bound: frames, and what it keeps besides to find them."""
    capacity: int = 0
    hits: int = 0
    misses: int = 0
    writes: int = 0
    evictions: int = 0
    errors: int = 0
    expired: int = 0
    """Frames that were dropped because their time was over; not among the evictions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameInfo:
    """What a store is told of a frame besides its bytes, for eviction and quotas."""

    parent: ChunkKey | None = None
    """The chunk before it; None: it begins a prompt. Of one chain the tail is evicted before the head."""
    tenant: str = ""
    """Whose quota it counts against; opaque."""
    n_tokens: int = 0
    """Tokens whose KV it holds: what it saves to compute."""
    wanted: bool = False
    """Somebody is expected to come back for it: it goes to the slow tiers too, at once."""
    expires: float | None = None
    """Seconds since 1970: from then on it is not here any more, unless it is used again before. None: no such time."""
    policy: KvPolicy = NO_KV_POLICY
    """What its tenant may have here, and whether the beginnings of its chains are pinned."""


class BlockStore(Protocol):
    """One tier."""

    @property
    def tier(self) -> Tier:
        """Which one."""
        ...

    def contains(self, keys: Sequence[ChunkKey]) -> int:
        """How many leading ones of `keys` are here now; they may be gone when they are read. Raises StoreError."""
        ...

    def read_into(self, key: ChunkKey, pieces: Sequence[memoryview], *, expires: float | None = None) -> bool:
        """Fill `pieces`, one after the other, with the frame; False where it is not here, or not exactly as long as the
        pieces together. What they hold then, or after an error, is undefined. Counts as a use: with `expires` (see
        `FrameInfo`) it is kept until then, be that later than before or sooner. Raises StoreError.
        """
        ...

    def write(self, key: ChunkKey, pieces: Sequence[Buffer], info: FrameInfo) -> bool:
        """Keep the frame that `pieces` make up; they may be changed once this returns. False where it was not kept: it
        is here already, too large, or over a quota. Makes room as the store's policy says. Raises StoreError.
        """
        ...

    def remove(self, key: ChunkKey) -> bool:
        """Forget it, whether read at the moment or not; False where it was not here. Raises StoreError."""
        ...

    def stats(self) -> StoreStats:
        """As of now; never raises."""
        ...

    def close(self) -> None:
        """Give everything back, once calls under way have ended. What must survive is safe by then. Calls after it
        raise StoreError; closing again does nothing.
        """
        ...


class EntryStore(BlockStore, Protocol):
    """A store of frames whose lengths their readers do not know, and who want to find them without their keys."""

    def read(self, key: ChunkKey, limit: int | None = None) -> bytes | None:
        """The frame; None where it is not here. Counts as a use. With a `limit` it is no use, and only so many bytes of
        its beginning, which are not checked. Raises StoreError.
        """
        ...

    def keys(self, prefix: bytes = b"") -> Iterator[ChunkKey]:
        """Keys of all frames that are here from beginning to end of the walk, and perhaps of others, in no order; the
        same one may come twice. With a `prefix` those that begin with it. Raises StoreError, at any step.
        """
        ...


@runtime_checkable
class Keeper(Protocol):
    """A store that keeps times, limits and pins of tenants by itself."""

    def renew(self, key: ChunkKey, info: FrameInfo) -> None:
        """A frame that may be here is in use elsewhere: what `info` says of its end and of its tenant holds from now
        on. Raises StoreError.
        """
        ...

    def expire(self, most: int) -> int:
        """Drop those whose time is over, at most so many; how many these were. Raises StoreError."""
        ...


class OwnFrames(NamedTuple):
    """Those of some tenants."""

    keys: Sequence[ChunkKey]
    complete: bool = True
    """All are among them; if not, there was no time for more."""
    untold: bool = False
    """The store does not know, or may not look."""


@runtime_checkable
class TenantStore(Protocol):
    """A store that knows whose its frames are."""

    def of_tenants(self, tenants: Collection[str], seconds: float) -> OwnFrames:
        """The frames that are here and were written with one of these as `FrameInfo.tenant`, looked for so long. Raises
        StoreError.
        """
        ...


@runtime_checkable
class Lender(Protocol):
    """A store whose frames can be read where they lie."""

    def lend(self, key: ChunkKey) -> AbstractContextManager[Sequence[memoryview] | None]:
        """The frame's bytes, read-only and unchanged until the context is left; None where it is not here. Not a use.
        Raises StoreError.
        """
        ...
