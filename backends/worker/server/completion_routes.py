"""`/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from aiohttp import web

from backends.engine_api.api_errors import ApiError
from backends.engine_api.sse import error_events
from backends.worker.server.generation import Generation
from backends.worker.server.plan import Plan
from backends.worker.server.rendering import Rendering
from backends.worker.server.serving import Serving, answer_id

log = logging.getLogger(__name__)

_SESSION: Final = "x-session-id"
"""A client that names its session comes back."""


class CompletionRoutes:
    """The two routes of one worker."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Serve them."""
        router.add_post("/v1/chat/completions", self._chat)
        router.add_post("/v1/completions", self._completion)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        plan = await self._serving.with_body(request, self._serving.planner.chat)
        return await self._answer(request, plan, answer_id(request, "chatcmpl"))

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        plan = await self._serving.with_body(request, self._serving.planner.completion)
        return await self._answer(request, plan, answer_id(request, "cmpl"))

    async def _answer(self, request: web.Request, plan: Plan, name: str) -> web.StreamResponse:
        serving = self._serving
        cut_off = (lambda: _cut_off(request)) if plan.stream else None
        wanted = plan.wanted or _SESSION in request.headers
        generation = Generation(
            serving.engine,
            plan,
            serving.texts,
            serving.metrics,
            cut_off,
            wanted=wanted,
            kv=serving.kv_policy(request),
        )
        rendering = Rendering(name, int(time.time()), plan, generation.choices)
        with generation:
            if plan.stream:
                return await self._stream(request, generation, rendering)
            await generation.finished()
        return web.Response(body=rendering.body(), content_type="application/json")

    async def _stream(self, request: web.Request, generation: Generation, rendering: Rendering) -> web.StreamResponse:
        """The head goes out with the first token: until then a refusal still has a status of its own."""
        await generation.news()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        try:
            await response.prepare(request)
            async with asyncio.timeout(None) as deadline:
                await self._send_all(response, generation, rendering, deadline)
        except TimeoutError:
            _cut_off(request)
        except ConnectionError:
            pass  # the client has left, or was cut off
        return response

    async def _send_all(
        self, response: web.StreamResponse, generation: Generation, rendering: Rendering, deadline: asyncio.Timeout
    ) -> None:
        """Send what is new until all is sent. While the client takes nothing, what is new gathers, and is then
        one event; the deadline runs in that time only.
        """
        try:
            while True:
                done = generation.done
                await self._write(response, rendering.events(), deadline)
                if done:
                    break
                await generation.news()
            end = rendering.end()
        except ApiError as error:
            end = error_events(str(error), status=error.status, kind=error.kind)
        except (ConnectionError, TimeoutError):
            raise
        except Exception:  # the head is out: only an event can tell
            log.exception("an answer cannot be rendered")
            end = error_events("The answer cannot be rendered.")
        await self._write(response, end, deadline)
        deadline.reschedule(asyncio.get_running_loop().time() + self._serving.options.stall_after)
        await response.write_eof()

    async def _write(self, response: web.StreamResponse, data: bytes, deadline: asyncio.Timeout) -> None:
        if data:
            deadline.reschedule(asyncio.get_running_loop().time() + self._serving.options.stall_after)
            await response.write(data)
            deadline.reschedule(None)


def _cut_off(request: web.Request) -> None:
    """End a connection whose client takes nothing."""
    if request.transport is not None:
        request.transport.abort()
