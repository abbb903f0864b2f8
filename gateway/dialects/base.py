"""What differs from one client dialect to another in an answer."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gateway.api_error import ApiError


class Usage(NamedTuple):
    """Tokens as a worker reported them; None where it did not."""

    prompt: int | None
    completion: int | None
    cached: int | None


NO_USAGE = Usage(None, None, None)


class Dialect(Protocol):
    """One dialect. Stateless; every method is pure."""

    name: str
    end_marks: tuple[bytes, ...]
    """Beginnings of the lines by which a stream says that it is complete."""
    error_marks: tuple[bytes, ...]
    """Beginnings of the lines by which a stream says that it has failed."""
    data_starts: tuple[bytes, ...]
    """With which of these bytes the payload of every event begins, where it is well formed."""

    def error_body(self, error: ApiError) -> bytes:
        """A JSON body."""

    def error_event(self, error: ApiError) -> bytes:
        """A whole SSE event, its empty line included, after which the stream ends."""

    def answer_id(self, piece: bytes) -> str | None:
        """The id by which later requests follow this answer, from its first bytes; None where there is no such."""

    def usage(self, tail: bytes) -> Usage | None:
        """The token counts in the last bytes of an answer, or in a piece of a stream; None where there are none."""
