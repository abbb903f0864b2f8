"""Answers from one form into the other: exact bytes, oddities of servers, and what is no answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.answers import FailedAnswerError, disassemble, examine, facts, wants_usage
from gateway.answers.base import MOST_BYTES, MOST_PIECES, text_pieces
from gateway.answers.sse import events_of
from gateway.api_error import ApiError
from gateway.dialects.anthropic import ANTHROPIC
from gateway.dialects.base import Dialect, Usage
from gateway.dialects.openai import OPENAI
from gateway.dialects.responses import RESPONSES
from gateway.routes import Kind
from tests.answer_fixtures import BODIES, CHAT, MESSAGE, RESPONSE, TEXT, as_json, assembled

HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
STOP = {"index": 0, "delta": {}, "finish_reason": "stop"}


def chunks(*choices: Any, done: bool = True, **fields: Any) -> bytes:
    """A stream with one choice a chunk."""
    told = [as_json({**HEAD, "choices": [choice] if choice else [], **fields}) for choice in choices]
    return b"".join(b"data: %b\n\n" % each for each in told) + (b"data: [DONE]\n\n" if done else b"")


def deltas(*told: Any, index: int = 0) -> bytes:
    """A stream with these deltas, which then ends."""
    begun = [{"index": index, "delta": delta, "finish_reason": None} for delta in told]
    return chunks(*begun, {**STOP, "index": index})


def message_of(stream: bytes) -> Any:
    return json.loads(assembled(Kind.CHAT, stream))["choices"][0]["message"]


def named(*events: dict[str, Any]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (each["type"].encode(), as_json(each)) for each in events)


def parsed(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(data) for _, data in events_of(stream)]


# --- chat completions, exactly


def test_a_chat_as_a_stream() -> None:
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 5,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "one two three four five six seven"},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
        "system_fingerprint": "fp",
    }
    head = (
        b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":5,"model":"m","system_fingerprint":"fp",'
    )
    choice = head + b'"choices":[{"index":0,"delta":{%b},"logprobs":null,"finish_reason":%b}]%b}\n\n'

    def wanted(end: bytes) -> list[bytes]:
        return [
            choice % (b'"role":"assistant","content":""', b"null", end),
            choice % (b'"content":"one two three four five six"', b"null", end),
            choice % (b'"content":" seven"', b"null", end),
            choice % (b"", b'"stop"', end),
        ]

    usage = head + b'"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}\n\n'
    done = b"data: [DONE]\n\n"
    assert disassemble(Kind.CHAT, as_json(body)) == [*wanted(b""), done]
    with_usage = disassemble(Kind.CHAT, as_json(body), usage=True)
    assert with_usage == [*wanted(b',"usage":null'), usage, done]
    assert json.loads(assembled(Kind.CHAT, b"".join(with_usage))) == body
    assert json.loads(assembled(Kind.CHAT, b"".join([*wanted(b""), done]))) == body | {"usage": None}


def test_a_long_text_comes_in_a_bounded_number_of_pieces() -> None:
    for text in ("word " * 100_000, "x" * 500_000, "語" * 100_000, "a" + " " * 10_000):
        pieces = text_pieces(text)
        assert MOST_PIECES // 2 <= len(pieces) <= MOST_PIECES
        assert "".join(pieces) == text
    assert text_pieces("") == []
    assert text_pieces("It is short.") == ["It is short."]


def test_what_is_known_of_the_whole_comes_once() -> None:
    events = disassemble(Kind.CHAT, as_json(CHAT))
    assert sum(b"prompt_token_ids" in event for event in events) == 1
    assert all(b'"service_tier":"default"' in event for event in events[:-1])


# --- how deltas grow


def test_deltas_of_every_kind() -> None:
    stream = deltas(
        {"role": "assistant", "content": None, "refusal": None},
        {"role": "assistant", "reasoning": "I "},
        {"reasoning": "think", "reasoning_details": [{"index": 0, "type": "t", "text": "I "}]},
        {"reasoning_details": [{"index": 0, "type": "t", "text": "think"}, {"index": 1, "text": "more"}]},
        {"content": "Hel"},
        {"content": "lo", "annotations": [{"type": "url_citation"}]},
        {"annotations": [{"type": "other"}], "score": 1},
        {"audio": {"id": "a", "data": "AAAA", "transcript": "Hel"}, "score": 2},
        {"audio": {"data": "BBBB", "transcript": "lo"}},
        {"audio": {"expires_at": 5}, "content": ""},
    )
    assert message_of(stream) == {
        "role": "assistant",
        "content": "Hello",
        "refusal": None,
        "reasoning": "I think",
        "reasoning_details": [{"index": 0, "type": "t", "text": "I think"}, {"index": 1, "text": "more"}],
        "annotations": [{"type": "url_citation"}, {"type": "other"}],
        "score": 2,
        "audio": {"id": "a", "data": "AAAABBBB", "transcript": "Hello", "expires_at": 5},
    }


def test_tool_calls_grow_by_their_index() -> None:
    first = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}
    second = {"index": 1, "id": "b", "function": {"name": "g", "arguments": "{"}}
    stream = deltas(
        {"role": "assistant", "content": ""},
        {"tool_calls": [first]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x"'}}, second]},
        {"tool_calls": [{"index": 1, "id": "b", "type": None, "function": {"name": None, "arguments": "}"}}]},
        {"tool_calls": [{"index": 0, "id": "", "function": {"name": "", "arguments": ":1}"}}]},
        {"tool_calls": []},
    )
    assert message_of(stream) == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }


def test_a_custom_tool_and_a_call_of_an_unknown_type() -> None:
    calls = [
        {"id": "a", "type": "custom", "custom": {"name": "sh", "input": "ls -l " * 20}},
        {"id": "b", "type": "other", "what": {"x": 1}},
    ]
    body = {**CHAT, "choices": [{**CHAT["choices"][1], "index": 0, "message": {"role": "assistant", "content": None}}]}
    body["choices"][0]["message"]["tool_calls"] = calls
    assert json.loads(assembled(Kind.CHAT, b"".join(disassemble(Kind.CHAT, as_json(body), usage=True)))) == body


def test_calls_that_bring_an_index_of_their_own() -> None:
    """As SGLang's do, null or not."""
    calls = [
        {"id": name, "index": index, "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
        for name, index in (("a", None), ("b", 7))
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    body = {**CHAT, "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}]}
    events = disassemble(Kind.CHAT, as_json(body))
    told = [chunk["choices"][0]["delta"] for chunk in parsed(b"".join(events[:-1]))]
    assert [call["index"] for delta in told for call in delta.get("tool_calls", [])] == [0, 0, 1, 1]
    assert [(call["id"], call["function"]["arguments"]) for call in message_of(b"".join(events))["tool_calls"]] == [
        ("a", '{"x": 1}'),
        ("b", '{"x": 1}'),
    ]


def test_chunks_of_azure() -> None:
    """Its first chunk has no choices, no id and no model; filters tell of a choice without a delta."""
    filters = {"hate": {"filtered": False, "severity": "safe"}}
    stream = b"".join(
        b"data: %b\n\n" % as_json(each)
        for each in (
            {
                "id": "",
                "object": "",
                "created": 0,
                "model": "",
                "choices": [],
                "prompt_filter_results": [{"prompt_index": 0}],
            },
            {**HEAD, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}}]},
            {**HEAD, "choices": [{"index": 0, "content_filter_results": filters, "finish_reason": None}]},
            {**HEAD, "choices": [{**STOP, "content_filter_results": filters}]},
        )
    )
    body = json.loads(assembled(Kind.CHAT, stream + b"data: [DONE]\n\n"))
    assert (body["id"], body["model"], body["object"], body["created"]) == ("c", "m", "chat.completion", 1)
    assert body["prompt_filter_results"] == [{"prompt_index": 0}]
    assert body["choices"][0]["content_filter_results"] == filters
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hi"}


def test_usage_beside_the_last_choice() -> None:
    """As DeepSeek tells it, asked or not."""
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    stream = chunks({"index": 0, "delta": {"content": "x"}}, done=False) + chunks(STOP, usage=usage)
    assert json.loads(assembled(Kind.CHAT, stream))["usage"] == usage


def test_other_ways_to_write_a_stream() -> None:
    stream = b"".join(disassemble(Kind.CHAT, as_json(CHAT), usage=True))
    wanted = assembled(Kind.CHAT, stream)
    for other in (
        stream.replace(b"\n", b"\r\n"),
        stream.replace(b"\n", b"\r"),
        b"\xef\xbb\xbf" + stream,
        b": hello\n\n" + stream.replace(b"\n\n", b"\n\n: ping\n\nretry: 5\n\n") + b": bye\n",
        stream.replace(b"data: ", b"data:"),
        stream.replace(b"data: ", b"id: 7\ndata: "),
        stream.replace(b"data: {", b"data: {\ndata: "),
        stream + b"\n\n",
    ):
        assert assembled(Kind.CHAT, other) == wanted


def test_padding_is_left_out_wherever_it_stands() -> None:
    hidden: dict[str, Any] = {"index": 0, "delta": {"content": 'say "obfuscation":"x"} and ,"obfuscation":"y"}'}}
    stream = chunks(hidden, STOP, obfuscation="abc") + b""
    moved = stream.replace(b', "obfuscation": "abc"}', b"}").replace(b'{"id"', b'{"obfuscation":"abc","id"')
    for each in (stream, stream.replace(b'", "obf', b'","obf').replace(b': "abc"', b':"abc"'), moved):
        body = json.loads(assembled(Kind.CHAT, each))
        assert "obfuscation" not in body
        assert body["choices"][0]["message"]["content"] == hidden["delta"]["content"]


# --- what is no answer


def call(**fields: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}} | fields]}


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (b"", "the stream does not end with [DONE]"),
        (b"data: [DONE]\n\n", "no choices"),
        (chunks(STOP, done=False), "the stream does not end with [DONE]"),
        (chunks(STOP)[:-1], "the stream breaks off within an event"),
        (chunks(STOP) + chunks(STOP), "not valid JSON"),
        (chunks(STOP) + chunks(STOP, done=False), "the stream does not end with [DONE]"),
        (chunks({"index": 0, "delta": {"content": "x"}}), "a choice has not ended"),
        (deltas({"content": "x"}, index=1), "a choice is missing, or there twice"),
        (deltas({"content": "x"}, index=-1), "a choice without a proper index"),
        (chunks({"delta": {}}), "a choice without a proper index"),
        (chunks(STOP, choices=None), "the choices of a chunk: no list of objects"),
        (chunks(STOP, choices=[1]), "the choices of a chunk: no list of objects"),
        (chunks(STOP, done=False) + chunks(STOP, id="d"), "chunks of two answers in one stream"),
        (deltas("x"), "a delta that is no object"),
        (deltas({"content": "x"}, {"content": 1}), "a delta of another type than what it goes on with"),
        (deltas({"x": {"y": "z"}}, {"x": "z"}), "a delta of another type than what it goes on with"),
        (deltas(call(), call(id="b")), "two parts of an answer that go by different names"),
        (deltas(call(), call(function={"name": "g"})), "two parts of an answer that go by different names"),
        (deltas(call(id=None)), "a tool call without an id"),
        (deltas(call(function={"arguments": "{}"})), "a call without a function's name"),
        (deltas({"function_call": {"arguments": "{}"}}), "a call without a function's name"),
        (deltas({"tool_calls": ["x"]}), "the tool calls: no list of objects"),
        (deltas(json.loads('{"a":' * 40 + "1" + "}" * 40)), "deltas nested deeper than 32 levels"),
        (b'data: {"a":' + b"[" * 1100 + b"]" * 1100 + b"}\n\ndata: [DONE]\n\n", "not valid JSON"),
        (b"data: 5\n\ndata: [DONE]\n\n", "JSON, but no object"),
        (b"data: {]\n\ndata: [DONE]\n\n", "not valid JSON"),
        (b": " + b"x" * MOST_BYTES, "more than 33,554,432 bytes"),
        (b"\n" * (1 << 21), "more than 524,288 events"),
    ],
)  # fmt: skip
def test_streams_of_chunks_that_are_no_answer(stream: bytes, why: str) -> None:
    told = facts(Kind.CHAT, stream, streamed=True)
    assert (told.whole, told.why, told.failed) == (False, why, False)


@pytest.mark.parametrize(("kind", "dialect"), [
    (Kind.CHAT, OPENAI), (Kind.COMPLETION, OPENAI), (Kind.RESPONSES, RESPONSES), (Kind.MESSAGES, ANTHROPIC),
])  # fmt: skip
def test_an_error_is_no_answer(kind: Kind, dialect: Dialect) -> None:
    error = ApiError(502, "The worker was lost.")
    with pytest.raises(FailedAnswerError):
        disassemble(kind, dialect.error_body(error))
    events = disassemble(kind, as_json(BODIES[kind]))
    for stream in (
        [*events[:3], dialect.error_event(error)],
        [*events[:3], dialect.error_event(error), events[-1]],
        [dialect.error_event(error), *events],
    ):
        told = facts(kind, b"".join(stream), streamed=True)
        assert (told.whole, told.failed) == (False, True)


def test_bodies_that_are_no_answer() -> None:
    unended = [{**CHAT["choices"][0], "finish_reason": None}]
    for kind, body, why in (
        (Kind.CHAT, {**CHAT, "choices": unended}, "a choice has not ended"),
        (Kind.CHAT, {**CHAT, "choices": [{**CHAT["choices"][0], "finish_reason": "abort"}]}, "a choice was broken off"),
        (Kind.CHAT, {**CHAT, "choices": []}, "no choices"),
        (Kind.CHAT, {**CHAT, "choices": CHAT["choices"][1:]}, "a choice is missing, or there twice"),
        (Kind.CHAT, BODIES[Kind.COMPLETION], "a choice without a message"),
        (Kind.COMPLETION, CHAT, "a choice without a text"),
        (Kind.RESPONSES, {**RESPONSE, "status": "in_progress"}, "the response is not done"),
        (Kind.RESPONSES, {**RESPONSE, "status": "queued"}, "the response is not done"),
        (Kind.RESPONSES, {**RESPONSE, "output": None}, "the output: no list of objects"),
        (Kind.MESSAGES, {**MESSAGE, "stop_reason": None}, "the message has not ended"),
        (Kind.MESSAGES, {**MESSAGE, "usage": None}, "a message without its usage"),
        (Kind.EMBEDDING, CHAT, "answers of this route have no two forms"),
    ):
        assert facts(kind, as_json(body), streamed=False).why == why
    deep = b'{"id":"c","x":' + b"[" * 400 + b"]" * 400 + as_json(CHAT)[1:].join([b",", b""])
    assert facts(Kind.CHAT, deep, streamed=False).why == "nested too deeply"
    assert facts(Kind.RESPONSES, as_json({**RESPONSE, "status": "failed"}), streamed=False).failed
    assert facts(Kind.TOKENS, b"", streamed=True).why == "answers of this route have no two forms"


# --- responses


def test_a_response_with_an_event_lost_or_changed() -> None:
    events = parsed(b"".join(disassemble(Kind.RESPONSES, as_json(RESPONSE))))
    assert assembled(Kind.RESPONSES, named(*events) + b"data: [DONE]\n\n") == assembled(Kind.RESPONSES, named(*events))
    for lost in range(len(events) - 1):
        told = facts(Kind.RESPONSES, named(*events[:lost], *events[lost + 1 :]), streamed=True)
        assert told.whole is (lost == 0)  # the first event alone cannot be missed by those behind it
    uncounted = [{key: value for key, value in each.items() if key != "sequence_number"} for each in events]
    assert facts(Kind.RESPONSES, named(*uncounted), streamed=True).whole
    texts = [place for place, each in enumerate(events) if each["type"] == "response.output_text.delta"]
    del uncounted[texts[1]]
    assert facts(Kind.RESPONSES, named(*uncounted), streamed=True).why == "a text is not the sum of its deltas"
    assert facts(Kind.RESPONSES, named(*events, events[-1]), streamed=True).why == "events behind the end of the stream"


def test_a_response_of_another_stream() -> None:
    events = parsed(b"".join(disassemble(Kind.RESPONSES, as_json(RESPONSE))))
    other = {**events[-1], "response": {**RESPONSE, "id": "resp_2"}}
    told = facts(Kind.RESPONSES, named(*events[:-1], other), streamed=True)
    assert told.why == "events of two responses in one stream"


def test_a_response_whose_output_is_told_item_by_item_only() -> None:
    events = parsed(b"".join(disassemble(Kind.RESPONSES, as_json(RESPONSE))))
    bare = {**events[-1], "response": {**RESPONSE, "output": None}}
    assert json.loads(assembled(Kind.RESPONSES, named(*events[:-1], bare))) == RESPONSE
    fewer = {**events[-1], "response": {**RESPONSE, "output": RESPONSE["output"][:2]}}
    told = facts(Kind.RESPONSES, named(*events[:-1], fewer), streamed=True)
    assert told.why == "the response lacks items that were told before"


def test_an_item_without_an_id_has_one_in_its_events() -> None:
    call = {"type": "function_call", "name": "f", "arguments": "{}"}
    body = {**RESPONSE, "output": [{**call, "call_id": "call_9"}, call]}
    events = parsed(b"".join(disassemble(Kind.RESPONSES, as_json(body))))
    assert {each["item_id"] for each in events if "item_id" in each} == {"call_9", "item_1"}
    assert [each["item"] for each in events if each["type"] == "response.output_item.done"] == body["output"]


# --- messages


def test_numbers_of_tools_keep_all_their_digits() -> None:
    raw = '{"account": 123456789012345678901234567890, "rate": 0.1, "name": "Zoë"}'
    body = as_json({**MESSAGE, "content": [{"type": "tool_use", "id": "t", "name": "f", "input": None}]})
    body = body.replace(b'"input": null', b'"input": ' + raw.encode())
    stream = b"".join(disassemble(Kind.MESSAGES, body))
    (block,) = json.loads(assembled(Kind.MESSAGES, stream))["content"]
    assert block["input"] == json.loads(raw)
    pieces = [each["delta"]["partial_json"] for each in parsed(stream) if each["type"] == "content_block_delta"]
    assert json.loads("".join(pieces)) == json.loads(raw)
    again = b"".join(disassemble(Kind.MESSAGES, assembled(Kind.MESSAGES, stream)))
    assert again == stream
    for value, why in ((b"1" * 5000, "not valid JSON"), (b"[" * 1000 + b"]" * 1000, "nested too deeply")):
        assert facts(Kind.MESSAGES, body.replace(b"0.1", value), streamed=False).why == why


def test_the_end_of_a_message_tells_what_its_beginning_did_not() -> None:
    events = parsed(b"".join(disassemble(Kind.MESSAGES, as_json(MESSAGE))))
    assert events[0]["message"]["usage"]["output_tokens"] == 1
    assert events[-2]["usage"]["output_tokens"] == 30
    events[-2]["usage"] = {"output_tokens": 31, "input_tokens": None}  # older servers count no more than this
    events[-2]["delta"]["stop_details"] = {"type": "refusal"}
    body = json.loads(assembled(Kind.MESSAGES, named({"type": "ping"}, *events)))
    assert body["usage"]["output_tokens"] == 31
    assert body["usage"]["input_tokens"] == 5
    assert body["stop_details"] == {"type": "refusal"}


def test_messages_without_pings_and_with_names() -> None:
    events = disassemble(Kind.MESSAGES, as_json(MESSAGE))
    unnamed = b"".join(event.partition(b"\n")[2] for event in events)
    pinged = b'event: ping\ndata: {"type": "ping"}\n\n'.join([b"", *events]) + b"data: [DONE]\n\n"
    for stream in (unnamed, pinged):
        assert assembled(Kind.MESSAGES, stream) == assembled(Kind.MESSAGES, b"".join(events))


def _swapped(place: int) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    return lambda events: [*events[:place], events[place + 1], events[place], *events[place + 2 :]]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda events: events[1:], "the stream does not begin with a message"),
        (lambda events: [*events[:1], *events], "a second message in one stream"),
        (lambda events: [*events, events[-1]], "events behind the end of the stream"),
        (lambda events: events[:-1], "the stream does not end with the end of a message"),
        (lambda events: [*events[:-2], events[-1]], "the message has not ended"),
        (lambda events: [*events[:1], *events[2:]], "a delta or an end of a block that is not open"),
        (_swapped(1), "a delta or an end of a block that is not open"),
        (lambda events: [*events[:2], {"type": "content_block_new"}, *events[2:]], "an event of an unknown type"),
        (
            lambda events: [*events[:2], {**events[2], "delta": {"type": "x"}}, *events[3:]],
            "a delta of an unknown type",
        ),
        (lambda events: [{**events[0], "message": {**MESSAGE}}, *events[1:]], "a message that begins with content"),
        (lambda events: [each for each in events if each["type"] != "content_block_stop"], "blocks are not in order"),
    ],
)
def test_messages_out_of_order(change: Callable[[Any], Any], why: str) -> None:
    events = parsed(b"".join(disassemble(Kind.MESSAGES, as_json(MESSAGE))))
    told = facts(Kind.MESSAGES, named(*change(events)), streamed=True)
    assert (told.whole, told.why) == (False, why)


def test_the_input_of_a_tool_is_one_json_object() -> None:
    block = {"type": "tool_use", "id": "t", "name": "f", "input": {"city": "Bern", "days": 5}}
    stream = b"".join(disassemble(Kind.MESSAGES, as_json({**MESSAGE, "content": [block]})))
    assert facts(Kind.MESSAGES, stream, streamed=True).whole
    for wrong in (b'{\\"city\\":\\"Bern\\",\\"da', b"[1]", b"5"):
        cut = stream.replace(b'{\\"city\\":\\"Bern\\",\\"days\\":5}', wrong)
        assert cut != stream
        assert not facts(Kind.MESSAGES, cut, streamed=True).whole


# --- facts


def test_facts() -> None:
    chat = facts(Kind.CHAT, as_json(CHAT), streamed=False)
    assert (chat.answer_id, chat.model, chat.text) == ("chatcmpl-1", "m-2026", TEXT)
    assert chat.finish_reasons == ("stop", "tool_calls", "stop", "function_call")
    assert (chat.tool_calls, chat.refused, chat.truncated, chat.filtered) == (True, True, False, False)
    assert chat.usage == Usage(9, 40, 4)
    message = facts(Kind.MESSAGES, as_json(MESSAGE), streamed=False)
    assert (message.answer_id, message.text) == ("msg_1", TEXT + "It rains.")
    assert (message.finish_reasons, message.tool_calls, message.usage) == (("tool_use",), True, Usage(11, 30, 4))
    response = facts(Kind.RESPONSES, as_json(RESPONSE), streamed=False)
    assert (response.answer_id, response.text, response.finish_reasons) == ("resp_1", TEXT, ("completed",))
    assert (response.tool_calls, response.refused, response.usage) == (True, True, Usage(9, 30, 4))


def test_what_is_examined_is_had_as_a_body() -> None:
    for kind, fields in BODIES.items():
        body = as_json(fields)
        stream = b"".join(disassemble(kind, body, usage=True))
        assert examine(kind, body, streamed=False) == (facts(kind, body, streamed=False), body)
        assert examine(kind, stream, streamed=True) == (facts(kind, stream, streamed=True), assembled(kind, stream))
        told, nothing = examine(kind, stream[:-1], streamed=True)
        assert (told.whole, nothing) == (False, b"")


@pytest.mark.parametrize(
    ("kind", "change", "truncated", "filtered"),
    [
        (Kind.CHAT, "length", True, False),
        (Kind.CHAT, "content_filter", False, True),
        (Kind.COMPLETION, "length", True, False),
        (Kind.COMPLETION, "content_filter", False, True),
        (Kind.RESPONSES, "max_output_tokens", True, False),
        (Kind.RESPONSES, "content_filter", False, True),
        (Kind.MESSAGES, "max_tokens", True, False),
        (Kind.MESSAGES, "model_context_window_exceeded", True, False),
        (Kind.MESSAGES, "pause_turn", True, False),
        (Kind.MESSAGES, "refusal", False, True),
    ],
)
def test_answers_that_were_cut(kind: Kind, change: str, truncated: bool, filtered: bool) -> None:
    body = dict(BODIES[kind])
    if kind is Kind.RESPONSES:
        body |= {"status": "incomplete", "incomplete_details": {"reason": change}}
    elif kind is Kind.MESSAGES:
        body["stop_reason"] = change
    else:
        body["choices"] = [{**choice, "finish_reason": change} for choice in body["choices"]]
    told = facts(kind, as_json(body), streamed=False)
    assert (told.whole, told.truncated, told.filtered) == (True, truncated, filtered)
    assert set(told.finish_reasons) == {change}


def test_who_wants_usage() -> None:
    assert wants_usage({"stream_options": {"include_usage": True}})
    wrong: list[object] = [None, {}, {"include_usage": False}, {"include_usage": 1}, [], "include_usage"]
    assert not any(wants_usage({"stream_options": options}) for options in wrong)
    assert not wants_usage({})
