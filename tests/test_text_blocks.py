"""Text mode: what shares leading hashes, and what must not."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.block_hash import ChainKey, encode_key, extend_chain, root_hash
from cache.prefix_index import PrefixIndex
from cache.text_blocks import TEXT_CHAIN, TextBytes, chat_text, completion_text, hash_text, text_root
from policies.types import BlockHash, TokenIds, WorkerId

KEY = ChainKey("m", 16)
LONG = "All happy families are alike; each unhappy family is unhappy in its own way. " * 20


def shared(one: TextBytes, other: TextBytes, key: ChainKey = KEY) -> int:
    """Leading hashes in common."""
    hashes = zip(hash_text(key, one).hashes, hash_text(key, other).hashes, strict=False)
    return next((at for at, (a, b) in enumerate(hashes) if a != b), min(len(one), len(other)) // (4 * key.block_size))


def message(role: str, content: object, **more: object) -> dict[str, object]:
    return {"role": role, "content": content, **more}


def chat(*messages: object, **fields: object) -> TextBytes:
    return chat_text({"model": "m", "messages": list(messages), **fields})


def test_the_hashes_are_what_they_were() -> None:
    """Fleets of several gateways, and one that starts again, must agree."""
    text = chat(message("system", "Be brief."), message("user", "x" * 100))
    assert text == b"\xffsystem\xfdBe brief.\xffuser\xfd" + b"x" * 100
    blocks = hash_text(KEY, text)
    assert blocks == hash_text(KEY, text)
    assert (list(blocks.hashes), blocks.n_tokens) == ([0xD32AC5968D4C3C], 31)


def test_a_conversation_that_goes_on_keeps_its_hashes() -> None:
    first = [message("system", LONG), message("user", LONG)]
    later = [*first, message("assistant", "Yes."), message("user", "Why?")]
    assert shared(chat(*first), chat(*later)) == len(chat(*first)) // 64
    assert shared(completion_text(LONG), completion_text(LONG + "more")) == (len(LONG) + 1) // 64


def test_system_prompt_and_tools_come_first_wherever_they_stand_in_the_body() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": LONG}}]
    asked = [message("system", LONG), message("user", "a")]
    other = [message("system", LONG), message("user", "b")]
    head = len(chat(message("system", LONG), tools=tools))
    assert shared(chat(*asked, tools=tools), chat(*other, tools=tools)) == head // 64
    # Without the same tools only the system prompt is shared.
    assert shared(chat(*asked, tools=tools), chat(*asked)) == len(chat(message("system", LONG))) // 64
    assert chat_text({"tools": tools, "messages": asked}) == chat_text({"messages": asked, "tools": tools})


def test_one_text_and_a_list_of_it_are_the_same_prompt() -> None:
    parts = [{"type": "text", "text": "a"}]
    assert chat(message("user", parts)) == chat(message("user", "a"))
    assert chat(message("user", [*parts, *parts])) != chat(message("user", "aa"))


@pytest.mark.parametrize(
    "other",
    [
        ChainKey("n", 16),
        ChainKey("m", 16, adapter="a"),
        ChainKey("m", 16, salt="s"),
        ChainKey("m", 16, image_digests=(b"i",)),
        ChainKey("m", 32),
    ],
)
def test_another_key_shares_nothing(other: ChainKey) -> None:
    text = completion_text(LONG)
    assert not set(hash_text(KEY, text).hashes) & set(hash_text(other, text).hashes)


def test_a_chain_of_text_is_never_one_of_tokens() -> None:
    data = bytes(range(256)) * 2
    assert text_root(KEY) != root_hash(KEY)
    assert encode_key(KEY) != encode_key(KEY, TEXT_CHAIN)
    tokens = extend_chain(root_hash(KEY), TokenIds(data), 16)
    assert not set(tokens) & set(hash_text(KEY, TextBytes(data)).hashes)


@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_a_hash_stands_for_a_block(block_size: int) -> None:
    text = completion_text("x" * 999)
    blocks = hash_text(ChainKey("m", block_size), text)
    assert (len(blocks.hashes), blocks.n_tokens) == (250 // block_size, 250)


def deep(levels: int) -> object:
    value: object = "bottom"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "odd",
    [None, 5, "text", [], {}, {"role": 5, "content": {"a": 1}}, message("user", "\ud800"), message("user", 2**80),
     message("user", [None, 5, {"type": "image_url"}, {"type": "text", "text": 5}]), message("user", deep(5000)),
     message("user", {"\ud800": [2**90]})],
)  # fmt: skip
def test_what_is_no_chat_still_has_a_form(odd: object) -> None:
    text = chat(odd, message("user", "a"))
    assert text.endswith(b"\xffuser\xfda")
    assert text != chat(message("user", "a"))
    assert chat_text({"messages": odd}) == chat_text({"messages": odd})


names = st.sampled_from(["role", "content", "name", "tool_call_id"])
texts = st.text(st.sampled_from("ab\n\u00ff\u00fe\u20ac"), max_size=3)
values = texts | st.lists(st.builds(lambda text: {"type": "text", "text": text}, texts), max_size=3)
chats = st.lists(
    st.builds(
        lambda role, content, more: {"role": role, "content": content, **more},
        st.sampled_from(["user", "assistant", "us"]),
        values,
        st.dictionaries(st.sampled_from(["name", "x"]), texts, max_size=2),
    ),
    max_size=4,
)


def normal(messages: list[dict[str, Any]]) -> object:
    """What two chats must share to be the same prompt."""

    def content(value: object) -> object:
        return [part["text"] for part in value] if isinstance(value, list) else [value]

    return [[item["role"], content(item["content"]), list(item.items())[2:]] for item in messages]


@given(chats, chats)
def test_different_chats_have_different_forms(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    assert (chat(*one) == chat(*other)) == (normal(one) == normal(other))


@given(chats, chats)
def test_what_is_added_leaves_what_was_there(one: list[dict[str, Any]], more: list[dict[str, Any]]) -> None:
    assert chat(*one, *more).startswith(chat(*one))


def test_prediction_and_match_work_without_a_tokenizer() -> None:
    worker = WorkerId("w")
    index = PrefixIndex(max_blocks=1000)
    index.add_worker(worker, model="m", block_size=16, capacity=500)
    first = hash_text(KEY, chat(message("user", LONG)))
    index.predict(worker, first.hashes, start=0, now=1.0, ttl=1.0)
    second = hash_text(KEY, chat(message("user", LONG), message("assistant", LONG)))
    assert index.match(second.hashes) == {worker: len(first.hashes)}
    assert index.match(extend_chain(root_hash(KEY), TokenIds(array("I", range(64)).tobytes()), 16)) == {}
    assert BlockHash(text_root(KEY)) not in second.hashes
