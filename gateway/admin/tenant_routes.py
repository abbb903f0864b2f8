"""`/admin/tenants`: what is kept of a tenant, forgotten."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Final

from aiohttp import web
from pydantic_core import PydanticCustomError

from gateway.admin.answers import answer, body_of
from gateway.admin.control import FleetControl, ForgetOrder
from gateway.api_error import ApiError
from gateway.config.units import parse_duration
from gateway.kv_epochs import MOST_TOLD

_FIELDS: Final = ("model", "older_than", "prefix", "dry_run", "kv_epoch")
_BOOLEANS: Final = {"true": True, "false": False, "1": True, "0": False}


class TenantRoutes:
    """The handlers."""

    def __init__(self, control: FleetControl) -> None:
        self._control = control

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register them."""
        router.add_delete("/admin/tenants/{id:[^/]+}/cache", self.forget)

    async def forget(self, request: web.Request) -> web.Response:
        """Answers, and with all of them the KV. What is asked stands in the query, or in a JSON body."""
        told: dict[str, object] = {}
        for name, text in request.query.items():
            if name in told:
                raise _bad(name, "is there twice")
            told[name] = text
        for name, value in _json(await body_of(request)).items():
            if name in told:
                raise _bad(name, "is in the query and in the body")
            told[name] = value
        order = forget_order(request.match_info["id"], told)
        return answer(await self._control.forget(order, request.remote or "unknown"))


def forget_order(tenant: str, told: Mapping[str, object]) -> ForgetOrder:
    """From a request's fields, as text or as JSON values. Raises ApiError that names the one at fault."""
    for name in told:
        if name not in _FIELDS:
            raise _bad(name, f"there is no such field; there are {', '.join(_FIELDS)}")
    return ForgetOrder(
        tenant=tenant,
        model=_text("model", told.get("model")),
        older_than=_seconds(told.get("older_than")),
        prefix=_text("prefix", told.get("prefix")),
        dry_run=_boolean(told.get("dry_run", False)),
        kv_epoch=_count(told.get("kv_epoch", 0)),
    )


def _text(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise _bad(name, "expected text, at least one character")
    try:
        value.encode()
    except UnicodeEncodeError:  # it could not be put on record
        raise _bad(name, "expected text that UTF-8 can hold") from None
    return value


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    try:
        seconds = parse_duration(value)
    except PydanticCustomError as error:
        raise _bad("older_than", f"expected {error.message()}") from None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise _bad("older_than", 'expected a number of seconds, or text such as "1h"')
    if not (math.isfinite(seconds) and seconds > 0):
        raise _bad("older_than", "expected more than 0 seconds")
    return float(seconds)


def _boolean(value: object) -> bool:
    found = _BOOLEANS.get(value) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise _bad("dry_run", "expected true or false")
    return found


def _count(value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= len(str(MOST_TOLD)):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOLD:
        raise _bad("kv_epoch", f"expected a whole number up to {MOST_TOLD}")
    return value


def _json(body: bytes) -> Mapping[str, object]:
    if not body:
        return {}
    try:
        data = json.loads(body, object_pairs_hook=_distinct)
    except (ValueError, RecursionError):
        raise ApiError(400, "The body must be a JSON object, without repeated keys.", code="invalid_json") from None
    if not isinstance(data, dict):
        raise ApiError(400, "The body must be a JSON object.", code="invalid_json")
    return data


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("a key is there twice")
    return data


def _bad(name: str, text: str) -> ApiError:
    return ApiError(400, f"{name}: {text}.", param=name, code="invalid_field")
