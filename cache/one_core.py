"""Keeps numpy's products to the thread that asks for them."""

from __future__ import annotations

from functools import cache

from threadpoolctl import threadpool_limits


@cache
def keep_to_one_core() -> None:
    """For this process, from now on. Threads of a BLAS spin while they wait for each other, at the cost of the event
    loop; products of a few rows gain nothing from them.
    """
    threadpool_limits(1, user_api="blas")
