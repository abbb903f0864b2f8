"""Anthropic's routes, as vLLM serves them: `/v1/messages` and its `count_tokens`."""

from __future__ import annotations

from aiohttp import web

from backends.engine_api.bodies import read_body, typed
from backends.simulated.messages_answers import MessagesRendering
from backends.simulated.messages_requests import CountTokensRequest, MessagesRequest, as_chat
from backends.simulated.openai_requests import ChatRequest
from backends.simulated.serving import Serving

_TOKEN_BYTES = 4


class MessagesRoutes:
    """The two routes of one worker. A message is answered as the chat that it is converted to."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Serve them."""
        router.add_post("/v1/messages", self._messages)
        router.add_post("/v1/messages/count_tokens", self._count_tokens)

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        serving = self._serving
        parsed, _ = read_body(await request.read(), MessagesRequest)
        serving.check_model(parsed.model)
        chat = as_chat(parsed)
        answers = serving.planner.chat(serving.new_id("msg"), serving.now(), typed(chat, ChatRequest), chat)
        return await serving.answer(request, MessagesRendering(answers), streamed=bool(parsed.stream))

    async def _count_tokens(self, request: web.Request) -> web.Response:
        parsed, _ = read_body(await request.read(), CountTokensRequest)
        self._serving.check_model(parsed.model)
        count = len(self._serving.planner.chat_ids(as_chat(parsed))) // _TOKEN_BYTES
        return web.json_response(
            {"input_tokens": count, "context_management": {"original_input_tokens": count}},
        )
