"""Does a worker cache what we think it caches? Compares its reported cached tokens with the prediction. Pure."""

from __future__ import annotations

from typing import Final

_WEIGHT: Final = 0.05
"""Of the newest request in the average: about the last twenty count."""
_LEAST_REQUESTS: Final = 20
_APART: Final = 0.2
_TOGETHER: Final = 0.1


class CacheDrift:
    """One worker's drift: predicted minus reported, as a share of the prompt, averaged over recent requests."""

    __slots__ = ("_requests", "apart", "share")

    def __init__(self) -> None:
        self.share = 0.0
        self.apart = False
        self._requests = 0

    def compare(self, predicted: int, reported: int, prompt: int) -> bool:
        """Take one request's tokens into the average; True where the two have just drifted apart or come together."""
        self.share += _WEIGHT * ((predicted - reported) / (prompt or 1) - self.share)
        self._requests += 1
        size = abs(self.share)
        grown = size > _APART and self._requests >= _LEAST_REQUESTS
        changed = size < _TOGETHER if self.apart else grown
        self.apart ^= changed
        return changed
