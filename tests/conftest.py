"""What all tests share: they run on the loop that the program runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The one loop there is."""
    return {"uvloop": uvloop.new_event_loop}
