"""Requests as they look when they are over, made by hand."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.dialects.base import NO_USAGE, Usage
from gateway.request_record import Attempt, Outcome, RequestRecord
from gateway.telemetry.trace_context import TraceContext
from policies.routing import RouteDecision, WorkerView
from policies.types import Tier, TierRun, WorkerId

W0, W1 = WorkerId("w0"), WorkerId("w1")


def attempt(
    worker: WorkerId = W1, *, at: float = 100.01, fault: str = "", costs: Sequence[float] = (0.5, 0.25)
) -> Attempt:
    views = (WorkerView(W0, 3, 700.0, 8000.0, 900.0), WorkerView(W1, 1, 20.0, None))
    cached = {W1: 96}
    chosen = [view.id for view in views].index(worker)
    runs = {W1: [TierRun(Tier.DEVICE, 4), TierRun(Tier.HOST, 2)]}
    made = Attempt(worker, views, cached, RouteDecision(chosen, cached.get(worker, 0), costs), at=at, runs=runs)
    made.fault = fault
    return made


def record(
    request_id: bytes = b"r-1",
    *,
    attempts: Sequence[Attempt] | None = None,
    outcome: Outcome = Outcome.OK,
    status: int = 200,
    model: str | None = "m",
    kind: str = "chat",
    streams: bool = True,
    usage: Usage = NO_USAGE,
    trace: TraceContext | None = None,
    error: str = "",
    arrived: float = 100.0,
    tenant: str = "",
) -> RequestRecord:
    """Arrived at 100 s, routed after 10 ms, first byte after 50 ms, over after 1.05 s."""
    made = RequestRecord(request_id, b"POST", b"/v1/chat/completions", arrived)
    made.tenant = tenant
    made.kind = kind
    made.dialect = "openai"
    made.model = model
    made.streams = streams
    made.prompt_tokens = 128
    made.cached_tokens = 96
    made.usage = usage
    made.trace = trace
    made.attempts = [attempt()] if attempts is None else list(attempts)
    made.routed_at = arrived + 0.01
    made.first_byte_at = arrived + 0.05 if made.attempts else 0.0
    made.finished_at = arrived + 1.05
    made.status = status
    made.response_bytes = 4321
    made.outcome = outcome
    made.error = error
    return made
