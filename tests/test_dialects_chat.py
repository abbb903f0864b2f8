"""Requests of every dialect as the chats that engines make of them."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.simulated import messages_requests, responses_requests
from backends.simulated.model_text import EMBEDDED_TOKENIZER
from cache.chat_messages import TemplateError
from cache.tokenizer import Tokenizer
from gateway.calls import Call
from gateway.dialects.anthropic_chat import anthropic_chat
from gateway.dialects.responses_chat import _joined, responses_chat
from gateway.prompt_text import chat_without_attachments
from gateway.routes import Kind

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "weather", "description": "Skies.", "parameters": SCHEMA}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(EMBEDDED_TOKENIZER)


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def assistant(**fields: object) -> dict[str, object]:
    return {"role": "assistant", **fields}


def called(arguments: object, name: str = "weather", call_id: str = "c1") -> dict[str, object]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Bern"}', "id": "fc_1"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
SAID = {
    "type": "message",
    "id": "msg_1",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "It rains.", "annotations": []}],
}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
SUMMED = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Sum."}]}
ASKED_PARTS = {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ("hi", [user("hi")]),
        ([user("hi")], [user("hi")]),
        ([{"type": "message", **ASKED_PARTS}], [{"type": "message", **ASKED_PARTS}]),
        ([user("hi"), SAID, user("so?")], [user("hi"), assistant(content="It rains."), user("so?")]),
        ([user("hi"), assistant(content="yes")], [user("hi"), assistant(content="yes")]),
        (
            [user("hi"), CALL, OUTPUT],
            [
                user("hi"),
                assistant(tool_calls=[called('{"city":"Bern"}')]),
                {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            ],
        ),
        (
            [user("hi"), THOUGHT, SAID, CALL, {**CALL, "call_id": "c2"}],
            [
                user("hi"),
                assistant(
                    reasoning="Hm.",
                    content="It rains.",
                    tool_calls=[called('{"city":"Bern"}'), called('{"city":"Bern"}', call_id="c2")],
                ),
            ],
        ),
        ([SAID, SAID], [assistant(content="It rains."), assistant(content="It rains.")]),
        ([CALL, SAID], [assistant(tool_calls=[called('{"city":"Bern"}')], content="It rains.")]),
        ([SUMMED], [assistant(reasoning="Sum.")]),
        ([THOUGHT, SUMMED], [assistant(reasoning="Hm."), assistant(reasoning="Sum.")]),
        ([{**CALL, "namespace": "sky"}], [assistant(tool_calls=[called('{"city":"Bern"}', "sky__weather")])]),
        (
            [{"type": "custom_tool_call", "call_id": "c1", "name": "weather", "input": "x"}],
            [assistant(tool_calls=[called({"input": "x"})])],
        ),
    ],
)
def test_items_of_a_responses_request(given: Any, messages: list[object]) -> None:
    body = {"model": "m", "input": given}
    before = copy.deepcopy(body)
    assert responses_chat(body) == {"messages": messages}
    assert body == before
    told = responses_chat({**body, "instructions": "Be brief."})
    assert told == {"messages": [{"role": "system", "content": "Be brief."}, *messages]}


def test_what_else_a_template_reads_of_a_responses_request() -> None:
    chat = responses_chat(
        {
            "input": "hi",
            "tools": [{"type": "function", **TOOL, "strict": True}, {"type": "web_search"}],
            "reasoning": {"effort": "high"},
            "chat_template_kwargs": {"x": 1},
            "temperature": 0.5,
        }
    )
    assert chat == {
        "messages": [user("hi")],
        "tools": [{"type": "function", "function": {**TOOL, "strict": True}}],
        "reasoning_effort": "high",
        "chat_template_kwargs": {"x": 1},
    }


def test_an_unfinished_message_is_gone_on_with() -> None:
    chat = responses_chat({"input": [user("hi"), {**SAID, "status": "incomplete"}]})
    assert chat["continue_final_message"] is True
    assert chat["add_generation_prompt"] is False


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": []},
        {"input": 5},
        {"input": ["hi"]},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{**THOUGHT, "encrypted_content": "x"}]},
        {"input": "hi", "tools": ["weather"]},
    ],
)
def test_a_responses_request_of_another_shape(body: dict[str, object]) -> None:
    with pytest.raises(TemplateError):
        responses_chat(body)


USE = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bern"}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "rain"}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
SHOWN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=f00"}
TOLD = {"role": "tool", "tool_call_id": "c1", "content": "rain"}


def text(value: str) -> dict[str, object]:
    return {"type": "text", "text": value}


def system(content: object) -> dict[str, object]:
    return {"role": "system", "content": content}


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ([user("hi")], [user("hi")]),
        ([user([text("hi")])], [user("hi")]),
        ([user([text("a"), text(""), text("b")])], [user([text("a"), text("b")])]),
        ([user([PICTURE])], [user([SHOWN])]),
        (
            [user([{"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}])],
            [user([{"type": "image_url", "image_url": {"url": "http://x/y.png"}}])],
        ),
        (
            [user("hi"), assistant(content=[{"type": "thinking", "thinking": "Hm."}, text("So."), USE])],
            [user("hi"), assistant(reasoning="Hm.", tool_calls=[called({"city": "Bern"})], content="So.")],
        ),
        ([user([RESULT])], [TOLD]),
        ([user([RESULT, text("and?")])], [TOLD, user("and?")]),
        ([user([text("and?"), RESULT])], [TOLD, user("and?")]),
        (
            [user([{**RESULT, "content": [text("rain"), text("snow"), PICTURE]}])],
            [{**TOLD, "content": "rain\nsnow"}, user([SHOWN])],
        ),
        ([user([{**RESULT, "content": None}])], [{**TOLD, "content": ""}]),
        ([assistant(content=[{"type": "redacted_thinking", "data": "x"}])], [assistant()]),
        ([assistant(content=[{**USE, "input": None}])], [assistant(tool_calls=[called({})])]),
        ([system("S"), user("hi")], [system("S"), user("hi")]),
        ([system("S"), system([BILLING, text("T")]), user("hi")], [system("S\n\nT"), user("hi")]),
        ([user("hi"), system("S"), user("so")], [user("hi"), system("S"), user("so")]),
        (
            [assistant(content=[USE]), system("S"), user([RESULT])],
            [assistant(tool_calls=[called({"city": "Bern"})]), TOLD, system("S")],
        ),
        (
            [assistant(content=[USE]), system("S"), assistant(content="x")],
            [assistant(tool_calls=[called({"city": "Bern"})]), system("S"), assistant(content="x")],
        ),
        ([user("hi"), system([BILLING])], [user("hi")]),
    ],
)
def test_turns_of_a_messages_request(given: Any, messages: list[object]) -> None:
    body = {"model": "m", "max_tokens": 5, "messages": given}
    before = copy.deepcopy(body)
    assert anthropic_chat(body) == {"messages": messages}
    assert body == before


@pytest.mark.parametrize(
    ("top", "text_of_it"),
    [
        ("Be brief.", "Be brief."),
        ([text("Be "), text("brief.")], "Be brief."),
        ([BILLING, text("Be brief.")], "Be brief."),
    ],
)
def test_the_system_prompt_of_a_messages_request(top: object, text_of_it: str) -> None:
    chat = anthropic_chat({"system": top, "messages": [user("hi")]})
    assert chat["messages"] == [system(text_of_it), user("hi")]
    both = anthropic_chat({"system": top, "messages": [system("More."), user("hi")]})
    assert both["messages"] == [system(f"{text_of_it}\n\nMore."), user("hi")]


@pytest.mark.parametrize("top", [None, "", [], [BILLING]])
def test_no_system_prompt(top: object) -> None:
    assert anthropic_chat({"system": top, "messages": [user("hi")]})["messages"] == [user("hi")]


def test_what_else_a_template_reads_of_a_messages_request() -> None:
    chat = anthropic_chat(
        {
            "messages": [user("hi")],
            "tools": [
                {"name": "weather", "description": "Skies.", "input_schema": SCHEMA, "cache_control": {}},
                {"name": "time", "input_schema": {"properties": {}}},
            ],
            "output_config": {"effort": "low"},
            "chat_template_kwargs": {"x": 1},
            "temperature": 0.5,
        }
    )
    parameters = {"properties": {}, "type": "object"}
    assert chat == {
        "messages": [user("hi")],
        "tools": [
            {"type": "function", "function": TOOL},
            {"type": "function", "function": {"name": "time", "description": None, "parameters": parameters}},
        ],
        "reasoning_effort": "low",
        "chat_template_kwargs": {"x": 1},
    }


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": "hi"},
        {"messages": ["hi"]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"content": "x"}]},
        {"messages": [user(5)]},
        {"messages": [user(["hi"])]},
        {"messages": [user([{"type": "text", "text": 5}])]},
        {"messages": [user([{"type": "image"}])]},
        {"messages": [user("hi")], "system": 5},
        {"messages": [user("hi")], "tools": [{"name": "x"}]},
    ],
)
def test_a_messages_request_of_another_shape(body: dict[str, object]) -> None:
    with pytest.raises(TemplateError):
        anthropic_chat(body)


def test_an_attachment_is_the_same_in_every_dialect() -> None:
    anthropic = anthropic_chat({"messages": [user([PICTURE, text("what?")])]})
    chat = {"messages": [user([SHOWN, text("what?")])]}
    assert chat_without_attachments(anthropic) == chat_without_attachments(chat)
    assert chat_without_attachments(chat)[1]


def test_what_will_be_shaped_can_be_measured_before() -> None:
    fields: dict[str, object] = {"input": ["i"], "instructions": "n", "messages": ["m"], "system": "s", "tools": ["t"]}
    assert Call(Kind.CHAT, "m", False, fields).unshaped is fields
    assert Call(Kind.CHAT, "m", False, fields).chat is fields
    assert Call(Kind.RESPONSES, "m", False, fields).unshaped == {"messages": [["i"], "n"], "tools": ["t"]}
    assert Call(Kind.MESSAGES, "m", False, fields).unshaped == {"messages": [["m"], "s"], "tools": ["t"]}


# --- the same prompt as an engine that was written apart from this


WORDS = st.sampled_from(["hi", "rain", "a b", "\n", "<|im_end|>", "é"])
TEXTS = st.lists(WORDS.map(text), min_size=1, max_size=3)
CALLS = WORDS.map(lambda word: {**USE, "input": {"city": word, "n": 1.5}})
TURNS = st.one_of(
    WORDS.map(user),
    TEXTS.map(user),
    WORDS.map(lambda word: assistant(content=word)),
    st.lists(st.one_of(WORDS.map(text), CALLS), min_size=1, max_size=3).map(lambda blocks: assistant(content=blocks)),
    st.builds(lambda word, more: user([{**RESULT, "content": word}, *more]), WORDS, TEXTS | st.just([])),
)
TOOLS = st.just(None) | st.just([{"name": "weather", "description": "Skies.", "input_schema": SCHEMA}])


@given(turns=st.lists(TURNS, min_size=1, max_size=6), top=st.none() | WORDS | TEXTS, tools=TOOLS)
def test_messages_have_the_engines_prompt(tokenizer: Tokenizer, turns: list[Any], top: object, tools: object) -> None:
    body = {"model": "m", "max_tokens": 5, "messages": turns, "system": top, "tools": tools}
    engine = messages_requests.as_chat(msgspec.convert(body, messages_requests.MessagesRequest))
    assert _rendered(tokenizer, anthropic_chat(body)) == _rendered(tokenizer, engine)


ITEMS = st.one_of(
    WORDS.map(user),
    WORDS.map(lambda word: user([{"type": "input_text", "text": word}, {"type": "input_text", "text": "!"}])),
    WORDS.map(lambda word: {**SAID, "content": [{"type": "output_text", "text": word}]}),
    WORDS.map(lambda word: {"role": "developer", "content": word}),
    st.sampled_from([CALL, OUTPUT, THOUGHT, SUMMED]),
)
FLAT_TOOLS = st.none() | st.just([{"type": "function", "strict": False, **TOOL}])


@given(given=WORDS | st.lists(ITEMS, min_size=1, max_size=7), told=st.none() | WORDS, tools=FLAT_TOOLS)
def test_responses_have_the_engines_prompt(tokenizer: Tokenizer, given: object, told: object, tools: object) -> None:
    body = {"model": "m", "input": given, "instructions": told, "tools": tools}
    engine = responses_requests.as_chat(msgspec.convert(copy.deepcopy(body), responses_requests.ResponsesRequest), [])
    assert _rendered(tokenizer, responses_chat(body)) == _rendered(tokenizer, engine)


def _rendered(tokenizer: Tokenizer, chat: Any) -> str:
    return tokenizer.render_chat(chat)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["text", "user", "assistant", "system", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "input", "source", "name"]), inner, max_size=3
        )
    ),
    max_leaves=12,
)


@given(
    fields=st.dictionaries(st.sampled_from(["messages", "input", "system", "tools", "instructions", "reasoning"]), JSON)
)
def test_a_body_of_any_shape_is_shaped_or_refused(tokenizer: Tokenizer, fields: dict[str, object]) -> None:
    for shape in (anthropic_chat, responses_chat):
        try:
            tokenizer.render_chat(chat_without_attachments(shape(fields))[0])
        except TemplateError:
            continue


def test_calls_are_gathered_in_one_list_that_is_nobody_elses() -> None:
    first = assistant(tool_calls=[called("{}")])
    odd = assistant(tool_calls=5)
    items = [first, CALL, CALL, odd]
    before = copy.deepcopy(items)
    messages: Any = responses_chat({"input": items})["messages"]
    (message,) = messages
    assert [call["id"] for call in message["tool_calls"]] == ["c1"] * 3
    assert items == before
    gathered = message["tool_calls"]
    assert _joined(message, assistant(tool_calls=[called("{}")]))
    assert message["tool_calls"] is gathered, "thousands of calls are not copied thousands of times"
