"""What OpenAI, the simulated engine and the torch worker have really sent, from one form into the other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from backends.simulated.fleet import SimulatedWorker
from backends.worker.worker import Worker
from gateway.answers import disassemble, facts
from gateway.dialects.base import Usage
from gateway.routes import Kind
from tests.answer_fixtures import assembled
from tests.simulated_fixtures import CHAT_TOOL, SCHEMA, STORY, one_worker
from tests.test_cassettes import SERVED, Recorded
from tests.worker_fixtures import MODEL, running_worker

PATHS = {
    Kind.CHAT: "/v1/chat/completions",
    Kind.COMPLETION: "/v1/completions",
    Kind.RESPONSES: "/v1/responses",
    Kind.MESSAGES: "/v1/messages",
}
KINDS = {path.encode(): kind for kind, path in PATHS.items()}
ANSWERS = [each for each in SERVED if each.path in KINDS and each.status == 200]
ERRORS = [each for each in SERVED if each.path in KINDS and each.status != 200]
OWN = ("id", "created", "created_at", "usage", "prompt_token_ids")
"""Members that differ between two answers to the same request."""

pytestmark = pytest.mark.asyncio(loop_scope="module")


def chat_tool(name: str) -> dict[str, Any]:
    return {"tools": [CHAT_TOOL], "tool_choice": {"type": "function", "function": {"name": name}}}


_ASK = {"messages": [{"role": "user", "content": STORY}]}
SIMULATED: list[tuple[Kind, dict[str, Any]]] = [
    (Kind.CHAT, {**_ASK, "max_tokens": 40}),
    (Kind.CHAT, {**_ASK, "max_tokens": 20, "n": 3}),
    (Kind.CHAT, {**_ASK, **chat_tool("weather")}),
    (Kind.COMPLETION, {"prompt": STORY, "max_tokens": 40}),
    (Kind.COMPLETION, {"prompt": [STORY, "Another one"], "max_tokens": 9, "n": 2, "echo": True}),
    (Kind.RESPONSES, {"input": STORY}),
    (Kind.RESPONSES, {"input": STORY, "max_output_tokens": 20}),
    (
        Kind.RESPONSES,
        {
            "input": STORY,
            "tools": [{"type": "function", "name": "weather", "parameters": SCHEMA}],
            "tool_choice": {"type": "function", "name": "weather"},
        },
    ),
    (Kind.MESSAGES, {**_ASK, "max_tokens": 40}),
    (
        Kind.MESSAGES,
        {
            **_ASK,
            "max_tokens": 400,
            "tools": [{"name": "weather", "input_schema": SCHEMA}],
            "tool_choice": {"type": "tool", "name": "weather"},
        },
    ),
]
TORCH: list[tuple[Kind, dict[str, Any]]] = [
    (Kind.CHAT, {**_ASK, "max_tokens": 40}),
    (Kind.CHAT, {**_ASK, "max_tokens": 30, "n": 2, "logprobs": True, "top_logprobs": 2, "return_token_ids": True}),
    (Kind.COMPLETION, {"prompt": STORY, "max_tokens": 40, "echo": True}),
    (Kind.COMPLETION, {"prompt": [STORY, "Another one"], "max_tokens": 9, "logprobs": 2, "return_token_ids": True}),
]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def simulated() -> AsyncIterator[SimulatedWorker]:
    async with one_worker() as worker:
        yield worker


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def torch_worker() -> AsyncIterator[Worker]:
    async with running_worker() as worker:
        yield worker


async def ask(url: str, kind: Kind, body: dict[str, Any]) -> bytes:
    async with aiohttp.ClientSession(base_url=url) as http, http.post(PATHS[kind], json=body) as response:
        assert response.status == 200, await response.text()
        return await response.read()


async def both_forms(url: str, kind: Kind, body: dict[str, Any]) -> tuple[bytes, bytes]:
    unary = await ask(url, kind, body)
    usage = {"stream_options": {"include_usage": True}} if kind in (Kind.CHAT, Kind.COMPLETION) else {}
    return unary, await ask(url, kind, {**body, "stream": True, **usage})


def content(body: bytes) -> Any:
    """What is answered, without what differs from answer to answer and what is empty."""
    return _content(json.loads(body))


def _content(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _content(each) for key, each in value.items() if key not in OWN and not key.endswith("_id")}
        return {key: each for key, each in kept.items() if each not in (None, [], "")}
    return [_content(each) for each in value] if isinstance(value, list) else value


def same_in_both_forms(kind: Kind, unary: bytes, stream: bytes) -> None:
    """Two recordings of the same answer, each turned into the form of the other."""
    assert content(assembled(kind, stream)) == content(unary)
    made = b"".join(disassemble(kind, unary, usage=True))
    assert content(assembled(kind, made)) == content(unary)
    told, other = facts(kind, unary, streamed=False), facts(kind, stream, streamed=True)
    assert told.whole
    assert (told.text, told.finish_reasons, told.truncated, told.tool_calls, told.model) == (
        other.text,
        other.finish_reasons,
        other.truncated,
        other.tool_calls,
        other.model,
    )
    assert (told.usage.prompt, told.usage.completion) == (other.usage.prompt, other.usage.completion)
    assert told.usage.prompt


@pytest.mark.parametrize(("kind", "body"), SIMULATED)
async def test_what_the_simulated_engine_sends(simulated: SimulatedWorker, kind: Kind, body: dict[str, Any]) -> None:
    unary, stream = await both_forms(simulated.url, kind, {"model": "simulated", **body})
    same_in_both_forms(kind, unary, stream)


@pytest.mark.parametrize(("kind", "body"), TORCH)
async def test_what_the_torch_worker_sends(torch_worker: Worker, kind: Kind, body: dict[str, Any]) -> None:
    unary, stream = await both_forms(torch_worker.url, kind, {"model": MODEL, "seed": 7, **body})
    same_in_both_forms(kind, unary, stream)


async def test_usage_in_every_chunk_is_told_once(torch_worker: Worker) -> None:
    asked = {"model": MODEL, **_ASK, "max_tokens": 9, "stream": True}
    every = {"include_usage": True, "continuous_usage_stats": True}
    stream = await ask(torch_worker.url, Kind.CHAT, {**asked, "stream_options": every})
    assert stream.count(b'"usage":{') > 5
    body = assembled(Kind.CHAT, stream)
    again = b"".join(disassemble(Kind.CHAT, body, usage=True))
    assert again.count(b'"usage":{') == 1
    assert b'"usage"' not in b"".join(disassemble(Kind.CHAT, body))
    assert json.loads(assembled(Kind.CHAT, again))["usage"] == json.loads(body)["usage"]


# --- OpenAI's own


def _name(recorded: Recorded) -> str:
    return recorded.name


@pytest.mark.parametrize("recorded", ANSWERS, ids=_name)
async def test_what_openai_has_sent(recorded: Recorded) -> None:
    kind = KINDS[recorded.path]
    told = facts(kind, recorded.answer, streamed=recorded.streams)
    assert told.whole
    body = assembled(kind, recorded.answer) if recorded.streams else recorded.answer
    stream = b"".join(disassemble(kind, body, usage=True))
    again = assembled(kind, stream)
    assert content(again) == content(body)
    whole, made = json.loads(body), json.loads(again)
    for name in ("id", "created", "usage", "model", "object"):
        assert made[name] == whole[name]


async def test_the_cassettes_are_all_there() -> None:
    assert len(ANSWERS) == 24
    assert sum(each.streams for each in ANSWERS) == 5


async def test_facts_of_recorded_streams() -> None:
    named = {each.name: each for each in ANSWERS}
    hi = facts(Kind.CHAT, named["chat-streaming"].answer, streamed=True)
    assert (hi.finish_reasons, hi.truncated, hi.usage.prompt) == (("stop",), False, None)
    assert hi.text.startswith("Hi there! How can I help")
    assert hi.model == "gpt-5-nano-2025-08-07"
    cut = facts(Kind.CHAT, named["chat-streaming-detailed-usage"].answer, streamed=True)
    assert (cut.finish_reasons, cut.truncated, cut.usage, cut.text) == (("length",), True, Usage(12, 100, 0), "")
    assert facts(Kind.CHAT, named["chat-parallel-tools"].answer, streamed=False).tool_calls


@pytest.mark.parametrize("recorded", ERRORS, ids=_name)
async def test_errors_of_openai_are_no_answers(recorded: Recorded) -> None:
    told = facts(KINDS[recorded.path], recorded.answer, streamed=False)
    assert (told.whole, told.failed, told.why) == (False, True, "the worker told an error")
