"""The simulated engine's `/v1/messages`: the official client, the event sequence, the same tokens as a chat."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anthropic
import pytest

from backends.simulated.fleet import SimulatedWorker
from tests.simulated_fixtures import CHAT_TOOL, SCHEMA, STORY, events_of, one_worker, tokens_of

TOOL: Any = {"name": "weather", "description": "Skies.", "input_schema": SCHEMA}
ASKED: Any = {"model": "simulated", "max_tokens": 200, "messages": [{"role": "user", "content": STORY}]}


@pytest.fixture
async def worker() -> AsyncIterator[SimulatedWorker]:
    async with one_worker() as running:
        yield running


@pytest.fixture
async def client(worker: SimulatedWorker) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=worker.url, auth_token="none", max_retries=0) as made:
        yield made


async def sse(worker: SimulatedWorker, body: dict[str, object]) -> list[tuple[str, dict[str, Any]]]:
    return await events_of(worker, "/v1/messages", body)


async def test_a_message_is_answered_and_its_prefix_is_reported(client: anthropic.AsyncAnthropic) -> None:
    first = await client.messages.create(**ASKED)
    again = await client.messages.create(**ASKED)
    (block,) = first.content
    assert block.type == "text"
    assert block.text
    assert first.stop_reason == "end_turn"
    total = first.usage.input_tokens
    assert first.usage.cache_read_input_tokens == 0
    assert again.usage.cache_read_input_tokens == (total - 1) // 16 * 16
    assert again.usage.input_tokens + again.usage.cache_read_input_tokens == total
    assert again.content == first.content


async def test_the_whole_event_sequence_in_order(worker: SimulatedWorker, client: anthropic.AsyncAnthropic) -> None:
    unary = await client.messages.create(**ASKED)
    events = await sse(worker, ASKED)
    assert [name for name, _ in events] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * unary.usage.output_tokens,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert [data["type"] for _, data in events] == [name for name, _ in events]
    start = events[0][1]["message"]
    assert start["content"] == []
    assert start["usage"]["cache_read_input_tokens"] > 0
    assert start["usage"]["input_tokens"] + start["usage"]["cache_read_input_tokens"] == unary.usage.input_tokens
    assert events[-2][1]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2][1]["usage"]["output_tokens"] == unary.usage.output_tokens


async def test_the_client_s_stream_gives_the_final_message(client: anthropic.AsyncAnthropic) -> None:
    unary = await client.messages.create(**ASKED)
    async with client.messages.stream(**ASKED) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert [{"type": "text", "text": text}] == [block.model_dump(include={"type", "text"}) for block in unary.content]
    assert final.content[0].model_dump(include={"text"}) == {"text": text}
    assert final.usage.output_tokens == unary.usage.output_tokens


@pytest.mark.parametrize("streamed", [False, True])
async def test_why_it_stopped(client: anthropic.AsyncAnthropic, *, streamed: bool) -> None:
    async def ask(**fields: Any) -> anthropic.types.Message:
        if not streamed:
            answer: anthropic.types.Message = await client.messages.create(**{**ASKED, **fields})
            return answer
        async with client.messages.stream(**{**ASKED, **fields}) as stream:
            return await stream.get_final_message()

    whole = await ask()
    assert whole.content[0].type == "text"
    stop = whole.content[0].text.split()[5]
    cut = await ask(stop_sequences=[stop, "never said"])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert cut.content[0].type == "text"
    assert cut.content[0].text == whole.content[0].text[: whole.content[0].text.index(stop)]
    short = await ask(max_tokens=3)
    assert (short.stop_reason, short.stop_sequence, short.usage.output_tokens) == ("max_tokens", None, 3)
    called = await ask(tools=[TOOL], tool_choice={"type": "tool", "name": "weather"})
    assert called.stop_reason == "tool_use"
    assert called.content[0].type == "tool_use"
    assert set(called.content[0].input) == {"city", "days"}
    assert (await ask(tools=[TOOL], tool_choice={"type": "any"})).stop_reason == "tool_use"


PIXEL: Any = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
CALL: Any = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}}
SEEN: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
CHAT_CALL: Any = {
    "id": "t1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
}


@pytest.mark.parametrize(
    ("given", "chat"),
    [
        ({"messages": [{"role": "user", "content": "Hi."}]}, {"messages": [{"role": "user", "content": "Hi."}]}),
        (
            {"system": "Be brief.", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi."}]}]},
            {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}]},
        ),
        (
            {
                "system": [
                    {"type": "text", "text": "x-anthropic-billing-header: cch=12345;"},
                    {"type": "text", "text": "Be brief."},
                    {"type": "text", "text": " Be kind.", "cache_control": {"type": "ephemeral"}},
                ],
                "messages": [{"role": "user", "content": "Hi."}],
            },
            {"messages": [{"role": "system", "content": "Be brief. Be kind."}, {"role": "user", "content": "Hi."}]},
        ),
        (
            {
                "tools": [TOOL],
                "messages": [
                    {"role": "user", "content": "Rome?"},
                    {"role": "assistant", "content": [{"type": "text", "text": "Let me look."}, CALL]},
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "Thanks."},
                            {
                                "type": "tool_result",
                                "tool_use_id": "t1",
                                "content": [{"type": "text", "text": "sun"}, {"type": "text", "text": "wind"}],
                            },
                        ],
                    },
                    {"role": "assistant", "content": [CALL]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "rain"}]},
                ],
            },
            {
                "tools": [CHAT_TOOL],
                "messages": [
                    {"role": "user", "content": "Rome?"},
                    {"role": "assistant", "content": "Let me look.", "tool_calls": [CHAT_CALL]},
                    {"role": "tool", "tool_call_id": "t1", "content": "sun\nwind"},
                    {"role": "user", "content": "Thanks."},
                    {"role": "assistant", "tool_calls": [CHAT_CALL]},
                    {"role": "tool", "tool_call_id": "t1", "content": "rain"},
                ],
            },
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": PIXEL}, {"type": "text", "text": "What?"}]}
                ]
            },
            {"messages": [{"role": "user", "content": [SEEN, {"type": "text", "text": "What?"}]}]},
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_result",
                                "tool_use_id": "t1",
                                "content": [{"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}],
                            }
                        ],
                    }
                ]
            },
            {
                "messages": [
                    {"role": "tool", "tool_call_id": "t1", "content": ""},
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]},
                ]
            },
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "Hi."},
                    {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}]},
                ]
            },
            {"messages": [{"role": "user", "content": "Hi."}, {"role": "assistant", "reasoning": "Hm."}]},
        ),
    ],
    ids=["text", "system", "system blocks", "tools", "image", "image of a tool", "thinking"],
)
async def test_the_same_conversation_has_the_same_tokens(
    worker: SimulatedWorker, client: anthropic.AsyncAnthropic, given: Any, chat: Any
) -> None:
    tokens = await tokens_of(worker, chat)
    counted = await client.messages.count_tokens(model="simulated", **given)
    assert counted.input_tokens == len(tokens)
    async with aiohttp.ClientSession(base_url=worker.url) as http:
        asked = {"model": "simulated", "max_tokens": 5, **chat}
        async with http.post("/v1/chat/completions", json=asked) as response:
            chat_answer = await response.json()
    message = await client.messages.create(model="simulated", max_tokens=5, **given)
    # An answer is a function of the prompt's tokens: equal answers, equal tokens.
    assert message.content[0].type == "text"
    assert message.content[0].text == chat_answer["choices"][0]["message"]["content"]


async def test_images_have_tokens_of_their_own(worker: SimulatedWorker) -> None:
    def chat(url: str) -> dict[str, object]:
        return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}

    one, two = [await tokens_of(worker, chat(f"data:image/png;base64,{data}")) for data in ("AAAA", "BBBB")]
    assert one != two


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"model": "other"}, 404, "not_found_error"),
        ({"max_tokens": 0}, 400, "invalid_request_error"),
        ({"max_tokens": None}, 400, "invalid_request_error"),
        ({"messages": []}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": [{"type": "unheard_of"}]}]}, 400, "invalid_request_error"),
        ({"messages": [{"role": "nobody", "content": "a"}]}, 400, "invalid_request_error"),
        ({"max_tokens": 100_000}, 400, "invalid_request_error"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, 400, "invalid_request_error"),
    ],
)
async def test_refusals_have_anthropic_s_shape(
    worker: SimulatedWorker, body: dict[str, object], status: int, kind: str
) -> None:
    async with (
        aiohttp.ClientSession(base_url=worker.url) as http,
        http.post("/v1/messages", json={**ASKED, **body}) as response,
    ):
        answer = await response.json()
    assert response.status == status
    assert (answer["type"], answer["error"]["type"]) == ("error", kind)
    assert answer["error"]["message"]


async def test_a_client_gets_its_own_exceptions(client: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.create(**{**ASKED, "model": "other"})
    with pytest.raises(anthropic.APIStatusError) as failed:
        async with client.messages.stream(**ASKED, extra_headers={"x-simulate-fault": "error-event"}) as stream:
            await stream.until_done()
    assert "a simulated fault" in str(failed.value)
