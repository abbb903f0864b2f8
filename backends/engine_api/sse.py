"""Server-sent events as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

DONE: Final = b"data: [DONE]\n\n"
"""The end of a stream of OpenAI's chunks."""


def data_event(value: Mapping[str, Any]) -> bytes:
    """An SSE event without a name."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def named_event(value: Mapping[str, Any]) -> bytes:
    """An SSE event whose name is its `type`."""
    return b"event: " + str(value["type"]).encode() + b"\ndata: " + orjson.dumps(value) + b"\n\n"


def error_events(message: str, *, status: int = 500, kind: str = "InternalServerError") -> bytes:
    """An error chunk and `[DONE]`, as vLLM ends a stream that failed."""
    error = {"message": message, "type": kind, "param": None, "code": status}
    return data_event({"error": error}) + DONE
