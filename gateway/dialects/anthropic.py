"""Anthropic's messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import orjson

from gateway.api_error import ApiError
from gateway.dialects.base import Usage

_COUNT: Final = re.compile(
    rb'"(input_tokens|output_tokens|cache_read_input_tokens|cache_creation_input_tokens)"\s{0,8}:\s{0,8}([0-9]{1,12})'
).findall
_FIRST_SERVER_ERROR: Final = 500

_KINDS: Final[Mapping[int, str]] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Anthropic's names of errors, by status. Source: its API reference, "Errors"."""


class Anthropic:
    """Anthropic's way."""

    name: str = "anthropic"
    end_marks: tuple[bytes, ...] = (b"event: message_stop", b"event:message_stop")
    error_marks: tuple[bytes, ...] = (b"event: error", b"event:error")
    has_ids: bool = False

    def error_body(self, error: ApiError) -> bytes:
        """The error object."""
        other = "invalid_request_error" if error.status < _FIRST_SERVER_ERROR else "api_error"
        told = {"type": _KINDS.get(error.status, other), "message": error.message}
        return orjson.dumps({"type": "error", "error": told})

    def error_event(self, error: ApiError) -> bytes:
        """The error object as an `error` event: Anthropic's clients raise it."""
        return b"event: error\ndata: " + self.error_body(error) + b"\n\n"

    def usage(self, tail: bytes) -> Usage | None:
        """From the `usage` object. Its `input_tokens` are those that were neither read from a cache nor written to one.

        A stream tells it at the start, and at the end again, in older versions the output's tokens only.
        """
        found = {name: int(count) for name, count in _COUNT(tail)}
        if not found:
            return None
        fresh = found.get(b"input_tokens")
        cached = found.get(b"cache_read_input_tokens")
        if fresh is not None:
            fresh += (cached or 0) + found.get(b"cache_creation_input_tokens", 0)
        return Usage(fresh, found.get(b"output_tokens"), cached)

    def answer_id(self, piece: bytes) -> str | None:  # noqa: ARG002 - as `Dialect` has it
        """None: workers keep none of these answers."""
        return None


ANTHROPIC: Final = Anthropic()
