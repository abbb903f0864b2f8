"""A small real OpenAI endpoint that streams, and misbehaves when told to."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

BLOCK_WORDS = 16


@dataclass
class FakeOpenAI:
    """Answers ``max_tokens`` one-word chunks; ``fault(n)`` names what goes wrong with request n, from 0.

    Faults: "500", "stall" (before the first byte), "stall_mid", "truncate", "reset", "error_event", "not_sse"
    and "garbage".
    """

    fault: Callable[[int], str | None] = lambda _: None
    workers: int = 2
    delay: float = 0.0  # seconds a token
    tell_cached: bool = True
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    _seen: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))

    def app(self) -> web.Application:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/completions", self._complete)
        return app

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """The base URL while it listens on a free port."""
        runner = web.AppRunner(self.app(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "fake", "object": "model"}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        number = len(self.bodies)
        self.bodies.append(body)
        self.paths.append(request.path)
        self.authorizations.append(request.headers.get("authorization"))
        fault = self.fault(number)
        if fault == "500":
            return web.json_response({"error": {"message": "out of memory", "type": "server_error"}}, status=500)
        if fault == "stall":
            await asyncio.sleep(3600)
        if fault == "not_sse":
            return web.json_response({"choices": []})
        return await self._stream(request, body, number % self.workers, fault)

    async def _stream(
        self, request: web.Request, body: dict[str, Any], worker: int, fault: str | None
    ) -> web.StreamResponse:
        chat = "messages" in body
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        words = prompt.split()
        response = web.StreamResponse(
            headers={"content-type": "text/event-stream; charset=utf-8", "x-worker-id": f"worker-{worker}"}
        )
        await response.prepare(request)
        cached = self._cached(worker, words)
        if chat:
            await _send(response, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for number in range(body["max_tokens"]):
            if number == 2 and fault is not None:
                return await _break(request, response, fault)
            await asyncio.sleep(self.delay)
            text = {"delta": {"content": " word"}} if chat else {"text": " word"}
            await _send(response, {"choices": [{"index": 0, **text, "finish_reason": None}]})
        last: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        await _send(response, {"choices": [{"index": 0, **last, "finish_reason": "length"}]})
        usage: dict[str, Any] = {"prompt_tokens": len(words), "completion_tokens": body["max_tokens"]}
        if self.tell_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        await _send(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    def _cached(self, worker: int, words: list[str]) -> int:
        prefixes = [
            " ".join(words[: stop + BLOCK_WORDS]) for stop in range(0, len(words) - BLOCK_WORDS + 1, BLOCK_WORDS)
        ]
        seen = self._seen[worker]
        hits = sum(1 for _ in takewhile(lambda prefix: prefix in seen, prefixes))
        seen.update(prefixes)
        return hits * BLOCK_WORDS


async def _break(request: web.Request, response: web.StreamResponse, fault: str) -> web.StreamResponse:
    match fault:
        case "stall_mid":
            await asyncio.sleep(3600)
        case "reset":
            assert request.transport is not None
            request.transport.abort()
        case "error_event":
            await _send(response, {"error": {"message": "engine died", "code": 500}})
        case "garbage":
            await response.write(b"data: {not json\n\n")
    return response


async def _send(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(b"data: " + orjson.dumps(event) + b"\n\n")
