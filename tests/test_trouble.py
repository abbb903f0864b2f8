"""Why somebody could not be asked: in the system's words, short enough for a line of a log."""

from __future__ import annotations

import aiohttp
import pytest

from backends.trouble import trouble_of
from tests.ports import free_port


async def trouble(url: str) -> str:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError) as caught:
            await session.get(url)
    return trouble_of(caught.value)


async def test_nobody_listens() -> None:
    assert await trouble(f"http://127.0.0.1:{free_port()}/") == "Connection refused"


async def test_nobody_has_that_name() -> None:
    assert (await trouble("http://nobody.invalid/")).startswith("unknown host: ")


def test_what_says_nothing_is_named() -> None:
    assert trouble_of(TimeoutError()) == "no answer in time"
    assert trouble_of(aiohttp.ServerDisconnectedError()) == "Server disconnected"
    assert trouble_of(ConnectionResetError()) == "ConnectionResetError"
