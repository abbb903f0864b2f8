"""What routing needs from a request. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from gateway.api_error import ApiError
from gateway.dialects.anthropic_chat import anthropic_chat
from gateway.dialects.responses_chat import responses_chat
from gateway.multipart import form_field
from gateway.routes import GENERATES, Kind, Route, response_id

_MAX_NAME: Final = 1024


@dataclass(slots=True)
class Call:
    """A request, read as far as routing needs it."""

    kind: Kind
    model: str | None
    """None where it names none. A stored response or a path passed through may then go to any worker."""
    streams: bool
    fields: dict[str, object] = field(repr=False)
    """Of a body with a prompt, as the client sent them."""
    follows: str | None = None
    """The id of a response whose worker knows what this request is about."""

    @property
    def session_hint(self) -> str | None:
        """What the client itself says of which requests belong together."""
        return _session_hint(self.kind, self.fields) if self.kind in GENERATES else None

    @property
    def partial(self) -> bool:
        """Is part of the prompt not in the body, but with the worker that made an earlier response?"""
        return self.kind is Kind.RESPONSES and self.follows is not None

    @property
    def generates(self) -> bool:
        """Does it ask a model for text?"""
        return self.kind in GENERATES

    @property
    def has_prompt(self) -> bool:
        """Is there a text that a model is to read?"""
        return self.kind in GENERATES or self.kind is Kind.EMBEDDING

    @property
    def may_go_anywhere(self) -> bool:
        """Can a worker of any model take it?"""
        return self.model is None and self.kind in _ANY_MODEL

    @property
    def is_batch(self) -> bool:
        """Does it ask for the answers to several prompts?"""
        prompt = self.fields.get("prompt")
        return type(prompt) is list and len(prompt) > 1 and type(prompt[0]) in (str, list)

    @property
    def chat(self) -> Mapping[str, object]:
        """The same request as one to chat completions: `messages`, `tools` and what else a template reads.

        Shaped anew at each use, in a time that grows with `unshaped`.

        Raises:
            TemplateError: The request has another shape than its dialect's.
        """
        if self.kind is Kind.RESPONSES:
            return responses_chat(self.fields)
        if self.kind is Kind.MESSAGES:
            return anthropic_chat(self.fields)
        return self.fields

    @property
    def unshaped(self) -> Mapping[str, object]:
        """What `chat` is made of, under the names of a chat: to measure it beforehand."""
        fields = self.fields
        if self.kind is Kind.RESPONSES:
            return {"messages": [fields.get("input"), fields.get("instructions")], "tools": fields.get("tools")}
        if self.kind is Kind.MESSAGES:
            return {"messages": [fields.get("messages"), fields.get("system")], "tools": fields.get("tools")}
        return fields


_ANY_MODEL: Final = (Kind.STORED, Kind.PASSTHROUGH)


def read_call(route: Route, body: bytes, path: bytes = b"") -> Call:
    """Read a request for a worker; `path` is its path, where the route has an id in it.

    Raises:
        ApiError: 400 where the body must be a JSON object and is not, or where `model` or `previous_response_id` is
            not a string. Whatever else the worker may object to is the worker's to say.
    """
    kind = route.kind
    if not route.has_body:
        model = _passed_model(body) if kind is Kind.PASSTHROUGH else None
        return Call(kind, model, False, {}, response_id(path) if kind is Kind.STORED else None)
    fields = _json_object(body)
    named = fields.get("model")
    model = named if type(named) is str else _string(fields, "model")
    if kind in GENERATES:
        return Call(
            kind,
            model,
            fields.get("stream") is True,
            fields,
            _string(fields, "previous_response_id") if kind is Kind.RESPONSES else None,
        )
    return Call(kind, model, False, fields if kind is Kind.EMBEDDING else {})


def _json_object(body: bytes) -> dict[str, object]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        reason = "the body is empty" if not body else str(error)
        raise ApiError(400, f"The request body is not valid JSON: {reason}.", code="invalid_json") from None
    if type(fields) is not dict:
        got = _JSON_NAMES.get(type(fields), "null")
        raise ApiError(400, f"The request body must be a JSON object, not {got}.", code="invalid_body")
    return fields


def _passed_model(body: bytes) -> str | None:
    """The model that a body names which is passed through: a JSON object, or a form. None in any other."""
    if body.startswith(b"--"):
        value = form_field(body, b"model")
        return None if value is None else value.decode("utf-8", "replace")[:_MAX_NAME]
    if not body[:64].lstrip().startswith(b"{"):
        return None
    try:
        model = orjson.loads(body).get("model")
    except orjson.JSONDecodeError:
        return None
    return model if type(model) is str else None


def _session_hint(kind: Kind, fields: Mapping[str, object]) -> str | None:
    if kind is Kind.MESSAGES:
        metadata = fields.get("metadata")
        hints = [metadata.get("user_id")] if type(metadata) is dict else []
    else:
        hints = [fields.get("prompt_cache_key"), fields.get("user")]
    for hint in hints:
        if type(hint) is str and hint:
            return hint
    return None


def _string(fields: Mapping[str, object], name: str) -> str | None:
    value = fields.get(name)
    if value is None or type(value) is str:
        return value
    got = _JSON_NAMES.get(type(value), "null")
    raise ApiError(400, f"`{name}` must be a string, not {got}.", param=name, code="invalid_type")


_JSON_NAMES: Final[Mapping[type, str]] = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    dict: "an object",
}
