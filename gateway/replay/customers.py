"""Whose requests a trace's are: tenants and classes by share, the same for every request of a session. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import xxhash

from gateway.replay.arrival import Arrival
from policies.admission_types import ServiceClass

_POINTS: Final = 1 << 64


class Customer(NamedTuple):
    """Whose request it is, and of which class."""

    tenant: str = "default"
    service_class: ServiceClass = ServiceClass.STANDARD
    weight: float = 1.0


def customers_of(arrivals: Sequence[Arrival], shares: Mapping[Customer, float], *, seed: int = 0) -> list[Customer]:
    """For each arrival whose it is, each customer about as often as its share says; a session is of one customer.

    Raises ValueError unless all shares are at least 0 and one is above.
    """
    if any(share < 0 for share in shares.values()) or not sum(shares.values()) > 0:
        raise ValueError(f"no shares: {', '.join(f'{share:g}' for share in shares.values()) or 'none'}")
    names, ends = list(shares), list(accumulate(shares.values()))
    last = max(place for place, name in enumerate(names) if shares[name] > 0)
    return [names[min(bisect_right(ends, _point(n, a, seed) * ends[-1]), last)] for n, a in enumerate(arrivals)]


def _point(number: int, arrival: Arrival, seed: int) -> float:
    """In [0, 1), by the session or else by the place in the trace."""
    name = arrival.session if arrival.session is not None else f"#{number}"
    return xxhash.xxh3_64_intdigest(name.encode(), seed) / _POINTS


def parse_classes(text: str) -> dict[ServiceClass, float]:
    """Shares of requests from "interactive=0.5,batch=0.5". Raises ValueError."""
    names = {each.name.lower(): each for each in ServiceClass}
    found: dict[ServiceClass, float] = {}
    for name, share in _shares(text):
        if name not in names:
            raise ValueError(f"{name!r} is no class; there are {', '.join(names)}")
        found[names[name]] = share
    return found


def parse_tenants(text: str) -> dict[str, float]:
    """Shares of requests from "a=1,b=1,c=2", or a number of tenants with equal shares. Raises ValueError."""
    if text.strip().isdecimal():
        if not 1 <= int(text) <= 10_000:
            raise ValueError(f"expected 1 to 10,000 tenants, got {text.strip()}")
        return {f"tenant-{n}": 1.0 for n in range(1, int(text) + 1)}
    return dict(_shares(text))


def _shares(text: str) -> list[tuple[str, float]]:
    found: dict[str, float] = {}
    for item in text.split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        try:
            share = float(value) if equals else 1.0
        except ValueError:
            share = -1.0
        if not name or not 0 <= share < float("inf"):
            raise ValueError(
                f"{text!r}: expected NAME=SHARE,NAME=SHARE with shares of at least 0, got {item.strip()!r}"
            )
        if name in found:
            raise ValueError(f"{text!r}: {name} is given twice")
        found[name] = share
    if not sum(found.values()) > 0:
        raise ValueError(f"{text!r}: all shares are 0")
    return list(found.items())
