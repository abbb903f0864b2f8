"""Simulated workers for tests of the engine itself."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet, SimulatedWorker
from tests.gateway_fixtures import model_text
from tests.ports import fleet_ports

FAST = EngineConfig(blocks=1024, block_size=16, max_model_len=8192, speed=200.0)
STORY = "Once upon a time there was a gateway that knew where every prefix lived. " * 12
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "description": "Skies.", "parameters": SCHEMA}}


@contextlib.asynccontextmanager
async def one_worker(**fields: Any) -> AsyncIterator[SimulatedWorker]:
    """A fast worker that obeys faults; `fields` are FleetConfig's."""
    config = replace(FleetConfig(engine=FAST, faults=True, **fleet_ports(1)), **fields)
    async with SimulatedFleet(1, config, text=model_text()) as fleet:
        yield fleet.workers[0]


async def tokens_of(worker: SimulatedWorker, chat: dict[str, Any]) -> list[int]:
    """Prompt token ids of a chat, by the worker."""
    async with (
        aiohttp.ClientSession(base_url=worker.url) as http,
        http.post("/tokenize", json={"model": "simulated", **chat}) as response,
    ):
        assert response.status == 200, await response.text()
        return list((await response.json())["tokens"])


async def token_count(worker: SimulatedWorker, chat: dict[str, Any]) -> int:
    """How many they are."""
    return len(await tokens_of(worker, chat))


async def events_of(worker: SimulatedWorker, path: str, body: dict[str, object]) -> list[tuple[str, dict[str, Any]]]:
    """Name and data of every event of a stream."""
    async with (
        aiohttp.ClientSession(base_url=worker.url) as http,
        http.post(path, json={"stream": True, **body}) as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        text = (await response.read()).decode()
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


@dataclass(frozen=True)
class Dialect:
    """A generating route: what to post, and how its streams end and fail."""

    name: str
    path: str
    body: dict[str, Any]
    terminal: bytes
    """What only a complete stream holds."""
    failure: bytes
    """What only a stream with an error event holds."""


_MESSAGES = [{"role": "user", "content": STORY}]
DIALECTS = (
    Dialect(
        "chat",
        "/v1/chat/completions",
        {"model": "simulated", "messages": _MESSAGES, "max_tokens": 6},
        b"data: [DONE]\n\n",
        b'data: {"error":{"message":"a simulated fault"',
    ),
    Dialect(
        "completion",
        "/v1/completions",
        {"model": "simulated", "prompt": STORY, "max_tokens": 6},
        b"data: [DONE]\n\n",
        b'data: {"error":{"message":"a simulated fault"',
    ),
    Dialect(
        "responses",
        "/v1/responses",
        {"model": "simulated", "input": STORY, "max_output_tokens": 6},
        b"event: response.incomplete\n",
        b"event: response.failed\n",
    ),
    Dialect(
        "messages",
        "/v1/messages",
        {"model": "simulated", "messages": _MESSAGES, "max_tokens": 6},
        b"event: message_stop\n",
        b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"a simulated fault"}}\n\n',
    ),
)
