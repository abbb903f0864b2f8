"""What differs from one client dialect to another in an answer."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gateway.api_error import ApiError


class Usage(NamedTuple):
    """Tokens as a worker reported them; None where it did not."""

    prompt: int | None
    """Cached ones included, in every dialect."""
    completion: int | None
    cached: int | None

    def updated(self, newer: Usage) -> Usage:
        """These counts with what a later piece of the same answer tells: some dialects tell them in parts."""
        return Usage(*(old if new is None else new for old, new in zip(self, newer, strict=True)))


NO_USAGE = Usage(None, None, None)


class Dialect(Protocol):
    """One dialect. Stateless; every method is pure."""

    name: str
    end_marks: tuple[bytes, ...]
    """Beginnings of the lines by which a stream says that it is complete, once the event they begin is whole."""
    error_marks: tuple[bytes, ...]
    """Beginnings of the lines by which a stream says that it has failed."""
    has_ids: bool
    """May later requests refer to an answer by its id?"""

    def error_body(self, error: ApiError) -> bytes:
        """A JSON body."""

    def error_event(self, error: ApiError) -> bytes:
        """A whole SSE event, its empty line included, after which the stream ends."""

    def usage(self, tail: bytes) -> Usage | None:
        """The token counts in the last bytes of an answer, or in a piece of a stream; None where there are none.

        No piece without the bytes `"usage"` tells any.
        """

    def answer_id(self, piece: bytes) -> str | None:
        """The id by which later requests may refer to the answer that begins with `piece`; None where there is none,
        or where it is cut off.
        """
