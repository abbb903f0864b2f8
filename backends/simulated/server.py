"""The HTTP surface of one simulated worker, as vLLM's: routes, headers and errors."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from aiohttp import web
from multidict import CIMultiDictProxy

from backends.engine_api.api_errors import ApiError
from backends.engine_api.bodies import DetokenizeRequest, TokenizeRequest, read_body
from backends.engine_api.http_frame import Handler, check_bearer, errors_told
from backends.simulated import prometheus_text
from backends.simulated.completion_routes import CompletionRoutes
from backends.simulated.messages_routes import MessagesRoutes
from backends.simulated.model_text import unpack
from backends.simulated.passthrough_routes import PassthroughRoutes
from backends.simulated.prometheus_text import Flavour, Throughput
from backends.simulated.responses_routes import ResponsesRoutes
from backends.simulated.serving import Serving

VERSION = "simulated"
_MOST_BODY_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request as it came: `headers["via"]` in any case, `headers.getall("via")`."""

    method: str
    path: str
    headers: CIMultiDictProxy[str]
    body: bytes


class SimulatedServer:
    """Routes of one worker. `app()` is served with `handler_cancellation`, to feel a client leave.

    With an `api_key` every route under `/v1` wants it as a bearer token. `received` is appended to where given.
    """

    def __init__(
        self,
        serving: Serving,
        *,
        api_key: str | None = None,
        flavour: Flavour = Flavour.VLLM,
        received: deque[ReceivedRequest] | None = None,
    ) -> None:
        self._serving = serving
        self._authorization = None if api_key is None else f"Bearer {api_key}".encode()
        self._flavour = flavour
        self._received = received
        self._throughput = Throughput(time.monotonic())
        self._created = int(time.time())
        self._responses = ResponsesRoutes(serving)

    def app(self) -> web.Application:
        """The application."""
        app = web.Application(client_max_size=_MOST_BODY_BYTES, middlewares=[errors_told, self._admit])
        router = app.router
        router.add_get("/health", self._health)
        router.add_get("/ping", self._health)
        router.add_get("/version", self._version)
        router.add_get("/metrics", self._metrics)
        router.add_get("/v1/models", self._models)
        router.add_post("/tokenize", self._tokenize)
        router.add_post("/detokenize", self._detokenize)
        router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        CompletionRoutes(self._serving).add_to(router)
        MessagesRoutes(self._serving).add_to(router)
        PassthroughRoutes(self._serving).add_to(router)
        self._responses.add_to(router)
        if self._serving.faults is not None:
            router.add_post("/simulate/fault", self._serving.faults.armed)
            router.add_post("/simulate/resume", self._serving.faults.resumed)

        async def close(_: web.Application) -> None:
            await self._responses.close()

        app.on_cleanup.append(close)
        app.on_response_prepare.append(self._name_answer)
        return app

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Whoever has the key; what came is kept, whoever sent it."""
        if self._received is not None:
            body = await request.read()
            self._received.append(ReceivedRequest(request.method, request.path_qs, request.headers, body))
        check_bearer(request, self._authorization)
        return await handler(request)

    async def _name_answer(self, _request: web.Request, response: web.StreamResponse) -> None:
        """Which worker answered."""
        response.headers["x-worker-id"] = self._serving.name

    async def _models(self, _request: web.Request) -> web.Response:
        base = self._serving.text.model
        parents = {base: None, **dict.fromkeys(self._serving.adapters, base)}
        models = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": str(self._flavour),
                "root": name,
                "parent": parent,
                "max_model_len": self._serving.config.context_tokens if parent is None else None,
            }
            for name, parent in parents.items()
        ]
        return web.json_response({"object": "list", "data": models})

    async def _tokenize(self, request: web.Request) -> web.Response:
        parsed, raw = read_body(await request.read(), TokenizeRequest)
        self._serving.check_model(parsed.model)
        planner = self._serving.planner
        if parsed.messages is not None:
            ids = planner.chat_ids(raw)
        elif parsed.prompt is not None:
            ids = planner.ids(parsed.prompt, add_special_tokens=parsed.add_special_tokens is not False)
        else:
            raise ApiError(400, "Either `prompt` or `messages` must be given", param="prompt")
        tokens = unpack(ids)
        limit = self._serving.config.context_tokens
        return web.json_response({"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": None})

    async def _detokenize(self, request: web.Request) -> web.Response:
        parsed, _ = read_body(await request.read(), DetokenizeRequest)
        self._serving.check_model(parsed.model)
        return web.json_response({"prompt": self._serving.text.tokenizer.decode(parsed.tokens)})

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def _metrics(self, _request: web.Request) -> web.Response:
        serving = self._serving
        stats, model = serving.driver.engine.stats(), serving.text.model
        ttft, finished = serving.ttft, serving.finished
        if self._flavour is Flavour.SGLANG:
            rate = self._throughput.look(time.monotonic(), stats.generation_tokens)
            page = prometheus_text.render_sglang(
                serving.config, stats, model=model, ttft=ttft, finished=finished, gen_throughput=rate
            )
        else:
            page = prometheus_text.render(serving.config, stats, model=model, ttft=ttft, finished=finished)
        tiers = prometheus_text.tier_lines(serving.driver.engine.tiers.prices)
        return web.Response(text=page + "".join(line + "\n" for line in tiers))

    async def _reset_prefix_cache(self, _request: web.Request) -> web.Response:
        if not self._serving.driver.clear_cache():
            raise ApiError(503, "Blocks are in use.", kind="ServiceUnavailableError")
        return web.Response()
