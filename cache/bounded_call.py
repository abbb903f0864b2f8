"""Calls that know no deadline of their own, under one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def call_within(seconds: float, call: Callable[[], T], name: str) -> T:
    """What `call` returns or raises; TimeoutError where it is not over by then: it goes on alone, and is forgotten."""
    results: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((call(), None))
        except BaseException as error:  # noqa: BLE001 - raised again where somebody waits for it
            results.put((None, error))

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        result, error = results.get(timeout=max(0.0, seconds))
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value] - None stands for T only where there is an error
