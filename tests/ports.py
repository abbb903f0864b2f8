"""Ports for what must know its port before it listens, leaves it and comes back to it, or is never there at all.

They are below those that the kernel gives to whoever asks for any port, so no other socket of this machine's gets one
meanwhile; and each of the processes that share the tests has ports of its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

FIRST = 15_000
SHARE = 4_000
"""Ports of one process; four fit below 32,768."""

_number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_first = FIRST + _number % 4 * SHARE
_next = _first + os.getpid() * 97 % SHARE


def free_ports(n: int) -> int:
    """The first of `n` neighbours on which nobody listens. None of them is given again before all others were."""
    global _next  # noqa: PLW0603 - where the search goes on is one thing for all tests of a process
    for _ in range(2 * SHARE):
        if _next + n > _first + SHARE:
            _next = _first
        start, _next = _next, _next + n
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(start, start + n):
                stack.enter_context(socket.socket()).bind(("", port))
            return start
    raise OSError(f"no {n} neighbouring ports are free")


def free_port() -> int:
    """A port on which nobody listens."""
    return free_ports(1)


def fleet_ports(n: int = 6) -> dict[str, Any]:
    """`port` and `kv_port` of a simulated fleet of up to `n` workers, whose workers die and come back."""
    start = free_ports(3 * n)
    return {"port": start, "kv_port": start + n}
