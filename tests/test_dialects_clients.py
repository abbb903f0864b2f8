"""The official clients of both vendors through the gateway to workers whose every byte is decided here."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from gateway.api_error import ApiError
from gateway.dialects.anthropic import ANTHROPIC
from gateway.dialects.responses import RESPONSES
from tests.data_plane_fixtures import (
    Answer,
    Inside,
    RawWorker,
    ask,
    client_of,
    inside,
    plane,
    post,
    refusing_url,
    says,
)
from tests.gateway_fixtures import config_for

RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1767225600,
    "status": "completed",
    "model": "m",
    "output": [
        {
            "id": "msg_1",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hi there.", "annotations": []}],
        }
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 12,
    },
}
BEGUN = {**RESPONSE, "status": "in_progress", "output": [], "usage": None}
PLACE = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
ITEM = RESPONSE["output"][0]
PART = ITEM["content"][0]
RESPONSE_EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("response.created", {"response": BEGUN}),
    ("response.in_progress", {"response": BEGUN}),
    ("response.output_item.added", {"output_index": 0, "item": {**ITEM, "content": [], "status": "in_progress"}}),
    ("response.content_part.added", {**PLACE, "part": {**PART, "text": ""}}),
    ("response.output_text.delta", {**PLACE, "delta": "Hi ", "logprobs": []}),
    ("response.output_text.delta", {**PLACE, "delta": "there.", "logprobs": []}),
    ("response.output_text.done", {**PLACE, "text": "Hi there.", "logprobs": []}),
    ("response.content_part.done", {**PLACE, "part": PART}),
    ("response.output_item.done", {"output_index": 0, "item": ITEM}),
    ("response.completed", {"response": RESPONSE}),
]
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "content": [{"type": "text", "text": "Hi there."}],
    "model": "m",
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 3},
}
MESSAGE_EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("message_start", {"message": {**MESSAGE, "content": [], "stop_reason": None}}),
    ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
    ("ping", {}),
    ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "Hi "}}),
    ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "there."}}),
    ("content_block_stop", {"index": 0}),
    ("message_delta", {"delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 3}}),
    ("message_stop", {}),
]
ASKED: Any = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]}


def sse(events: list[tuple[str, dict[str, Any]]]) -> list[bytes]:
    """Each event's bytes."""
    return [
        f"event: {name}\ndata: {json.dumps({'type': name, 'sequence_number': number, **data})}\n\n".encode()
        for number, (name, data) in enumerate(events)
    ]


def unary(body: object, status: bytes = b"200 OK") -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(raw))
    return says(head + raw)


def stream(events: list[bytes]) -> Answer:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    return says(head, *chunks, b"0\r\n\r\n")


async def collect(events: AsyncIterator[Any], into: list[Any]) -> None:
    async for event in events:
        into.append(event)  # noqa: PERF401 - what came before a failure is wanted too


@pytest.fixture
async def worker() -> AsyncIterator[RawWorker]:
    async with RawWorker().running() as running:
        yield running


@pytest.fixture
async def gateway(worker: RawWorker) -> AsyncIterator[Inside]:
    async with inside(plane([worker.url])) as running:
        yield running


@pytest.fixture
async def client(gateway: Inside) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
async def claude(gateway: Inside) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0) as made:
        yield made


# --- OpenAI's responses


async def test_a_response(worker: RawWorker, client: openai.AsyncOpenAI) -> None:
    worker.answer = unary(RESPONSE)
    response = await client.responses.create(model="m", input="Hello", previous_response_id="resp_0")
    assert response.output_text == "Hi there."
    assert response.usage is not None
    assert response.usage.input_tokens_details.cached_tokens == 4
    head, body = worker.requests[-1]
    assert head.startswith(b"POST /v1/responses HTTP/1.1\r\n")
    assert json.loads(body)["previous_response_id"] == "resp_0"


async def test_a_streamed_response(worker: RawWorker, client: openai.AsyncOpenAI) -> None:
    worker.answer = stream(sse(RESPONSE_EVENTS))
    async with client.responses.stream(model="m", input="Hello") as events:
        names = [event.type async for event in events]
        final = await events.get_final_response()
    assert names == [name for name, _ in RESPONSE_EVENTS]
    assert final.output_text == "Hi there."


async def test_errors_of_responses(worker: RawWorker, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.responses.create(model="other", input="Hello")
    assert unknown.value.code == "model_not_found"
    assert unknown.value.param == "model"
    with pytest.raises(openai.BadRequestError) as wrong:
        await client.responses.create(model="m", input="Hello", previous_response_id=5)  # type: ignore[call-overload]  # on purpose
    assert wrong.value.param == "previous_response_id"
    assert not worker.requests
    own = {"error": {"message": "too long", "type": "BadRequestError", "param": "input", "code": 400}}
    worker.answer = unary(own, b"400 Bad Request")
    with pytest.raises(openai.BadRequestError) as told:
        await client.responses.create(model="m", input="Hello")
    assert told.value.body == own["error"]


async def test_an_error_event_of_ours_is_raised_by_openais_client(
    worker: RawWorker, client: openai.AsyncOpenAI
) -> None:
    event = RESPONSES.error_event(ApiError(502, "The worker was lost.", code="worker_lost"))
    worker.answer = stream([*sse(RESPONSE_EVENTS)[:5], event])
    seen: list[Any] = []
    events = await client.responses.create(model="m", input="Hello", stream=True)
    with pytest.raises(openai.APIError, match=r"^The worker was lost\.$") as raised:
        await collect(events, seen)
    assert [each.type for each in seen] == [name for name, _ in RESPONSE_EVENTS[:5]]
    assert raised.value.code == "worker_lost"


# --- Anthropic's messages


async def test_a_message(worker: RawWorker, claude: anthropic.AsyncAnthropic) -> None:
    worker.answer = unary(MESSAGE)
    message = await claude.messages.create(**ASKED)
    (block,) = message.content
    assert block.type == "text"
    assert block.text == "Hi there."
    assert message.usage.cache_read_input_tokens == 4
    assert worker.requests[-1][0].startswith(b"POST /v1/messages HTTP/1.1\r\n")


async def test_a_streamed_message(worker: RawWorker, claude: anthropic.AsyncAnthropic) -> None:
    worker.answer = stream(sse(MESSAGE_EVENTS))
    async with claude.messages.stream(**ASKED) as events:
        assert [text async for text in events.text_stream] == ["Hi ", "there."]
        final = await events.get_final_message()
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == 3


async def test_tokens_of_a_message(worker: RawWorker, claude: anthropic.AsyncAnthropic) -> None:
    worker.answer = unary({"input_tokens": 12})
    counted = await claude.messages.count_tokens(model="m", messages=ASKED["messages"])
    assert counted.input_tokens == 12
    assert worker.requests[-1][0].startswith(b"POST /v1/messages/count_tokens HTTP/1.1\r\n")


async def test_errors_of_messages(worker: RawWorker, claude: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        await claude.messages.create(**{**ASKED, "model": "other"})
    body: Any = unknown.value.body
    assert set(body) == {"type", "error"}
    assert body["error"]["type"] == "not_found_error"
    assert "`other` does not exist" in body["error"]["message"]
    with pytest.raises(anthropic.BadRequestError) as wrong:
        await claude.messages.create(**{**ASKED, "model": 5})
    assert "`model` must be a string" in str(wrong.value)
    with pytest.raises(anthropic.APIStatusError) as unserved:
        await claude.messages.batches.list()
    assert unserved.value.status_code == 404
    assert isinstance(unserved.value.body, dict)
    assert unserved.value.body["type"] == "error"
    assert not worker.requests
    own = {"type": "error", "error": {"type": "rate_limit_error", "message": "slower"}}
    worker.answer = unary(own, b"429 Too Many Requests")
    with pytest.raises(anthropic.RateLimitError) as told:
        await claude.messages.create(**ASKED)
    assert told.value.body == own


async def test_nobody_answers_a_message() -> None:
    async with (
        inside(plane([refusing_url()])) as gateway,
        anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0) as claude,
    ):
        with pytest.raises(anthropic.InternalServerError) as failed:
            await claude.messages.create(**ASKED)
    assert isinstance(failed.value.body, dict)
    assert failed.value.body["type"] == "error"


async def test_an_error_event_of_ours_is_raised_by_anthropics_client(
    worker: RawWorker, claude: anthropic.AsyncAnthropic
) -> None:
    event = ANTHROPIC.error_event(ApiError(502, "The worker was lost."))
    worker.answer = stream([*sse(MESSAGE_EVENTS)[:4], event])
    seen: list[Any] = []
    events = await claude.messages.create(**ASKED, stream=True)
    with pytest.raises(anthropic.APIStatusError) as raised:
        await collect(events, seen)
    assert [each.type for each in seen] == ["message_start", "content_block_start", "content_block_delta"]
    assert raised.value.body == {"type": "error", "error": {"type": "api_error", "message": "The worker was lost."}}


# --- models, in the shape of who asks


async def test_models_for_both_clients(client: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic) -> None:
    assert [model.id async for model in client.models.list()] == ["m"]
    assert (await client.models.retrieve("m")).object == "model"
    models = [model async for model in claude.models.list()]
    assert [(model.id, model.type, model.display_name, model.lifecycle) for model in models] == [
        ("m", "model", "m", "active")
    ]
    one = await claude.models.retrieve("m")
    assert one.id == "m"
    assert one.created_at.year == 1970
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.models.retrieve("other/model")
    assert unknown.value.code == "model_not_found"
    assert "`other/model`" in unknown.value.message
    with pytest.raises(anthropic.NotFoundError):
        await claude.models.retrieve("other")


async def test_a_model_whose_name_has_slashes(worker: RawWorker) -> None:
    async with (
        inside(config_for([worker.url], workers_extra=[", models: [org/model-1.5B, other]"])) as gateway,
        openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        assert (await client.models.retrieve("org/model-1.5B")).id == "org/model-1.5B"
        plain = await ask(gateway, b"GET /v1/models/org/model-1.5B HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (plain.status, json.loads(plain.body)["id"]) == (200, "org/model-1.5B")


async def test_health_says_whether_anybody_serves(gateway: Inside) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"
    assert (await ask(gateway, request)).status == 200
    async with inside(config_for([refusing_url()])) as empty:
        answer = await ask(empty, request)
    assert answer.status == 503
    assert answer.error["code"] == "no_worker"


# --- what is passed through


async def test_files_go_to_the_workers_of_their_model_untouched() -> None:
    async with RawWorker().running() as one, RawWorker().running() as two:
        config = config_for([one.url, two.url], workers_extra=[", models: [m]", ", models: [whisper]"])
        async with (
            inside(config) as gateway,
            openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as client,
        ):
            two.answer = unary({"text": "hello"})
            sound = bytes(range(256)) * 5000
            for _ in range(5):
                heard = await client.audio.transcriptions.create(model="whisper", file=("a.wav", sound))
                assert heard.text == "hello"
            assert len(two.requests) == 5
            assert not one.requests
            assert all(sound in body for _, body in two.requests)
            with pytest.raises(openai.NotFoundError) as unknown:
                await client.audio.transcriptions.create(model="other", file=("a.wav", sound))
            assert unknown.value.code == "model_not_found"


async def test_what_names_no_model_goes_to_any_worker(gateway: Inside, worker: RawWorker) -> None:
    blob = bytes(range(256))
    async with client_of(gateway) as client:
        for method in (b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"):
            client.write(post(blob, path=b"/v1/files/file-1?x=%2e%2e").replace(b"POST", method, 1))
            assert (await client.response()).status == 200
            head, body = worker.requests[-1]
            assert head.startswith(method + b" /v1/files/file-1?x=%2e%2e HTTP/1.1\r\n")
            assert body == blob
        client.write(post(b"", path=b"/v1/files/../x"))
        refusal = await client.response()
        assert (refusal.status, refusal.error["code"]) == (400, "invalid_path")
    assert gateway.active == 0
    assert [each.prefill.rate for each in gateway.fleet.workers] == [None], "they tell nothing of a prefill's speed"


@pytest.mark.parametrize("path", [b"/tokenize", b"/detokenize", b"/v1/tokenize"])
async def test_tokens_of_a_text(gateway: Inside, worker: RawWorker, path: bytes) -> None:
    body = b'{"model": "m",  "prompt": "x"}'
    assert (await ask(gateway, post(body, path=path))).status == 200
    assert worker.requests[-1][0].startswith(b"POST %b HTTP/1.1\r\n" % path)
    assert worker.requests[-1][1] == body
    wrong = await ask(gateway, post(b"[]", path=path))
    assert (wrong.status, wrong.error["code"]) == (400, "invalid_body")


async def test_a_path_of_a_dialect_that_is_not_served_is_refused_in_its_shape(gateway: Inside) -> None:
    for raw, status in (
        (post(path=b"/v1/messages/batches"), 404),
        (b"GET /v1/messages HTTP/1.1\r\nHost: h\r\n\r\n", 405),
        (post(b"{", path=b"/v1/messages"), 400),
    ):
        answer = await ask(gateway, raw)
        assert answer.status == status
        assert json.loads(answer.body)["type"] == "error"


async def test_a_body_that_is_too_long_is_refused_in_the_shape_of_its_path(worker: RawWorker) -> None:
    async with inside(plane([worker.url], limits="body_bytes: 32768")) as gateway:
        for path, kind in ((b"/v1/messages", "request_too_large"), (b"/v1/responses", "invalid_request_error")):
            answer = await ask(gateway, post(b" " * 40_000, path=path))
            assert answer.status == 413
            assert json.loads(answer.body)["error"]["type"] == kind
