"""A worker that answers late can tell that two names mean one model: what others published is then learnt again."""

from __future__ import annotations

import asyncio
import json
import logging

import aiohttp
import pytest

from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet
from tests.gateway_fixtures import ScriptedWorker, config_for, eventually, feed_of, gateway, model_text, read_request

PROMPTS = [
    f"Prompt {number}: " + "rivers carry water and sand from the mountains to the sea " * 30 for number in range(6)
]


async def test_blocks_published_under_one_name_are_found_under_its_alias(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    go = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, _ = await read_request(reader)
            await go.wait()
            cards = [{"id": name, "object": "model", "root": "/m"} for name in ("alias", "simulated")]
            body = json.dumps({"data": cards} if head.startswith(b"GET") else {"late": True}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    async with (
        SimulatedFleet(1, FleetConfig(engine=EngineConfig(speed=100.0)), text=model_text()) as fleet,
        ScriptedWorker(late).running() as other,
        aiohttp.ClientSession() as session,
    ):
        engine = fleet.workers[0]
        feed = feed_of(engine)
        extra = (
            "models: [{name: alias, tokenizer: embedded}]\nlimits: {drain_timeout: 0.2}\n"
            "upstream: {model_refresh: 200ms, connect_timeout: 300ms}\nresponse_headers: {worker: x-worker}\n"
        )

        async def ask(url: str, prompt: str) -> str | None:
            body = {"model": "simulated", "messages": [{"role": "user", "content": prompt}], "max_tokens": 2}
            async with session.post(url + "/v1/chat/completions", json=body) as response:
                await response.read()
                return response.headers.get("x-worker")

        async with gateway(config_for([engine.url, other.url], extra, workers_extra=[feed, ""])) as url:
            for prompt in PROMPTS:
                await ask(engine.url, prompt)  # past the gateway: events alone can tell
            await eventually(lambda: "w0, rank 0: live" in caplog.text)
            lived = caplog.text.count("w0, rank 0: live")
            go.set()
            await eventually(lambda: caplog.text.count("w0, rank 0: live") > lived)
            assert [await ask(url, prompt) for prompt in PROMPTS] == ["w0"] * len(PROMPTS)
