"""What routing needs from a request body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from gateway.api_error import ApiError
from gateway.routes import Kind


@dataclass(slots=True)
class Call:
    """A request body, read as far as routing needs it."""

    kind: Kind
    model: str | None
    streams: bool
    fields: dict[str, object]
    follows: str | None = None
    """Id of an earlier answer, which only the worker that gave it knows."""
    session_hint: str | None = None
    """What the body says that keeps requests together."""
    repeatable: bool = True
    """May another worker be asked after one has received it?"""

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
