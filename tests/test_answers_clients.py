"""The official clients of both vendors read an answer in either form over real sockets, and find the same in it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

from gateway.answers import disassemble
from gateway.routes import Kind
from tests.answer_fixtures import ARGUMENTS, CHAT, COMPLETION, MESSAGE, RESPONSE, TEXT, as_json, assembled, plays
from tests.data_plane_fixtures import RawWorker

ASKED: Any = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
USAGE: Any = {"stream_options": {"include_usage": True}}
UNARY, STREAM = "application/json", "text/event-stream; charset=utf-8"


@pytest.fixture
async def server() -> AsyncIterator[RawWorker]:
    async with RawWorker().running() as running:
        yield running


@pytest.fixture
async def client(server: RawWorker) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
async def claude(server: RawWorker) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as made:
        yield made


def play_stream(server: RawWorker, kind: Kind, body: Mapping[str, Any], *, usage: bool = True) -> list[bytes]:
    events = disassemble(kind, as_json(body), usage=usage)
    server.answer = plays(events, STREAM)
    return events


def play_body(server: RawWorker, body: bytes) -> None:
    server.answer = plays([body], UNARY)


def plain(model: BaseModel) -> Any:
    """What a client has read, without what it did not find and what is only an empty form of that."""
    return _plain(model.model_dump())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        own = ("parsed", "parsed_arguments", "parsed_output", "index", "__json_buf")
        return {key: _plain(each) for key, each in value.items() if key not in own and each is not None and each != []}
    return [_plain(each) for each in value] if isinstance(value, list) else value


# --- chat completions


async def test_the_chat_helper_gathers_the_body_from_its_stream(server: RawWorker, client: openai.AsyncOpenAI) -> None:
    play_body(server, as_json(CHAT))
    unary = await client.chat.completions.create(**ASKED)
    play_stream(server, Kind.CHAT, CHAT)
    async with client.chat.completions.stream(**ASKED, **USAGE, n=4) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    wanted = plain(unary)
    for choice in wanted["choices"]:
        for name in ("stop_reason", "token_ids"):
            choice.pop(name, None)  # of later chunks the helper keeps what it knows
    assert plain(final) == wanted
    assert kinds.count("content.done") == 1
    assert kinds.count("tool_calls.function.arguments.done") == 2
    assert kinds.count("refusal.done") == 1


async def test_chat_chunks_by_hand(server: RawWorker, client: openai.AsyncOpenAI) -> None:
    events = play_stream(server, Kind.CHAT, CHAT)
    chunks = [chunk async for chunk in await client.chat.completions.create(**ASKED, **USAGE, stream=True)]
    assert len(chunks) == len(events) - 1
    assert {chunk.id for chunk in chunks} == {"chatcmpl-1"}
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk.created for chunk in chunks} == {CHAT["created"]}
    first = [chunk.choices[0] for chunk in chunks if chunk.choices and chunk.choices[0].index == 0]
    assert first[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for choice in first) == TEXT
    assert sum(bool(choice.delta.content) for choice in first) > 4
    second = [chunk.choices[0] for chunk in chunks if chunk.choices and chunk.choices[0].index == 1]
    calls = [call for choice in second for call in choice.delta.tool_calls or []]
    names = [(call.id, call.function.name) for call in calls if call.function is not None and call.function.name]
    assert names == [("call_1", "weather"), ("call_2", "now")]
    arguments = [call.function.arguments or "" for call in calls if call.index == 0 and call.function is not None]
    assert arguments[0] == ""
    assert len(arguments) > 3
    assert "".join(arguments) == ARGUMENTS
    assert [choice.finish_reason for choice in second if choice.finish_reason] == ["tool_calls"]
    assert [chunk.usage is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.to_dict() == CHAT["usage"]


async def test_nobody_gets_usage_who_did_not_ask(server: RawWorker, client: openai.AsyncOpenAI) -> None:
    for kind, body in ((Kind.CHAT, CHAT), (Kind.COMPLETION, COMPLETION)):
        events = play_stream(server, kind, body, usage=False)
        assert b"usage" not in b"".join(events)
        stream: Any
        if kind is Kind.CHAT:
            stream = await client.chat.completions.create(**ASKED, stream=True)
        else:
            stream = await client.completions.create(model="m", prompt="Hello", stream=True)
        chunks = [chunk async for chunk in stream]
        assert len(chunks) == len(events) - 1
        assert all(chunk.choices and chunk.usage is None for chunk in chunks)


async def test_a_body_from_a_stream_that_told_no_usage(server: RawWorker, client: openai.AsyncOpenAI) -> None:
    play_body(server, assembled(Kind.CHAT, b"".join(disassemble(Kind.CHAT, as_json(CHAT)))))
    chat = await client.chat.completions.create(**ASKED)
    assert chat.usage is None
    assert chat.choices[0].message.content == TEXT
    assert (chat.id, chat.created, chat.object) == ("chatcmpl-1", CHAT["created"], "chat.completion")


async def test_completions_in_both_forms(server: RawWorker, client: openai.AsyncOpenAI) -> None:
    events = play_stream(server, Kind.COMPLETION, COMPLETION)
    chunks = [chunk async for chunk in await client.completions.create(model="m", prompt="Hello", stream=True, **USAGE)]
    texts = ["", "", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice["text"] for choice in COMPLETION["choices"]]
    assert [chunk.usage.to_dict() for chunk in chunks if chunk.usage is not None] == [COMPLETION["usage"]]
    play_body(server, assembled(Kind.COMPLETION, b"".join(events)))
    body = await client.completions.create(model="m", prompt="Hello")
    assert _plain(body.to_dict()) == _plain(COMPLETION)


# --- OpenAI's responses


async def test_the_responses_helper_gathers_the_response(server: RawWorker, client: openai.AsyncOpenAI) -> None:
    play_body(server, as_json(RESPONSE))
    unary = await client.responses.create(model="m", input="Hello")
    events = play_stream(server, Kind.RESPONSES, RESPONSE)
    async with client.responses.stream(model="m", input="Hello") as stream:
        told = [event async for event in stream]
        final = await stream.get_final_response()
    assert plain(final) == plain(unary)
    assert final.id == "resp_1"
    assert [event.sequence_number for event in told] == list(range(len(events)))
    assert [event.type for event in told[:3]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
    ]
    assert told[-1].type == "response.completed"
    texts = [event for event in told if event.type == "response.output_text.delta"]
    assert "".join(event.delta for event in texts) == TEXT
    assert texts[-1].snapshot == TEXT
    arguments = [event for event in told if event.type == "response.function_call_arguments.delta"]
    assert arguments[-1].snapshot == ARGUMENTS


async def test_every_event_of_a_response_is_one_that_the_client_knows(
    server: RawWorker, client: openai.AsyncOpenAI
) -> None:
    events = play_stream(server, Kind.RESPONSES, RESPONSE)
    stream = await client.responses.create(model="m", input="Hello", stream=True)
    told = [event async for event in stream]
    assert len(told) == len(events)
    for event in told:
        type(event).model_validate(event.to_dict())  # strictly: no member is missing or of another type


async def test_a_response_that_was_cut_short(server: RawWorker, client: openai.AsyncOpenAI) -> None:
    body = RESPONSE | {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    play_stream(server, Kind.RESPONSES, body)
    stream = await client.responses.create(model="m", input="Hello", stream=True)
    told = [event async for event in stream]
    last = told[-1]
    assert last.type == "response.incomplete"
    assert _plain(last.response.to_dict()) == _plain(body)


async def test_a_response_as_a_body_from_its_stream(server: RawWorker, client: openai.AsyncOpenAI) -> None:
    play_body(server, assembled(Kind.RESPONSES, b"".join(disassemble(Kind.RESPONSES, as_json(RESPONSE)))))
    response = await client.responses.create(model="m", input="Hello")
    assert response.to_dict() == RESPONSE
    assert response.output_text == TEXT


# --- Anthropic's messages


async def test_the_messages_helper_gathers_the_message(server: RawWorker, claude: anthropic.AsyncAnthropic) -> None:
    play_body(server, as_json(MESSAGE))
    unary = await claude.messages.create(**ASKED, max_tokens=99)
    play_stream(server, Kind.MESSAGES, MESSAGE)
    async with claude.messages.stream(**ASKED, max_tokens=99) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_message()
    assert plain(final) == plain(unary)
    texts = [event.text for event in events if event.type == "text"]
    assert "".join(texts) == TEXT + "It rains."
    assert len(texts) > 3
    assert sum(event.type == "citation" for event in events) == 1
    assert sum(event.type == "signature" for event in events) == 1
    inputs = [event for event in events if event.type == "input_json"]
    assert inputs[-1].snapshot == json.loads(ARGUMENTS)


async def test_every_event_of_a_message_is_one_that_the_client_knows(
    server: RawWorker, claude: anthropic.AsyncAnthropic
) -> None:
    events = play_stream(server, Kind.MESSAGES, MESSAGE)
    stream = await claude.messages.create(**ASKED, max_tokens=99, stream=True)
    told = [event async for event in stream]
    assert len(told) == len(events)
    for event in told:
        type(event).model_validate(event.to_dict())


async def test_a_message_as_a_body_from_its_stream(server: RawWorker, claude: anthropic.AsyncAnthropic) -> None:
    play_body(server, assembled(Kind.MESSAGES, b"".join(disassemble(Kind.MESSAGES, as_json(MESSAGE)))))
    message = await claude.messages.create(**ASKED, max_tokens=99)
    assert message.to_dict() == MESSAGE
