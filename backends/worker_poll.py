"""Asks one worker how it is, off the hot path: is it well, what has it to do, which models does it serve?

Each question has its own interval and its own deadline, and each worker its own task, so a slow answer holds up
nothing else. What an answer means is not decided here: it is told to a `PollListener`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Protocol

import aiohttp
import orjson

from backends.engine_metrics import PAGE_LIMIT, EngineLoad, read_load
from backends.tls import UpstreamTls
from backends.trouble import trouble_of
from policies.types import WorkerId

log = logging.getLogger(__name__)

_MODELS_PATH: Final = "/v1/models"
_METRICS_PATHS: Final = ("/metrics", "/prometheus/metrics")
"""The second is TensorRT-LLM's; its first one is no Prometheus page."""
_MODELS_LIMIT: Final = 4 << 20
_HEALTH_LIMIT: Final = 1 << 16
_NO_SUCH_PATH: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED})
_FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError, ValueError)
_JITTER: Final = 0.2


class PollListener(Protocol):
    """Is told what a worker answered. Synchronous and quick; `now` is the loop's time, in seconds."""

    def probed(self, worker: WorkerId, ok: bool, detail: str, now: float) -> None:
        """A probe has ended; `detail` says why where it is not `ok`."""

    def load(self, worker: WorkerId, load: EngineLoad, now: float) -> None:
        """Its metrics have been read; a load that tells nothing where they can be read no longer."""

    def models(self, worker: WorkerId, cards: Sequence[dict[str, object]]) -> None:
        """Its `/v1/models` has been read: the model objects, as they came."""


@dataclass(frozen=True, slots=True)
class PollSettings:
    """What is asked, how often, and how long an answer may take. Times are seconds."""

    health_path: str = "/health"
    """Any status below 400 says that the worker is well, and 404 that it has no such path: then its list of models
    is asked for instead."""
    health_interval: float = 5.0
    health_timeout: float = 5.0
    metrics_interval: float = 2.0
    metrics_timeout: float = 5.0
    models_interval: float = 30.0
    models_timeout: float = 5.0
    rare_interval: float = 60.0
    """How often a worker is asked for metrics that had none to tell."""


class WorkerPoll:
    """Polls one worker; `run` it as a task of its own and cancel that when the worker goes."""

    def __init__(
        self,
        worker: WorkerId,
        base_url: str,
        *,
        listener: PollListener,
        settings: PollSettings | None = None,
        api_key: str | None = None,
        tls: UpstreamTls | None = None,
        sample: Callable[[], float] = random.random,
    ) -> None:
        """`base_url` has no path; `api_key` is sent as a bearer token. `tls` is needed for `https`."""
        self.worker = worker
        self.first_round = asyncio.Event()
        """Set once each question has been answered, or has failed, once."""
        self._url = base_url.rstrip("/")
        self._listener = listener
        self.settings = settings or PollSettings()
        self._headers = {"accept-encoding": "identity"}  # what is small on the wire shall be small here
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._tls = tls
        self._sample = sample
        self._health_path = self.settings.health_path
        self._metrics_paths: tuple[str, ...] = _METRICS_PATHS
        self._open_questions = 3
        self._loaded = False  # has it told its load, and not ceased to?
        self._trouble: dict[str, str] = {}
        self._wakers = [asyncio.Event() for _ in range(3)]

    async def run(self) -> None:
        """Poll until cancelled."""
        connector = aiohttp.TCPConnector(limit=4)
        async with (
            aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
            ) as session,
            asyncio.TaskGroup() as tasks,
        ):
            for waker, ask, interval in (
                (self._wakers[0], self._ask_health, lambda: self.settings.health_interval),
                (self._wakers[1], self._ask_metrics, lambda: self.settings.metrics_interval),
                (self._wakers[2], self._ask_models, lambda: self.settings.models_interval),
            ):
                tasks.create_task(self._repeat(session, ask, interval, waker))

    async def _repeat(
        self,
        session: aiohttp.ClientSession,
        ask: Callable[[aiohttp.ClientSession], Awaitable[float | None]],
        interval: Callable[[], float],
        waker: asyncio.Event,
    ) -> None:
        """Ask now and then; `ask` may return another interval than the usual one."""
        # The first pause is a random part of the interval: workers that are added together part from each other.
        share = self._sample()
        first = True
        while True:
            pause = await ask(session)
            if first:
                first = False
                self._open_questions -= 1
                if self._open_questions == 0:
                    self.first_round.set()
            # Not `wait_for`: on Python 3.11 it forgets a cancellation that comes together with what it waits for.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout((pause or interval()) * share):
                    await waker.wait()
            waker.clear()
            share = 1 - _JITTER / 2 + _JITTER * self._sample()

    async def _ask_health(self, session: aiohttp.ClientSession) -> None:
        timeout = self.settings.health_timeout
        try:
            status = await self._probe(session, self._health_path, timeout)
            if status in _NO_SUCH_PATH and self._health_path != _MODELS_PATH:
                self._health_path = _MODELS_PATH
                status = await self._probe(session, self._health_path, timeout)
            # A worker that has no such path at all does answer, which is all that it can tell.
            bad = status >= HTTPStatus.BAD_REQUEST and status not in _NO_SUCH_PATH
            trouble = f"status {status}" if bad else ""
        except _FAILURES as error:
            trouble = trouble_of(error)
        now = asyncio.get_running_loop().time()
        if trouble:
            self._health_path = self.settings.health_path  # what comes back may be another engine
            if self._news("health", trouble):
                log.warning("worker %s: a probe failed: %s", self.worker, trouble)
        elif self._news("health", ""):
            log.info("worker %s: probes succeed again", self.worker)
            self._metrics_paths = _METRICS_PATHS
            for waker in self._wakers[1:]:
                waker.set()
        self._tell(lambda: self._listener.probed(self.worker, not trouble, trouble, now))

    async def _ask_metrics(self, session: aiohttp.ClientSession) -> float | None:
        load = EngineLoad()
        trouble = "it has none that are known"
        for path in self._metrics_paths:
            try:
                status, body = await self._get(session, path, self.settings.metrics_timeout, PAGE_LIMIT)
            except _FAILURES as error:
                # The worker does not answer at all; whether it has metrics is not known.
                if self._news("metrics", "failed"):
                    log.warning("worker %s did not tell its load: %s", self.worker, trouble_of(error))
                    self._tell_load(EngineLoad())
                return None
            if status == HTTPStatus.OK:
                load = read_load(body)
                if load.tells:
                    self._metrics_paths = (path,)
                    break
            else:
                trouble = f"status {status}"
        if not load.tells:
            self._metrics_paths = _METRICS_PATHS
            if self._news("metrics", "none"):
                log.info("worker %s tells no load: %s", self.worker, trouble)
                self._tell_load(EngineLoad())
            return max(self.settings.rare_interval, self.settings.metrics_interval)
        if self._news("metrics", ""):
            log.info("worker %s tells its load again", self.worker)
        self._tell_load(load)
        return None

    def _tell_load(self, load: EngineLoad) -> None:
        """What is no longer told is no longer known; of a worker that has told nothing yet there is nothing to say."""
        if load.tells or self._loaded:
            self._loaded = load.tells
            now = asyncio.get_running_loop().time()
            self._tell(lambda: self._listener.load(self.worker, load, now))

    async def _ask_models(self, session: aiohttp.ClientSession) -> None:
        try:
            status, body = await self._get(session, _MODELS_PATH, self.settings.models_timeout, _MODELS_LIMIT)
            cards = model_cards(status, body)
        except _FAILURES as error:
            if self._news("models", "failed"):
                log.warning("worker %s did not tell its models: %s", self.worker, trouble_of(error))
            return
        if self._news("models", ""):
            log.info("worker %s tells its models again", self.worker)
        self._tell(lambda: self._listener.models(self.worker, cards))

    async def _probe(self, session: aiohttp.ClientSession, path: str, timeout: float) -> int:
        limit = _MODELS_LIMIT if path == _MODELS_PATH else _HEALTH_LIMIT
        return (await self._get(session, path, timeout, limit))[0]

    async def _get(self, session: aiohttp.ClientSession, path: str, timeout: float, limit: int) -> tuple[int, bytes]:
        """Status and body. Raises ValueError where the body is longer than `limit` bytes."""
        body = bytearray()
        tls = self._tls
        async with session.get(
            self._url + path,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=timeout),
            allow_redirects=False,
            ssl=True if tls is None else tls.context,
            server_hostname=None if tls is None else tls.spec.server_name,
        ) as response:
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > limit:
                    raise ValueError(f"an answer longer than {limit} bytes")
            return response.status, bytes(body)

    def _news(self, question: str, trouble: str) -> bool:
        """Did it change whether there is trouble (the reasons may differ), counted from none at the start?"""
        before = self._trouble.get(question, "")
        self._trouble[question] = trouble
        return bool(before) != bool(trouble)

    def _tell(self, tell: Callable[[], None]) -> None:
        """A listener's fault is told in the log, and ends no poll."""
        try:
            tell()
        except Exception:
            log.exception("worker %s: what it answered could not be taken in", self.worker)


def model_cards(status: int, body: bytes) -> list[dict[str, object]]:
    """The model objects of an answer. Raises ValueError where there are none to be had."""
    if status != HTTPStatus.OK:
        raise ValueError(f"status {status}")
    answer = orjson.loads(body)
    cards = answer.get("data") if isinstance(answer, Mapping) else None
    if not isinstance(cards, list):
        raise ValueError("no list of models in the answer")  # noqa: TRY004 - for the caller it is one kind of error
    return [card for card in cards if isinstance(card, dict)]
