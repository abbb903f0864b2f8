"""A change of the engine's block pool as the KV event that tells of it. Pure."""

from __future__ import annotations

from typing import Final

from backends.simulated.block_pool import Cleared, PoolEvent, Stored
from backends.simulated.sequence import SimRequest, block_ids
from cache.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, KvEvent

_TOKEN_BYTES: Final = 4
_MEDIUM: Final = "GPU"


def told(event: PoolEvent, *, block_size: int, secret: int = 0) -> KvEvent | None:
    """The event to publish; None where nobody could use it, for a prompt that is known by its hashes alone.

    `secret` hides the engine's hashes, so that readers cannot but treat them as opaque.
    """
    if isinstance(event, Cleared):
        return AllBlocksCleared()
    hashes = tuple([EngineHash(each ^ secret) for each in event.hashes])
    if not isinstance(event, Stored):
        return BlockRemoved(hashes, medium=_MEDIUM)
    request = event.owner
    assert isinstance(request, SimRequest), "the engine stores with nothing else"
    width = block_size * _TOKEN_BYTES
    start = event.first_block * width
    ids = block_ids(request, start, start + len(hashes) * width)
    if len(ids) != len(hashes) * width:
        return None
    return BlockStored(
        hashes,
        None if event.parent is None else EngineHash(event.parent ^ secret),
        ids,
        block_size,
        adapter=request.adapter,
        medium=_MEDIUM,
        salt=request.salt if event.parent is None else None,
    )
