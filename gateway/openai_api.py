"""The OpenAI dialect: what routing needs from a request body, and errors as OpenAI's clients know them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

import orjson


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


ROUTES: Final[Mapping[bytes, Route]] = {
    b"/v1/chat/completions": Route(Kind.CHAT, b"POST"),
    b"/v1/completions": Route(Kind.COMPLETION, b"POST"),
    b"/v1/embeddings": Route(Kind.EMBEDDING, b"POST"),
    b"/v1/models": Route(Kind.MODELS, b"GET"),
}


class ApiError(Exception):
    """An answer of our own that is not what the client hoped for."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, fields: bytes = b""
    ) -> None:
        """`fields` are header lines that belong to the status, each one led by CRLF."""
        super().__init__(message)
        self.fields = fields
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    def body(self) -> bytes:
        """The OpenAI error object."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return orjson.dumps({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})


@dataclass(slots=True)
class Call:
    """A request body, read as far as routing needs it."""

    kind: Kind
    model: str | None
    streams: bool
    fields: dict[str, object]

    @property
    def is_batch(self) -> bool:
        """Does it ask for the answers to several prompts?"""
        prompt = self.fields.get("prompt")
        return type(prompt) is list and len(prompt) > 1 and type(prompt[0]) in (str, list)


def read_call(kind: Kind, body: bytes) -> Call:
    """Read a JSON request body.

    Raises:
        ApiError: 400 where it is not valid JSON, not an object, or `model` is not a string. Whatever else the
            worker may object to is the worker's to say.
    """
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        reason = "the body is empty" if not body else str(error)
        raise ApiError(400, f"The request body is not valid JSON: {reason}.", code="invalid_json") from None
    if type(fields) is not dict:
        got = _JSON_NAMES.get(type(fields), "null")
        raise ApiError(400, f"The request body must be a JSON object, not {got}.", code="invalid_body")
    model = fields.get("model")
    if model is not None and type(model) is not str:
        got = _JSON_NAMES.get(type(model), "null")
        raise ApiError(400, f"`model` must be a string, not {got}.", param="model", code="invalid_type")
    return Call(kind, model, fields.get("stream") is True and kind is not Kind.EMBEDDING, fields)


_JSON_NAMES: Final[Mapping[type, str]] = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    dict: "an object",
}
