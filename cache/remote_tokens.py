"""Token ids in the answer of a worker's own `/tokenize`. Pure; the answer is not trusted with our memory."""

from __future__ import annotations

from array import array
from sys import byteorder

import msgspec

from policies.types import TokenIds


class RemoteTokenizeError(Exception):
    """A worker's answer that holds no token ids."""


class _Answer(msgspec.Struct):
    tokens: list[int]


_decoder = msgspec.json.Decoder(_Answer)


def read_tokens(body: bytes, *, max_tokens: int) -> TokenIds:
    """The ids in the answer of vLLM's or SGLang's `/tokenize`: `{"tokens": [...], "count": ...}`.

    Raises RemoteTokenizeError when there are none, more than `max_tokens`, or one is beyond 32 bits.
    """
    if len(body) > 32 * max_tokens + 4096:
        message = f"an answer of {len(body)} bytes to /tokenize; the prompt may have {max_tokens} tokens"
        raise RemoteTokenizeError(message)
    try:
        ids = array("I", _decoder.decode(body).tokens)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        message = "not an answer to /tokenize"
        raise RemoteTokenizeError(message) from error
    if len(ids) > max_tokens:
        message = f"{len(ids)} tokens from /tokenize; the prompt may have {max_tokens}"
        raise RemoteTokenizeError(message)
    if byteorder == "big":
        ids.byteswap()
    return TokenIds(ids.tobytes())
