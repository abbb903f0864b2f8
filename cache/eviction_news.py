"""Tells whoever wants to know which frames left a store by themselves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from cache.store import ChunkKey

log = logging.getLogger(__name__)

Evicted = Callable[[ChunkKey], None]
"""Told of each frame that a store evicted or found damaged, after the fact: it may have been written anew by then.
Called without any lock of the store, on the thread that made it go and which waits for it. It may use the store, but
not close it."""


class EvictionNews:
    """Calls `evicted`, and logs once if that ever fails."""

    def __init__(self, evicted: Evicted | None) -> None:
        self._evicted = evicted
        self._failed = False

    def tell(self, keys: Iterable[ChunkKey]) -> None:
        """These have gone. Raises nothing."""
        if self._evicted is None:
            return
        for key in keys:
            try:
                self._evicted(key)
            except Exception as error:  # noqa: BLE001 - whatever is wrong there, the store goes on
                if not self._failed:
                    self._failed = True
                    # Not what it says: that may name the key, and with it the frame is anybody's.
                    log.warning("who is told of evicted frames failed: %s", type(error).__name__)
