"""Every dialect end to end: official clients, the gateway, simulated workers that publish what they hold."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import anthropic
import openai
import orjson
import pytest

from backends.fleet_worker import Worker
from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet, SimulatedWorker
from backends.simulated.model_text import EMBEDDED_TOKENIZER
from cache.block_hash import ChainKey
from cache.prompt_blocks import PromptBlockCache
from cache.tokenizer import Tokenizer
from gateway.calls import read_call
from gateway.pipeline import RequestPipeline
from gateway.routes import RouteTable
from policies.types import BlockHash
from tests.data_plane_fixtures import inside
from tests.gateway_fixtures import MODEL, config_for, eventually, feed_of, model_text, simulated_gateway

SYSTEM = "You answer in one sentence. " * 40
QUESTION = "What does a prefix cache keep? " * 20
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
BLOCK = 16


@dataclass
class Running:
    """A gateway, its workers, and a client of each vendor."""

    fleet: SimulatedFleet
    openai: openai.AsyncOpenAI
    claude: anthropic.AsyncAnthropic
    http: aiohttp.ClientSession


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    engine = EngineConfig(speed=200.0, block_size=BLOCK)
    async with (
        simulated_gateway(3, engine=engine) as (url, fleet),
        openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client,
        anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as claude,
        aiohttp.ClientSession(base_url=url) as http,
    ):
        yield Running(fleet, client, claude, http)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


async def post(running: Running, path: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The worker that answered, and what."""
    async with running.http.post(path, json={"model": MODEL, **body}) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return response.headers["x-worker"], answer


def cached(answer: dict[str, Any]) -> int:
    """Cached prompt tokens, in every dialect's words."""
    usage = answer["usage"]
    if "cache_read_input_tokens" in usage:
        return int(usage["cache_read_input_tokens"])
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def chat(turns: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": [{"role": "system", "content": SYSTEM}, *turns], "max_tokens": 4}


def message(turns: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"system": SYSTEM, "messages": turns, "max_tokens": 4}


def response(turns: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"instructions": SYSTEM, "input": turns, "max_output_tokens": 4}


DIALECTS = (chat, message, response)


@pytest.mark.parametrize("shape", DIALECTS)
async def test_a_repeated_prompt_goes_where_its_blocks_are(running: Running, shape: Any) -> None:
    """Three at once spread; each then comes back to the worker that holds it, and finds all but its last block."""
    prompts = [shape([user(f"{number}. {QUESTION}")]) for number in range(3)]
    first = [await post(running, *prompt) for prompt in prompts]
    for _ in range(3):
        for prompt, (worker, answer) in zip(prompts, first, strict=True):
            again, told = await post(running, *prompt)
            assert again == worker
            assert cached(told) > max(cached(answer), 300)
            assert cached(told) % BLOCK == 0


@pytest.mark.parametrize("shape", DIALECTS)
async def test_cached_tokens_rise_with_the_conversation(running: Running, shape: Any) -> None:
    turns = [user(QUESTION)]
    counts, workers = [], set()
    for number in range(4):
        worker, answer = await post(running, *shape(turns))
        counts.append(cached(answer))
        workers.add(worker)
        turns = [*turns, {"role": "assistant", "content": f"Answer {number}. " * 10}, user(QUESTION)]
    assert len(workers) == 1
    assert counts == sorted(set(counts))


@pytest.mark.parametrize("later", DIALECTS)
@pytest.mark.parametrize("earlier", DIALECTS)
async def test_one_conversation_has_the_same_blocks_in_every_dialect(
    running: Running, earlier: Any, later: Any
) -> None:
    turns = [
        user(QUESTION),
        {"role": "assistant", "content": "Keys and values."},
        user([{"type": "text", "text": "Whose?"}]),
    ]
    if later is response or earlier is response:
        turns[-1] = user("Whose?")
    worker, _ = await post(running, *earlier(turns))
    # Give the others something to hold too, so that no worker is chosen for being the emptiest.
    for number in range(4):
        await post(running, *chat([user(f"{number} of something else. " * 30)]))
    again, told = await post(running, *later(turns))
    assert again == worker
    _, repeated = await post(running, *later(turns))
    assert cached(told) == cached(repeated) > 300


async def test_tools_have_the_same_blocks_in_messages_and_chat(running: Running) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    function = {"name": "weather", "description": "Skies.", "parameters": SCHEMA}
    path, body = chat(
        [
            user(QUESTION),
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        ]
    )
    use = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bern"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "rain"}]}
    other, same = message([user(QUESTION), {"role": "assistant", "content": [use]}, user([result])])
    worker, _ = await post(running, path, {**body, "tools": [{"type": "function", "function": function}]})
    tool = {"name": "weather", "description": "Skies.", "input_schema": SCHEMA}
    again, told = await post(running, other, {**same, "tools": [tool]})
    assert again == worker
    assert cached(told) > 300


async def test_official_clients_stream_and_count(running: Running) -> None:
    asked: Any = {"model": MODEL, "max_tokens": 6, "system": SYSTEM, "messages": [user(QUESTION)]}
    unary = await running.claude.messages.create(**asked)
    async with running.claude.messages.stream(**asked) as events:
        streamed = await events.get_final_message()
    (said,), (block,) = streamed.content, unary.content
    assert said.type == block.type == "text"
    assert said.text == block.text
    assert (streamed.usage.cache_read_input_tokens or 0) > 300
    counted = await running.claude.messages.count_tokens(
        model=MODEL, system=SYSTEM, messages=[{"role": "user", "content": QUESTION}]
    )
    told = unary.usage
    assert counted.input_tokens == told.input_tokens + (told.cache_read_input_tokens or 0)
    async with running.openai.responses.stream(model=MODEL, instructions=SYSTEM, input=QUESTION) as responses:
        final = await responses.get_final_response()
    assert final.output_text
    assert final.usage is not None
    assert final.usage.input_tokens == counted.input_tokens


async def test_a_stored_response_is_kept_followed_and_deleted() -> None:
    async with (
        simulated_gateway(1) as (url, _),
        openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client,
    ):
        first = await client.responses.create(model=MODEL, input="Hello", max_output_tokens=4)
        assert (await client.responses.retrieve(first.id)).output_text == first.output_text
        then = await client.responses.create(
            model=MODEL, input="And?", previous_response_id=first.id, max_output_tokens=4
        )
        assert then.previous_response_id == first.id
        with pytest.raises(openai.BadRequestError):
            await client.responses.cancel(first.id)
        await client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(first.id)


async def test_tokenize_and_back(running: Running) -> None:
    _, told = await post(running, "/tokenize", {"prompt": "Hello there"})
    _, back = await post(running, "/detokenize", {"tokens": told["tokens"]})
    assert back["prompt"] == "Hello there"


def blocks_of(path: str, body: dict[str, Any]) -> Sequence[BlockHash]:
    """The prompt's chain, from the tokenizer's files and the request alone."""
    tokenizer = Tokenizer.load(EMBEDDED_TOKENIZER)
    cache = PromptBlockCache(tokenizer, max_bytes=1 << 20, piece_chars=2048)
    call = read_call(RouteTable().find(path.encode(), b"POST"), orjson.dumps(body))
    scan = cache.start(ChainKey(MODEL, BLOCK, "", (), ""), tokenizer.render_chat(call.chat), add_special_tokens=False)
    return cache.finish(scan, cache.encode(scan)).known.hashes


async def hear(worker: Worker, simulated: SimulatedWorker, http: aiohttp.ClientSession) -> None:
    """Give a worker things to tell until the gateway hears of one: it may begin to listen late."""
    async with asyncio.timeout(5):
        for number in itertools.count():
            if worker.publishes_events:
                return
            body = {"model": MODEL, "prompt": f"{number} {QUESTION}", "max_tokens": 1}
            async with http.post(simulated.url + "/v1/completions", json=body) as answer:
                await answer.read()
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("shape", DIALECTS)
async def test_what_only_events_tell_is_found_in_every_dialect(shape: Any) -> None:
    """Prompts that workers got behind the gateway's back: it finds them only where its tokens are the engine's."""
    fleet_config = FleetConfig(model=MODEL, engine=EngineConfig(speed=200.0, block_size=BLOCK))
    async with SimulatedFleet(3, fleet_config, text=model_text()) as fleet:
        feeds = [feed_of(worker) for worker in fleet.workers]
        extra = f"models: [{{name: {MODEL}, tokenizer: embedded}}]\nresponse_headers: {{worker: x-worker}}\n"
        config = config_for(fleet.urls, extra + "limits: {drain_timeout: 0}\n", workers_extra=feeds)
        async with inside(config) as gateway, aiohttp.ClientSession() as http:
            pipeline = gateway.server.pipeline
            assert isinstance(pipeline, RequestPipeline)
            for worker, simulated in zip(gateway.fleet.workers, fleet.workers, strict=True):
                await hear(worker, simulated, http)
                path, body = shape([user(f"For {worker.id}. {QUESTION}")])
                body = {"model": MODEL, **body}
                async with http.post(simulated.url + path, json=body) as answer:
                    told = (await answer.json())["usage"]
                tokens = told.get("prompt_tokens") or told["input_tokens"]
                hashes = blocks_of(path, body)
                assert len(hashes) == tokens // BLOCK
                await eventually(lambda: pipeline._index.match(hashes).get(worker.id) == len(hashes))  # noqa: B023 - called now
                async with http.post(gateway.url + path, json=body) as answer:
                    assert answer.headers["x-worker"] == worker.id
                    assert cached(await answer.json()) == (tokens - 1) // BLOCK * BLOCK
