"""`/admin/workers`: list, add, drain, resume, remove."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Final

from aiohttp import web
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from gateway.admin.answers import answer, body_of
from gateway.admin.control import FleetControl, UnknownWorkerError
from gateway.api_error import ApiError
from gateway.config import Worker
from gateway.config.fields import BASE_DIR
from gateway.config.problems import Origins, problems_of
from gateway.config.units import parse_duration
from policies.types import WorkerId

_LONGEST_GRACE: Final = 86_400.0


class WorkerRoutes:
    """The handlers."""

    def __init__(self, control: FleetControl) -> None:
        self._control = control

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Register them."""
        router.add_get("/admin/workers", self.list)
        router.add_post("/admin/workers", self.add)
        router.add_post("/admin/workers/{id:[^/]+}/drain", self.drain)
        router.add_post("/admin/workers/{id:[^/]+}/resume", self.resume)
        router.add_delete("/admin/workers/{id:[^/]+}", self.remove)

    async def list(self, request: web.Request) -> web.Response:  # noqa: ARG002 - a handler's signature
        """All workers."""
        return answer({"data": [dataclasses.asdict(status) for status in self._control.statuses()]})

    async def add(self, request: web.Request) -> web.Response:
        """One more, described as in the configuration's `workers`."""
        settings = worker_settings(await body_of(request))
        self._control.add(settings)
        return self._shown(settings.name, 201)

    async def drain(self, request: web.Request) -> web.Response:
        """Nothing new for it."""
        worker = _worker(request)
        self._control.drain(worker)
        return self._shown(worker)

    async def resume(self, request: web.Request) -> web.Response:
        """Take it back."""
        worker = _worker(request)
        self._control.resume(worker)
        return self._shown(worker)

    async def remove(self, request: web.Request) -> web.Response:
        """Let its requests end, then forget it. The answer comes when it has gone."""
        worker = _worker(request)
        text = request.query.get("grace")
        grace = self._control.config().discovery.drain if text is None else _grace(text)
        await self._control.remove(worker, grace)
        return answer({"id": worker, "removed": True})

    def _shown(self, worker: WorkerId, status: int = 200) -> web.Response:
        for known in self._control.statuses():
            if known.id == worker:
                return answer(dataclasses.asdict(known), status)
        raise UnknownWorkerError(worker)


def worker_settings(body: bytes) -> Worker:
    """A worker from JSON, validated as in the configuration. Raises ApiError that names the field."""
    try:
        data = json.loads(body, object_pairs_hook=_no_repeats)
    except (ValueError, RecursionError) as error:
        problem = str(error) if isinstance(error, _RepeatedKeyError) else "not JSON"
        raise ApiError(400, f"The body must be a JSON object: {problem}.", code="invalid_json") from None
    if not isinstance(data, dict):
        raise ApiError(400, "The body must be a JSON object, as an entry of `workers`.", code="invalid_json")
    try:
        worker = Worker.model_validate(data, context={BASE_DIR: Path.cwd()})
        _check_together(worker)
    except ValidationError as error:
        problems = problems_of(error.errors(include_url=False), Worker, Origins())
        raise ApiError(
            422, "; ".join(str(problem) for problem in problems), param=problems[0].path, code="invalid_worker"
        ) from None
    return worker


class _RepeatedKeyError(ValueError):
    pass


def _no_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise _RepeatedKeyError("a key is there twice")
    return data


def _check_together(worker: Worker) -> None:
    """What the configuration says of a worker's settings together."""
    tls = worker.tls
    if (tls.certificate is None) != (tls.key is None):
        raise ApiError(422, "tls: needs certificate and key together", param="tls", code="invalid_worker")
    if tls != type(tls)() and not worker.uses_tls:
        raise ApiError(422, "tls: needs an https:// URL", param="tls", code="invalid_worker")
    events = worker.kv_events
    if events is not None and events.replay_endpoint == events.endpoint:
        param = "kv_events.replay_endpoint"
        raise ApiError(422, f"{param}: must differ from endpoint", param=param, code="invalid_worker")


def _worker(request: web.Request) -> WorkerId:
    return WorkerId(request.match_info["id"])


def _grace(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except PydanticCustomError as error:
        raise ApiError(400, f"grace: expected {error.message()}.", param="grace", code="invalid_grace") from None
    if not isinstance(seconds, float) or not math.isfinite(seconds) or seconds > _LONGEST_GRACE:
        raise ApiError(400, "grace: expected at most 24h.", param="grace", code="invalid_grace")
    return seconds
