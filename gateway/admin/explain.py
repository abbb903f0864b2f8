"""A request's record as JSON: in one line of a list, and with the whole explanation of where it went. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from cache.prefix_index import blocks_by_tier
from gateway.telemetry.shown import shown
from policies.routing import CHOICES, SLO_CHOICES

if TYPE_CHECKING:
    from gateway.request_record import Attempt, RequestRecord
    from policies.routing import WorkerView

_DIGITS: Final = 6
_AT_HOME: Final = ("session", "follows")
_PROMISED: Final = {
    "in time": "it should keep its promise there",
    "packed": "it has time, and leaves the others free for tighter promises",
    "late": "its promise will hardly be kept without computing more elsewhere, so the cheapest",
}


def summary(record: RequestRecord, epoch: float) -> dict[str, object]:
    """One line of the list. `epoch` is the wall clock, in seconds since 1970, when the loop's stood at 0."""
    first = record.first_byte_at
    return {
        "id": shown(record.request_id),
        "arrived": datetime.fromtimestamp(epoch + record.arrived, UTC).isoformat(timespec="milliseconds"),
        "method": shown(record.method),
        "path": shown(record.path),
        "tenant": record.tenant or None,
        "class": record.service_class or None,
        "model": record.model,
        "outcome": record.outcome.value,
        "status": record.status,
        "error": record.error or None,
        "response_cache": record.cache or None,
        "response_cache_refusal": record.cache_refusal or None,
        "worker": record.worker,
        "retries": max(0, len(record.attempts) - 1),
        "prompt_tokens": record.prompt_tokens,
        "predicted_cached_tokens": record.cached_tokens,
        "predicted_restored_tokens": record.restored_tokens,
        "reported_cached_tokens": record.usage.cached,
        "completion_tokens": record.usage.completion,
        "time_to_first_byte_s": _seconds(first - record.arrived) if first else None,
        "duration_s": _seconds(record.finished_at - record.arrived),
    }


def explanation(record: RequestRecord, epoch: float) -> dict[str, object]:
    """Everything that is known of it."""
    trace = record.trace
    return {
        **summary(record, epoch),
        "dialect": record.dialect or None,
        "route": record.kind or None,
        "stream": record.streams,
        "session_affinity": record.session,
        "response_model": record.response_model,
        "reported_prompt_tokens": record.usage.prompt,
        "charged_tokens": record.charged_tokens,
        "response_bytes": record.response_bytes,
        "trace_id": trace.trace_id.decode() if trace is not None else None,
        "queued_s": _seconds(record.queued_s) if record.service_class else None,
        "predicted_ttft_s": None if record.predicted_ttft is None else _seconds(record.predicted_ttft),
        "times_s": _times(record),
        "attempts": [_attempt(record, attempt, last=attempt is record.attempts[-1]) for attempt in record.attempts],
    }


def _times(record: RequestRecord) -> dict[str, float | None]:
    """Seconds after the request arrived, in the order of the stages."""
    stages = {"routed": record.routed_at, "first_byte": record.first_byte_at, "finished": record.finished_at}
    return {name: _seconds(at - record.arrived) if at else None for name, at in stages.items()}


def _attempt(record: RequestRecord, attempt: Attempt, *, last: bool) -> dict[str, object]:
    decision = attempt.decision
    split = decision.split
    return {
        "worker": attempt.worker,
        "after_s": _seconds(attempt.at - record.arrived),
        "why": _why(attempt),
        "choice": decision.reason if decision.reason in CHOICES else None,
        "predicted_cached_tokens": decision.cached_tokens,
        "predicted_restored_tokens": split.restored_tokens if split is not None else 0,
        "predicted_restore_s": _seconds(split.restore_s) if split is not None else None,
        "candidates": [_candidate(attempt, at, view) for at, view in enumerate(attempt.candidates)],
        "result": attempt.fault or (record.outcome.value if last else "given up"),
    }


def _candidate(attempt: Attempt, at: int, view: WorkerView) -> dict[str, object]:
    costs = attempt.decision.costs
    runs = attempt.runs.get(view.id) if attempt.runs is not None else None
    return {
        "worker": view.id,
        "chosen": at == attempt.decision.chosen,
        "cost": round(costs[at], _DIGITS) if at < len(costs) else None,
        "active_requests": view.active,
        "queued_tokens": round(view.queued_tokens, 1),
        "recent_tokens": round(view.recent_tokens, 1),
        "prefill_tokens_per_s": round(view.prefill_rate, 1) if view.prefill_rate is not None else None,
        "cached_tokens": attempt.cached.get(view.id, 0),
        "restorable_tokens": sum(run.tokens for run in attempt.restorable.get(view.id, ())),
        "blocks_by_tier": {tier.value: blocks for tier, blocks in blocks_by_tier(runs).items()} if runs else None,
    }


def _why(attempt: Attempt) -> str:
    """The choice in a sentence."""
    candidates, costs, chosen = attempt.candidates, attempt.decision.costs, attempt.decision.chosen
    if attempt.decision.reason in _AT_HOME:
        return "its session is there"
    if len(candidates) == 1:
        return "the only candidate"
    if len(costs) != len(candidates):
        return f"picked from {len(candidates)} by the routing policy, which has no costs"
    cost, others = costs[chosen], [other for at, other in enumerate(costs) if at != chosen]
    if attempt.decision.reason in SLO_CHOICES:
        why = _PROMISED[attempt.decision.reason]
        return f"{why}: cost {cost:.4g}, the lowest of {len(candidates)} is {min(costs):.4g}"
    if cost <= min(others):
        beside = "equal to the next" if cost == min(others) else f"the next is {min(others):.4g}"
        how = f" ({attempt.decision.reason})" if attempt.decision.reason in CHOICES else ""
        return f"lowest cost of {len(candidates)}: {cost:.4g}, {beside}{how}"
    return (
        f"cost {cost:.4g}, not the lowest of {len(candidates)}, {min(others):.4g}: the routing policy has other reasons"
    )


def _seconds(value: float) -> float:
    return round(value, _DIGITS)
