"""Whether a worker can start one more request soon, so that all others wait where the order can still be changed."""

from __future__ import annotations

from typing import Final

DEFAULT_WINDOW_S: Final = 0.2
_COLD_QUEUED: Final = 2
"""Requests that a worker may have before their first token while nobody knows how fast it is..."""
_COLD_TOKENS: Final = 1_024
"""...or uncached tokens, however many requests': where all prompts are short, nobody ever will, since they tell more
about the engine's steps than about its speed, and it computes many of them in one."""
_KV_FULL: Final = 0.95
"""Share of the device cache in use by requests that run, from which on one more would wait or displace others."""


def takes_more(running: int, most_running: int | None, kv_used: float | None) -> bool:
    """Whether one more would run there, and not wait for others to end.

    `running`: requests sent and not finished, of which it takes at most `most_running` at a time; `kv_used`: share of
    its device cache in use, where it says. A worker that has nothing takes something, whatever was learnt.
    """
    if running <= 0:
        return True
    return (most_running is None or running < most_running) and (kv_used is None or kv_used < _KV_FULL)


def starts_soon(queued_tokens: float, rate: float | None, n_queued: int, window_s: float) -> bool:
    """Whether it would start one more within about `window_s` seconds.

    `queued_tokens`: uncached prompt tokens sent to it and not computed yet, of `n_queued` requests without a first
    token; `rate`: tokens/s of its prefill as learnt, None where nothing is.
    """
    if n_queued <= 0:
        return True
    if rate is None:
        return n_queued < _COLD_QUEUED or queued_tokens < _COLD_TOKENS
    return queued_tokens < window_s * rate
