"""Token ids from a worker's `/tokenize`: its answers, and their bounded memory."""

from __future__ import annotations

from array import array

import pytest

from cache.remote_tokens import RemoteTokenizeError, read_tokens
from policies.types import TokenIds


def ids(*tokens: int) -> TokenIds:
    return TokenIds(array("I", tokens).tobytes())


ANSWERS = {
    "vllm": b'{"count":3,"max_model_len":8192,"tokens":[1,2,4294967295],"token_strs":null}',
    "sglang": b'{"tokens": [1, 2, 4294967295], "count": 3, "max_model_len": 4096}',
}


@pytest.mark.parametrize("engine", ANSWERS)
def test_answers(engine: str) -> None:
    body = ANSWERS[engine]
    assert read_tokens(body, max_tokens=3) == ids(1, 2, 2**32 - 1)
    for end in range(len(body)):
        with pytest.raises(RemoteTokenizeError):
            read_tokens(body[:end], max_tokens=3)
    with pytest.raises(RemoteTokenizeError, match="3 tokens"):
        read_tokens(body, max_tokens=2)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"tokens":null}', b'{"tokens":[[1]]}', b'{"tokens":["1"]}', b'{"tokens":[-1]}',
     b'{"tokens":[4294967296]}', b'{"tokens":[1.5]}', b'{"tokens":"\xff"}', b'{"tokens":' + b"[" * 100_000,
     b'{"tokens":[' + b"1," * 100_000 + b"1]}"],
)  # fmt: skip
def test_answers_that_are_none(body: bytes) -> None:
    with pytest.raises(RemoteTokenizeError):
        read_tokens(body, max_tokens=1000)
