"""Read request bodies as vLLM does: typed, with its error texts, statuses and the field's name. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
import orjson

from backends.simulated.api_errors import ApiError

_Text = str | None
_Stops = str | list[str] | None
_AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _Generation(msgspec.Struct, kw_only=True):
    model: _Text = None
    max_tokens: _AtLeastOne | None = None
    n: _AtLeastOne | None = 1
    stop: _Stops = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    ignore_eos: bool | None = False
    min_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = 0
    cache_salt: _Text = None

    @property
    def stops(self) -> list[str]:
        """Stop strings as a list."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(_Generation, kw_only=True):
    """`/v1/chat/completions`. Fields that only the chat template reads stay in the raw body."""

    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    max_completion_tokens: _AtLeastOne | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None

    @property
    def most_tokens(self) -> int | None:
        """The newer name wins, as in vLLM."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class CompletionRequest(_Generation, kw_only=True):
    """`/v1/completions`."""

    prompt: str | list[Any]
    echo: bool | None = False

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt as text or token ids. Raises ApiError for anything else."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if prompt and all(_is_id(item) for item in prompt):
            return [prompt]
        if prompt and all(isinstance(item, str) or _is_ids(item) for item in prompt):
            return prompt
        message = "prompt must be a text, a list of texts, a list of token ids or a list of such lists"
        raise ApiError(400, message, param="prompt")


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """`/v1/embeddings`."""

    model: _Text = None
    input: str | list[Any]
    encoding_format: str | None = "float"
    dimensions: _AtLeastOne | None = None
    cache_salt: _Text = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each input as text or token ids. Raises ApiError for anything else."""
        if self.encoding_format not in ("float", "base64", None):
            message = f"encoding_format must be float or base64, not {self.encoding_format!r}"
            raise ApiError(400, message, param="encoding_format")
        try:
            return CompletionRequest(prompt=self.input).prompts
        except ApiError as error:
            raise ApiError(400, str(error).replace("prompt", "input", 1), param="input") from None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """`/tokenize`: a prompt, or messages for the chat template."""

    model: _Text = None
    prompt: _Text = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """`/detokenize`."""

    model: _Text = None
    tokens: list[int]


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


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_id(item) for item in value)
