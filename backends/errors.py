"""What can go wrong with a worker, as errors that know their source and whether another worker may be tried."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class UpstreamFault(StrEnum):
    """How an attempt on a worker ended before its answer was complete."""

    REFUSED = "connection refused"
    CONNECT_TIMEOUT = "connecting took too long"
    RESET = "connection closed before the first byte of the answer"
    MALFORMED = "malformed answer"
    FIRST_BYTE_TIMEOUT = "no answer in time"
    IDLE_TIMEOUT = "answer stalled"
    TRUNCATED = "answer ended early"
    SERVER_ERROR = "worker error"
    HUNG = "worker makes no progress"
    REQUEST_TIMEOUT = "request took too long"

    @property
    def unreached(self) -> bool:
        """True where the worker never had the request: it may go to another one whatever it asks for."""
        return self in _UNREACHED

    @property
    def free(self) -> bool:
        """True where another try costs the fleet nothing: no worker is at work on the request."""
        return self in _FREE

    @property
    def gone(self) -> bool:
        """True where the worker seems to have gone away, or not to have come yet."""
        return self in _GONE

    @property
    def status(self) -> int:
        """The status a client is told when no other worker is left."""
        timeouts = (
            UpstreamFault.CONNECT_TIMEOUT,
            UpstreamFault.FIRST_BYTE_TIMEOUT,
            UpstreamFault.IDLE_TIMEOUT,
            UpstreamFault.HUNG,
            UpstreamFault.REQUEST_TIMEOUT,
        )
        return 504 if self in timeouts else 502


_UNREACHED: Final = frozenset({UpstreamFault.REFUSED, UpstreamFault.CONNECT_TIMEOUT})
_GONE: Final = _UNREACHED | {UpstreamFault.RESET}
_FREE: Final = _GONE | {UpstreamFault.HUNG}
