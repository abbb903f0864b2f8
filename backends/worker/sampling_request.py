"""Sampling fields of an OpenAI request body, as vLLM reads them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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


def read_sampling(
    body: Mapping[str, object], *, chat: bool, vocab_size: int, max_tokens_left: int, draw_seed: Callable[[], int]
) -> SamplingRequest:
    """The sampling part of a request's body. Raises SamplingError."""
    raise SamplingError("not read yet", "temperature")
