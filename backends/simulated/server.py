"""The HTTP surface of one simulated worker, as vLLM's: routes, headers and errors."""

from __future__ import annotations

import base64
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from random import Random
from struct import pack as pack_struct

from aiohttp import web
from xxhash import xxh3_64_intdigest

from backends.simulated import prometheus_text
from backends.simulated.answer_plan import Planner
from backends.simulated.driver import EngineDriver
from backends.simulated.fault_injection import FaultInjector
from backends.simulated.model_text import ModelText, unpack
from backends.simulated.openai_answers import Answers, Choice
from backends.simulated.openai_requests import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    TokenizeRequest,
    read_body,
)
from backends.simulated.streams import Generation, stream
from policies.types import TokenIds

log = logging.getLogger(__name__)

VERSION = "simulated"
_MOST_BODY_BYTES = 64 << 20
_EMBEDDING_WIDTH = 64
_MOST_EMBEDDING_WIDTH = 4096

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SimulatedServer:
    """Routes of one worker. `app()` is served with `handler_cancellation`, to feel a client leave."""

    def __init__(self, name: str, text: ModelText, driver: EngineDriver, *, faults: bool) -> None:
        self._name = name
        self._text = text
        self._driver = driver
        self._config = driver.engine.config
        self._planner = Planner(text, self._config)
        self._faults = FaultInjector(name) if faults else None
        self._numbers = itertools.count()
        self._created = int(time.time())
        self._ttft = prometheus_text.Histogram()
        self._finished = 0

    def app(self) -> web.Application:
        """The application."""
        app = web.Application(client_max_size=_MOST_BODY_BYTES, middlewares=[self._middleware])
        app.router.add_get("/health", self._health)
        app.router.add_get("/ping", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completion)
        app.router.add_post("/v1/embeddings", self._embeddings)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        app.router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        if self._faults is not None:
            app.router.add_post("/simulate/fault", self._faults.arm)
        return app

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Errors in OpenAI's shape, and the worker's name on every answer."""
        try:
            response = await handler(request)
        except ApiError as error:
            response = web.Response(status=error.status, body=error.body(), content_type="application/json")
        except web.HTTPException as error:
            kind = "NotFoundError" if isinstance(error, web.HTTPNotFound) else "BadRequestError"
            body = ApiError(error.status, error.reason, kind=kind)
            response = web.Response(status=error.status, body=body.body(), content_type="application/json")
        if not response.prepared:
            response.headers["x-worker-id"] = self._name
        return response

    # -- generation --------------------------------------------------------------------------------------

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        parsed, raw = read_body(await request.read(), ChatRequest)
        self._check_model(parsed.model)
        answers = self._planner.chat(self._id("chatcmpl"), int(time.time()), parsed, raw)
        return await self._answer(request, parsed, answers)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        parsed, _ = read_body(await request.read(), CompletionRequest)
        self._check_model(parsed.model)
        answers = self._planner.completion(self._id("cmpl"), int(time.time()), parsed)
        return await self._answer(request, parsed, answers)

    async def _answer(
        self, request: web.Request, parsed: ChatRequest | CompletionRequest, answers: Answers
    ) -> web.StreamResponse:
        fault = self._faults.choose(request) if self._faults is not None else None
        if self._faults is not None and fault is not None:
            whole = Generation(self._driver, answers, self._ttft)
            return await self._faults.play(
                fault, request, whole, streamed=bool(parsed.stream), usage=parsed.wants_usage
            )
        if parsed.stream:
            response = self._stream_response()
            await stream(request, response, self._driver, answers, self._ttft, usage=parsed.wants_usage)
        else:
            with Generation(self._driver, answers, self._ttft) as generation:
                await generation.finished
            response = web.Response(body=answers.body(), content_type="application/json")
        self._finished += 1
        return response

    def _stream_response(self) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream; charset=utf-8", "x-worker-id": self._name}
        return web.StreamResponse(headers=headers)

    async def _embeddings(self, request: web.Request) -> web.Response:
        parsed, _ = read_body(await request.read(), EmbeddingRequest)
        self._check_model(parsed.model)
        prompts = [self._planner.ids(prompt) for prompt in parsed.prompts]
        width = parsed.dimensions or _EMBEDDING_WIDTH
        if width > _MOST_EMBEDDING_WIDTH:
            message = f"dimensions must be at most {_MOST_EMBEDDING_WIDTH}, got {width}."
            raise ApiError(400, message, param="dimensions")
        total = sum(len(ids) for ids in prompts) // 4
        request_id = self._id("embd")
        answers = Answers(request_id, False, int(time.time()), self._text.model, total)
        for index, ids in enumerate(prompts):
            sim = self._planner.prefill_only(f"{request_id}-{index}", ids, parsed.cache_salt or "")
            answers.choices.append(Choice(index, sim, [""], "stop"))
        with Generation(self._driver, answers, self._ttft) as generation:
            await generation.finished
        data = [
            {"object": "embedding", "index": index, "embedding": _vector(ids, width, parsed.encoding_format)}
            for index, ids in enumerate(prompts)
        ]
        usage = {"prompt_tokens": total, "total_tokens": total, "completion_tokens": 0}
        return web.json_response(
            {
                "id": request_id,
                "object": "list",
                "created": answers.created,
                "model": answers.model,
                "data": data,
                "usage": usage,
            }
        )

    # -- everything else ---------------------------------------------------------------------------------

    async def _models(self, _request: web.Request) -> web.Response:
        model = {
            "id": self._text.model,
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",
            "root": self._text.model,
            "parent": None,
            "max_model_len": self._config.context_tokens,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        parsed, raw = read_body(await request.read(), TokenizeRequest)
        self._check_model(parsed.model)
        if parsed.messages is not None:
            ids = self._planner.chat_ids(raw)
        elif parsed.prompt is not None:
            ids = self._planner.ids(parsed.prompt, add_special_tokens=parsed.add_special_tokens is not False)
        else:
            raise ApiError(400, "Either `prompt` or `messages` must be given", param="prompt")
        tokens = unpack(ids)
        limit = self._config.context_tokens
        return web.json_response({"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": None})

    async def _detokenize(self, request: web.Request) -> web.Response:
        parsed, _ = read_body(await request.read(), DetokenizeRequest)
        self._check_model(parsed.model)
        return web.json_response({"prompt": self._text.tokenizer.decode(parsed.tokens)})

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def _metrics(self, _request: web.Request) -> web.Response:
        page = prometheus_text.render(
            self._config,
            self._driver.engine.stats(),
            model=self._text.model,
            ttft=self._ttft,
            finished=self._finished,
        )
        return web.Response(text=page)

    async def _reset_prefix_cache(self, _request: web.Request) -> web.Response:
        if not self._driver.clear_cache():
            raise ApiError(503, "Blocks are in use.", kind="ServiceUnavailableError")
        return web.Response()

    def _check_model(self, model: str | None) -> None:
        if model not in (None, self._text.model):
            message = f"The model `{model}` does not exist."
            raise ApiError(404, message, kind="NotFoundError", param="model")

    def _id(self, prefix: str) -> str:
        return f"{prefix}-{self._name}-{next(self._numbers)}"


def _vector(ids: TokenIds, width: int, encoding_format: str | None) -> list[float] | str:
    """A unit vector that depends on the ids alone; base64 is of little-endian 32-bit floats."""
    random = Random(xxh3_64_intdigest(ids))  # noqa: S311 - deterministic on purpose
    values = [random.gauss(0.0, 1.0) for _ in range(width)]
    length = sum(value * value for value in values) ** 0.5
    values = [value / length for value in values]
    if encoding_format == "base64":
        return base64.b64encode(pack_struct(f"<{width}f", *values)).decode()
    return values
