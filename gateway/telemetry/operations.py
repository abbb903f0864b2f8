"""What OpenTelemetry calls the kinds of request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_OPERATIONS: Final[Mapping[str, str]] = {
    "chat": "chat",
    "responses": "chat",
    "messages": "chat",
    "completion": "text_completion",
    "embedding": "embeddings",
}


def operation_of(kind: str) -> str:
    """`gen_ai.operation.name` of a route's kind: the well-known value where there is one, else the kind itself."""
    return _OPERATIONS.get(kind, kind)
