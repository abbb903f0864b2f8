"""OpenAI's chat completions, completions and embeddings."""

from __future__ import annotations

import re
from typing import Final

import orjson

from gateway.api_error import ApiError
from gateway.dialects.base import Usage

_COUNT: Final = re.compile(rb'"(prompt|completion|cached)_tokens"\s*:\s*([0-9]{1,12})').findall
_FIRST_SERVER_ERROR: Final = 500


class OpenAi:
    """OpenAI's own way."""

    name: str = "openai"
    end_marks: tuple[bytes, ...] = (b"data: [DONE]", b"data:[DONE]")
    error_marks: tuple[bytes, ...] = (b'data: {"error"', b'data:{"error"', b"event: error")
    has_ids: bool = False

    def error_body(self, error: ApiError) -> bytes:
        """The error object."""
        kind = "invalid_request_error" if error.status < _FIRST_SERVER_ERROR else "server_error"
        fields = {"message": error.message, "type": error.kind or kind, "param": error.param, "code": error.code}
        return orjson.dumps({"error": fields})

    def error_event(self, error: ApiError) -> bytes:
        """The error object as an event: OpenAI's clients raise it."""
        return b"data: " + self.error_body(error) + b"\n\n"

    def usage(self, tail: bytes) -> Usage | None:
        """From the `usage` object."""
        start = tail.rfind(b'"usage"')
        if start < 0:
            return None
        prompt = completion = cached = None
        for name, count in _COUNT(tail, start):
            if name == b"prompt":
                prompt = int(count)
            elif name == b"completion":
                completion = int(count)
            else:
                cached = int(count)
        return None if prompt is None else Usage(prompt, completion, cached)

    def answer_id(self, piece: bytes) -> str | None:  # noqa: ARG002 - as `Dialect` has it
        """None: workers keep none of these answers."""
        return None


OPENAI: Final = OpenAi()
