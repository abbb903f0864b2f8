"""Reads an issuer's JWK set from its URL, again and again: bounded, under a deadline, and never in a request's way."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import aiohttp

from backends.trouble import trouble_of
from gateway.jwt_tenants import JwtVerifier

log = logging.getLogger(__name__)

_MOST_BYTES: Final = 1 << 20
_TIMEOUT_S: Final = 10.0
_FIRST_PAUSE_S: Final = 1.0
"""After a failure; doubles up to the usual interval."""


async def follow_jwks(verifier: JwtVerifier, url: str, refresh: float) -> None:
    """Keep the verifier's keys fresh. When they cannot be read, those known stay; that is logged once."""
    wanted = asyncio.Event()
    verifier.wanted = wanted.set
    pause, failed = _FIRST_PAUSE_S, False
    while True:
        wanted.clear()
        try:
            verifier.take_up(await _read(url))
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            if not failed:
                log.warning("tenants: the keys of %s could not be read: %s", url, trouble_of(error))
            failed, wait = True, min(pause, refresh)
            pause *= 2
        else:
            if failed:
                log.info("tenants: the keys of %s can be read again", url)
            failed, wait, pause = False, refresh, _FIRST_PAUSE_S
        try:
            async with asyncio.timeout(wait):
                await wanted.wait()
        except TimeoutError:
            continue


async def _read(url: str) -> bytes:
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session,
        session.get(url, allow_redirects=False, headers={"accept": "application/json"}) as response,
    ):
        if response.status != 200:
            raise ValueError(f"status {response.status}")
        data = bytearray()
        async for piece in response.content.iter_any():
            data += piece
            if len(data) > _MOST_BYTES:
                raise ValueError(f"more than {_MOST_BYTES} bytes")
        return bytes(data)
