"""`/admin/semantic`, and what clients say of answers that were served by meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import orjson
from aiohttp import web

from gateway.admin.answers import answer, body_of
from gateway.api_error import ApiError

if TYPE_CHECKING:
    from gateway.semantic_caching import SemanticCaching

_FIELDS: Final = frozenset({"id", "wrong", "client"})
_LONGEST: Final = 256


class SemanticRoutes:
    """The handlers."""

    def __init__(self, caching: Callable[[], SemanticCaching | None]) -> None:
        """`caching` is the one in force."""
        self._caching = caching

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register them."""
        router.add_get("/admin/semantic", self.report)
        router.add_post("/admin/tenants/{tenant:[^/]+}/feedback", self.feedback)

    async def report(self, request: web.Request) -> web.Response:  # noqa: ARG002 - a handler's signature
        """What was, or would have been, served by meaning, and how much of it was wrong."""
        caching = self._caching()
        return answer({"mode": "off"} if caching is None else caching.report())

    async def feedback(self, request: web.Request) -> web.Response:
        """An answer that was served by meaning was wrong."""
        told = _feedback(await body_of(request))
        tenant, caching = request.match_info["tenant"], self._caching()
        if not told["wrong"]:
            return answer({"id": told["id"], "quarantined": False})
        outcome = None
        if caching is not None:
            outcome = caching.report_wrong(tenant, told["id"], told.get("client") or tenant)
        if outcome is None:
            message = "No answer was served to that tenant by meaning under this id, or too long ago."
            raise ApiError(404, message, param="id", code="unknown_answer")
        return answer({"id": told["id"], "quarantined": outcome.quarantined})


def _feedback(body: bytes) -> dict[str, Any]:
    """Raises ApiError that names the field."""
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        told = None
    if type(told) is not dict:
        raise ApiError(400, "The body must be a JSON object.", code="invalid_json")
    for name in told.keys() - _FIELDS:
        raise ApiError(422, f"{name[:64]}: no such field; there are client, id, wrong.", code="invalid_feedback")
    for name, kind, what in (("id", str, "text"), ("wrong", bool, "true or false")):
        if type(told.get(name)) is not kind:
            raise ApiError(422, f"{name}: expected {what}.", param=name, code="invalid_feedback")
    client = told.get("client")
    if client is not None and (type(client) is not str or len(client) > _LONGEST):
        raise ApiError(422, f"client: expected up to {_LONGEST} characters.", param="client", code="invalid_feedback")
    return told
