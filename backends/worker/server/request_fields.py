"""Fields of a request that the server itself reads, and those that it cannot honour. Pure.

How tokens are drawn and where a text ends, `sampling_request` reads; what a chat template is given,
`cache.chat_template`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from backends.engine_api.api_errors import ApiError
from backends.engine_api.bodies import StreamOptions
from cache.kv_events import MAX_NAME_CHARS

_NOTHING: Final[tuple[object, ...]] = (None, False, "", [], {})
_UNSUPPORTED: Final = (
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "kv_transfer_params",
    "logits_processors",
    "prompt_embeds",
    "prompt_logprobs",
    "structured_outputs",
    "truncate_prompt_tokens",
    "use_beam_search",
)
_UNSUPPORTED_IN_CHATS: Final = ("audio", "chat_template", "echo", "function_call", "functions", "web_search_options")
_TEXT_ONLY: Final = (None, ["text"])


class _Fields(msgspec.Struct, kw_only=True):
    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)] | None = None
    """No longer than a KV event may tell it."""
    priority: Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)] | None = 0
    return_token_ids: bool | None = False
    response_format: dict[str, Any] | None = None


class ChatFields(_Fields, kw_only=True):
    """Of `/v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    modalities: list[str] | None = None


class CompletionFields(_Fields, kw_only=True):
    """Of `/v1/completions`."""

    prompt: str | list[Any]
    echo: bool | None = False
    best_of: int | None = None
    suffix: str | None = None


def check_chat(fields: ChatFields, raw: Mapping[str, object]) -> None:
    """Raise ApiError for what a chat asks for and would not get."""
    _check_common(fields, raw, _UNSUPPORTED_IN_CHATS)
    if fields.modalities not in _TEXT_ONLY:
        raise ApiError(400, "Only text can be generated.", param="modalities")
    if isinstance(fields.tool_choice, dict) or fields.tool_choice not in (None, "none", "auto"):
        raise ApiError(400, "A tool call cannot be forced on this model.", param="tool_choice")
    if fields.tools and fields.tool_choice != "none":
        message = 'Tool calls of this model are not parsed: set tool_choice to "none", or leave tools out.'
        raise ApiError(400, message, param="tools")


def check_completion(fields: CompletionFields, raw: Mapping[str, object]) -> None:
    """Raise ApiError for what a completion asks for and would not get."""
    _check_common(fields, raw, ())
    if fields.suffix:
        raise ApiError(400, "A suffix cannot be honoured.", param="suffix")
    if fields.best_of is not None and fields.best_of != (raw.get("n") or 1):
        raise ApiError(400, "best_of must be n: every answer that is made is returned.", param="best_of")
    if fields.echo and raw.get("logprobs") is not None:
        raise ApiError(400, "Log probabilities of an echoed prompt are not computed.", param="echo")


def _check_common(fields: _Fields, raw: Mapping[str, object], more: tuple[str, ...]) -> None:
    for name in (*_UNSUPPORTED, *more):
        if raw.get(name) not in _NOTHING:
            raise ApiError(400, f"{name} is not supported by this worker.", param=name)
    kind = (fields.response_format or {}).get("type", "text")
    if kind != "text":
        raise ApiError(400, "Only a response_format of type `text` can be honoured.", param="response_format")
    if fields.stream_options is not None and not fields.stream:
        raise ApiError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
