"""Circuit breakers: what one worker is allowed to have on its hands at most (Envoy's, without the retries)."""

from __future__ import annotations

from typing import Final, NamedTuple


class BreakerLimits(NamedTuple):
    """Limits for one worker; None where there is none."""

    max_connections: int | None = None
    max_pending: int | None = None
    """Requests sent to it that have no byte of an answer yet."""
    max_requests: int | None = None
    """Requests sent and not finished, the pending ones among them."""

    @property
    def bounded(self) -> bool:
        """Is there any limit?"""
        return self != (None, None, None)


NO_LIMITS: Final = BreakerLimits()


def admits(limits: BreakerLimits, connections: int, pending: int, requests: int) -> bool:
    """Whether one request more is within the limits. `connections` are those in use: an idle one can be used again."""
    return (
        (limits.max_connections is None or connections < limits.max_connections)
        and (limits.max_pending is None or pending < limits.max_pending)
        and (limits.max_requests is None or requests < limits.max_requests)
    )
