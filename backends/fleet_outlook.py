"""What routing is told of a request's promises, and of how each worker would keep them."""

from __future__ import annotations

from math import inf

from backends.fleet_state import FleetState
from policies.latency_model import Prediction
from policies.routing_types import Objective
from policies.types import WorkerId


def objective_of(fleet: FleetState, now: float, arrived: float, due: float, tpot_s: float | None) -> Objective | None:
    """Of a request that came at `arrived`, whose first token is due at `due` (infinite: at no time) and each further
    one after `tpot_s`. None where nothing was promised, or no latency is predicted here.
    """
    if not fleet.predicts or (due == inf and tpot_s is None):
        return None

    def predict(worker: WorkerId, uncached: float, context: float, restore_s: float) -> Prediction:
        return fleet.latency_of(fleet.worker(worker)).predict(now, uncached, context, restore_s)

    return Objective(due - now, due - arrived, inf if tpot_s is None else tpot_s, predict)
