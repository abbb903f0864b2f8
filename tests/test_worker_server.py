"""A worker through real sockets: the official client, refusals, metrics, KV events.

The engine is a process of its own, behind the real channel; nothing here asks what its words mean.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio

from backends.engine_metrics import EngineLoad, read_load
from backends.kv_subscriber import KvSubscriber
from backends.worker.worker import Worker
from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.prefix_index import PrefixIndex
from cache.token_backends import ids_to_bytes
from policies.types import WorkerId
from tests.gateway_fixtures import config_for, eventually, feed_of, gateway
from tests.worker_fixtures import MODEL, real_options
from tests.worker_tiny_model import tiny_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

STORY = "Once upon a time there was a gateway that knew where every prefix lived. " * 6
LONG = 1500
"""Tokens that take a second or more."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def worker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Worker]:
    async with Worker(real_options(tiny_model(tmp_path_factory.mktemp("model")))) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(worker: Worker) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def http(worker: Worker) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(base_url=worker.url) as session:
        yield session


def chat(content: str = STORY, **fields: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 20,
        "seed": 7,
        **fields,
    }


def completion(prompt: object = STORY, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": 20, "seed": 7, **fields}


async def load(worker: Worker) -> EngineLoad:
    async with aiohttp.ClientSession(base_url=worker.url) as http, http.get("/metrics") as response:
        return read_load(await response.read())


async def until(worker: Worker, condition: Callable[[EngineLoad], object]) -> EngineLoad:
    async with asyncio.timeout(10):
        while not condition(told := await load(worker)):  # noqa: ASYNC110 - a page has no event
            await asyncio.sleep(0.02)
    return told


async def tokens_of(http: aiohttp.ClientSession, text: str) -> list[int]:
    async with http.post("/tokenize", json={"prompt": text}) as response:
        return list((await response.json())["tokens"])


# --- answers -----------------------------------------------------------------------------------------------


async def test_unary_chat_and_its_usage(client: openai.AsyncOpenAI, http: aiohttp.ClientSession) -> None:
    async with http.post("/reset_prefix_cache") as response:
        assert response.status == 200
    first = await client.chat.completions.create(**chat())
    again = await client.chat.completions.create(**chat())
    assert first.choices[0].message.content == again.choices[0].message.content
    assert first.choices[0].message.role == "assistant"
    assert first.choices[0].finish_reason == "length"
    assert first.model == MODEL
    for answer, cached in ((first, 0), (again, None)):
        usage = answer.usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        expected = (usage.prompt_tokens - 1) // 16 * 16 if cached is None else cached
        assert usage.prompt_tokens_details.cached_tokens == expected
        assert (usage.completion_tokens, usage.total_tokens) == (20, usage.prompt_tokens + 20)


async def test_a_stream_says_the_same_as_a_body(client: openai.AsyncOpenAI) -> None:
    unary = await client.chat.completions.create(**chat())
    stream = await client.chat.completions.create(**chat(stream=True, stream_options={"include_usage": True}))
    chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(each.delta.content or "" for each in deltas) == unary.choices[0].message.content
    assert deltas[0].delta.role == "assistant"
    assert len(deltas) > 5
    assert [each.finish_reason for each in deltas] == [None] * (len(deltas) - 1) + ["length"]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert unary.usage is not None
    assert chunks[-1].usage.completion_tokens == unary.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


async def test_usage_of_every_chunk_grows(client: openai.AsyncOpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = await client.completions.create(**completion(), stream=True, stream_options=options)  # type: ignore[call-overload]  # an option of vLLM's
    counts = [chunk.usage.completion_tokens async for chunk in stream]
    assert counts == sorted(counts)
    assert counts[-1] == 20
    assert len(set(counts)) > 5


async def test_several_choices_stream_apart(client: openai.AsyncOpenAI) -> None:
    unary = await client.completions.create(**completion([STORY, "Another."], n=2, max_tokens=6))
    assert [choice.index for choice in unary.choices] == [0, 1, 2, 3]
    texts = [""] * 4
    stream = await client.completions.create(**completion([STORY, "Another."], n=2, max_tokens=6), stream=True)
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in unary.choices]
    assert unary.usage is not None
    assert unary.usage.completion_tokens == 24


async def test_prompts_as_texts_and_ids(client: openai.AsyncOpenAI, http: aiohttp.ClientSession) -> None:
    ids = await tokens_of(http, STORY)
    texts = [
        (await client.completions.create(**completion(prompt))).choices[0].text
        for prompt in (STORY, [STORY], ids, [ids])
    ]
    assert len(set(texts)) == 1
    both = await client.completions.create(**completion([ids, ids[:20]]))
    assert both.choices[0].text == texts[0]
    assert both.usage is not None
    assert both.usage.prompt_tokens == len(ids) + 20


async def test_echo(client: openai.AsyncOpenAI, http: aiohttp.ClientSession) -> None:
    plain = (await client.completions.create(**completion())).choices[0].text
    for prompt in (STORY, await tokens_of(http, STORY)):
        echoed = await client.completions.create(**completion(prompt, echo=True))
        assert echoed.choices[0].text == STORY + plain
        stream = await client.completions.create(**completion(prompt, echo=True), stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == STORY + plain


async def test_completions_have_sixteen_tokens_unless_told(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt=STORY, seed=7)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


@pytest.mark.parametrize("include", [False, True])
async def test_stop_strings_across_tokens(client: openai.AsyncOpenAI, include: bool) -> None:
    whole = (await client.completions.create(**completion(logprobs=0))).choices[0]
    assert whole.logprobs is not None
    assert whole.logprobs.tokens is not None
    # Its last characters are in another token than its first; of both, the text is whole characters.
    pairs = [left[-2:] + right[:2] for left, right in pairwise(whole.logprobs.tokens[5:])]
    stop = next(pair for pair in pairs if pair in whole.text)
    end = whole.text.index(stop) + (len(stop) if include else 0)
    extra = {"include_stop_str_in_output": include}
    asked = completion(stop=["never said", stop], extra_body=extra)
    cut = (await client.completions.create(**asked)).choices[0]
    assert (cut.text, cut.finish_reason) == (whole.text[:end], "stop")
    assert (cut.model_extra or {})["stop_reason"] == stop
    pieces, reasons = [], []
    async for chunk in await client.completions.create(**asked, stream=True):
        pieces.append(chunk.choices[0].text)
        reasons.append(chunk.choices[0].finish_reason)
    assert "".join(pieces) == whole.text[:end]
    assert reasons[-1] == "stop"


async def test_a_stop_string_frees_the_engine(worker: Worker, client: openai.AsyncOpenAI) -> None:
    before = await load(worker)
    whole = (await client.completions.create(**completion())).choices[0].text
    asked = completion(stop=whole[8:12], max_tokens=LONG, extra_body={"ignore_eos": True})
    answer = await client.completions.create(**asked)
    assert answer.usage is not None
    assert answer.usage.completion_tokens < 20
    after = await until(worker, lambda told: told.running == 0)
    assert (after.generation_tokens or 0) - (before.generation_tokens or 0) < LONG


async def test_stop_token_ids_are_told_and_not_shown(client: openai.AsyncOpenAI) -> None:
    extra: dict[str, Any] = {"return_token_ids": True}
    whole = (await client.completions.create(**completion(extra_body=extra))).choices[0]
    ids = (whole.model_extra or {})["token_ids"]
    at = next(i for i in range(3, len(ids)) if ids[i] not in ids[:i])
    cut = (await client.completions.create(**completion(extra_body={**extra, "stop_token_ids": [ids[at]]}))).choices[0]
    told = cut.model_extra or {}
    assert (cut.finish_reason, told["stop_reason"], told["token_ids"]) == ("stop", ids[at], ids[: at + 1])
    assert whole.text.startswith(cut.text)
    assert len(cut.text) < len(whole.text)


async def test_logprobs_of_chats(client: openai.AsyncOpenAI) -> None:
    asked = chat(max_tokens=6, logprobs=True, top_logprobs=3)
    unary = (await client.chat.completions.create(**asked)).choices[0].logprobs
    assert unary is not None
    assert unary.content is not None
    assert [len(each.top_logprobs) for each in unary.content] == [3] * 6
    assert all(each.logprob <= 0 and each.bytes is not None for each in unary.content)
    streamed: list[Any] = []
    async for chunk in await client.chat.completions.create(**asked, stream=True):
        found = chunk.choices[0].logprobs
        streamed += (found.content or []) if found is not None else []
    assert [each.token for each in streamed] == [each.token for each in unary.content]
    bare = (await client.chat.completions.create(**chat(max_tokens=2, logprobs=True))).choices[0].logprobs
    assert bare is not None
    assert [each.top_logprobs for each in bare.content or []] == [[], []]
    assert (await client.chat.completions.create(**chat())).choices[0].logprobs is None


async def test_logprobs_of_completions(client: openai.AsyncOpenAI) -> None:
    asked = completion(max_tokens=6, logprobs=2)
    unary = (await client.completions.create(**asked)).choices[0].logprobs
    assert unary is not None
    tokens, offsets = unary.tokens or [], unary.text_offset or []
    assert len(tokens) == len(unary.token_logprobs or []) == 6
    assert offsets == [sum(map(len, tokens[:at])) for at in range(6)]
    for token, value, top in zip(tokens, unary.token_logprobs or [], unary.top_logprobs or [], strict=True):
        assert len(top) in (2, 3)
        assert top[token] == value
    streamed: dict[str, list[Any]] = {"tokens": [], "text_offset": []}
    async for chunk in await client.completions.create(**asked, stream=True):
        found = chunk.choices[0].logprobs
        assert found is not None
        streamed["tokens"] += found.tokens or []
        streamed["text_offset"] += found.text_offset or []
    assert streamed == {"tokens": tokens, "text_offset": offsets}


async def test_token_ids_are_returned_where_asked_for(client: openai.AsyncOpenAI, http: aiohttp.ClientSession) -> None:
    asked = chat(max_tokens=6, extra_body={"return_token_ids": True})
    async with http.post("/tokenize", json=chat()) as response:
        prompt = (await response.json())["tokens"]
    unary = await client.chat.completions.create(**asked)
    assert (unary.model_extra or {})["prompt_token_ids"] == prompt
    ids = (unary.choices[0].model_extra or {})["token_ids"]
    assert len(ids) == 6
    heads: list[object] = []
    streamed: list[int] = []
    async for chunk in await client.chat.completions.create(**asked, stream=True):
        heads.append((chunk.model_extra or {}).get("prompt_token_ids"))
        streamed += (chunk.choices[0].model_extra or {}).get("token_ids") or []
    assert (heads[0], streamed) == (prompt, ids)
    assert not any(heads[1:])


async def test_the_prompt_of_a_chat_may_continue_its_last_message(http: aiohttp.ClientSession) -> None:
    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}]

    async def prompt(**fields: object) -> str:
        async with http.post("/tokenize", json={"messages": turns, **fields}) as response:
            tokens = (await response.json())["tokens"]
        async with http.post("/detokenize", json={"tokens": tokens}) as response:
            return str((await response.json())["prompt"])

    assert (await prompt(add_generation_prompt=False, continue_final_message=True)).endswith("Good day")
    assert await prompt(add_generation_prompt=True) != await prompt(add_generation_prompt=False)


async def test_a_seed_repeats_and_choices_differ(client: openai.AsyncOpenAI) -> None:
    first = await client.completions.create(**completion(n=2))
    again = await client.completions.create(**completion(n=2))
    assert [each.text for each in first.choices] == [each.text for each in again.choices]


# --- the other routes --------------------------------------------------------------------------------------


async def test_tokenize_counts_what_chat_counts(client: openai.AsyncOpenAI, http: aiohttp.ClientSession) -> None:
    answer = await client.chat.completions.create(**chat())
    async with http.post("/tokenize", json=chat(return_token_strs=True)) as response:
        counted = await response.json()
    assert answer.usage is not None
    assert counted["count"] == len(counted["tokens"]) == len(counted["token_strs"]) == answer.usage.prompt_tokens
    assert counted["max_model_len"] == 2048
    tokens = await tokens_of(http, STORY)
    async with http.post("/detokenize", json={"model": MODEL, "tokens": tokens}) as response:
        assert await response.json() == {"prompt": STORY}


async def test_long_texts_are_tokenized_too(http: aiohttp.ClientSession) -> None:
    text = STORY * 200
    tokens = await tokens_of(http, text)
    async with http.post("/detokenize", json={"tokens": tokens}) as response:
        assert (await response.json())["prompt"] == text


async def test_models_health_and_version(client: openai.AsyncOpenAI, http: aiohttp.ClientSession) -> None:
    (model,) = (await client.models.list()).data
    assert (model.id, (model.model_extra or {})["max_model_len"]) == (MODEL, 2048)
    for path in ("/health", "/ping", "/version"):
        async with http.get(path) as response:
            assert (response.status, response.headers["x-worker-id"]) == (200, "worker-0")


async def test_a_request_keeps_the_id_that_it_came_with(http: aiohttp.ClientSession) -> None:
    async with http.post("/v1/chat/completions", json=chat(), headers={"X-Request-Id": "r-17"}) as response:
        assert response.headers["x-request-id"] == "r-17"
        assert (await response.json())["id"] == "chatcmpl-r-17"
    streamed = chat(stream=True)
    async with http.post("/v1/chat/completions", json=streamed, headers={"X-Request-Id": "r-18"}) as response:
        assert response.headers["x-request-id"] == "r-18"
        assert b'"id":"chatcmpl-r-18"' in await response.read()
    async with http.post("/v1/chat/completions", json=chat(), headers={"X-Request-Id": "x" * 300}) as response:
        assert "x-request-id" not in response.headers


async def test_metrics_are_what_the_gateway_reads(worker: Worker, client: openai.AsyncOpenAI) -> None:
    before = await load(worker)
    answer = await client.completions.create(**completion("Something new, never asked before, that is long. " * 5))
    assert answer.usage is not None
    after = await until(worker, lambda told: told.running == 0)
    assert (after.block_size, after.kv_blocks) == (16, worker.ready.blocks)
    assert (after.kv_used, after.running, after.waiting) == (0.0, 0, 0)
    assert (after.prompt_tokens or 0) - (before.prompt_tokens or 0) == answer.usage.prompt_tokens
    assert (after.generation_tokens or 0) - (before.generation_tokens or 0) == 20
    assert (after.prefix_queries or 0) - (before.prefix_queries or 0) == answer.usage.prompt_tokens


async def test_latencies_and_ends_are_counted(http: aiohttp.ClientSession) -> None:
    async def samples() -> dict[str, float]:
        async with http.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    labels = f'engine="0",model_name="{MODEL}"'
    before = await samples()
    async with http.post("/v1/completions", json=completion(n=2)) as response:
        assert response.status == 200
    after = await samples()
    grown = {name: after[name] - before[name] for name in after}
    assert grown[f"vllm:time_to_first_token_seconds_count{{{labels}}}"] == 2
    assert grown[f"vllm:inter_token_latency_seconds_count{{{labels}}}"] == 38
    assert grown[f"vllm:time_per_output_token_seconds_count{{{labels}}}"] == 38
    assert grown[f"vllm:e2e_request_latency_seconds_count{{{labels}}}"] == 2
    assert grown[f'vllm:request_success_total{{{labels},finished_reason="length"}}'] == 2
    assert grown[f'vllm:request_success_total{{{labels},finished_reason="abort"}}'] == 0
    assert after[f"vllm:num_preemptions_total{{{labels}}}"] >= 0


async def test_kv_events_are_what_the_gateway_would_predict(worker: Worker, http: aiohttp.ClientSession) -> None:
    name = WorkerId("w")
    index = PrefixIndex(max_blocks=10_000)
    index.add_worker(name, model=MODEL, block_size=16, salts_told=True)
    assert worker.kv_endpoint is not None
    subscriber = KvSubscriber(name, index, endpoint=worker.kv_endpoint, replay_endpoint=worker.replay_endpoint)
    ids = await tokens_of(http, "A text of which nobody has heard before. " * 8)

    def held(salt: str = "") -> dict[WorkerId, int]:
        root = root_hash(ChainKey(MODEL, 16, salt=salt))
        return index.match(extend_chain(root, ids_to_bytes(ids), 16))

    async def until_held(blocks: int, salt: str = "") -> None:
        async with asyncio.timeout(10):
            while held(salt).get(name, 0) != blocks:  # noqa: ASYNC110 - the index has no event to wait for
                await asyncio.sleep(0.01)

    async def complete(**fields: Any) -> int:
        async with http.post("/v1/completions", json=completion(ids, max_tokens=1, **fields)) as response:
            return int((await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"])

    running = asyncio.create_task(subscriber.run())
    try:
        assert await complete() == 0
        await until_held(len(ids) // 16)
        assert held("pepper") == {}
        assert await complete(cache_salt="pepper") == 0
        await until_held(len(ids) // 16, "pepper")
        assert await complete(cache_salt="pepper") == await complete() == (len(ids) - 1) // 16 * 16
        async with http.post("/reset_prefix_cache") as response:
            assert response.status == 200
        await until_held(0)
        assert await complete() == 0
        await until_held(len(ids) // 16)
        index.check_integrity()
        assert subscriber.stats.skipped_events == 0
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


# --- clients that leave ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_sequences(
    worker: Worker, http: aiohttp.ClientSession, stream: bool
) -> None:
    before = await load(worker)
    body = completion(n=3, max_tokens=LONG, ignore_eos=True, stream=stream)
    asked = asyncio.create_task(http.post("/v1/completions", json=body))
    if stream:
        response = await asked
        await response.content.readline()
        response.close()
    else:
        await until(worker, lambda told: told.running == 3)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    await eventually(lambda: worker.engine.open_sequences == 0, timeout=10)
    after = await until(worker, lambda told: told.running == 0)
    assert (after.generation_tokens or 0) - (before.generation_tokens or 0) < 3 * LONG


# --- refusals ----------------------------------------------------------------------------------------------

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "other"}, 404, "model"),
        ({"model": 3}, 400, "model"),
        ({"max_tokens": "many"}, 400, "max_tokens"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": 1 << 40}, 400, "max_tokens"),
        ({"temperature": -1}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"n": 0}, 400, "n"),
        ({"n": 100_000}, 400, "n"),
        ({"messages": []}, 400, "messages"),
        ({"messages": "hello"}, 400, "messages"),
        ({"messages": [{"content": "no role"}]}, 400, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            400,
            "messages",
        ),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, 400, "input_tokens"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, 400, "body"),
        ({"continue_final_message": True}, 400, "messages"),
        ({"tools": [TOOL]}, 400, "tools"),
        ({"tools": [TOOL], "tool_choice": "required"}, 400, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, 400, "response_format"),
        ({"modalities": ["audio"]}, 400, "modalities"),
        ({"guided_json": {"type": "object"}}, 400, "guided_json"),
        ({"structured_outputs": {"regex": "a+"}}, 400, "structured_outputs"),
        ({"chat_template": "{{ messages }}"}, 400, "chat_template"),
        ({"functions": [{"name": "f"}]}, 400, "functions"),
        ({"stream_options": 3}, 400, "stream_options"),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
        ({"priority": 1 << 80}, 400, "priority"),
        ({"cache_salt": 5}, 400, "cache_salt"),
        ({"cache_salt": "s" * 2000}, 400, "cache_salt"),
        ({"echo": True}, 400, "echo"),
    ],
)
async def test_refusals_of_chats_name_the_field(
    http: aiohttp.ClientSession, body: dict[str, object], status: int, param: str
) -> None:
    async with http.post("/v1/chat/completions", data=json.dumps(chat() | body)) as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"], error["param"]) == (status, status, param)
        assert error["message"]
        assert error["type"] == ("NotFoundError" if status == 404 else "BadRequestError")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, 1 << 31]}, "prompt"),
        ({"prompt": ["a"] * 1000}, "prompt"),
        ({"prompt": ["a"] * 100, "n": 10}, "n"),
        ({"prompt": list(range(1, 2049))}, "input_tokens"),
        ({"suffix": "the end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"logprobs": -5}, "logprobs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)
async def test_refusals_of_completions_name_the_field(
    http: aiohttp.ClientSession, body: dict[str, object], param: str
) -> None:
    async with http.post("/v1/completions", json=completion() | body) as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"], error["param"]) == (400, 400, param)


async def test_what_is_refused_by_name_may_be_given_as_nothing(http: aiohttp.ClientSession) -> None:
    nothing: dict[str, Any] = {"tools": [], "functions": None, "guided_json": None, "response_format": {"type": "text"}}
    harmless: dict[str, Any] = {
        "tool_choice": "none",
        "modalities": ["text"],
        "user": "somebody",
        "metadata": {"a": "b"},
    }
    async with http.post("/v1/chat/completions", json=chat(**nothing, **harmless)) as response:
        assert response.status == 200, await response.text()
    async with http.post("/v1/chat/completions", json=chat(tools=[TOOL], tool_choice="none")) as response:
        assert response.status == 200, await response.text()
    async with http.post("/v1/completions", json=completion(best_of=2, n=2, suffix="")) as response:
        assert response.status == 200, await response.text()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"a": \xff}', b"[" * 100_000])
async def test_what_is_not_a_json_object_is_a_400(http: aiohttp.ClientSession, path: str, body: bytes) -> None:
    async with http.post(path, data=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "body"


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"model": "other", "prompt": "a"}, 404, "model"),
        ("/tokenize", {"messages": [1]}, 400, "messages"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [1 << 70]}, 400, "tokens"),
        ("/v1/embeddings", {"input": "a"}, 404, None),
    ],
)
async def test_the_other_routes_refuse_too(
    http: aiohttp.ClientSession, path: str, body: object, status: int, param: str | None
) -> None:
    async with http.post(path, json=body) as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"], error["param"]) == (status, status, param)


async def test_a_longest_prompt_leaves_room_for_one_token(http: aiohttp.ClientSession) -> None:
    async with http.post("/v1/completions", json=completion([7] * 2047, max_tokens=1)) as response:
        assert (await response.json())["usage"]["total_tokens"] == 2048
    async with http.post("/v1/completions", json=completion([7] * 2047, max_tokens=2)) as response:
        assert (response.status, (await response.json())["error"]["param"]) == (400, "max_tokens")


# --- behind the gateway ------------------------------------------------------------------------------------


async def test_the_gateway_sends_a_conversation_where_its_prefix_is(worker: Worker) -> None:
    async with Worker(real_options(worker.tokenizer_directory, name="worker-1")) as other:
        workers = (worker, other)
        feeds = [feed_of(each) for each in workers]
        config = config_for(
            [each.url for each in workers],
            f"models: [{{name: {MODEL}, tokenizer: embedded}}]\nresponse_headers: {{worker: x-worker}}\n",
            workers_extra=feeds,
        )
        async with gateway(config) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            messages = [{"role": "user", "content": "A conversation that nobody has had before. " * 20}]
            seen, cached = [], []
            for _ in range(4):
                raw = await client.chat.completions.with_raw_response.create(**{**chat(), "messages": messages})
                answer = raw.parse()
                seen.append(raw.headers["x-worker-id"])
                assert answer.usage is not None
                assert answer.usage.prompt_tokens_details is not None
                cached.append(answer.usage.prompt_tokens_details.cached_tokens or 0)
                messages += [
                    {"role": "assistant", "content": answer.choices[0].message.content},
                    {"role": "user", "content": "Go on. " * 10},
                ]
            assert len(set(seen)) == 1
            assert cached[0] == 0
            assert cached == sorted(set(cached))
            stream = await client.chat.completions.create(**chat(stream=True, stream_options={"include_usage": True}))
            chunks = [chunk async for chunk in stream]
            assert chunks[-1].usage is not None
