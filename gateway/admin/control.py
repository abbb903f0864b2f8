"""What the control plane asks of the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from backends.worker_status import WorkerStatus
from gateway.config import Config, Worker
from policies.types import WorkerId


class UnknownWorkerError(LookupError):
    """There is no worker of that name."""


class WorkerConflictError(ValueError):
    """The worker cannot be had beside those that are there; the message says why, and may be shown."""


class FleetControl(Protocol):
    """The program as the control plane sees it. Every method but two is synchronous and quick."""

    def statuses(self) -> Sequence[WorkerStatus]:
        """All workers, as they are now."""

    def ready(self) -> tuple[bool, str]:
        """May clients be sent here? And if not, why, in words that may be shown."""

    def add(self, settings: Worker) -> None:
        """Begin to use one more worker. Raises WorkerConflictError where its name or its URL is taken."""

    def drain(self, worker: WorkerId) -> None:
        """Give it nothing new. Raises UnknownWorkerError."""

    def resume(self, worker: WorkerId) -> None:
        """Take a drained worker back. Raises UnknownWorkerError."""

    async def remove(self, worker: WorkerId, grace: float) -> None:
        """Give it nothing new, let its requests go on for at most `grace` seconds, cut what is left, and forget it.
        Returns when it has gone. Raises UnknownWorkerError.
        """

    def config(self) -> Config:
        """The configuration in force."""

    async def reload(self) -> str:
        """Take up the configuration file; says what came of it. Raises ConfigError, and then nothing has changed."""
