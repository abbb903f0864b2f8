"""Token ids from a worker's `/tokenize`: its answers, and their bounded memory."""

from __future__ import annotations

import gc
import tracemalloc
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.remote_tokens import RemoteTokenizeError, RemoteTokens, read_tokens
from cache.text_blocks import completion_text
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


def test_an_answer_is_found_again() -> None:
    memory = RemoteTokens(max_bytes=10_000)
    text = completion_text("a")
    assert memory.find(text) is None
    memory.remember(text, ids(1))
    memory.remember(text, ids(2), add_special_tokens=True)
    assert (memory.find(text), memory.find(text, add_special_tokens=True)) == (ids(1), ids(2))
    memory.remember(text, ids(3, 4))
    assert memory.find(text) == ids(3, 4)
    assert (memory.hits, memory.misses, len(memory)) == (3, 1, 2)


def test_an_answer_beyond_the_bound_is_not_kept() -> None:
    memory = RemoteTokens(max_bytes=1000)
    memory.remember(completion_text("a"), ids(1))
    memory.remember(completion_text("b"), ids(*range(300)))
    assert (len(memory), memory.find(completion_text("a"))) == (1, ids(1))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60), st.booleans()), max_size=40))
def test_it_keeps_what_was_used_last(steps: list[tuple[int, int, bool]]) -> None:
    memory = RemoteTokens(max_bytes=1500)
    recent: dict[int, TokenIds] = {}
    for prompt, length, asked in steps:
        text = completion_text(str(prompt))
        if asked:
            found = memory.find(text)
            assert found is None or found == recent[prompt]
            assert (found is None) or next(reversed(memory._entries.values())) == found
        else:
            recent[prompt] = ids(*range(length))
            memory.remember(text, recent[prompt])
            assert memory.find(text) == recent[prompt]
        assert memory.bytes <= 1500


def test_it_counts_its_memory() -> None:
    memory = RemoteTokens(max_bytes=1 << 20)
    gc.collect()
    tracemalloc.start()
    for at in range(5000):
        memory.remember(completion_text(str(at)), ids(*range(200)))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert memory.bytes <= 1 << 20
    assert 0.8 < used / memory.bytes < 1.2
