"""Why somebody could not be asked, in words for a log: those of the system, and not of the HTTP client."""

from __future__ import annotations

import os

import aiohttp


def trouble_of(error: BaseException) -> str:
    """Never empty. Who was asked is not in it: whoever tells it knows that."""
    match error:
        case TimeoutError():
            return "no answer in time"
        case aiohttp.ClientConnectorDNSError(os_error=cause):
            return f"unknown host: {cause.strerror or cause}"
        case aiohttp.ClientConnectorSSLError():
            return str(error)
        case aiohttp.ClientConnectorError(os_error=OSError(errno=int() as number)) if number > 0:
            return os.strerror(number)
    return str(error) or type(error).__name__
