"""Has workers forget what they keep of KV under cache salts that nobody will come with any more.

Nothing depends on it: what is under such a salt is found no more. Only workers of this project have the path; other
engines overwrite that KV in their time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from enum import StrEnum
from http import HTTPStatus
from typing import Final, NamedTuple

import aiohttp
import msgspec
import orjson

from backends.remote_tokenizer import TokenizeTarget
from backends.trouble import trouble_of
from policies.types import WorkerId

log = logging.getLogger(__name__)

_PATH: Final = "/v1/kv/forget"
_NO_SUCH_PATH: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED})
_MOST_BYTES: Final = 1 << 16
_AT_ONCE: Final = 16


class KvResult(StrEnum):
    """What became of a worker's KV."""

    PURGED = "purged"
    """Its stores hold nothing of it any more."""
    UNREADABLE = "unreadable"
    """It cannot be told to forget: nothing is found, and what lies there is overwritten in time."""
    FAILED = "failed"
    """The same, of a worker that could not be asked, or was not done in time."""


class WorkerForgot(NamedTuple):
    """What one worker says."""

    result: KvResult
    found: Mapping[str, int] = {}
    """Frames by tier."""
    left: Sequence[str] = ()
    """Tiers that cannot tell whose a frame is: what is there is found no more, and goes in its time."""


class _Answer(msgspec.Struct):
    found: dict[str, int]
    left: list[str]
    complete: bool


async def forget_kv(
    targets: Sequence[TokenizeTarget],
    salts: Sequence[str],
    owners: Sequence[str] = (),
    *,
    dry_run: bool,
    timeout: float,
) -> dict[WorkerId, WorkerForgot]:
    """What comes of it at each worker, all within `timeout` seconds. Never raises."""
    if not targets:
        return {}
    data = orjson.dumps({"salts": list(salts), "owners": list(owners), "dry_run": dry_run})
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=_AT_ONCE),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=timeout),
    ) as session:
        done = await asyncio.gather(*(_asked(session, target, data) for target in targets))
    return {target.worker: one for target, one in zip(targets, done, strict=True)}


async def _asked(session: aiohttp.ClientSession, target: TokenizeTarget, data: bytes) -> WorkerForgot:
    headers = {"content-type": "application/json", "accept-encoding": "identity"}
    if target.api_key:
        headers["authorization"] = f"Bearer {target.api_key}"
    try:
        async with session.post(
            target.base_url.rstrip("/") + _PATH,
            data=data,
            headers=headers,
            allow_redirects=False,
            ssl=target.ssl,
            server_hostname=target.server_name,
        ) as response:
            if response.status in _NO_SUCH_PATH:
                return WorkerForgot(KvResult.UNREADABLE)
            body = await _body_of(response)
        answer = msgspec.json.decode(body, type=_Answer)
    except (aiohttp.ClientError, OSError, ValueError) as error:  # a TimeoutError is an OSError
        log.warning("worker %s cannot be told to forget KV: %s", target.worker, trouble_of(error))
        return WorkerForgot(KvResult.FAILED)
    result = KvResult.PURGED if answer.complete else KvResult.FAILED
    return WorkerForgot(result, answer.found, answer.left)


async def _body_of(response: aiohttp.ClientResponse) -> bytes:
    """Of a good answer. Raises ValueError."""
    if response.status != HTTPStatus.OK:
        raise ValueError(f"status {response.status}")
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > _MOST_BYTES:
            raise ValueError("its answer is too long")
    return bytes(body)
