"""The program as its control plane sees it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from backends.tls import TlsError
from backends.worker_status import WorkerStatus
from cache.tokenizer import TokenizerError
from gateway.admin.control import ForgetOrder, UnknownWorkerError, WorkerConflictError
from gateway.assembly import worker_spec
from gateway.config import Config, ConfigError, Problem, Worker
from gateway.reload import StoppingError
from gateway.telemetry.gauges import Gauges
from policies.types import WorkerId

if TYPE_CHECKING:
    from gateway.program import Program

log = logging.getLogger(__name__)

OPERATOR = "admin"
"""Source of the workers that were added through the control plane."""


class ProgramControl:
    """A `FleetControl`."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def statuses(self) -> Sequence[WorkerStatus]:
        """See `FleetControl`."""
        return self._program.fleet.statuses(self._program.loop.time())

    def ready(self) -> tuple[bool, str]:
        """See `FleetControl`."""
        program = self._program
        if program.stopping:
            return False, "the gateway is stopping"
        if not program.started:
            return False, "the gateway is starting"
        if not program.fleet.members:
            return False, "there is no worker"
        if not program.state.usable(program.loop.time()):
            return False, "no worker can be given requests"
        return True, ""

    def add(self, settings: Worker) -> None:
        """See `FleetControl`."""
        fleet = self._program.fleet
        spec = worker_spec(settings, source=OPERATOR)
        for member in fleet.members.values():
            if (member.spec.host, member.spec.port) == (spec.host, spec.port):
                raise WorkerConflictError(f"url: worker {member.spec.id} is at {settings.url} already")
        try:
            fleet.add(spec)
        except (ValueError, TlsError) as error:
            raise WorkerConflictError(str(error)) from None
        log.info("worker %s joins (%s)", spec.id, OPERATOR)

    def drain(self, worker: WorkerId) -> None:
        """See `FleetControl`."""
        self._known(worker)
        self._program.fleet.drain(worker)
        log.info("worker %s is drained", worker)

    def resume(self, worker: WorkerId) -> None:
        """See `FleetControl`."""
        self._known(worker)
        self._program.fleet.resume(worker)
        log.info("worker %s takes requests again", worker)

    async def remove(self, worker: WorkerId, grace: float) -> None:
        """See `FleetControl`."""
        self._known(worker)
        log.info("worker %s leaves (%s)", worker, OPERATOR)
        await asyncio.wait([self._program.fleet.remove(worker, grace)])  # goes on if nobody waits for it any more

    async def forget(self, order: ForgetOrder, peer: str) -> dict[str, object]:
        """See `FleetControl`."""
        return await self._program.forgetting.forget(order, peer)

    def config(self) -> Config:
        """See `FleetControl`."""
        return self._program.config

    async def reload(self) -> str:
        """See `FleetControl`."""
        reloader = self._program.reloader
        if reloader is None:
            raise ConfigError("command line", [Problem("", "the gateway was started without a configuration file")])
        try:
            restart = await reloader.reload()
        except (TokenizerError, TlsError, StoppingError) as error:
            raise ConfigError(str(reloader.file), [Problem("", str(error))]) from None
        return "in force" + (f"; only a restart takes up {', '.join(restart)}" if restart else "")

    def _known(self, worker: WorkerId) -> None:
        if worker not in self._program.fleet.members:
            raise UnknownWorkerError(worker)


def gauges_of(program: Program) -> Gauges:
    """What the metrics read when they are scraped."""
    control = ProgramControl(program)
    fleet = program.fleet
    return Gauges(
        statuses=control.statuses,
        ready=control.ready,
        in_flight=lambda: len(program.pipeline.live),
        client_connections=lambda: len(program.server.connections),
        held_bytes=lambda: program.server.held_bytes,
        index_blocks=lambda: len(program.index),
        kv_feeds=fleet.feeds,
        ejections=lambda: _ejections(program),
        token_caches=program.readers.caches,
        spans=lambda: None if program.spans is None else program.spans.counts,
        sharing=lambda: None if program.sharing is None else program.sharing.counts,
    )


def _ejections(program: Program) -> Mapping[WorkerId, int]:
    return {worker.id: worker.ejections for worker in program.state.workers}
