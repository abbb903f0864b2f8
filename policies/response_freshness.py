"""Whether a stored answer may be served: its age, what the operator allows and what the client asked for. Pure.

`Cache-Control` of requests as in RFC 9111, 5.2.1; stale-while-revalidate and stale-if-error as in RFC 5861, with the
operator in the place of the origin's answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite
from typing import Final, NamedTuple

MOST_SECONDS: Final = 2.0**31
"""What larger numbers of seconds are taken for (RFC 9111, 1.2.2)."""
MOST_SKEW: Final = 60.0
"""Seconds that an answer may come from the future, where clocks of several gateways differ. Beyond that nothing is
known of its age.
"""
_MOST_TEXT: Final = 8192
"""Characters of a header that are read; a longer one is taken for a refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheDirectives:
    """What a request's `Cache-Control` says, as far as it matters here. Times in seconds; None: not said."""

    no_store: bool = False
    no_cache: bool = False
    only_if_cached: bool = False
    max_age: float | None = None
    min_fresh: float | None = None
    max_stale: float | None = None
    """inf where it came without a number."""

    @property
    def reads(self) -> bool:
        """May it be answered from the cache?"""
        return not (self.no_store or self.no_cache)

    @property
    def asks(self) -> bool:
        """Does it ask for a stored answer, whether or not the policy would keep one of its own accord?"""
        return self.reads and (self.only_if_cached or bool(self.max_age) or bool(self.max_stale))


NOTHING_SAID: Final = CacheDirectives()


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshnessRules:
    """What the operator allows, in seconds. Raises ValueError below 0."""

    ttl: float
    """An answer is fresh for so long; 0: never."""
    stale_while_revalidate: float = 0.0
    """After that it is served for so long, while another one is fetched."""
    stale_if_error: float = 0.0
    """After it was fresh it is served for so long where no worker answers."""

    def __post_init__(self) -> None:
        """Check what types cannot."""
        if not min(self.ttl, self.stale_while_revalidate, self.stale_if_error) >= 0:
            raise ValueError("times in seconds are not below 0")

    @property
    def useful(self) -> float:
        """Seconds after which nobody can use an answer any more."""
        return self.ttl + max(self.stale_while_revalidate, self.stale_if_error)


class Freshness(StrEnum):
    """What a stored answer is good for."""

    FRESH = "fresh"
    STALE_WHILE_REVALIDATE = "stale-while-revalidate"
    """It may be served at once, and another one is to be fetched."""
    STALE_IF_ERROR = "stale-if-error"
    """It may be served only where no worker answers."""
    EXPIRED = "expired"
    """Not for this request."""
    BYPASS = "bypass"
    """The request does not want the cache."""


class Verdict(NamedTuple):
    """On one stored answer and one request."""

    freshness: Freshness
    age: int
    """Whole seconds, for the header `Age`."""
    useless: bool
    """Nobody can use it any more: it is to be removed."""


def judge(stored_at: float, now: float, rules: FreshnessRules, asked: CacheDirectives = NOTHING_SAID) -> Verdict:
    """What an answer that was stored then is good for now; both in seconds of the wall clock.

    A client can only ask for more than the operator does: `max-stale` takes away from the time that stale answers are
    served, or lets it have at once what is else kept for errors, and nothing is served beyond that.
    """
    age = now - stored_at
    if not -MOST_SKEW <= age <= rules.useful or rules.ttl == 0:
        return Verdict(Freshness.EXPIRED if asked.reads else Freshness.BYPASS, _whole(age), useless=True)
    age = max(0.0, age)
    return Verdict(_freshness(age, rules, asked), _whole(age), useless=False)


def _freshness(age: float, rules: FreshnessRules, asked: CacheDirectives) -> Freshness:
    if not asked.reads:
        return Freshness.BYPASS
    if asked.max_age is not None and age > asked.max_age:
        return Freshness.EXPIRED
    if age + (asked.min_fresh or 0.0) <= rules.ttl:
        return Freshness.FRESH
    if asked.min_fresh:
        return Freshness.EXPIRED
    stale = age - rules.ttl
    if asked.max_stale is not None:
        at_once = stale <= asked.max_stale
    else:
        # Who says how old it may be does not want a stale one, unless it says so.
        at_once = asked.max_age is None and stale <= rules.stale_while_revalidate
    if at_once:
        return Freshness.STALE_WHILE_REVALIDATE
    if asked.max_age is None and asked.max_stale is None and stale <= rules.stale_if_error:
        return Freshness.STALE_IF_ERROR
    return Freshness.EXPIRED


def _whole(age: float) -> int:
    return int(min(max(age, 0.0), MOST_SECONDS)) if isfinite(age) else int(MOST_SECONDS)


# --- Cache-Control ------------------------------------------------------------------------------------------

_DIRECTIVE: Final = re.compile(r'([^\s,;="]+)[ \t]*(?:=[ \t]*("(?:[^"\\]|\\.)*"|[^\s,]*))?', re.ASCII | re.DOTALL)
_NUMBER: Final = re.compile(r"\d+(?:\.\d*)?", re.ASCII)


def parse_cache_control(text: str) -> CacheDirectives:
    """The directives in a header's value, several headers joined by commas. Never raises: what is unknown is passed
    over, of what is said twice the stricter counts, and a number that is none is the strictest there is.
    """
    if not text:
        return NOTHING_SAID
    if len(text) > _MOST_TEXT:
        return CacheDirectives(no_store=True)
    told: dict[str, list[str]] = {}
    for name, value in _DIRECTIVE.findall(text):
        told.setdefault(name.lower(), []).append(value.strip('"'))
    return CacheDirectives(
        no_store="no-store" in told,
        no_cache="no-cache" in told,
        only_if_cached="only-if-cached" in told,
        max_age=min((_seconds(value, 0.0) for value in told.get("max-age", ())), default=None),
        min_fresh=max((_seconds(value, MOST_SECONDS) for value in told.get("min-fresh", ())), default=None),
        max_stale=min((_seconds(value, 0.0) if value else inf for value in told.get("max-stale", ())), default=None),
    )


def _seconds(text: str, otherwise: float) -> float:
    return min(float(text), MOST_SECONDS) if _NUMBER.fullmatch(text) else otherwise
