"""The official OpenAI client through the gateway to simulated workers: nothing changes but the base URL."""

from __future__ import annotations

import asyncio
import io
import json
import random
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import aiohttp
import openai
import pytest

from tests.gateway_fixtures import (
    MODEL,
    Script,
    ScriptedWorker,
    config_for,
    eventually,
    gateway,
    read_request,
    simulated_gateway,
)


@pytest.fixture
async def running() -> AsyncIterator[str]:
    async with simulated_gateway(2) as (url, _):
        yield url


@pytest.fixture
async def client(running: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=running + "/v1", api_key="sk-test", max_retries=0) as client:
        yield client


HELLO: Any = [{"role": "user", "content": "Say something about rivers."}]


async def test_unary_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=12)
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12


async def test_streamed_chat_equals_unary(client: openai.AsyncOpenAI) -> None:
    unary = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=20)
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, usage = "", None
    async for chunk in stream:
        usage = chunk.usage or usage
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert text == unary.choices[0].message.content
    assert usage is not None
    assert usage.completion_tokens == 20


async def test_tools(client: openai.AsyncOpenAI) -> None:
    tool: Any = {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "weather"}},
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.name == "weather"  # type: ignore[union-attr]  # a function call, as asked for
    json.loads(calls[0].function.arguments)  # type: ignore[union-attr]  # a function call, as asked for


async def test_completions_and_embeddings(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=5)
    assert answer.choices[0].text
    vectors = await client.embeddings.create(model=MODEL, input=["one", "two"])
    assert len(vectors.data) == 2
    assert len(vectors.data[0].embedding) == len(vectors.data[1].embedding) > 0


async def test_models_are_merged_over_the_fleet(client: openai.AsyncOpenAI) -> None:
    models = [model.id async for model in client.models.list()]
    assert models == [MODEL]


async def test_an_error_of_the_worker_reaches_the_client_as_it_is(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=10_000_000)
    assert caught.value.status_code == 400


async def test_an_unknown_model_is_told_with_those_there_are(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="nobody", messages=HELLO)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert MODEL in str(caught.value)


async def test_a_repeated_prompt_goes_where_its_blocks_are() -> None:
    """Conversations grow turn by turn; each turn lands on the worker that has the earlier ones."""
    rng = random.Random(5)
    words = ["river", "stone", "cloud", "ember", "field", "harbour", "lantern", "meadow"]
    async with simulated_gateway(4) as (url, _), aiohttp.ClientSession() as session:
        for conversation in range(6):
            workers, cached = [], []
            messages = [
                {
                    "role": "system",
                    "content": f"Conversation {conversation}. " + " ".join(rng.choices(words, k=300)),
                }
            ]
            for turn in range(4):
                messages.append({"role": "user", "content": f"turn {turn} " + " ".join(rng.choices(words, k=80))})
                body = {"model": MODEL, "messages": messages, "max_tokens": 8}
                async with session.post(url + "/v1/chat/completions", json=body) as response:
                    answer = await response.json()
                    workers.append(response.headers["x-worker"])
                messages.append(answer["choices"][0]["message"] | {"role": "assistant"})
                cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
            assert len(set(workers)) == 1, "a conversation stays where its blocks are"
            assert cached[0] == 0
            assert all(later > 250 for later in cached[1:])


async def test_conversations_that_share_a_system_prompt_spread() -> None:
    """Everybody shares block 0; that alone must not bring everybody to one worker."""
    system = {
        "role": "system",
        "content": "You are a helpful assistant who answers in one short sentence, always.",
    }
    rng = random.Random(7)
    words = ["river", "stone", "cloud", "ember", "field", "harbour", "lantern", "meadow"]
    async with simulated_gateway(4) as (url, _), aiohttp.ClientSession() as session:

        async def ask(number: int) -> str:
            user = {"role": "user", "content": f"{number} " + " ".join(rng.choices(words, k=400))}
            body = {"model": MODEL, "messages": [system, user], "max_tokens": 4, "stream": True}
            async with session.post(url + "/v1/chat/completions", json=body) as response:
                await response.read()
                return response.headers["x-worker"]

        await ask(-1)
        served = await asyncio.gather(*(ask(number) for number in range(40)))
    counts = [served.count(f"w{i}") for i in range(4)]
    assert max(counts) <= 16, counts


@pytest.mark.parametrize("streams", [False, True])
async def test_bodies_arrive_and_return_byte_for_byte(streams: bool) -> None:
    """Request bodies go out as they came in, and answers come back as they were, whatever their size and shape."""
    rng = random.Random(11)
    seen: list[bytes] = []
    answers: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, body = await read_request(reader)
            if head.startswith(b"GET"):
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                continue
            seen.append(body)
            answer = answers[-1]
            if streams:
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                )
                at = 0
                while at < len(answer):
                    size = rng.randint(1, max(1, len(answer) // 3))
                    piece = answer[at : at + size]
                    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    await writer.drain()
                    at += size
                writer.write(b"0\r\n\r\n")
            else:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))
            await writer.drain()

    async with (
        ScriptedWorker(script).running() as worker,
        gateway(config_for([worker.url], workers_extra=[", models: [m]"])) as url,
        aiohttp.ClientSession() as session,
    ):
        for size in (0, 1, 100, 4_095, 65_536, 65_537, 1_000_000, 5_000_000):
            text = rng.randbytes(size // 2).hex()
            body = b'{"model" :\t"m",  "z": "%b", "stream": %b}' % (
                text.encode(),
                b"true" if streams else b"false",
            )
            answers.append(event_stream(rng, size) if streams else rng.randbytes(size))
            chunked = rng.random() < 0.5

            async def pieces(body: bytes = body) -> AsyncIterator[bytes]:
                for at in range(0, len(body), 50_000):
                    yield body[at : at + 50_000]

            async with session.post(
                url + "/v1/chat/completions", data=pieces() if chunked else io.BytesIO(body)
            ) as response:
                returned = await response.read()
                assert response.status == 200
            assert seen[-1] == body
            assert returned == answers[-1]


def event_stream(rng: random.Random, size: int) -> bytes:
    """About so many bytes of events of all lengths, with comments and odd line ends between."""
    stream = b""
    while len(stream) < size:
        text = rng.randbytes(rng.choice((0, 3, 100, 40_000))).hex().encode()
        end = rng.choice((b"\n\n", b"\r\n\r\n"))
        stream += rng.choice((b"", b": ping" + end, b"id: 7\n")) + b'data: {"x": "%b"}' % text + end
    return stream + b"data: [DONE]\n\n"


def reached(counts: Sequence[int], total: int) -> bool:
    return sum(counts) == total


async def test_the_head_of_a_stream_is_not_its_first_token() -> None:
    """Engines send a stream's head at once and its first token after prefill: until then the work is in the queue."""
    go = asyncio.Event()
    served = [0, 0]

    def script(number: int) -> Script:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                head, _ = await read_request(reader)
                if head.startswith(b"GET"):
                    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                    continue
                served[number] += 1
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                await go.wait()
                writer.write(b"6\r\ndata: \r\n0\r\n\r\n")

        return serve

    async with ScriptedWorker(script(0)).running() as one, ScriptedWorker(script(1)).running() as other:
        # A short request to the idle worker costs less than one behind a long queue, whatever else is unfinished.
        config = config_for(
            [one.url, other.url], "routing: {cost: {decode_weight: 0}}", workers_extra=[", models: [m]"] * 2
        )
        async with gateway(config) as url, aiohttp.ClientSession() as session:

            async def ask(n: int) -> bytes:
                body = {"model": "m", "prompt": f"{n} word " * 2000, "stream": True}
                async with session.post(url + "/v1/completions", json=body) as answer:
                    return await answer.read()

            asked = []
            for n in range(1, 7):
                asked.append(asyncio.create_task(ask(n)))
                await eventually(partial(reached, served, n))
            assert served == [3, 3]
            go.set()
            assert set(await asyncio.gather(*asked)) == {b"data: "}
