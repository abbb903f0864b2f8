"""The paths that clients may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gateway.dialects.base import Dialect
from gateway.dialects.openai import OPENAI


class Kind(Enum):
    """What a route asks for."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    MODELS = "models"


@dataclass(frozen=True, slots=True)
class Route:
    """One path of the API."""

    kind: Kind
    method: bytes
    dialect: Dialect = OPENAI


ROUTES: Final[Mapping[bytes, Route]] = {
    b"/v1/chat/completions": Route(Kind.CHAT, b"POST"),
    b"/v1/completions": Route(Kind.COMPLETION, b"POST"),
    b"/v1/embeddings": Route(Kind.EMBEDDING, b"POST"),
    b"/v1/models": Route(Kind.MODELS, b"GET"),
}
