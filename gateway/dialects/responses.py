"""OpenAI's responses."""

from __future__ import annotations

import re
from typing import Final

import orjson

from gateway.api_error import ApiError
from gateway.dialects.base import Usage
from gateway.dialects.openai import OPENAI

_COUNT: Final = re.compile(rb'"(input_tokens|output_tokens|cached_tokens)"\s{0,8}:\s{0,8}([0-9]{1,12})').findall
_ID: Final = re.compile(rb'"id"\s{0,8}:\s{0,8}"(resp[_-][0-9A-Za-z_-]{1,250})"').search
_FIRST_SERVER_ERROR: Final = 500


def _lines_of(*events: bytes) -> tuple[bytes, ...]:
    """How a line can begin that tells one of these events: not every server names them in lines of their own."""
    forms = (b"event: %b", b"event:%b", b'data: {"type":"%b"', b'data: {"type": "%b"', b'data:{"type":"%b"')
    return tuple(form % event for event in events for form in forms)


class Responses:
    """OpenAI's way since 2025: named events, and responses that a worker keeps."""

    name: str = "responses"
    end_marks: tuple[bytes, ...] = _lines_of(b"response.completed", b"response.incomplete")
    error_marks: tuple[bytes, ...] = (*_lines_of(b"response.failed", b"error"), b'data: {"error"', b'data:{"error"')
    has_ids: bool = True

    def error_body(self, error: ApiError) -> bytes:
        """The error object, as in OpenAI's other APIs."""
        return OPENAI.error_body(error)

    def error_event(self, error: ApiError) -> bytes:
        """An `error` event with its fields twice: flat, as it is documented, and in an object, as OpenAI sends them,
        without which OpenAI's client would not raise.

        How many events came before is not known here; the number is there for typed clients, which demand one.
        """
        kind = "invalid_request_error" if error.status < _FIRST_SERVER_ERROR else "server_error"
        told = {"code": error.code or kind, "message": error.message, "param": error.param}
        event = {"type": "error", "sequence_number": 0, **told, "error": {"type": kind, **told}}
        return b"event: error\ndata: " + orjson.dumps(event) + b"\n\n"

    def usage(self, tail: bytes) -> Usage | None:
        """From the `usage` object."""
        found = {name: int(count) for name, count in _COUNT(tail)}
        if b"input_tokens" not in found:
            return None
        return Usage(found[b"input_tokens"], found.get(b"output_tokens"), found.get(b"cached_tokens"))

    def answer_id(self, piece: bytes) -> str | None:
        """The `resp_` (or `resp-`) id: a body begins with it, and so does the response in the first event."""
        found = _ID(piece)
        return None if found is None else found[1].decode()


RESPONSES: Final = Responses()
