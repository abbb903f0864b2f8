"""What the control plane asks of the program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from backends.worker_status import WorkerStatus
from gateway.config import Config, Worker
from policies.types import WorkerId


class UnknownWorkerError(LookupError):
    """There is no worker of that name."""


class WorkerConflictError(ValueError):
    """The worker cannot be had beside those that are there; the message says why, and may be shown."""


class UnknownTenantError(LookupError):
    """There is no tenant of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetOrder:
    """What of a tenant's is to be forgotten: all of it, or the answers that all of these are about."""

    tenant: str
    """`NO_TENANT` where the configuration has none."""
    model: str | None = None
    """As clients or as workers name it."""
    older_than: float | None = None
    """Seconds since it was stored."""
    prefix: str | None = None
    """How its prompt begins."""
    dry_run: bool = False
    """Count only."""
    kv_epoch: int = 0
    """The least count of how often its KV was forgotten that is to hold then: another gateway's."""

    @property
    def whole(self) -> bool:
        """Is it everything of the tenant's?"""
        return self.model is None and self.older_than is None and self.prefix is None


NO_TENANT: Final = "default"


class FleetControl(Protocol):
    """The program as the control plane sees it. Every method but three is synchronous and quick."""

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

    async def forget(self, order: ForgetOrder, peer: str) -> dict[str, object]:
        """Forget what is kept of a tenant; returns what came of it, as JSON data. `peer`: from where that was asked.
        Raises UnknownTenantError.
        """

    def config(self) -> Config:
        """The configuration in force."""

    async def reload(self) -> str:
        """Take up the configuration file; says what came of it. Raises ConfigError, and then nothing has changed."""
