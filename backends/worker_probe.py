"""Asks each worker which models it serves, now and then, off the hot path."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

import aiohttp
import orjson

from backends.fleet_state import FleetState
from backends.fleet_worker import Worker
from backends.tls import UpstreamTls

log = logging.getLogger(__name__)

_ANSWER_LIMIT: Final = 4 << 20


class WorkerProbe:
    """Reads `/v1/models` of every worker each `interval` seconds; one slow worker holds up none of the others."""

    def __init__(
        self,
        fleet: FleetState,
        *,
        interval: float,
        timeout: float,
        api_keys: Mapping[str, str],
        on_models: Callable[[], None],
        tls: Mapping[str, UpstreamTls] | None = None,
    ) -> None:
        """`interval` and `timeout` in seconds; `api_keys` by worker, sent as bearer tokens.

        `on_models` is called each time a worker has answered, after the fleet has learnt from it.
        """
        self._fleet = fleet
        self._interval = interval
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._api_keys = api_keys
        self._on_models = on_models
        self._tls = tls or {}
        self._troubled: set[Worker] = set()

    async def run(self, first_round: asyncio.Event) -> None:
        """Probe until cancelled; `first_round` is set once every worker has answered or failed once."""
        async with aiohttp.ClientSession(timeout=self._timeout) as session:
            while True:
                await asyncio.gather(*(self._probe(session, worker) for worker in self._fleet.workers))
                first_round.set()
                await asyncio.sleep(self._interval)

    async def _probe(self, session: aiohttp.ClientSession, worker: Worker) -> None:
        tls = self._tls.get(worker.id)
        url = f"{'http' if tls is None else 'https'}://{worker.authority.decode()}/v1/models"
        key = self._api_keys.get(worker.id)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        try:
            async with session.get(
                url,
                headers=headers,
                ssl=True if tls is None else tls.context,
                server_hostname=None if tls is None else tls.spec.server_name,
            ) as response:
                body = await _whole(response)
            cards = _cards(response.status, body)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if worker not in self._troubled:
                self._troubled.add(worker)
                log.warning(
                    "worker %s did not tell its models: %s",
                    worker.id,
                    type(error).__name__ if not str(error) else error,
                )
            return
        if worker in self._troubled:
            self._troubled.discard(worker)
            log.info("worker %s tells its models again", worker.id)
        self._fleet.learn_models(worker, cards)
        self._on_models()


def _cards(status: int, body: bytes) -> list[dict[str, object]]:
    """The model objects of an answer. Raises ValueError where there are none to be had."""
    if status != HTTPStatus.OK:
        raise ValueError(f"status {status}")
    answer = orjson.loads(body)
    cards = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(cards, list):
        raise ValueError("no list of models in the answer")  # noqa: TRY004 - for the caller it is one kind of error
    return [card for card in cards if isinstance(card, dict)]


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    """The body to its end. Raises ValueError where it is longer than any list of models."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > _ANSWER_LIMIT:
            raise ValueError(f"an answer longer than {_ANSWER_LIMIT} bytes")
    return bytes(body)
