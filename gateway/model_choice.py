"""Which model a request means, and how a client is told that there is no such model. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from backends.fleet_state import FleetState
from backends.fleet_worker import Worker
from gateway.api_error import ApiError
from gateway.calls import Call

_LISTED: Final = 10


def workers_for(fleet: FleetState, call: Call) -> Sequence[Worker]:
    """The workers that may take a request whose model is known to be served, or that may go anywhere."""
    return fleet.workers if call.model is None else fleet.serving(call.model)


def served_model(fleet: FleetState, model: str | None, may_use: Callable[[str], bool] | None = None) -> str:
    """The model to use: the one named, or the only one there is for who may use those that `may_use` says.

    Raises:
        ApiError: 404 for a name that no worker answers to, 400 where none is named and there are several, 503 while
            no worker has told its models.
    """
    if model is None:
        return _only_model(_usable(fleet, may_use))
    if not fleet.serving(model):
        raise unknown_model(fleet, model, may_use)
    return model


def fallback_of(
    fleet: FleetState, model: str, others: Sequence[str], now: float, may_use: Callable[[str], bool] | None = None
) -> str | None:
    """The first of `others` that can be served, and that may be used, where `model` cannot; else None."""
    if _can_serve(fleet, model, now):
        return None
    for other in others:
        if (may_use is None or may_use(other)) and _can_serve(fleet, other, now):
            return other
    return None


def _can_serve(fleet: FleetState, model: str, now: float) -> bool:
    """Is there a worker of it that is well and has room?"""
    return any(
        not worker.draining
        and not worker.unhealthy
        and worker.resting_until <= now
        and fleet.ejections.until(worker.id) is None
        and worker.has_room()
        for worker in fleet.serving(model)
    )


def unknown_model(fleet: FleetState, model: str, may_use: Callable[[str], bool] | None = None) -> ApiError:
    """The error for a name that no worker answers to. It names no model but those that `may_use` says."""
    if not fleet.models:
        return _no_worker_yet()
    models = _usable(fleet, may_use)
    known = f"this fleet serves {_listed(models)}" if models else "this key may use none that this fleet serves"
    message = f"The model `{model[:200]}` does not exist; {known}."
    return ApiError(404, message, param="model", code="model_not_found")


def _usable(fleet: FleetState, may_use: Callable[[str], bool] | None) -> tuple[str, ...]:
    return fleet.models if may_use is None else tuple(model for model in fleet.models if may_use(model))


def _only_model(models: tuple[str, ...]) -> str:
    if not models:
        raise _no_worker_yet()
    if len(models) > 1:
        message = f"`model` is missing; this fleet serves {_listed(models)}."
        raise ApiError(400, message, param="model", code="missing_model")
    return models[0]


def _no_worker_yet() -> ApiError:
    return ApiError(503, "No worker of this fleet has told its models yet.", code="no_worker")


def _listed(models: tuple[str, ...]) -> str:
    shown = ", ".join(f"`{model}`" for model in models[:_LISTED])
    return shown if len(models) <= _LISTED else f"{shown} and {len(models) - _LISTED} more"
