"""Around every route of an engine of our own: its key, its errors in the dialect's shape."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from backends.engine_api.api_errors import ApiError

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_ANTHROPIC = "/v1/messages"
_KINDS = {404: "NotFoundError", 413: "RequestEntityTooLargeError"}


def check_bearer(request: web.Request, authorization: bytes | None) -> None:
    """Raise ApiError 401 where a route under `/v1` wants `authorization` (`Bearer KEY`) and was given another."""
    if authorization is None or not request.path.startswith("/v1"):
        return
    given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
    if not hmac.compare_digest(given, authorization):
        raise ApiError(401, "Unauthorized", kind="AuthenticationError")


@web.middleware
async def errors_told(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors in the dialect's shape. What nobody expected is this request's alone, and logged."""
    try:
        return await handler(request)
    except ApiError as error:
        return _refusal(request, error)
    except web.HTTPException as error:  # no such route, a body that is too large
        kind = _KINDS.get(error.status, "BadRequestError")
        return _refusal(request, ApiError(error.status, error.reason, kind=kind))
    except ConnectionError:
        raise
    except Exception:
        log.exception("a request failed")
        return _refusal(request, ApiError(500, "Internal server error", kind="InternalServerError"))


def _refusal(request: web.Request, error: ApiError) -> web.Response:
    anthropic = request.path == _ANTHROPIC or request.path.startswith(f"{_ANTHROPIC}/")
    body = error.anthropic_body() if anthropic else error.body()
    response = web.Response(status=error.status, body=body, content_type="application/json")
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    return response
