"""A simulated worker through real sockets: the official client, errors, cancellation, faults, metrics."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import openai
import pytest

from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet, SimulatedWorker
from backends.simulated.model_text import ModelText
from backends.simulated.timing import LinearPrefill

FAST = EngineConfig(blocks=1024, block_size=16, max_model_len=8192, speed=200.0)
STORY = "Once upon a time there was a gateway that knew where every prefix lived. " * 12
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"enum": ["C", "F"]},
                "hours": {"type": "array", "items": {"type": "number"}},
            },
        },
    },
}


@pytest.fixture(scope="module")
def text() -> ModelText:
    return ModelText.load("simulated")


@pytest.fixture
async def fleet(text: ModelText) -> AsyncIterator[SimulatedFleet]:
    async with SimulatedFleet(2, FleetConfig(engine=FAST, faults=True), text=text) as running:
        yield running


@pytest.fixture
def worker(fleet: SimulatedFleet) -> SimulatedWorker:
    return fleet.workers[0]


@pytest.fixture
async def client(worker: SimulatedWorker) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
async def http(worker: SimulatedWorker) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(base_url=worker.url) as session:
        yield session


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the engine has no event to wait for
            await asyncio.sleep(0.005)


def chat(content: str = STORY, **fields: object) -> dict[str, Any]:
    return {"model": "simulated", "messages": [{"role": "user", "content": content}], **fields}


async def test_unary_chat_and_its_usage(client: openai.AsyncOpenAI) -> None:
    first = await client.chat.completions.create(**chat())
    again = await client.chat.completions.create(**chat())
    assert first.choices[0].message.content == again.choices[0].message.content
    assert first.choices[0].finish_reason == "stop"
    assert first.usage is not None
    assert again.usage is not None
    assert first.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details is not None
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert again.usage.prompt_tokens_details.cached_tokens == (first.usage.prompt_tokens - 1) // 16 * 16
    assert first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens


async def test_a_stream_says_the_same_as_a_body_one_token_a_chunk(client: openai.AsyncOpenAI) -> None:
    unary = await client.chat.completions.create(**chat(max_tokens=20))
    stream = await client.chat.completions.create(
        **chat(max_tokens=20), stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert "".join(piece or "" for piece in pieces) == unary.choices[0].message.content
    assert len(pieces) == 1 + 20
    assert chunks[-1].usage is not None
    assert unary.usage is not None
    assert chunks[-1].usage.completion_tokens == unary.usage.completion_tokens == 20
    assert [chunk.choices[0].finish_reason for chunk in chunks[-3:-1]] == [None, "length"]


async def test_every_worker_says_the_same(fleet: SimulatedFleet) -> None:
    texts = set()
    for worker in fleet.workers:
        async with openai.AsyncOpenAI(base_url=f"{worker.url}/v1", api_key="none") as client:
            answer = await client.with_raw_response.chat.completions.create(**chat(n=2))
            assert answer.headers["x-worker-id"] == worker.name
            texts.add(tuple(choice.message.content for choice in answer.parse().choices))
    (both,) = texts
    assert both[0] != both[1]


async def test_the_answer_in_the_next_turn_is_a_hit(client: openai.AsyncOpenAI) -> None:
    first = await client.chat.completions.create(**chat(max_tokens=100, extra_body={"ignore_eos": True}))
    assert first.usage is not None
    assert first.usage.completion_tokens == 100
    turn = chat(max_tokens=1)
    turn["messages"] += [
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "And then?"},
    ]
    second = await client.chat.completions.create(**turn)
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    # All that was computed: prompt and answer without its last token.
    computed = first.usage.prompt_tokens + 99
    assert second.usage.prompt_tokens_details.cached_tokens == computed // 16 * 16


async def test_stop_strings_end_the_answer_before_them(client: openai.AsyncOpenAI) -> None:
    whole = (await client.chat.completions.create(**chat())).choices[0].message.content or ""
    stop = whole.split()[5]
    cut = await client.chat.completions.create(**chat(stop=[stop, "never said"]))
    assert cut.choices[0].message.content == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    stream = await client.chat.completions.create(**chat(stop=stop), stream=True)
    streamed = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(streamed) == whole[: whole.index(stop)]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
async def test_forced_tools_are_called_with_arguments_of_their_schema(
    client: openai.AsyncOpenAI, choice: object
) -> None:
    asked = chat(tools=[TOOL], tool_choice=choice)
    unary = await client.chat.completions.create(**asked)
    (call,) = unary.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "weather"
    arguments = json.loads(call.function.arguments)
    assert {key: type(value) for key, value in arguments.items()} == {
        "city": str,
        "days": int,
        "unit": str,
        "hours": list,
    }
    names, deltas = [], []
    async for chunk in await client.chat.completions.create(**asked, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or []:
            assert delta.function is not None
            names.append(delta.function.name)
            deltas.append(delta.function.arguments or "")
    assert "".join(deltas) == call.function.arguments
    assert names[0] == "weather"


async def test_tools_that_nobody_forces_get_text(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**chat(tools=[TOOL]))
    assert answer.choices[0].message.content


async def test_completions_of_texts_and_ids(client: openai.AsyncOpenAI, http: aiohttp.ClientSession) -> None:
    async with http.post("/tokenize", json={"prompt": STORY}) as response:
        tokens = (await response.json())["tokens"]
    async with http.post("/detokenize", json={"tokens": tokens}) as response:
        assert await response.json() == {"prompt": STORY}
    one = await client.completions.create(model="simulated", prompt=STORY)
    ids = await client.completions.create(model="simulated", prompt=tokens, echo=True)
    both = await client.completions.create(model="simulated", prompt=[STORY, "Other."], n=2, max_tokens=3)
    assert one.usage is not None
    assert one.usage.completion_tokens == 16
    assert ids.choices[0].text == STORY + one.choices[0].text
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert one.choices[0].text.startswith(both.choices[0].text)
    stream = await client.completions.create(model="simulated", prompt=STORY, echo=True, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == ids.choices[0].text


async def test_tokenize_counts_what_chat_counts(client: openai.AsyncOpenAI, http: aiohttp.ClientSession) -> None:
    answer = await client.chat.completions.create(**chat())
    async with http.post("/tokenize", json=chat()) as response:
        counted = await response.json()
    assert answer.usage is not None
    assert counted["count"] == answer.usage.prompt_tokens
    assert counted["max_model_len"] == 8192


async def test_embeddings_as_floats_and_base64(client: openai.AsyncOpenAI) -> None:
    plain = await client.embeddings.create(model="simulated", input=["a", "b", "a"], encoding_format="float")
    packed = await client.embeddings.create(model="simulated", input="a", encoding_format="base64", dimensions=64)
    vectors = [item.embedding for item in plain.data]
    assert vectors[0] == vectors[2] != vectors[1]
    assert sum(value * value for value in vectors[0]) == pytest.approx(1.0)
    decoded = struct.unpack("<64f", base64.b64decode(str(packed.data[0].embedding)))
    assert decoded == pytest.approx(vectors[0])


async def test_models_health_and_version(client: openai.AsyncOpenAI, http: aiohttp.ClientSession) -> None:
    (model,) = (await client.models.list()).data
    assert (model.id, model.model_dump()["max_model_len"]) == ("simulated", 8192)
    for path in ("/health", "/version"):
        async with http.get(path) as response:
            assert response.status == 200


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "other"}, 404, "model"),
        ({"max_tokens": "many"}, 400, "max_tokens"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": 8192}, 400, "max_tokens"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, 400, "input_tokens"),
        ({"tools": [TOOL], "tool_choice": {"function": {"name": "x"}}}, 400, "tool_choice"),
        ({"n": 1000}, 400, "n"),
        ({"stream_options": 3}, 400, "stream_options"),
    ],
)
async def test_refusals_name_the_field(
    http: aiohttp.ClientSession, body: dict[str, object], status: int, param: str
) -> None:
    async with http.post("/v1/chat/completions", json=chat() | body) as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"], error["param"]) == (status, status, param)
        assert response.headers["x-worker-id"] == "sim-0"


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"a": \xff}', b"[" * 100_000])
async def test_what_is_not_a_json_object_is_a_400(http: aiohttp.ClientSession, body: bytes) -> None:
    async with http.post("/v1/completions", data=body) as response:
        assert response.status == 400


async def test_salts_keep_prompts_apart(client: openai.AsyncOpenAI) -> None:
    cached = []
    for salt in ("", "a", "b", "a"):
        answer = await client.chat.completions.create(**chat(max_tokens=1), extra_body={"cache_salt": salt})
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        cached.append(answer.usage.prompt_tokens_details.cached_tokens or 0)
    assert cached[:3] == [0, 0, 0]
    assert cached[3] > 0


async def test_metrics_have_vllm_s_names(client: openai.AsyncOpenAI, http: aiohttp.ClientSession) -> None:
    await client.chat.completions.create(**chat(max_tokens=5))
    answer = await client.chat.completions.create(**chat(max_tokens=5))
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    async with http.get("/metrics") as response:
        page = await response.text()
    values = dict(re.findall(r"^(vllm:\w+)\{[^}]*\} (\S+)$", page, re.MULTILINE))
    assert float(values["vllm:prompt_tokens_total"]) == 2 * answer.usage.prompt_tokens
    assert float(values["vllm:prefix_cache_queries_total"]) == 2 * answer.usage.prompt_tokens
    assert float(values["vllm:prefix_cache_hits_total"]) == answer.usage.prompt_tokens_details.cached_tokens
    assert float(values["vllm:generation_tokens_total"]) == 10
    assert float(values["vllm:time_to_first_token_seconds_count"]) == 2
    assert {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"} <= set(values)
    assert 'vllm:cache_config_info{block_size="16",num_gpu_blocks="1024"' in page


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_takes_its_sequence_along(text: ModelText, *, stream: bool) -> None:
    engine = EngineConfig(blocks=64, timing=LinearPrefill(1.0))  # a prompt takes minutes
    async with SimulatedFleet(1, FleetConfig(engine=engine), text=text) as fleet:
        worker = fleet.workers[0]
        async with aiohttp.ClientSession(base_url=worker.url) as http:
            asking = asyncio.create_task(http.post("/v1/chat/completions", json=chat(stream=stream)))
            await until(lambda: worker.engine.pool.used > 0)
            if stream:
                (await asking).close()
            else:
                asking.cancel()
            await until(lambda: worker.engine.idle)
            worker.engine.check_integrity()
            assert worker.engine.pool.used == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_is_a_503(text: ModelText, *, stream: bool) -> None:
    engine = EngineConfig(blocks=64, max_waiting=1, timing=LinearPrefill(1.0))
    async with SimulatedFleet(1, FleetConfig(engine=engine), text=text) as fleet:
        url = f"{fleet.workers[0].url}/v1/chat/completions"
        async with aiohttp.ClientSession() as http, http.post(url, json=chat(n=3, stream=stream)) as response:
            assert response.status == 503
        assert fleet.workers[0].engine.idle


async def fault_outcome(http: aiohttp.ClientSession, fault: str, *, stream: bool) -> tuple[str, str]:
    """What the client saw: how it ended, and the text so far."""
    seen = b""
    try:
        async with asyncio.timeout(0.4):
            async with http.post(
                "/v1/chat/completions",
                json=chat(stream=stream, max_tokens=4),
                headers={"x-simulate-fault": fault},
            ) as response:
                async for data in response.content.iter_any():
                    seen += data
                return str(response.status), seen.decode()
    except TimeoutError:
        return "silence", seen.decode()
    except aiohttp.ClientPayloadError:
        return "cut", seen.decode()
    except aiohttp.ClientConnectionError as error:
        return ("cut" if seen else type(error).__name__), seen.decode()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("reset", {"ClientOSError", "ServerDisconnectedError"}),
        ("close", {"ServerDisconnectedError"}),
        ("status=503", {"503"}),
        ("stall", {"silence"}),
        ("stall-mid", {"silence"}),
        ("reset-mid", {"cut"}),
        ("truncate", {"cut", "200"}),
        ("malformed-sse", {"200"}),
        ("error-event", {"200"}),
        ("slow=0.01", {"200"}),
        ("slow=0.01@somebody-else", {"200"}),
        ("unheard-of", {"400"}),
    ],
)
async def test_faults_happen_as_named(
    http: aiohttp.ClientSession, worker: SimulatedWorker, fault: str, expected: set[str], *, stream: bool
) -> None:
    ended, seen = await fault_outcome(http, fault, stream=stream)
    assert ended in expected
    assert ("[DONE]" in seen) == (stream and fault.startswith(("slow", "error-event")))
    if "mid" in fault:
        assert seen
    await until(lambda: worker.engine.idle)


async def test_faults_can_be_armed_and_are_off_by_default(http: aiohttp.ClientSession, text: ModelText) -> None:
    async with http.post("/simulate/fault", json={"fault": "status=500", "times": 2}) as response:
        assert await response.json() == {"armed": 2}
    statuses = []
    for _ in range(3):
        async with http.post("/v1/chat/completions", json=chat()) as response:
            statuses.append(response.status)
    assert statuses == [500, 500, 200]
    async with SimulatedFleet(1, FleetConfig(engine=FAST), text=text) as honest:  # noqa: SIM117 - the inner one is what is cancelled
        async with aiohttp.ClientSession(base_url=honest.workers[0].url) as plain:
            ended, _ = await fault_outcome(plain, "reset", stream=False)
            assert ended == "200"
            async with plain.post("/simulate/fault", json={}) as response:
                assert response.status == 404


async def test_a_worker_can_refuse_and_come_back_on_its_port(worker: SimulatedWorker) -> None:
    async def healthy() -> bool:
        try:
            async with aiohttp.ClientSession() as fresh, fresh.get(f"{worker.url}/health") as response:
                return response.status == 200
        except aiohttp.ClientConnectorError:
            return False

    assert await healthy()
    await worker.refuse()
    assert not await healthy()
    await worker.listen()
    assert await healthy()
