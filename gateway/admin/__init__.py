"""The control plane: health, metrics and administration on a port of its own, apart from the clients' traffic."""

from __future__ import annotations

from gateway.admin.control import FleetControl, UnknownWorkerError, WorkerConflictError
from gateway.admin.recent import RecentRequests
from gateway.admin.server import AdminServer

__all__ = ["AdminServer", "FleetControl", "RecentRequests", "UnknownWorkerError", "WorkerConflictError"]
