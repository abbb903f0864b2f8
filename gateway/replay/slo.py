"""Service level objectives: what a request must meet to count as goodput, and how people write them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.replay.records import RequestRecord

_UNITS: Final = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0}
_LENGTH: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]*)\s*")
_BOUNDS: Final = ("ttft", "tpot", "itl", "e2e")


def parse_seconds(text: str) -> float:
    """Seconds from "2s", "100ms", "1.5 min" or a bare number of seconds. Raises ValueError."""
    match = _LENGTH.fullmatch(text)
    if match is None or match[2] not in _UNITS or not float(match[1]):
        raise ValueError(f"{text!r} is not a length of time above 0 such as 2s, 100ms or 1.5min")
    return float(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True, slots=True)
class Slos:
    """Objectives for one request, seconds; ``itl`` is held against the request's mean gap between events, ``tpot``
    against its mean time per token after the first.
    """

    ttft: float | None = None
    itl: float | None = None
    e2e: float | None = None
    tpot: float | None = None
    name: str = "slo"

    def __bool__(self) -> bool:
        return any(bound is not None for bound in (self.ttft, self.tpot, self.itl, self.e2e))

    def met(self, record: RequestRecord) -> bool:
        """Whether the request succeeded within every objective; one token has no gap and meets ``itl`` and ``tpot``."""
        return record.ok and all(
            bound is None or value is None or value <= bound
            for bound, value in (
                (self.ttft, record.ttft),
                (self.tpot, record.tpot),
                (self.itl, record.gaps.mean),
                (self.e2e, record.latency),
            )
        )


def parse_slos(text: str) -> Slos:
    """Objectives from "ttft=2,tpot=50ms" or, with a name, "chat:ttft=1s,tpot=0.05". Raises ValueError."""
    name, colon, bounds = text.rpartition(":")
    found: dict[str, float] = {}
    for item in bounds.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if key not in _BOUNDS or not equals:
            raise ValueError(f"{text!r}: expected [NAME:]ttft=TIME,tpot=TIME (or itl=, e2e=), got {item.strip()!r}")
        if key in found:
            raise ValueError(f"{text!r}: {key} is given twice")
        found[key] = parse_seconds(value)
    if colon and not name.strip():
        raise ValueError(f"{text!r}: expected a name before the colon")
    return Slos(**found, name=name.strip() or bounds.replace(" ", ""))


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What is sent first and not counted: so many requests, or those sent within so many seconds."""

    requests: int = 0
    seconds: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.requests or self.seconds)

    def __str__(self) -> str:
        return f"{self.seconds:g} s" if self.seconds else f"{self.requests:,} requests"


def parse_warm_up(text: str) -> WarmUp:
    """A number of requests ("100") or a length of time with its unit ("30s"). Raises ValueError."""
    if text.strip().isdecimal():
        return WarmUp(requests=int(text))
    try:
        return WarmUp(seconds=parse_seconds(text))
    except ValueError:
        raise ValueError(f"{text!r} is neither a number of requests such as 100 nor a time such as 30s") from None
