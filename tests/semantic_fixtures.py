"""An endpoint for embeddings that knows words, a worker that knows answers, and a gateway that answers by meaning."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy as np
import openai
from aiohttp import web

from gateway.pipeline import RequestPipeline
from gateway.semantic_caching import SemanticCaching
from tests.caching_fixtures import chunks, whole
from tests.data_plane_fixtures import Inside, RawWorker, Turn, inside, plane
from tests.gateway_fixtures import eventually
from tests.ports import free_port

DIM = 256
_SMALL = frozenset(
    ["a", "an", "the", "how", "do", "i", "can", "to", "my", "of", "is", "are", "in", "what", "please", "does", "you"]
)


def vector(text: str) -> list[float]:
    """Texts that share words have similar vectors; small words hardly count."""
    row = np.full(DIM, 1e-6, np.float64)
    for word in re.findall(r"[a-z0-9]+", text.lower()):
        seed = int.from_bytes(word.encode()[:12], "big")
        row += np.random.default_rng(seed).normal(size=DIM) * (0.1 if word in _SMALL else 1.0)
    return [float(number) for number in row]


class Words:
    """`POST /v1/embeddings` over a socket."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.status = 200
        self.may = asyncio.Event()
        self.may.set()
        self.url = ""
        self.vector: Callable[[str], list[float]] = vector

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Words]:
        application = web.Application()
        application.router.add_post("/v1/embeddings", self._embed)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{port}/v1"
        try:
            yield self
        finally:
            self.may.set()
            await runner.cleanup()

    async def _embed(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.asked += asked["input"]
        await self.may.wait()
        if self.status != 200:
            return web.Response(status=self.status)
        data = [{"index": at, "embedding": self.vector(text)} for at, text in enumerate(asked["input"])]
        return web.json_response({"data": data})


def by_topic(question: str) -> str:
    """The same to all questions with the same large words."""
    words = sorted({word for word in re.findall(r"[a-z0-9]+", question.lower()) if word not in _SMALL})
    return f"All about {' and '.join(words)}."


class Wise:
    """A worker whose answers depend on the question alone; `hold` makes them wait until `may` is released."""

    def __init__(self) -> None:
        self.calls = 0
        self.asked: list[dict[str, Any]] = []
        self.says: Callable[[str], str] = by_topic
        self.hold = False
        self.may = asyncio.Semaphore(0)
        self.given_up = 0

    async def __call__(self, turn: Turn) -> None:
        asked = json.loads(turn.body)
        self.calls += 1
        self.asked.append(asked)
        if self.hold and not await turn.allowed(self.may):
            self.given_up += 1
            return
        head = "HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"
        told = self.says(_question(asked))
        kind = "application/json"
        if b"/messages" in turn.head.split(b"\r\n")[0]:
            body = json.dumps(_message(told)).encode()
        elif b"/responses" in turn.head.split(b"\r\n")[0]:
            body = json.dumps(_response(told)).encode()
        elif asked.get("stream"):
            body, kind = chunks(told, usage=bool(asked.get("stream_options"))), "text/event-stream"
        else:
            body = json.dumps(whole(told)).encode()
        turn.write((head % (kind, len(body))).encode() + body)


def _message(text: str) -> dict[str, Any]:
    return {
        "id": "msg", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
        "stop_sequence": None, "content": [{"type": "text", "text": text}],
        "usage": {"input_tokens": 5, "output_tokens": 7},
    }  # fmt: skip


def _response(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {
        "id": "resp", "object": "response", "created_at": 1, "status": "completed", "model": "m", "tools": [],
        "error": None, "incomplete_details": None, "parallel_tool_calls": True, "tool_choice": "auto",
        "output": [{"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": content}],
        "usage": {
            "input_tokens": 5, "output_tokens": 7, "total_tokens": 12,
            "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
        },
    }  # fmt: skip


def _question(asked: dict[str, Any]) -> str:
    given: Any = asked.get("messages", asked.get("input"))
    content = given if isinstance(given, str) else given[-1]["content"]
    return content if isinstance(content, str) else str(content[-1]["text"])


class SemanticSetting:
    """A gateway that answers by meaning, in front of one worker."""

    def __init__(self, gateway: Inside, worker: Wise, words: Words, client: openai.AsyncOpenAI) -> None:
        self.gateway, self.worker, self.words, self.client = gateway, worker, words, client
        pipeline = gateway.server.pipeline
        assert isinstance(pipeline, RequestPipeline)
        self.pipeline = pipeline
        self._spaces = 0

    @property
    def semantic(self) -> SemanticCaching:
        assert self.pipeline.responses is not None
        assert self.pipeline.responses.semantic is not None
        return self.pipeline.responses.semantic

    async def ask(
        self, question: str, *, headers: dict[str, str] | None = None, key: str = "none", **more: Any
    ) -> tuple[str, str | None]:
        """The text of an answer, and what the cache had for it."""
        text, told = await self.told(question, headers=headers, key=key, **more)
        return text, told.get("x-prefixgate-cache")

    async def told(
        self, question: str, *, headers: dict[str, str] | None = None, key: str = "none", **more: Any
    ) -> tuple[str, Any]:
        """The text, and all headers."""
        asked: dict[str, Any] = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": question}]}
        raw = await self.client.chat.completions.with_raw_response.create(
            **asked | more, extra_headers={"Authorization": f"Bearer {key}", **(headers or {})}
        )
        if not more.get("stream"):
            return raw.parse().choices[0].message.content, raw.headers
        text = ""
        async for chunk in raw.parse():
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        return text, raw.headers

    def again(self, question: str) -> str:
        """The same question to whoever reads it, and another to the exact cache."""
        self._spaces += 1
        return question.replace(" ", "  ", 1) + " " * self._spaces

    async def quiet(self) -> None:
        """Until all that is learnt in the background is learnt."""
        await eventually(lambda: not self.semantic._tasks and not self.semantic.questions.waiting)

    async def learn(self, question: str, times: int, **more: Any) -> list[str | None]:
        """Ask so often in other words; what the cache had each time."""
        told = []
        for _ in range(times):
            told.append((await self.ask(self.again(question), **more))[1])
            await self.quiet()
        return told

    def check_left(self) -> None:
        """Nothing of anybody is left."""
        assert self.pipeline.responses is not None
        self.pipeline.responses.flights.check_empty()
        assert self.gateway.server.background == set()
        assert self.pipeline.live == set()


EASY = "delta: 0.4, confidence: 0.6, audit_rate: 0, deadline: 5s"
"""Proved by few labels, and then never doubted."""


def semantic_section(url: str, more: str = EASY, mode: str = "on") -> str:
    embedding = f"{{kind: http, url: '{url}', model: words, dimensions: {DIM}}}"
    return f"semantic_cache: {{mode: {mode}, embedding: {embedding}, {more}}}\n"


@asynccontextmanager
async def semantic_setting(
    more: str = EASY,
    *,
    mode: str = "on",
    cache: str = "",
    extra: str = "",
    worker: Wise | None = None,
    words: Words | None = None,
) -> AsyncIterator[SemanticSetting]:
    """`words`: an endpoint that runs already."""
    worker, endpoint = worker or Wise(), words or Words()
    async with AsyncExitStack() as stack:
        if words is None:
            await stack.enter_async_context(endpoint.running())
        raw = await stack.enter_async_context(RawWorker(worker).running())
        sections = f"response_cache: {{mode: on{cache}}}\n" + semantic_section(endpoint.url, more, mode) + extra
        gateway = await stack.enter_async_context(inside(plane([raw.url], extra=sections)))
        client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        yield SemanticSetting(gateway, worker, endpoint, await stack.enter_async_context(client))
