"""Sampling fields of an OpenAI request body: names and ranges of OpenAI, and vLLM's where OpenAI has none. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeGuard

import msgspec
import xxhash

from backends.worker.messages import SamplingParams

MOST_CHOICES: Final = 128
MOST_LOGPROBS: Final = 20
MOST_STOPS: Final = 64
MOST_STOP_CHARS: Final = 1024
MOST_STOP_IDS: Final = 1024

_COMPLETION_TOKENS: Final = 16
"""What OpenAI's completions take where `max_tokens` is not given; a chat goes on as far as it can."""


class SamplingError(Exception):
    """A sampling field is wrong; `param` names it, the message says what was expected."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """How a request's choices are to be drawn and shown."""

    params: SamplingParams
    """Of the first choice; `choice` has those of any other."""
    n: int
    stops: tuple[str, ...]
    include_stop: bool
    skip_special_tokens: bool

    def choice(self, number: int) -> SamplingParams:
        """Parameters of choice `number`, from 0. Each has a seed of its own, which follows from the first's."""
        if not number:
            return self.params
        packed = struct.pack("<QQ", self.params.seed, number)
        # Another XXH3 seed than that of the tokens' numbers, so that no choice's seed is one of those.
        return msgspec.structs.replace(self.params, seed=xxhash.xxh3_64_intdigest(packed, seed=1))


def read_sampling(
    body: Mapping[str, object], *, chat: bool, vocab_size: int, max_tokens_left: int, draw_seed: Callable[[], int]
) -> SamplingRequest:
    """The sampling part of a request's body. A field that is null is as one that is not there.

    `max_tokens_left` is what the model's length leaves behind the prompt, from 1. `draw_seed` is called if the body
    has no seed. Raises SamplingError.
    """
    max_tokens = _max_tokens(body, max_tokens_left, chat=chat)
    seed = _integer(body, "seed", -(2**63), 2**64 - 1)
    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=_min_tokens(body, max_tokens),
        temperature=_number(body, "temperature", 0, 2, default=1.0),
        top_p=_above_zero(body, "top_p", 1),
        top_k=max(_integer(body, "top_k", -1, None) or 0, 0),
        min_p=_number(body, "min_p", 0, 1, default=0.0),
        presence_penalty=_number(body, "presence_penalty", -2, 2, default=0.0),
        frequency_penalty=_number(body, "frequency_penalty", -2, 2, default=0.0),
        repetition_penalty=_above_zero(body, "repetition_penalty", 2),
        seed=(draw_seed() if seed is None else seed) % 2**64,
        logit_bias=_logit_bias(body, vocab_size),
        logprobs=_chat_logprobs(body) if chat else _integer(body, "logprobs", 0, MOST_LOGPROBS),
        stop_token_ids=_stop_token_ids(body, vocab_size),
        ignore_eos=_flag(body, "ignore_eos", default=False),
    )
    return SamplingRequest(
        params=params,
        n=_integer(body, "n", 1, MOST_CHOICES) or 1,
        stops=_stops(body),
        include_stop=_flag(body, "include_stop_str_in_output", default=False),
        skip_special_tokens=_flag(body, "skip_special_tokens", default=True),
    )


# --- fields with rules of their own ------------------------------------------------------------------------


def _max_tokens(body: Mapping[str, object], left: int, *, chat: bool) -> int:
    name = "max_completion_tokens" if chat and body.get("max_completion_tokens") is not None else "max_tokens"
    given = _integer(body, name, 1, None)
    if given is None:
        return left if chat else min(_COMPLETION_TOKENS, left)
    if given > left:
        raise SamplingError(f"{name} is {given}, but only {left} tokens fit behind this prompt", name)
    return given


def _min_tokens(body: Mapping[str, object], max_tokens: int) -> int:
    least = _integer(body, "min_tokens", 0, None) or 0
    if least > max_tokens:
        raise SamplingError(f"min_tokens must be at most max_tokens, which is {max_tokens}, not {least}", "min_tokens")
    return least


def _above_zero(body: Mapping[str, object], name: str, most: float) -> float:
    value = _number(body, name, 0, most, default=1.0)
    if not value:
        raise SamplingError(f"{name} must be above 0 and at most {most:g}, not 0", name)
    return value


def _logit_bias(body: Mapping[str, object], vocab_size: int) -> dict[int, float]:
    name = "logit_bias"
    given = body.get(name)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise SamplingError(f"{name} must be an object from token ids to numbers, not {_told(given)}", name)
    biases = {}
    for key, value in given.items():
        # The length first: int() of a text without end is slow.
        is_id = isinstance(key, str) and len(key) <= 10 and key.isascii() and key.isdecimal()
        if not is_id or int(key) >= vocab_size:
            raise SamplingError(f"{name}'s keys must be token ids from 0 to {vocab_size - 1}", name)
        if not _is_number(value) or not -100 <= value <= 100:
            raise SamplingError(
                f"{name} of token {int(key)} must be a number from -100 to 100, not {_told(value)}", name
            )
        biases[int(key)] = float(value)
    return biases


def _chat_logprobs(body: Mapping[str, object]) -> int | None:
    wanted = _flag(body, "logprobs", default=False)
    top = _integer(body, "top_logprobs", 0, MOST_LOGPROBS) or 0
    if top and not wanted:
        raise SamplingError("top_logprobs needs logprobs to be true", "top_logprobs")
    return top if wanted else None


def _stop_token_ids(body: Mapping[str, object], vocab_size: int) -> tuple[int, ...]:
    name = "stop_token_ids"
    given = body.get(name)
    if given is None:
        return ()
    if not isinstance(given, list) or len(given) > MOST_STOP_IDS:
        raise SamplingError(f"{name} must be a list of at most {MOST_STOP_IDS} token ids, not {_told(given)}", name)
    for value in given:
        if not _is_int(value) or not 0 <= value < vocab_size:
            raise SamplingError(f"{name} must be token ids from 0 to {vocab_size - 1}, not {_told(value)}", name)
    return tuple(dict.fromkeys(given))


def _stops(body: Mapping[str, object]) -> tuple[str, ...]:
    given = body.get("stop")
    if given is None:
        return ()
    stops = [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or len(stops) > MOST_STOPS:
        raise SamplingError(f"stop must be a text or a list of at most {MOST_STOPS}, not {_told(given)}", "stop")
    for value in stops:
        if not isinstance(value, str) or not 0 < len(value) <= MOST_STOP_CHARS:
            message = f"each stop must be a text of 1 to {MOST_STOP_CHARS} characters, not {_told(value)}"
            raise SamplingError(message, "stop")
    return tuple(dict.fromkeys(stops))


# --- fields by type and range, both ends of which belong to it ---------------------------------------------


def _number(body: Mapping[str, object], name: str, low: float, high: float, *, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if not _is_number(value) or not low <= value <= high:
        raise SamplingError(f"{name} must be a number from {low:g} to {high:g}, not {_told(value)}", name)
    return float(value)


def _integer(body: Mapping[str, object], name: str, low: int, high: int | None) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if not _is_int(value) or value < low or (high is not None and value > high):
        expected = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise SamplingError(f"{name} must be an integer {expected}, not {_told(value)}", name)
    return value


def _flag(body: Mapping[str, object], name: str, *, default: bool) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise SamplingError(f"{name} must be true or false, not {_told(value)}", name)
    return value


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[int | float]:
    return _is_int(value) or isinstance(value, float)


def _told(value: object) -> str:
    """A value in an error: a number as it is, anything else by its kind and size."""
    match value:
        case None | True | False:
            return {None: "null", True: "true", False: "false"}[value]
        case int() | float():
            return repr(value)[:40]
        case str():
            return f"a text of {len(value)} characters"
        case list():
            return f"a list of {len(value)}"
        case _:
            return "an object"
