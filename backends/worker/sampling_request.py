"""Sampling fields of an OpenAI request body, as vLLM reads them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from backends.worker.messages import SamplingParams


class SamplingError(Exception):
    """A sampling field is wrong; `param` names it, the message says what was expected."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """How a request's choices are to be drawn and shown."""

    params: SamplingParams
    n: int
    stops: tuple[str, ...]
    include_stop: bool
    skip_special_tokens: bool


class _Fields(msgspec.Struct, kw_only=True):
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    min_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    seed: int | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    logprobs: bool | Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None


def read_sampling(
    body: Mapping[str, object], *, chat: bool, vocab_size: int, max_tokens_left: int, draw_seed: Callable[[], int]
) -> SamplingRequest:
    """The sampling part of a request's body. Raises SamplingError."""
    try:
        fields = msgspec.convert(dict(body), _Fields)
    except msgspec.ValidationError as error:
        name = str(error).partition("`$.")[2].partition("`")[0].partition("[")[0]
        raise SamplingError(str(error), name) from None
    most = fields.max_completion_tokens if chat and fields.max_completion_tokens is not None else fields.max_tokens
    if most is None:
        most = max_tokens_left if chat else min(16, max_tokens_left)
    if most > max_tokens_left:
        raise SamplingError(f"max_tokens is {most}, but only {max_tokens_left} fit behind the prompt", "max_tokens")
    if chat:
        logprobs = (fields.top_logprobs or 0) if fields.logprobs else None
    else:
        logprobs = None if fields.logprobs is None else int(fields.logprobs)
    params = SamplingParams(
        max_tokens=most,
        min_tokens=fields.min_tokens or 0,
        temperature=1.0 if fields.temperature is None else fields.temperature,
        top_p=1.0 if fields.top_p is None else fields.top_p,
        seed=draw_seed() if fields.seed is None else fields.seed,
        logprobs=logprobs,
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        ignore_eos=bool(fields.ignore_eos),
    )
    stops = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop or ())
    return SamplingRequest(
        params,
        fields.n or 1,
        stops,
        bool(fields.include_stop_str_in_output),
        skip_special_tokens=fields.skip_special_tokens is not False,
    )
