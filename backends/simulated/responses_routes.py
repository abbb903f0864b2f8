"""OpenAI's responses, as vLLM serves them: create (also in the background), retrieve, cancel, delete."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from aiohttp import web

from backends.engine_api.api_errors import ApiError
from backends.engine_api.bodies import read_body, typed
from backends.simulated.answers import Answers
from backends.simulated.openai_requests import ChatRequest
from backends.simulated.responses_answers import ResponsesRendering
from backends.simulated.responses_requests import ChatMessage, ResponsesRequest, as_chat, echoed, input_messages
from backends.simulated.responses_store import ResponseStore, StoredResponse
from backends.simulated.serving import Serving


class ResponsesRoutes:
    """`/v1/responses` of one worker, and the responses that it keeps."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self.store = ResponseStore()
        self._background: dict[str, asyncio.Task[None]] = {}

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Serve them."""
        router.add_post("/v1/responses", self._create)
        router.add_get("/v1/responses/{id}", self._retrieve)
        router.add_delete("/v1/responses/{id}", self._delete)
        router.add_post("/v1/responses/{id}/cancel", self._cancel)

    async def close(self) -> None:
        """End what runs in the background."""
        tasks = list(self._background.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _create(self, request: web.Request) -> web.StreamResponse:
        serving = self._serving
        parsed, raw = read_body(await request.read(), ResponsesRequest)
        serving.check_model(parsed.model)
        history: list[ChatMessage] = []
        if parsed.previous_response_id is not None:
            history = self.store.get(parsed.previous_response_id, param="previous_response_id").history()
        chat = as_chat(parsed, history)
        answers = serving.planner.chat(serving.new_response_id(), serving.now(), typed(chat, ChatRequest), chat)
        asked = [*history, *input_messages(parsed.input)]
        if parsed.background:
            return self._start_in_background(parsed, ResponsesRendering(answers, echoed(parsed, raw)), asked)

        def keep(response: dict[str, Any]) -> None:
            if parsed.store is not False:
                self.store.keep(StoredResponse(response, asked))

        rendering = ResponsesRendering(answers, echoed(parsed, raw), on_finished=keep)
        return await serving.answer(request, rendering, streamed=bool(parsed.stream))

    def _start_in_background(
        self, parsed: ResponsesRequest, rendering: ResponsesRendering, asked: list[ChatMessage]
    ) -> web.Response:
        if parsed.stream or parsed.store is False:
            raise ApiError(400, "background needs store, and is not streamed here", param="background")
        stored = StoredResponse(rendering.unfinished("in_progress"), asked)
        self.store.keep(stored)
        task = asyncio.get_running_loop().create_task(self._finish(stored, rendering, rendering.answers))
        self._background[rendering.answers.id] = task
        task.add_done_callback(lambda _: self._background.pop(rendering.answers.id, None))
        return _json(stored.response)

    async def _finish(self, stored: StoredResponse, rendering: ResponsesRendering, answers: Answers) -> None:
        try:
            with self._serving.generation(answers) as generation:
                await generation.finished
        except asyncio.CancelledError:
            stored.response = rendering.unfinished("cancelled")
            raise
        except ApiError as error:
            failure = {"code": "server_error", "message": str(error)}
            stored.response = rendering.unfinished("failed") | {"error": failure}
        else:
            stored.response = rendering.response()
            self._serving.finished += 1

    async def _retrieve(self, request: web.Request) -> web.Response:
        return _json(self.store.get(request.match_info["id"]).response)

    async def _cancel(self, request: web.Request) -> web.Response:
        stored = self.store.get(request.match_info["id"])
        task = self._background.get(request.match_info["id"])
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
            # A task that had not yet begun never saw its cancellation.
            stored.response |= {"status": "cancelled"} if stored.response["status"] == "in_progress" else {}
        elif stored.response["status"] != "cancelled":
            raise ApiError(400, "Cannot cancel a synchronous response.", kind="invalid_request_error", param="id")
        return _json(stored.response)

    async def _delete(self, request: web.Request) -> web.Response:
        response_id = request.match_info["id"]
        self.store.forget(response_id)
        if (task := self._background.get(response_id)) is not None:
            task.cancel()
        return _json({"id": response_id, "object": "response", "deleted": True})


def _json(value: object) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
