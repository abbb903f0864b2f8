"""What the response cache is to do for one request, and what it is told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cache.response_entry import Stamp
from cache.response_key import ResponseKey
from cache.response_openings import Openings
from gateway.routes import Kind
from policies.response_freshness import CacheDirectives, FreshnessRules

if TYPE_CHECKING:
    from cache.response_cache import Found
    from gateway.calls import Call
    from gateway.exchange import Exchange
    from gateway.response_caching import ResponseCaching
    from gateway.semantic_call import Meaning, Wishes


class Result:
    """What is told of a request in `x-prefixgate-cache`, in metrics and in logs."""

    HIT: Final = "hit"
    MISS: Final = "miss"
    BYPASS: Final = "bypass"
    STALE: Final = "stale"
    SEMANTIC: Final = "semantic"
    """Another request's, which means the same."""


@dataclass(frozen=True, slots=True)
class CachingSettings:
    """What is not the cache's own."""

    rules: FreshnessRules
    enabled: bool = True
    """For whom nothing else is said."""
    by_route: dict[Kind, FreshnessRules] = field(default_factory=dict)
    max_entry: int = 1 << 20
    lookup_timeout: float = 0.05
    coalesce: bool = True
    coalesce_wait: float = 120.0
    pace: float = 0.0
    by_credentials: bool = False
    """Are workers shown the clients' own credentials? Then an answer is for who shows the same."""


@dataclass(slots=True, eq=False)
class CachedCall:
    """What the cache is to do for one request."""

    caching: ResponseCaching
    key: ResponseKey
    call: Call
    rules: FreshnessRules
    asked: CacheDirectives
    stamp: Stamp | None
    """None: its answer cannot be kept."""
    usage: bool
    """Does a client that wants a stream want the usage in it?"""
    unambiguous: bool | None = None
    """Does its key stand for this request alone? None where nobody has looked."""
    openings: Openings = None
    """How its prompt begins."""
    leads: bool = False
    waits: bool = False
    """For another's answer, or to be looked up."""
    follows: bool = False
    """It has begun to get another's stream."""
    followers: list[Exchange] = field(default_factory=list)
    """Who wait for the same stream, and get it as it comes."""
    streams: bool = False
    """Is its answer a stream? It may have asked for one and get a body, which nobody can follow."""
    parts: list[bytes] | None = None
    """Of the answer, as far as it has come; None where it is not recorded."""
    n_bytes: int = 0
    timer: asyncio.TimerHandle | None = None
    fallback: Found | None = None
    """What answers in place of a server's error."""
    wishes: Wishes | None = None
    """None: nothing is served to it by meaning."""
    meaning: Meaning | None = None
    """Where it may be answered by meaning, or teach something."""

    @property
    def shares(self) -> bool:
        """Is the answer, as it comes, for others too?"""
        return self.follows or (self.leads and self.caching.flights.table.line(self.key) > 0)

    def set_pace(self) -> None:
        """Some of those who share an answer read more slowly than before, or faster."""
        self.caching.flights.set_pace(self.key)

    def record(self, data: bytes) -> None:
        """More of the answer's body."""
        parts = self.parts
        if parts is not None:
            self.n_bytes += len(data)
            if self.n_bytes > self.caching.settings.max_entry:
                self.parts = None
            else:
                parts.append(data)
        if self.shares:
            self.caching.flights.pass_on(self, data)

    def recorded(self) -> bytes | None:
        """The whole body, if all of it was recorded."""
        return None if self.parts is None else b"".join(self.parts)

    def unpark(self, exchange: Exchange) -> bool:
        """It waits no longer; False where it did not wait any more."""
        if exchange.finished or not self.waits:
            return False
        self.waits = False
        exchange.caching = None
        if self.timer is not None:
            self.timer.cancel()
        return True

    def again(self, exchange: Exchange) -> None:
        """Nothing of an answer has come yet, or what came was thrown away."""
        if not (self.waits or self.follows):
            self.parts, self.n_bytes = [], 0
            exchange.recording = self.record

    def fall_back(self, exchange: Exchange) -> bool:
        """Is there something better than a server's error? Then that was the answer."""
        return self.fallback is not None and not exchange.finished and self.caching.fall_back(exchange, self)

    def adopt(self, exchange: Exchange) -> bool:
        """Its client has left: does it go on, for others who wait for the same?"""
        return self.caching.flights.adopt(exchange, self)


def told(result: str) -> bytes:
    """The header line that tells a client."""
    return b"\r\nx-prefixgate-cache: " + result.encode()


def tell(exchange: Exchange, result: str) -> None:
    """Say what the cache had for a request."""
    exchange.own_fields += told(result)
    exchange.record.cache = result
