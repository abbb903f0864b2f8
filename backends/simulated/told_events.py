"""Changes of the engine's block pool as the KV events that tell of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import SystemRandom
from typing import Final

from backends.simulated.block_pool import Cleared, PoolEvent, Stored
from backends.simulated.engine_config import KvBatch
from backends.simulated.sequence import SimRequest, block_ids
from cache.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, EventBatch, KvEvent
from policies.types import Tier

_TOKEN_BYTES: Final = 4
_MEDIA: Final = {Tier.DEVICE: "GPU", Tier.HOST: "CPU", Tier.DISK: "DISK", Tier.REDIS: "REDIS"}


class Teller:
    """Tells of batches, of those in which there is something to tell.

    Its hashes are the engine's, masked with a secret of this process: opaque, and different after a restart, as
    vLLM's are.
    """

    def __init__(self, publish: Callable[[EventBatch], None], *, block_size: int) -> None:
        self._publish = publish
        self._block_size = block_size
        self._secret = SystemRandom().getrandbits(64)
        self._epoch = time.time() - time.monotonic()

    def tell(self, batches: list[KvBatch]) -> None:
        """Publish what they tell, each as a batch of its own."""
        for batch in batches:
            all_told = (told(each, block_size=self._block_size, secret=self._secret) for each in batch.events)
            events = tuple(event for event in all_told if event is not None)
            if events:
                self._publish(EventBatch(self._epoch + batch.at, events, dp_rank=0))


def told(event: PoolEvent, *, block_size: int, secret: int = 0) -> KvEvent | None:
    """The event to publish; None where nobody could use it, for a prompt that is known by its hashes alone.

    `secret` hides the engine's hashes, so that readers cannot but treat them as opaque.
    """
    if isinstance(event, Cleared):
        return AllBlocksCleared()
    hashes = tuple([EngineHash(each ^ secret) for each in event.hashes])
    if not isinstance(event, Stored):
        return BlockRemoved(hashes, medium=_MEDIA[event.tier])
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
        medium=_MEDIA[event.tier],
        salt=request.salt if event.parent is None else None,
    )
