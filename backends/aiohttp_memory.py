"""What aiohttp's server remembers for as long as the process lives."""

from __future__ import annotations

from aiohttp import web_app


def forget_handlers() -> None:
    """Call it when an application with middlewares has ended: else it, and all that its handlers know, is never freed.

    aiohttp keeps the composed handlers of up to 1,024 routes; they are composed again when they are next asked for.
    """
    composed = getattr(web_app, "_cached_build_middleware", None)
    if composed is not None:
        composed.cache_clear()
