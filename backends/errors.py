"""What can go wrong with a worker, as errors that know their source and whether another worker may be tried."""

from __future__ import annotations

from enum import StrEnum


class UpstreamFault(StrEnum):
    """How an attempt on a worker ended before its answer was complete."""

    REFUSED = "connection refused"
    CONNECT_TIMEOUT = "connecting took too long"
    RESET = "connection closed before the first byte of the answer"
    MALFORMED = "malformed answer"
    FIRST_BYTE_TIMEOUT = "no answer in time"
    IDLE_TIMEOUT = "answer stalled"
    TRUNCATED = "answer ended early"

    @property
    def may_retry(self) -> bool:
        """True where the worker cannot have answered: the request may go to another one at no cost."""
        return self in (UpstreamFault.REFUSED, UpstreamFault.CONNECT_TIMEOUT, UpstreamFault.RESET)

    @property
    def status(self) -> int:
        """The status a client is told when no other worker is left."""
        timeouts = (
            UpstreamFault.CONNECT_TIMEOUT,
            UpstreamFault.FIRST_BYTE_TIMEOUT,
            UpstreamFault.IDLE_TIMEOUT,
        )
        return 504 if self in timeouts else 502
