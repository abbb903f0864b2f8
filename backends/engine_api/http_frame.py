"""Around every route of an engine of our own: its key, its errors in the dialect's shape."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

from aiohttp import web

from backends.engine_api.api_errors import ApiError

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


def refusal(request: web.Request, error: ApiError) -> web.Response:
    """The response that tells of an error."""
    anthropic = request.path == _ANTHROPIC or request.path.startswith(f"{_ANTHROPIC}/")
    body = error.anthropic_body() if anthropic else error.body()
    response = web.Response(status=error.status, body=body, content_type="application/json")
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    return response


def http_error(error: web.HTTPException) -> ApiError:
    """An error that aiohttp raised: no such route, a body that is too large."""
    return ApiError(error.status, error.reason, kind=_KINDS.get(error.status, "BadRequestError"))
