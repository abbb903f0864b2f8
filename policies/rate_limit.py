"""Rates of one tenant: token buckets for requests and tokens a minute, and a count of what runs. Pure: `now` is given.

A bucket holds what may be taken at once, at most the amount of one minute, and fills evenly. Over any time t, in
minutes, at most rate × (1 + t) is taken. What is known only afterwards, such as the length of an answer, is charged
afterwards, and may take a bucket below zero: then nothing is given until it has filled up again, so that in the long
run the rate holds all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final

from policies.tenant import Rates

_MINUTE: Final = 60.0
_ROUNDING: Final = 1e-9
"""Share of a bucket by which sums of floats may be off."""


class Limited(Enum):
    """What a request was refused for."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENT = "concurrent"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request may not go on now, and when it may be tried again, in seconds from now."""

    limited: Limited
    limit: float
    wait_s: float | None
    """None where that depends on when others end."""


class Bucket:
    """One rate. Times are seconds of any clock; one that goes back fills nothing."""

    __slots__ = ("_at", "_level", "_per_second", "limit")

    def __init__(self, per_minute: float, now: float) -> None:
        """Full at first. Raises ValueError for a rate that is not positive."""
        self._at = now
        self._level = self.limit = _positive(per_minute)
        self._per_second = per_minute / _MINUTE

    def configure(self, per_minute: float, now: float) -> None:
        """Take up another rate; what has been taken stays taken. What was within the rate before is no debt under a
        lower one, and a debt takes no longer to pay.
        """
        before, level = self.limit, self.level(now)
        self.limit = _positive(per_minute)
        self._level = max(per_minute - (before - level), min(level, 0.0) * per_minute / before)
        self._per_second = per_minute / _MINUTE

    def level(self, now: float) -> float:
        """What may be taken at once; below zero while more was charged than there was."""
        elapsed = now - self._at
        if elapsed > 0:
            level = self._level + elapsed * self._per_second
            self._level = min(self.limit, level)
            self._at = now
        return self._level

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until `amount` may be taken, 0 for at once. More than a whole bucket waits for a full one."""
        lacking = (min(self.limit, amount)) - self.level(now)
        return 0.0 if lacking <= self.limit * _ROUNDING else lacking / self._per_second

    def charge(self, amount: float, now: float) -> None:
        """Take an amount, whether it is there or not; a negative one is given back."""
        level = self.level(now) - amount
        self._level = min(self.limit, level)

    def lacking(self, now: float) -> float:
        """What the bucket lacks to be full; more than its limit while it is below zero."""
        return self.limit - self.level(now)

    def let_lack(self, amount: float, age: float, now: float) -> None:
        """Lack at least what a bucket of this rate lacks now that lacked `amount` so many seconds ago."""
        level = self.level(now)
        self._level = min(level, self.limit - amount + age * self._per_second)

    def full_in_s(self, now: float) -> float:
        """Seconds until the bucket is full, if nothing more is taken."""
        return (self.limit - self.level(now)) / self._per_second


class RateLimiter:
    """All rates of one tenant, or of one model of a tenant."""

    __slots__ = (
        "_mark_requests", "_mark_running", "_mark_tokens", "_on_mark",
        "concurrent", "elsewhere", "requests", "running", "taken_requests", "taken_tokens", "tokens",
    )  # fmt: skip

    def __init__(self, rates: Rates, now: float) -> None:
        self.requests = _configured(None, rates.requests_per_minute, now)
        self.tokens = _configured(None, rates.tokens_per_minute, now)
        self.concurrent = rates.concurrent
        self.running = 0
        self.elsewhere = 0
        """Requests that run under the same limit in other processes, as far as is known."""
        self.taken_requests = 0
        self.taken_tokens = 0.0
        """All that was ever taken here, whatever the limits; what other processes took is not in it."""
        self._on_mark: Callable[[], object] = _nothing
        self.unmark()

    def configure(self, rates: Rates, now: float) -> None:
        """Take up other rates; what runs and what was taken still count."""
        self.requests = _configured(self.requests, rates.requests_per_minute, now)
        self.tokens = _configured(self.tokens, rates.tokens_per_minute, now)
        self.concurrent = rates.concurrent

    @property
    def unlimited(self) -> bool:
        """Does it limit nothing?"""
        return self.requests is None and self.tokens is None and self.concurrent is None

    def refusal(self, tokens: float, now: float) -> Refusal | None:
        """Why a request of so many tokens may not go on, of several reasons the one that lasts longest; None where it
        may. Takes nothing.
        """
        requests = 0.0 if self.requests is None else self.requests.wait_s(1, now)
        if self.tokens is not None and (wait := self.tokens.wait_s(tokens, now)) > requests:
            return Refusal(Limited.TOKENS, self.tokens.limit, wait)
        if self.requests is not None and requests:
            return Refusal(Limited.REQUESTS, self.requests.limit, requests)
        if self.concurrent is not None and self.running + self.elsewhere >= self.concurrent:
            return Refusal(Limited.CONCURRENT, self.concurrent, None)
        return None

    def take(self, tokens: float, now: float) -> None:
        """Count a request in; `end` counts it out."""
        self.running += 1
        self.taken_requests += 1
        self.taken_tokens += tokens
        self.charge(1, tokens, now)
        if (
            self.taken_requests >= self._mark_requests
            or self.taken_tokens >= self._mark_tokens
            or self.running >= self._mark_running
        ):
            self._on_mark()

    def end(self, further_tokens: float, now: float) -> None:
        """A request is over, having used so many tokens more than were taken for it, or fewer.

        Raises ValueError where none runs.
        """
        if not self.running:
            raise ValueError("more requests have ended than begun")
        self.running -= 1
        self.taken_tokens += further_tokens
        if self.tokens is not None:
            self.tokens.charge(further_tokens, now)
        if self.taken_tokens >= self._mark_tokens:
            self._on_mark()

    def mark(self, share: float, called: Callable[[], object]) -> None:
        """Call when from now on more than a share of any limit has been taken, or runs besides; then for each request,
        until it is marked anew.
        """
        requests, tokens, concurrent = self.requests, self.tokens, self.concurrent
        self._on_mark = called
        self._mark_requests = inf if requests is None else self.taken_requests + max(1.0, share * requests.limit)
        self._mark_tokens = inf if tokens is None else self.taken_tokens + share * tokens.limit
        self._mark_running = inf if concurrent is None else self.running + max(1.0, share * concurrent)

    def unmark(self) -> None:
        """Call nobody."""
        self._on_mark = _nothing
        self._mark_requests = self._mark_tokens = self._mark_running = inf

    def in_debt(self, now: float) -> bool:
        """Was more taken than there was, and has not flowed in since?"""
        return any(bucket is not None and bucket.level(now) < 0 for bucket in (self.requests, self.tokens))

    def charge(self, requests: float, tokens: float, now: float) -> None:
        """Take of the rates alone, as for requests that run in another process."""
        if self.requests is not None:
            self.requests.charge(requests, now)
        if self.tokens is not None:
            self.tokens.charge(tokens, now)


def _nothing() -> None:
    pass


def _positive(per_minute: float) -> float:
    if not 0 < per_minute < inf:
        raise ValueError(f"a rate is a positive number, not {per_minute!r}")
    return per_minute


def _configured(bucket: Bucket | None, per_minute: float | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return Bucket(per_minute, now)
    if bucket.limit != per_minute:
        bucket.configure(per_minute, now)
    return bucket
