"""What clients are told of their rates: the header fields that OpenAI's clients know. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final

from policies.rate_limit import Bucket, RateLimiter, Refusal

_FORM: Final = b"\r\nx-ratelimit-limit-@: %d\r\nx-ratelimit-remaining-@: %d\r\nx-ratelimit-reset-@: %b"
_REQUESTS: Final = _FORM.replace(b"@", b"requests")
_TOKENS: Final = _FORM.replace(b"@", b"tokens")


def rate_fields(limiters: Sequence[RateLimiter], now: float) -> bytes:
    """Header lines, each led by CRLF, of the requests and tokens that are left; of several limiters, at least
    one, the limit of which least is left. Empty where there is no limit.
    """
    requests, tokens = limiters[0].requests, limiters[0].tokens
    for limiter in limiters[1:]:
        requests = _tighter(requests, limiter.requests, now)
        tokens = _tighter(tokens, limiter.tokens, now)
    lines = b"" if requests is None else _lines(_REQUESTS, requests, now)
    return lines if tokens is None else lines + _lines(_TOKENS, tokens, now)


def _lines(form: bytes, bucket: Bucket, now: float) -> bytes:
    level = bucket.level(now)
    return form % (bucket.limit, max(0, level), duration(bucket.full_in_s(now)))


def retry_fields(refusal: Refusal) -> bytes:
    """Header lines that say when to come again: whole seconds for everybody, milliseconds for who reads them."""
    wait = 1.0 if refusal.wait_s is None else refusal.wait_s
    return b"\r\nretry-after: %d\r\nretry-after-ms: %d" % (max(ceil(wait), 1), max(ceil(wait * 1e3), 1))


def duration(seconds: float) -> bytes:
    """A time as OpenAI writes it: `17ms`, `1.5s`, `6m0s`, `1h2m3s`."""
    if seconds < 1:
        return b"%dms" % ceil(seconds * 1e3)
    if seconds < 60:
        whole, tenths = divmod(ceil(seconds * 10), 10)
        return b"%d.%ds" % (whole, tenths) if tenths else b"%ds" % whole
    minutes, left = divmod(ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return b"%dh%dm%ds" % (hours, minutes, left) if hours else b"%dm%ds" % (minutes, left)


def _tighter(one: Bucket | None, other: Bucket | None, now: float) -> Bucket | None:
    if one is None or other is None:
        return one or other
    return one if one.level(now) <= other.level(now) else other
