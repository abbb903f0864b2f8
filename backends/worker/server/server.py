"""The HTTP surface of one worker, as vLLM's: routes, headers and errors."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from backends.engine_api.api_errors import ApiError
from backends.engine_api.bodies import DetokenizeRequest, ForgetKvRequest, read_body
from backends.engine_api.http_frame import Handler, check_bearer, errors_told
from backends.model_names import OUR_NAME
from backends.worker.engine_client import EngineUnavailableError
from backends.worker.server.completion_routes import CompletionRoutes
from backends.worker.server.generation import unavailable
from backends.worker.server.serving import Serving, request_id_of

VERSION: Final = "prefixgate-worker"
_MOST_SALTS: Final = 64
_FORGET_SECONDS: Final = 20.0


class WorkerServer:
    """Routes of one worker. `app()` is served with `handler_cancellation`, to feel a client leave."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._open = 0
        key = serving.options.api_key
        self._authorization = None if key is None else f"Bearer {key}".encode()

    def app(self) -> web.Application:
        """The application."""
        limit = self._serving.options.max_body_bytes
        app = web.Application(client_max_size=limit, middlewares=[errors_told, self._admit])
        router = app.router
        router.add_get("/health", self._health)
        router.add_get("/ping", self._health)
        router.add_post("/ping", self._health)
        router.add_get("/version", self._version)
        router.add_get("/metrics", self._metrics)
        router.add_get("/v1/models", self._models)
        router.add_post("/tokenize", self._tokenize)
        router.add_post("/detokenize", self._detokenize)
        router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        router.add_post("/v1/kv/forget", self._forget_kv)
        CompletionRoutes(self._serving).add_to(router)
        app.on_response_prepare.append(self._name_answer)
        return app

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Whoever has the key, and so many at once."""
        check_bearer(request, self._authorization)
        if request.method != "POST":
            return await handler(request)
        if self._open >= self._serving.options.max_open_requests:
            raise unavailable(f"{self._open} requests are under way already")
        self._open += 1
        try:
            return await handler(request)
        finally:
            self._open -= 1

    async def _name_answer(self, request: web.Request, response: web.StreamResponse) -> None:
        """Which worker answered, and which request."""
        response.headers["x-worker-id"] = self._serving.options.name
        request_id = request_id_of(request)
        if request_id is not None:
            response.headers["x-request-id"] = request_id

    async def _models(self, _request: web.Request) -> web.Response:
        serving = self._serving
        model = {
            "id": serving.model,
            "object": "model",
            "created": serving.created,
            "owned_by": OUR_NAME,
            "root": serving.model,
            "parent": None,
            "max_model_len": serving.ready.max_model_len,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        return web.json_response(await self._serving.with_body(request, self._serving.planner.tokenize))

    async def _detokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"prompt": await self._serving.with_body(request, self._decoded)})

    def _decoded(self, body: bytes) -> str:
        parsed, _ = read_body(body, DetokenizeRequest)
        self._serving.planner.check_model(parsed.model)
        if any(not 0 <= each < 1 << 32 for each in parsed.tokens):
            raise ApiError(400, "a token id is out of range", param="tokens")
        return self._serving.tokenizer.decode(parsed.tokens)

    async def _health(self, _request: web.Request) -> web.Response:
        problem = self._serving.engine.problem
        if problem is not None:
            raise unavailable(problem)
        return web.Response()

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def _metrics(self, _request: web.Request) -> web.Response:
        serving = self._serving
        caching = serving.options.engine.enable_prefix_caching
        return web.Response(text=serving.metrics.page(serving.ready, serving.engine.stats, prefix_caching=caching))

    async def _reset_prefix_cache(self, _request: web.Request) -> web.Response:
        try:
            self._serving.engine.clear_cache()
        except EngineUnavailableError as error:
            raise unavailable(str(error)) from None
        return web.Response()

    async def _forget_kv(self, request: web.Request) -> web.Response:
        """Remove what stores keep under salts, which only those know whose it is."""
        asked = await self._serving.with_body(request, _salts_to_forget)
        try:
            done = await self._serving.engine.forget_kv(
                asked.salts, owners=asked.owners, dry_run=asked.dry_run, within=_FORGET_SECONDS
            )
        except EngineUnavailableError as error:
            raise unavailable(str(error)) from None
        return web.json_response({"found": done.found, "left": done.left, "complete": done.complete})


def _salts_to_forget(body: bytes) -> ForgetKvRequest:
    asked, _ = read_body(body, ForgetKvRequest)
    if not asked.salts or len(asked.salts) > _MOST_SALTS or not all(asked.salts):
        raise ApiError(400, f"expected 1 to {_MOST_SALTS} salts", param="salts")
    if len(asked.owners) > _MOST_SALTS:
        raise ApiError(400, f"expected at most {_MOST_SALTS} owners", param="owners")
    return asked
