"""The bodies of OpenAI's classic routes, as far as a simulated engine heeds them. Pure."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from backends.engine_api.api_errors import ApiError
from backends.engine_api.bodies import StreamOptions, prompts_of

_Text = str | None
_Stops = str | list[str] | None
_AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


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
        return prompts_of(self.prompt)


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
        return prompts_of(self.input, "input")
