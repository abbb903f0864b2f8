"""A control plane over a small fleet of the tests' own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
from yarl import URL

from backends.worker_status import Standing, WorkerStatus
from gateway.admin import AdminServer, RecentRequests, UnknownWorkerError, WorkerConflictError
from gateway.admin.control import ForgetOrder, UnknownTenantError
from gateway.cache_drift import CacheDrift
from gateway.config import Config, Worker, parse_config
from gateway.telemetry.exposition import make_registry
from gateway.telemetry.metrics import RequestMetrics
from policies.types import WorkerId
from tests.telemetry_fixtures import Numbers, status

TOKEN = "a-token-of-32-characters-or-more"
CONFIG = "workers: [{url: 'http://w1:8000', name: w1}]\nadmin: {token: " + TOKEN + "}\n"


@dataclass
class SmallFleet:
    """Keeps statuses, and nothing behind them."""

    settings: Config = field(default_factory=lambda: parse_config(CONFIG))
    workers: dict[WorkerId, WorkerStatus] = field(default_factory=lambda: {WorkerId("w1"): status("w1")})
    added: list[Worker] = field(default_factory=list)
    graces: list[float] = field(default_factory=list)
    forgotten: list[tuple[ForgetOrder, str]] = field(default_factory=list)
    draining: bool = False
    reloaded: list[str | Exception] = field(default_factory=list)

    def statuses(self) -> list[WorkerStatus]:
        return list(self.workers.values())

    def ready(self) -> tuple[bool, str]:
        if self.draining:
            return False, "draining"
        usable = any(worker.standing is Standing.READY for worker in self.workers.values())
        return usable, "" if usable else "no worker is usable"

    def add(self, settings: Worker) -> None:
        if settings.name in self.workers:
            raise WorkerConflictError(f"there is a worker {settings.name} already")
        self.added.append(settings)
        self.workers[settings.name] = status(settings.name, Standing.WAITING, source="admin")

    def drain(self, worker: WorkerId) -> None:
        self._stand(worker, Standing.DRAINING)

    def resume(self, worker: WorkerId) -> None:
        self._stand(worker, Standing.READY)

    async def remove(self, worker: WorkerId, grace: float) -> None:
        self._stand(worker, Standing.DRAINING)
        self.graces.append(grace)
        await asyncio.sleep(0)
        del self.workers[worker]

    async def forget(self, order: ForgetOrder, peer: str) -> dict[str, object]:
        if order.tenant != "acme":
            raise UnknownTenantError(order.tenant)
        self.forgotten.append((order, peer))
        return {"tenant": order.tenant}

    def config(self) -> Config:
        return self.settings

    async def reload(self) -> str:
        result = self.reloaded.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def _stand(self, worker: WorkerId, standing: Standing) -> None:
        if worker not in self.workers:
            raise UnknownWorkerError(worker)
        self.workers[worker] = dataclasses.replace(self.workers[worker], standing=standing)


@dataclass
class Plane:
    """A running control plane and a client of it."""

    fleet: SmallFleet
    recent: RecentRequests
    url: str
    client: aiohttp.ClientSession
    server: AdminServer

    async def ask(
        self, method: str, path: str, *, token: str | None = TOKEN, **more: object
    ) -> tuple[int, dict[str, object]]:
        """Status and JSON. `path` goes out as it is written."""
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        async with self.client.request(method, URL(self.url + path, encoded=True), headers=headers, **more) as response:  # type: ignore[arg-type]  # json or data
            data: dict[str, object] = await response.json()
            return response.status, data


@contextlib.asynccontextmanager
async def control_plane(
    fleet: SmallFleet | None = None, *, head_seconds: float = 10.0, max_connections: int = 512
) -> AsyncIterator[Plane]:
    """On a free port."""
    fleet = fleet or SmallFleet()
    recent = RecentRequests(100)
    registry = make_registry(Numbers().gauges(), RequestMetrics(CacheDrift(lambda _: 16)))
    server = AdminServer(fleet, registry, recent, head_seconds=head_seconds, max_connections=max_connections)
    port = await server.start("127.0.0.1", 0)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as client:
        try:
            yield Plane(fleet, recent, f"http://127.0.0.1:{port}", client, server)
        finally:
            await server.close()
