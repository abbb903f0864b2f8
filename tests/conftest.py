"""What all tests share: they run on the loop that the program runs on, and each of them ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator, Mapping
from typing import Any

import hypothesis
import pytest
import uvloop

# The same examples every time, however slow the machine is: a change that is not at fault does not fail. Others are
# tried with `make test ARGS=--hypothesis-profile=explore`.
_slow_is_fine = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("same", parent=_slow_is_fine, derandomize=True, database=None)
hypothesis.settings.register_profile("explore", parent=_slow_is_fine, derandomize=False)
hypothesis.settings.load_profile("same")

# Models of tests are too small to be computed by several threads, and those would take turns with another test's.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_TIMER = pytest.StashKey[Any]()


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The one loop there is."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Remember how long a test may take."""
    item.stash[_TIMER] = settings


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Clearing away may take as long again. Of a test that has failed the timer is gone: somebody might debug it."""
    settings = item.stash.get(_TIMER, None)
    if settings is not None:
        item.ihook.pytest_timeout_cancel_timer(item=item)
        item.ihook.pytest_timeout_set_timer(item=item, settings=settings)
    yield
