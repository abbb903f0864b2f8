"""What clients are told of their rates: the header fields that OpenAI's clients know. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from policies.rate_limit import Bucket, RateLimiter, Refusal


def rate_fields(limiters: Iterable[RateLimiter], now: float) -> bytes:
    """Header lines, each led by CRLF, of the requests and tokens that are left; of several limits the one of which
    least is left. Empty where there is no limit.
    """
    requests = tokens = None
    for limiter in limiters:
        requests = _tighter(requests, limiter.requests, now)
        tokens = _tighter(tokens, limiter.tokens, now)
    lines = b""
    for kind, bucket in ((b"requests", requests), (b"tokens", tokens)):
        if bucket is not None:
            lines += (
                b"\r\nx-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %b"
                % (kind, bucket.limit, kind, max(bucket.level(now), 0), kind, duration(bucket.full_in_s(now)))
            )  # fmt: skip
    return lines


def retry_fields(refusal: Refusal) -> bytes:
    """Header lines that say when to come again: whole seconds for everybody, milliseconds for who reads them."""
    wait = 1.0 if refusal.wait_s is None else refusal.wait_s
    return b"\r\nretry-after: %d\r\nretry-after-ms: %d" % (max(ceil(wait), 1), max(ceil(wait * 1e3), 1))


def duration(seconds: float) -> bytes:
    """A time as OpenAI writes it: `17ms`, `1.5s`, `6m0s`, `1h2m3s`."""
    if seconds < 1:
        return b"%dms" % ceil(seconds * 1e3)
    if seconds < 60:
        return f"{ceil(seconds * 10) / 10:g}s".encode()
    minutes, left = divmod(ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return b"%dh%dm%ds" % (hours, minutes, left) if hours else b"%dm%ds" % (minutes, left)


def _tighter(one: Bucket | None, other: Bucket | None, now: float) -> Bucket | None:
    if one is None or other is None:
        return one or other
    return one if one.level(now) <= other.level(now) else other
