"""A worker whose answers can be told apart, and clients that ask it the same things over and over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai

from gateway.pipeline import RequestPipeline
from gateway.response_caching import ResponseCaching
from tests.data_plane_fixtures import Inside, RawWorker, Turn, inside, plane

ON = "response_cache: {mode: on%s}\n"
ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello there."}], "temperature": 0}

_HEAD = b"HTTP/1.1 %d OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"


class Counted:
    """Each answer says which call it was; `hold` makes them wait until `may` is released."""

    def __init__(self) -> None:
        self.calls = 0
        self.status = 200
        self.finish = "stop"
        self.hold = False
        self.may = asyncio.Semaphore(0)
        self.halves = self.breaks = False  # a stream stops after its first event, and there it may break off
        self.given_up = 0
        self.padding = 0
        self.text: str | None = None  # a body in place of all that

    async def __call__(self, turn: Turn) -> None:
        self.calls += 1
        text = f"Answer {self.calls}." + "x" * self.padding
        if self.hold and not await turn.allowed(self.may):
            self.given_up += 1
            return
        asked = json.loads(turn.body)
        if self.text is not None:
            body = self.text.encode()
            turn.write(_HEAD % (200, b"application/json", len(body), body))
        elif self.status != 200:
            body = b'{"error": {"message": "no", "type": "x", "code": "y"}}'
            turn.write(_HEAD % (self.status, b"application/json", len(body), body))
        elif asked.get("stream"):
            events = chunks(text, self.finish, usage=bool(asked.get("stream_options")))
            if self.halves:
                middle = events.index(b"\n\n") + 2
                turn.write(_HEAD % (200, b"text/event-stream", len(events), events[:middle]))
                await self.may.acquire()
                if self.breaks:
                    await turn.close()
                    return
                turn.write(events[middle:])
            else:
                turn.write(_HEAD % (200, b"text/event-stream", len(events), events))
        else:
            body = json.dumps(whole(text, self.finish)).encode()
            turn.write(_HEAD % (200, b"application/json", len(body), body))


USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


def whole(text: str, finish: str = "stop") -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "c", "object": "chat.completion", "created": 1, "model": "m", "usage": USAGE,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
    }  # fmt: skip


def chunks(text: str, finish: str = "stop", *, usage: bool = False) -> bytes:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    deltas: list[tuple[dict[str, str], str | None]] = [({"role": "assistant", "content": ""}, None)]
    deltas += [({"content": word}, None) for word in text.replace(" ", " |").split("|")] + [({}, finish)]
    told: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in deltas
    ]
    if usage:
        told.append({**head, "choices": [], "usage": USAGE})
    return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in told) + b"data: [DONE]\n\n"


class Setting:
    """A gateway that keeps answers, in front of one counted worker."""

    def __init__(self, gateway: Inside, worker: Counted, client: openai.AsyncOpenAI) -> None:
        self.gateway = gateway
        self.client = client
        self.worker = worker
        pipeline = gateway.server.pipeline
        assert isinstance(pipeline, RequestPipeline)
        self.pipeline = pipeline

    @property
    def caching(self) -> ResponseCaching:
        assert self.pipeline.responses is not None
        return self.pipeline.responses

    async def ask(
        self, *, headers: dict[str, str] | None = None, key: str = "none", **more: Any
    ) -> tuple[str, str | None]:
        """The text of an answer in one piece, and what the cache had for it."""
        told = {"Authorization": f"Bearer {key}", **(headers or {})}
        raw = await self.client.chat.completions.with_raw_response.create(**ASKED | more, extra_headers=told)
        text: str = raw.parse().choices[0].message.content
        return text, raw.headers.get("x-prefixgate-cache")

    async def stream(self, **more: Any) -> tuple[str, str | None]:
        """The same of a stream."""
        raw = await self.client.chat.completions.with_raw_response.create(**ASKED | more, stream=True)
        text = ""
        async for chunk in raw.parse():
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        return text, raw.headers.get("x-prefixgate-cache")

    def check_left(self) -> None:
        """Nothing of anybody is left."""
        self.caching.flights.check_empty()
        assert self.gateway.server.background == set()
        assert self.pipeline.live == set()


@asynccontextmanager
async def setting(cache: str = "", extra: str = "", worker: str = "") -> AsyncIterator[Setting]:
    counted = Counted()
    async with (
        RawWorker(counted).running() as raw,
        inside(plane([raw.url], extra=ON % (f", {cache}" if cache else "") + extra, worker=worker)) as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield Setting(gateway, counted, client)
