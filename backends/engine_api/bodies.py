"""Request bodies as vLLM reads them: typed, with its error texts, statuses and the field's name. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import orjson

from backends.engine_api.api_errors import ApiError

_Text = str | None


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """`/tokenize`: a prompt, or messages for the chat template."""

    model: _Text = None
    prompt: _Text = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = False


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """`/detokenize`."""

    model: _Text = None
    tokens: list[int]


class ForgetKvRequest(msgspec.Struct, kw_only=True):
    """`/v1/kv/forget`, which workers of this project have."""

    salts: list[str]
    owners: list[str] = []
    dry_run: bool = False


_Request = TypeVar("_Request")


def read_body(body: bytes, kind: type[_Request]) -> tuple[_Request, dict[str, Any]]:
    """The typed request and the whole body. Raises ApiError 400 that names the field."""
    try:
        raw = orjson.loads(body)
    except ValueError as error:
        raise ApiError(400, f"JSON decode error: {error}", param="body") from None
    if not isinstance(raw, dict):
        raise ApiError(400, "Input should be a valid dictionary", param="body")
    return typed(raw, kind), raw


def typed(raw: Mapping[str, Any], kind: type[_Request]) -> _Request:
    """A body as the request that it is. Raises ApiError 400 that names the field."""
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise ApiError(400, str(error), param=_field_of(str(error))) from None


def _field_of(message: str) -> str | None:
    found = re.search(r"at `\$\.([^`.\[]+)", message) or re.search(r"required field `([^`]+)`", message)
    return found.group(1) if found else None


def prompts_of(prompt: str | list[Any], field: str = "prompt") -> list[str | list[int]]:
    """Each prompt as text or token ids. Raises ApiError for anything else."""
    if isinstance(prompt, str):
        return [prompt]
    if prompt and all(_is_id(item) for item in prompt):
        return [prompt]
    if prompt and all(isinstance(item, str) or _is_ids(item) for item in prompt):
        return prompt
    message = f"{field} must be a text, a list of texts, a list of token ids or a list of such lists"
    raise ApiError(400, message, param=field)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_id(item) for item in value)
