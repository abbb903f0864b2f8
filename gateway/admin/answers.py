"""Answers of the control plane: JSON, and errors in OpenAI's shape."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.admin.control import UnknownTenantError, UnknownWorkerError, WorkerConflictError
from gateway.api_error import ApiError
from gateway.config import ConfigError
from gateway.dialects.openai import OPENAI

log = logging.getLogger(__name__)

BODY_SECONDS: Final = 10.0
_JSON: Final = "application/json"
_NO_STORE: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def answer(data: object, status: int = 200) -> web.Response:
    """JSON; keys that are not text become text."""
    body = orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE)
    return web.Response(status=status, body=body, content_type=_JSON, headers=_NO_STORE)


def refusal(error: ApiError, headers: Mapping[str, str] | None = None) -> web.Response:
    """An error."""
    body = OPENAI.error_body(error) + b"\n"
    return web.Response(status=error.status, body=body, content_type=_JSON, headers={**_NO_STORE, **(headers or {})})


async def body_of(request: web.Request) -> bytes:
    """The whole body, under a deadline; its size is bounded by the application. Raises ApiError."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise ApiError(408, f"The body did not come within {BODY_SECONDS:g} s.", code="request_timeout") from None


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Whatever goes wrong is answered in one shape."""
    try:
        return await handler(request)
    except ApiError as error:
        return refusal(error)
    except UnknownWorkerError as error:
        return refusal(ApiError(404, f"There is no worker {error.args[0]!r}.", param="id", code="unknown_worker"))
    except UnknownTenantError as error:
        return refusal(ApiError(404, f"There is no tenant {error.args[0]!r}.", param="id", code="unknown_tenant"))
    except WorkerConflictError as error:
        return refusal(ApiError(409, str(error), code="worker_conflict"))
    except ConfigError as error:
        return refusal(ApiError(422, str(error), code="bad_configuration"))
    except web.HTTPException as error:
        if error.status < 400:
            raise
        headers = {name: error.headers[name] for name in ("Allow",) if name in error.headers}
        return refusal(ApiError(error.status, _sentence(error), code=_code(error.reason)), headers)
    except Exception:
        log.exception("the control plane failed on %s", request.path)
        return refusal(ApiError(500, "The gateway failed on this request; its log says why.", code="internal_error"))


def _sentence(error: web.HTTPException) -> str:
    """The path is not repeated: it may hold whatever somebody wrote."""
    if error.status == HTTPStatus.NOT_FOUND:
        return "The control plane has no such path; it has /livez, /readyz, /metrics, and others under /admin."
    if error.status == HTTPStatus.METHOD_NOT_ALLOWED:
        return f"This path takes {error.headers['Allow'].replace(',', ', ')} only."
    return f"{error.reason}."


def _code(reason: str) -> str:
    return reason.lower().replace(" ", "_")


def admission(token: Callable[[], str | None]) -> Middleware:
    """Lets those in who show the token; `token` is asked each time, so that a reload can change it."""

    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path != "/admin" and not request.path.startswith("/admin/"):
            return await handler(request)
        expected = token()
        if expected is None:
            raise ApiError(
                403, "Administration is closed: set admin.token in the configuration to open it.", code="admin_closed"
            )
        if not _shows(request.headers.get("Authorization", ""), expected):
            error = ApiError(
                401, "Give the token of admin.token: Authorization: Bearer TOKEN.", code="invalid_admin_token"
            )
            return refusal(error, {"WWW-Authenticate": "Bearer"})
        return await handler(request)

    return admit


def _shows(header: str, expected: str) -> bool:
    """Compares digests of the whole, so that neither length nor a common beginning can be measured."""
    scheme, _, given = header.partition(" ")
    same = hmac.compare_digest(_digest(given.strip()), _digest(expected))
    return same and scheme.lower() == "bearer"


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
