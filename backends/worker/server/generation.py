"""One HTTP request's sequences in the engine, from their submission to their last token."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from itertools import count
from typing import Final, Self

from backends.engine_api.api_errors import ApiError
from backends.worker.engine_client import EngineClient, EngineFault, EngineUnavailableError
from backends.worker.messages import FinishReason, Refused, Submit, TokensOut
from backends.worker.server.choice import Choice
from backends.worker.server.metrics import WorkerMetrics
from backends.worker.server.plan import Plan
from backends.worker.text.detokenizer import TokenTexts
from policies.kv_policy import NO_KV_POLICY, KvPolicy

log = logging.getLogger(__name__)

_MOST_UNREAD: Final = 1 << 17
"""Tokens (and log probabilities) that a stream's client may leave unread."""
_RETRY_AFTER: Final = 1

_numbers = count()


class Generation:
    """Use as a context manager: whatever happens to the client, the sequences leave the engine with it.

    `overrun` is called, once, when a stream's client leaves too much unread.
    """

    def __init__(
        self,
        engine: EngineClient,
        plan: Plan,
        texts: TokenTexts,
        metrics: WorkerMetrics,
        overrun: Callable[[], None] | None = None,
        *,
        wanted: bool = False,
        kv: KvPolicy = NO_KV_POLICY,
    ) -> None:
        self._engine = engine
        self._plan = plan
        self._metrics = metrics
        self._overrun = overrun
        self._wanted = wanted
        self._kv = kv
        self._streamed = plan.stream
        self.choices = [Choice(planned, plan, texts) for planned in plan.choices]
        self._open: dict[str, Choice] = {}
        self._started = time.monotonic()
        self._last: dict[str, float] = {}
        self._unread = 0
        self._news = asyncio.Event()
        self._error: ApiError | None = None

    @property
    def done(self) -> bool:
        """Whether every choice has ended."""
        return not self._open

    def __enter__(self) -> Self:
        """Submit every choice. Raises ApiError 503 when the engine takes none."""
        plan = self._plan
        try:
            for choice in self.choices:
                number = f"s{next(_numbers)}"
                self._engine.submit(
                    Submit(
                        id=number,
                        token_ids=choice.planned.token_ids,
                        params=choice.planned.params,
                        salt=plan.salt,
                        priority=plan.priority,
                        wanted=self._wanted,
                        kv=self._kv,
                    ),
                    self._receiver(number, choice),
                )
                self._open[number] = choice
        except EngineUnavailableError as error:
            self.__exit__()
            raise unavailable(str(error)) from None
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel what still runs."""
        for number in self._open:
            self._engine.cancel(number)
            self._metrics.finished[FinishReason.ABORT] += 1
        self._open.clear()

    async def news(self) -> None:
        """Wait until there is something new, or the end. Raises ApiError where the engine refuses or fails."""
        while not (self._news.is_set() or self.done):
            await self._news.wait()
        self._news.clear()
        self._unread = 0
        if self._error is not None:
            raise self._error

    async def finished(self) -> None:
        """Wait for the last token. Raises ApiError where the engine refuses or fails."""
        while not self.done:
            await self.news()
        if self._error is not None:
            raise self._error

    def _receiver(self, number: str, choice: Choice) -> Callable[[TokensOut | Refused | EngineFault], None]:
        def receive(what: TokensOut | Refused | EngineFault) -> None:
            try:
                if isinstance(what, TokensOut):
                    self._take(number, choice, what)
                else:
                    self._fail(number, _error_of(what))
            except Exception:  # one choice that cannot be told must not stop the others
                log.exception("tokens of a sequence cannot be made text")
                self._engine.cancel(number)
                self._fail(number, ApiError(500, "The answer cannot be made text.", kind="InternalServerError"))
            if self._streamed or self.done or self._error is not None:
                self._news.set()  # who waits for the end need not be woken for each token

        return receive

    def _take(self, number: str, choice: Choice, out: TokensOut) -> None:
        now = time.monotonic()
        if out.token_ids:
            self._observe(number, now)
        choice.take(out)
        if choice.finish_reason is not None:
            if out.finish_reason is None:
                self._engine.cancel(number)  # a stop string, of which the engine knows nothing
            self._close(number, choice.finish_reason, now)
        elif self._overrun is not None:
            self._count_unread(out)

    def _observe(self, number: str, now: float) -> None:
        """Each sequence has a first token and a pace of its own, as vLLM counts them."""
        last = self._last.get(number)
        if last is None:
            self._metrics.ttft.observe(now - self._started)
        else:
            self._metrics.inter_token.observe(now - last)
        self._last[number] = now

    def _close(self, number: str, reason: FinishReason, now: float) -> None:
        if self._open.pop(number, None) is not None:
            self._metrics.finished[reason] += 1
            self._metrics.e2e.observe(now - self._started)

    def _count_unread(self, out: TokensOut) -> None:
        tops = len(out.logprobs[0].top_ids) if out.logprobs else 0
        self._unread += len(out.token_ids) * (1 + tops)
        if self._unread > _MOST_UNREAD and self._overrun is not None:
            overrun, self._overrun = self._overrun, None
            overrun()

    def _fail(self, number: str, error: ApiError) -> None:
        self._error = self._error or error
        if self._open.pop(number, None) is not None:
            self._metrics.finished[FinishReason.ABORT] += 1


def unavailable(reason: str) -> ApiError:
    """The engine takes no request now."""
    return ApiError(503, reason, kind="ServiceUnavailableError", retry_after=_RETRY_AFTER)


def _error_of(what: Refused | EngineFault) -> ApiError:
    if isinstance(what, EngineFault):
        return ApiError(500, what.reason, kind="InternalServerError")
    if what.param is None:
        return unavailable(what.reason)
    return ApiError(400, what.reason, param=what.param)
