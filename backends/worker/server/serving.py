"""What the routes of one worker share: its engine, its tokenizer and where long texts are tokenized."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import SystemRandom
from typing import Final, TypeVar

from aiohttp import web

from backends.engine_api.api_errors import ApiError
from backends.worker.engine_client import EngineClient
from backends.worker.messages import Ready
from backends.worker.options import WorkerOptions
from backends.worker.server.metrics import WorkerMetrics
from backends.worker.server.plan import Planner
from backends.worker.server.told_policy import ToldPolicy
from backends.worker.text.detokenizer import TokenTexts
from cache.tokenizer import Tokenizer
from policies.kv_policy import KV_POLICY_FIELD, KvPolicy

_SHORT_BODY: Final = 8192
"""Bytes of a body that is read, rendered and tokenized within a millisecond or so."""
_REQUEST_ID: Final = re.compile(r"[\x21-\x7e]{1,200}")
_THREADS: Final = 2

_Result = TypeVar("_Result")


class Serving:
    """One worker as its routes see it."""

    def __init__(self, options: WorkerOptions, engine: EngineClient, ready: Ready, tokenizer: Tokenizer) -> None:
        self.options = options
        self.engine = engine
        self.ready = ready
        self.tokenizer = tokenizer
        self.texts = TokenTexts(tokenizer.reference)
        self.model = options.engine.name
        self.metrics = WorkerMetrics(self.model)
        self.planner = Planner(self.model, tokenizer, ready, lambda: _RANDOM.getrandbits(63))
        self.created = int(time.time())
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tokenize")
        self._told_policy = ToldPolicy(believed=options.kv_policy)

    def close(self) -> None:
        """Let the threads go; what they still do is wanted by nobody."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def kv_policy(self, request: web.Request) -> KvPolicy:
        """What a gateway says of the KV of a request's tenant."""
        return self._told_policy.read(request.headers.getall(KV_POLICY_FIELD, ()))

    async def with_body(self, request: web.Request, work: Callable[[bytes], _Result]) -> _Result:
        """What pure `work` makes of a request's body, in a thread where that may take long. Raises ApiError."""
        try:
            async with asyncio.timeout(self.options.body_within):
                body = await request.read()
        except TimeoutError:
            raise ApiError(408, "The request's body did not come in time.", kind="RequestTimeoutError") from None
        if len(body) <= _SHORT_BODY:
            return work(body)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, body)


_RANDOM: Final = SystemRandom()


def request_id_of(request: web.Request) -> str | None:
    """The client's own name for the request; None where there is none that can be repeated."""
    given = request.headers.get("X-Request-Id", "")
    return given if _REQUEST_ID.fullmatch(given) else None


def answer_id(request: web.Request, prefix: str) -> str:
    """The id of an answer: after the client's own name of the request, as vLLM has it, or a new one."""
    return f"{prefix}-{request_id_of(request) or uuid.uuid4().hex}"
