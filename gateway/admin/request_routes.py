"""`/admin/requests`: what became of recent requests, and why they went where they went."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from aiohttp import web

from gateway.admin.answers import answer
from gateway.admin.explain import explanation, summary
from gateway.admin.recent import RecentRequests
from gateway.api_error import ApiError
from gateway.request_record import Outcome

_USUAL: Final = 50
_MOST: Final = 1000
_FILTERS: Final = frozenset({"worker", "outcome", "model", "tenant", "limit"})


class RequestRoutes:
    """The handlers."""

    def __init__(
        self, recent: RecentRequests, loop_time: Callable[[], float], wall: Callable[[], float] = time.time
    ) -> None:
        self._recent = recent
        self._loop_time = loop_time
        self._wall = wall

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register them."""
        router.add_get("/admin/requests", self.list)
        router.add_get("/admin/requests/{id:[^/]+}", self.one)

    async def list(self, request: web.Request) -> web.Response:
        """The newest first, filtered."""
        query = request.query
        for name in query:
            if name not in _FILTERS:
                known = ", ".join(sorted(_FILTERS))
                raise ApiError(400, f"{name}: no such filter; there are {known}.", param=name, code="unknown_filter")
        outcome = query.get("outcome")
        if outcome is not None and outcome not in set(Outcome):
            known = ", ".join(Outcome)
            raise ApiError(400, f"outcome: expected one of {known}.", param="outcome", code="invalid_filter")
        records = self._recent.newest(
            _limit(query.get("limit")),
            worker=query.get("worker"),
            outcome=outcome,
            model=query.get("model"),
            tenant=query.get("tenant"),
        )
        epoch = self._epoch()
        return answer({"data": [summary(record, epoch) for record in records]})

    async def one(self, request: web.Request) -> web.Response:
        """All that is known of one."""
        request_id = request.match_info["id"]
        record = self._recent.find(request_id)
        if record is None:
            raise ApiError(
                404,
                "There is no such request among the recent ones; admin.requests_kept says how many are kept.",
                param="id",
                code="unknown_request",
            )
        return answer(explanation(record, self._epoch()))

    def _epoch(self) -> float:
        return self._wall() - self._loop_time()


def _limit(text: str | None) -> int:
    if text is None:
        return _USUAL
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= _MOST):
        raise ApiError(400, f"limit: expected a number from 1 to {_MOST}.", param="limit", code="invalid_filter")
    return int(text)
