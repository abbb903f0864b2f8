"""The simulated engine's `/v1/responses`: the official client, the whole event sequence, what it remembers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest

from backends.engine_api.api_errors import ApiError
from backends.simulated.fleet import SimulatedWorker
from backends.simulated.responses_requests import input_messages
from backends.simulated.responses_store import ResponseStore, StoredResponse
from tests.gateway_fixtures import eventually
from tests.simulated_fixtures import CHAT_TOOL, SCHEMA, STORY, events_of, one_worker, token_count

TOOL: Any = {"type": "function", "name": "weather", "description": "Skies.", "parameters": SCHEMA}


@pytest.fixture
async def worker() -> AsyncIterator[SimulatedWorker]:
    async with one_worker() as running:
        yield running


@pytest.fixture
async def client(worker: SimulatedWorker) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0) as made:
        yield made


async def sse(worker: SimulatedWorker, body: dict[str, object]) -> list[tuple[str, dict[str, Any]]]:
    return await events_of(worker, "/v1/responses", {"model": "simulated", **body})


async def test_a_text_is_answered_and_its_prefix_is_reported(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(model="simulated", input=STORY)
    again = await client.responses.create(model="simulated", input=STORY)
    chat = await client.chat.completions.create(model="simulated", messages=[{"role": "user", "content": STORY}])
    assert first.status == "completed"
    assert first.output_text == again.output_text == chat.choices[0].message.content
    assert first.usage is not None
    assert again.usage is not None
    assert chat.usage is not None
    assert first.usage.input_tokens == chat.usage.prompt_tokens
    assert first.usage.input_tokens_details.cached_tokens == 0
    assert again.usage.input_tokens_details.cached_tokens == (first.usage.input_tokens - 1) // 16 * 16
    assert first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens


async def test_the_whole_event_sequence_in_order(worker: SimulatedWorker, client: openai.AsyncOpenAI) -> None:
    unary = await client.responses.create(model="simulated", input=STORY)
    assert unary.usage is not None
    events = await sse(worker, {"input": STORY})
    tokens = unary.usage.output_tokens
    assert [name for name, _ in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * tokens,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [data["type"] for _, data in events] == [name for name, _ in events]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert "".join(data["delta"] for name, data in events if name.endswith(".delta")) == unary.output_text
    assert {data["item_id"] for _, data in events if "item_id" in data} == {events[2][1]["item"]["id"]}
    final = events[-1][1]["response"]
    assert final["id"] == events[0][1]["response"]["id"]
    assert events[0][1]["response"]["status"] == "in_progress"
    assert final["output"][0]["content"][0]["text"] == unary.output_text
    assert final["usage"]["input_tokens_details"]["cached_tokens"] > 0


async def test_the_client_s_stream_gives_the_final_response(client: openai.AsyncOpenAI) -> None:
    unary = await client.responses.create(model="simulated", input=STORY)
    async with client.responses.stream(model="simulated", input=STORY) as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(deltas) == final.output_text == unary.output_text
    assert final.usage is not None
    assert final.usage.output_tokens == len(deltas)


async def test_a_response_that_was_cut_says_so(worker: SimulatedWorker, client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(model="simulated", input=STORY, max_output_tokens=5)
    assert (answer.status, answer.usage and answer.usage.output_tokens) == ("incomplete", 5)
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert (await sse(worker, {"input": STORY, "max_output_tokens": 5}))[-1][0] == "response.incomplete"


async def test_items_are_the_chat_that_they_mean(worker: SimulatedWorker, client: openai.AsyncOpenAI) -> None:
    call: Any = {"name": "weather", "arguments": '{"city": "Rome"}'}
    called: Any = {"type": "function_call", "call_id": "c1", **call}
    answer = await client.responses.create(
        model="simulated",
        instructions="Be brief.",
        input=[
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "How is the sky?"}]},
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}],
            },
            called,
            {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
            {"role": "user", "content": "And tomorrow?"},
        ],
        tools=[TOOL],
        max_output_tokens=1,
    )
    chat = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "How is the sky?"},
            {
                "role": "assistant",
                "content": "Let me look.",
                "tool_calls": [{"id": "c1", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
            {"role": "user", "content": "And tomorrow?"},
        ],
        "tools": [CHAT_TOOL],
    }
    assert answer.usage is not None
    assert answer.usage.input_tokens == await token_count(worker, chat)


async def test_a_forced_tool_is_called(worker: SimulatedWorker, client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(model="simulated", input=STORY, tools=[TOOL], tool_choice="required")
    (call,) = answer.output
    assert call.type == "function_call"
    assert set(json.loads(call.arguments)) == {"city", "days"}
    named = {"type": "function", "name": "weather"}
    events = await sse(worker, {"input": STORY, "tools": [TOOL], "tool_choice": named})
    names = [name for name, _ in events]
    assert names[2] == "response.output_item.added"
    assert names[-3:] == ["response.function_call_arguments.done", "response.output_item.done", "response.completed"]
    deltas = [data["delta"] for name, data in events if name == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments == events[-3][1]["arguments"]
    async with client.responses.stream(model="simulated", input=STORY, tools=[TOOL], tool_choice="required") as stream:
        assert (await stream.get_final_response()).output[0].type == "function_call"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_conversation_goes_on_by_its_id(
    worker: SimulatedWorker, client: openai.AsyncOpenAI, *, streamed: bool
) -> None:
    if streamed:
        async with client.responses.stream(model="simulated", input=STORY, instructions="Be brief.") as stream:
            first: Any = await stream.get_final_response()
    else:
        first = await client.responses.create(model="simulated", input=STORY, instructions="Be brief.")
    second = await client.responses.create(model="simulated", input="And then?", previous_response_id=first.id)
    third = await client.responses.create(
        model="simulated", input="Stop.", previous_response_id=second.id, max_output_tokens=1
    )
    messages = [  # without the first one's instructions, as OpenAI says
        {"role": "user", "content": STORY},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And then?"},
        {"role": "assistant", "content": second.output_text},
        {"role": "user", "content": "Stop."},
    ]
    assert third.usage is not None
    assert third.usage.input_tokens == await token_count(worker, {"messages": messages})
    assert second.previous_response_id == first.id
    kept = await client.responses.retrieve(first.id)
    assert kept.output_text == first.output_text


async def test_what_is_not_here_is_a_404(client: openai.AsyncOpenAI) -> None:
    unkept = await client.responses.create(model="simulated", input="a", store=False)
    for unknown in (unkept.id, "resp_unheard_of"):
        with pytest.raises(openai.NotFoundError) as refused:
            await client.responses.create(model="simulated", input="b", previous_response_id=unknown)
        assert refused.value.param == "previous_response_id"
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(unknown)
        with pytest.raises(openai.NotFoundError):
            await client.responses.cancel(unknown)


async def test_a_failure_goes_on_with_the_numbers(worker: SimulatedWorker) -> None:
    worker.arm("error-event=7")
    events = await sse(worker, {"input": STORY})
    assert [name for name, _ in events[-3:]] == ["response.output_text.delta", "error", "response.failed"]
    assert [data["sequence_number"] for _, data in events] == list(range(9))
    assert events[-1][1]["response"]["status"] == "failed"
    assert events[-1][1]["response"]["error"] == {"code": "server_error", "message": "a simulated fault"}


async def test_a_deleted_response_is_gone(client: openai.AsyncOpenAI) -> None:
    kept = await client.responses.create(model="simulated", input="a")
    await client.responses.delete(kept.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(kept.id)


async def test_the_background_finishes_and_can_be_cancelled(
    worker: SimulatedWorker, client: openai.AsyncOpenAI
) -> None:
    begun = await client.responses.create(model="simulated", input=STORY, background=True)
    assert begun.status == "in_progress"
    await eventually(lambda: worker.engine.idle)
    done = await client.responses.retrieve(begun.id)
    assert (done.status, bool(done.output_text)) == ("completed", True)
    with pytest.raises(openai.BadRequestError):
        await client.responses.cancel(begun.id)
    worker.hang()
    begun = await client.responses.create(model="simulated", input=STORY, background=True)
    await eventually(lambda: not worker.engine.idle)
    assert (await client.responses.cancel(begun.id)).status == "cancelled"
    assert (await client.responses.retrieve(begun.id)).status == "cancelled"
    assert worker.engine.idle


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "unheard_of"}]}, "input"),
        ({"input": "a", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "a", "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"input": "a", "background": True, "stream": True}, "background"),
    ],
)
async def test_refusals_name_the_field(worker: SimulatedWorker, body: dict[str, object], param: str) -> None:
    async with (
        aiohttp.ClientSession(base_url=worker.url) as http,
        http.post("/v1/responses", json={"model": "simulated", **body}) as response,
    ):
        assert response.status == 400
        assert (await response.json())["error"]["param"] == param


def test_the_store_forgets_the_oldest() -> None:
    store = ResponseStore(most=2)
    for name in "abc":
        store.keep(StoredResponse({"id": name, "output": []}, input_messages(name)))
    assert len(store) == 2
    with pytest.raises(ApiError) as refused:
        store.get("a")
    assert refused.value.status == 404
    assert store.get("c").history() == [{"role": "user", "content": "c"}]
