"""OpenAI's classic routes: chat completions, completions, embeddings."""

from __future__ import annotations

import base64
from random import Random
from struct import pack

import orjson
from aiohttp import web
from xxhash import xxh3_64_intdigest

from backends.engine_api.api_errors import ApiError
from backends.engine_api.bodies import read_body
from backends.simulated.answers import Answers, Choice
from backends.simulated.openai_answers import CompletionRendering
from backends.simulated.openai_requests import ChatRequest, CompletionRequest, EmbeddingRequest
from backends.simulated.serving import Serving
from policies.types import TokenIds

_EMBEDDING_WIDTH = 64
_MOST_EMBEDDING_WIDTH = 4096
_TOKEN_BYTES = 4


class CompletionRoutes:
    """`/v1/chat/completions`, `/v1/completions` and `/v1/embeddings` of one worker."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Serve them."""
        router.add_post("/v1/chat/completions", self._chat)
        router.add_post("/v1/completions", self._completion)
        router.add_post("/v1/embeddings", self._embeddings)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        serving = self._serving
        parsed, raw = read_body(await request.read(), ChatRequest)
        serving.check_model(parsed.model)
        answers = serving.planner.chat(serving.new_id("chatcmpl"), serving.now(), parsed, raw)
        rendering = CompletionRendering(answers, chat=True, usage=parsed.wants_usage)
        return await serving.answer(request, rendering, streamed=bool(parsed.stream))

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        serving = self._serving
        parsed, _ = read_body(await request.read(), CompletionRequest)
        serving.check_model(parsed.model)
        answers = serving.planner.completion(serving.new_id("cmpl"), serving.now(), parsed)
        rendering = CompletionRendering(answers, chat=False, usage=parsed.wants_usage)
        return await serving.answer(request, rendering, streamed=bool(parsed.stream))

    async def _embeddings(self, request: web.Request) -> web.StreamResponse:
        serving = self._serving
        parsed, _ = read_body(await request.read(), EmbeddingRequest)
        serving.check_model(parsed.model)
        prompts = [serving.planner.ids(prompt) for prompt in parsed.prompts]
        width = parsed.dimensions or _EMBEDDING_WIDTH
        if width > _MOST_EMBEDDING_WIDTH:
            message = f"dimensions must be at most {_MOST_EMBEDDING_WIDTH}, got {width}."
            raise ApiError(400, message, param="dimensions")
        total = sum(len(ids) for ids in prompts) // _TOKEN_BYTES
        model = parsed.model or serving.text.model
        answers = Answers(serving.new_id("embd"), serving.now(), model, total)
        for index, ids in enumerate(prompts):
            sim = serving.planner.prefill_only(f"{answers.id}-{index}", ids, parsed.cache_salt or "", parsed.model)
            answers.choices.append(Choice(index, sim, [""], "stop"))
        vectors = [_vector(ids, width, parsed.encoding_format) for ids in prompts]
        return await serving.unary(request, answers, lambda: _embeddings_body(answers, vectors))


def _embeddings_body(answers: Answers, vectors: list[list[float] | str]) -> bytes:
    total = answers.prompt_tokens
    return orjson.dumps(
        {
            "id": answers.id,
            "object": "list",
            "created": answers.created,
            "model": answers.model,
            "data": [
                {"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)
            ],
            "usage": {"prompt_tokens": total, "total_tokens": total, "completion_tokens": 0},
        }
    )


def _vector(ids: TokenIds, width: int, encoding_format: str | None) -> list[float] | str:
    """A unit vector that depends on the ids alone; base64 is of little-endian 32-bit floats."""
    random = Random(xxh3_64_intdigest(ids))  # noqa: S311 - deterministic on purpose
    values = [random.gauss(0.0, 1.0) for _ in range(width)]
    length = sum(value * value for value in values) ** 0.5
    values = [value / length for value in values]
    if encoding_format == "base64":
        return base64.b64encode(pack(f"<{width}f", *values)).decode()
    return values
