"""Faults that a simulated worker makes on demand, for tests. Off unless it was started with `--faults`.

A fault is `kind`, `kind=number` or either followed by `@worker`, in the request header `x-simulate-fault`
(several with commas) or armed ahead by `POST /simulate/fault`. `status=503/7` asks to come back in 7 seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """What can go wrong. The number is seconds, tokens or a status, as each line says."""

    RESET = "reset"
    """TCP RST before the first byte."""
    CLOSE = "close"
    """The connection ends before the first byte."""
    STATUS = "status"
    """This status (500) and an error body; after a slash the seconds of a Retry-After."""
    STALL = "stall"
    """Silence before the first byte, for so many seconds (for ever)."""
    STALL_MID = "stall-mid"
    """Silence after so many SSE events (half of them), or in the middle of a unary body, for ever."""
    RESET_MID = "reset-mid"
    """TCP RST at that place."""
    CLOSE_MID = "close-mid"
    """The connection ends at that place: a chunked body or its length is not complete."""
    TRUNCATE = "truncate"
    """A stream that ends well at that place, but without its end; a unary body cut short."""
    EARLY_EOF = "early-eof"
    """Only the stream's last event is missing; a unary body is half its JSON, and as HTTP complete."""
    MALFORMED_SSE = "malformed-sse"
    """At that place an event that is not JSON, then the end of the stream."""
    ERROR_EVENT = "error-event"
    """At that place an error event as the dialect has it, then the end of the stream."""
    SLOW = "slow"
    """So many seconds (0.05) between two events."""
    HANG = "hang"
    """From now on the whole engine makes no progress, for so many seconds (until resumed); `/health` is well."""
    MISREPORT = "misreport"
    """All is well but for the number of cached tokens that is told (0)."""


class FaultError(ValueError):
    """A fault that nobody knows."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault and its number, if given."""

    kind: FaultKind
    number: float | None = None
    retry_after: int | None = None

    def place(self, n_events: int) -> int:
        """After how many of the events it happens; never after the last, which says that nothing is missing."""
        most = max(0, n_events - 1)
        if self.kind is FaultKind.EARLY_EOF:
            return most
        return n_events // 2 if self.number is None else min(int(self.number), most)


def parse_faults(text: str, worker: str) -> Fault | None:
    """The first fault in `text` that is meant for `worker`. Raises FaultError, naming the known kinds."""
    chosen = None
    for part in filter(None, (each.strip() for each in text.split(","))):
        what, _, target = part.partition("@")
        kind, _, numbers = what.partition("=")
        number, _, retry_after = numbers.partition("/")
        try:
            fault = Fault(FaultKind(kind), float(number) if number else None, int(retry_after) if retry_after else None)
        except ValueError:
            known = ", ".join(FaultKind)
            message = f"unknown fault {part!r}; known: {known}"
            raise FaultError(message) from None
        if chosen is None and target in ("", worker):
            chosen = fault
    return chosen
