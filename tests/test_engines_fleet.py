"""Engines of every kind behind the gateway: with and without a known tokenizer, events, adapters, salts and images."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet, SimulatedWorker
from backends.simulated.model_text import EMBEDDED_TOKENIZER
from cache.prefix_index import PrefixIndex
from gateway.pipeline import RequestPipeline
from tests.data_plane_fixtures import Inside, inside
from tests.gateway_fixtures import MODEL, config_for, model_text

WORDS = (EMBEDDED_TOKENIZER / "words.txt").read_text().split()
FAST = EngineConfig(speed=200.0)
BLOCK = FAST.block_size


def words(n: int, seed: int) -> str:
    """Another text for each seed, about two tokens a word."""
    return " ".join(random.Random(seed).choices(WORDS, k=n))


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def chat(turns: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": list(turns), "max_tokens": 4}


def messages(turns: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"messages": list(turns), "max_tokens": 4}


def responses(turns: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"input": list(turns), "max_output_tokens": 4}


def completion(turns: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": "\n".join(turn["content"] for turn in turns), "max_tokens": 4}


DIALECTS = (chat, completion, messages, responses)


@dataclass
class Told:
    """What came of one request: who answered, and what it says of the prompt."""

    worker: str
    prompt: int
    cached: int


@dataclass
class Running:
    """A gateway and the workers behind it."""

    gateway: Inside
    fleet: SimulatedFleet
    http: aiohttp.ClientSession

    @property
    def index(self) -> PrefixIndex:
        pipeline = self.gateway.server.pipeline
        assert isinstance(pipeline, RequestPipeline)
        return pipeline._index

    async def post(
        self, shape: tuple[str, Mapping[str, Any]], *, past: SimulatedWorker | None = None, **more: Any
    ) -> Told:
        """Through the gateway, or `past` it straight to a worker. `more` are further fields."""
        path, body = shape
        fault = more.pop("fault", None)
        headers = {} if fault is None else {"x-simulate-fault": fault}
        url = self.gateway.url if past is None else past.url
        async with self.http.post(url + path, json={"model": MODEL, **body, **more}, headers=headers) as response:
            answer = await response.json()
            assert response.status == 200, answer
        usage = answer["usage"]
        if "cache_read_input_tokens" in usage:
            cached = int(usage["cache_read_input_tokens"] or 0)
            return Told(response.headers.get("x-worker", ""), int(usage["input_tokens"]) + cached, cached)
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
        prompt = usage.get("prompt_tokens") or usage.get("input_tokens")
        return Told(response.headers.get("x-worker", ""), int(prompt), int(details.get("cached_tokens") or 0))

    async def hear(self) -> None:
        """Let every worker say something until the gateway hears it: it may begin to listen late."""
        async with asyncio.timeout(10):
            for worker, simulated in zip(self.gateway.fleet.workers, self.fleet.workers, strict=True):
                for number in itertools.count():
                    if worker.publishes_events:
                        break
                    await self.post(completion([user(words(20, 9_000_000 + number))]), past=simulated)
                    await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def running(
    n: int = 2,
    *,
    tokenizer: bool = False,
    events: bool = True,
    engine: EngineConfig = FAST,
    faults: bool = False,
    adapters: tuple[str, ...] = (),
    extra: str = "",
) -> AsyncIterator[Running]:
    """`tokenizer`: is it configured? `events`: do workers publish them, and does the gateway listen?"""
    settings = FleetConfig(model=MODEL, engine=engine, kv_events=events, faults=faults, adapters=adapters)
    async with SimulatedFleet(n, settings, text=model_text()) as fleet:
        feeds = [
            f", kv_events: {{endpoint: '{worker.kv_endpoint}', replay_endpoint: '{worker.replay_endpoint}'}}"
            for worker in fleet.workers
        ]
        models = f"models: [{{name: {MODEL}, tokenizer: embedded}}]\n" if tokenizer else ""
        config = config_for(
            fleet.urls,
            models + "response_headers: {worker: x-worker}\nlimits: {drain_timeout: 0.2}\n" + extra,
            workers_extra=feeds if events else (),
        )
        async with inside(config) as gateway, aiohttp.ClientSession() as http:
            it = Running(gateway, fleet, http)
            if events:
                await it.hear()
            yield it


# --- text mode -----------------------------------------------------------------------------------------------


async def converse(it: Running, shape: Any, *, talks: int = 6, turns: int = 4) -> tuple[list[set[str]], float]:
    """Conversations in turn; the workers each was at, and the share of all prompt tokens found cached."""
    histories = [[user(words(80, 100 + talk))] for talk in range(talks)]
    homes: list[set[str]] = [set() for _ in range(talks)]
    cached = prompt = 0
    for turn in range(turns):
        for talk, history in enumerate(histories):
            told = await it.post(shape(history))
            homes[talk].add(told.worker)
            cached += told.cached
            prompt += told.prompt
            seed = 1000 * turn + talk
            history += [{"role": "assistant", "content": words(10, seed)}, user(words(60, 50_000 + seed))]
    return homes, cached / prompt


@pytest.mark.parametrize("shape", DIALECTS)
async def test_text_alone_keeps_conversations_where_they_are(shape: Any) -> None:
    async with running(3, tokenizer=True) as it:
        _, known = await converse(it, shape)
    async with running(3, events=False) as it:
        homes, share = await converse(it, shape)
    assert all(len(home) == 1 for home in homes)
    assert len(set.union(*homes)) == 3
    assert known > 0.4
    assert share > 0.9 * known
