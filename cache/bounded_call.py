"""Calls that know no deadline of their own, under one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def call_within(seconds: float, call: Callable[[], T], name: str) -> T:
    """What `call` returns or raises; TimeoutError where it is not over by then: it goes on alone, and is forgotten."""
    over: Future[T] = Future()

    def run() -> None:
        try:
            over.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again where somebody waits for it
            over.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return over.result(max(0.0, seconds))
