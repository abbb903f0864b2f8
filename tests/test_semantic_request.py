"""Which requests may be answered by meaning, and what of them must be equal to the letter."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.response_key import response_key
from policies.semantic_request import MARKER, MOST_BYTES, Allowed, Question, SemanticRefusal, question_of

USER = {"role": "user", "content": "Why?"}
BOT = {"role": "assistant", "content": "Because."}
CHAT: dict[str, Any] = {"model": "m", "temperature": 0, "messages": [{"role": "system", "content": "Be."}, USER]}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
TOOL = {"type": "function", "function": {"name": "f"}}


def test_the_last_users_text_is_the_question_and_all_else_the_rest() -> None:
    before = copy.deepcopy(CHAT)
    assert question_of("chat", CHAT) == Question(
        "Why?", {**CHAT, "messages": [CHAT["messages"][0], {"role": "user", "content": MARKER}]}
    )
    assert before == CHAT
    part = {"type": "text", "text": "Why?", "cache_control": {"type": "ephemeral"}}
    asked = {"model": "m", "temperature": 0, "max_tokens": 9, "messages": [{"role": "user", "content": [part]}]}
    rest = {**asked, "messages": [{"role": "user", "content": [{**part, "text": MARKER}]}]}
    assert question_of("messages", asked) == Question("Why?", rest)
    asked = {"model": "m", "temperature": 0, "input": "Why?", "instructions": "Be."}
    assert question_of("responses", asked) == Question("Why?", {**asked, "input": MARKER})
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Why?"}]}
    found = question_of("responses", {**asked, "input": [item]})
    assert isinstance(found, Question)
    assert found.text == "Why?"


@pytest.mark.parametrize(
    ("route", "changed", "refusal"),
    [
        ("completion", {}, "route"),
        ("embedding", {}, "route"),
        ("chat", {"temperature": 0.1}, "sampled"),
        ("chat", {"temperature": None}, "sampled"),
        ("chat", {"temperature": False}, "sampled"),
        ("chat", {"tools": [TOOL]}, "tools"),
        ("chat", {"functions": [{"name": "f"}]}, "tools"),
        ("chat", {"web_search_options": {}}, "tools"),
        ("chat", {"n": 2}, "choices"),
        ("chat", {"logprobs": True}, "scores"),
        ("chat", {"top_logprobs": 3}, "scores"),
        ("responses", {"include": ["message.output_text.logprobs"], "input": "x"}, "scores"),
        ("chat", {"modalities": ["text", "audio"]}, "audio"),
        ("chat", {"audio": {"voice": "x"}}, "audio"),
        ("chat", {"messages": [{"role": "user", "content": [IMAGE, {"type": "text", "text": "?"}]}]}, "content"),
        ("chat", {"messages": [{"role": "system", "content": [IMAGE]}, USER]}, "content"),
        ("messages", {"system": [{"type": "document"}], "messages": [USER]}, "content"),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "content"),
        ("chat", {"messages": [USER, BOT, USER]}, "turns"),
        ("chat", {"messages": [USER, USER]}, "turns"),
        ("chat", {"messages": [USER, BOT]}, "turns"),
        ("chat", {"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "turns"),
        ("responses", {"input": [{"type": "function_call_output", "role": "user"}]}, "turns"),
        ("chat", {"messages": []}, "shape"),
        ("chat", {"messages": "Why?"}, "shape"),
        ("chat", {"messages": ["Why?"]}, "shape"),
        ("chat", {"messages": [{"role": "user"}]}, "shape"),
        ("chat", {"messages": [{"role": "user", "content": " \n"}]}, "shape"),
        ("chat", {"messages": [{"role": "user", "content": "\ud800"}]}, "shape"),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 2}]}, "shape"),
        ("chat", {"messages": [{"role": "user", "content": "ä" * (MOST_BYTES // 2 + 1)}]}, "long"),
        ("chat", {"messages": [{"role": "user", "content": "a " * 300}]}, "long"),
    ],
)
def test_what_is_refused_and_why(route: str, changed: dict[str, Any], refusal: str) -> None:
    assert question_of(route, {**CHAT, **changed}) == SemanticRefusal(refusal)


def test_what_settings_allow_is_not_refused() -> None:
    turns = {**CHAT, "messages": [USER, BOT, {"role": "user", "content": "And then?"}]}
    found = question_of("chat", turns, allowed=Allowed(multi_turn=True))
    assert isinstance(found, Question)
    assert found.text == "And then?"
    assert isinstance(question_of("chat", {**CHAT, "tools": [TOOL]}, allowed=Allowed(tools=True)), Question)
    assert isinstance(question_of("chat", {**CHAT, "temperature": 1}, allowed=Allowed(temperature=True)), Question)
    untold = {name: value for name, value in CHAT.items() if name != "temperature"}
    assert isinstance(question_of("chat", untold, asked=True), Question)
    assert question_of("chat", {**CHAT, "temperature": 0.5}, asked=True) == SemanticRefusal.SAMPLED


_VALUES = st.one_of(st.integers(0, 3), st.text(max_size=3), st.booleans())


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["max_tokens", "seed", "stop", "top_p", "metadata", "x"]), _VALUES),
    st.text(min_size=1, max_size=20).filter(str.strip),
    st.text(min_size=1, max_size=20).filter(str.strip),
    st.sampled_from(["system", "developer"]),
)
def test_requests_have_one_rest_if_and_only_if_they_differ_in_their_question_alone(
    more: dict[str, Any], one: str, other: str, role: str
) -> None:
    def rest(text: str, fields: dict[str, Any], system: str) -> bytes:
        asked = {**CHAT, **fields, "messages": [{"role": role, "content": system}, {"role": "user", "content": text}]}
        found = question_of("chat", asked)
        assert isinstance(found, Question)
        return response_key(b"s", "m", "openai", "chat", found.rest)

    try:
        (one + other).encode()
    except UnicodeEncodeError:
        return
    same = rest(one, more, "Be.")
    assert rest(other, more, "Be.") == same
    assert rest(one, {**more, "y": 1}, "Be.") != same
    assert rest(one, more, one) != same  # a system prompt that says the same as the question
