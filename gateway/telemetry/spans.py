"""One span for each request, made from its record when it is over. Pure: nothing here runs while a request does.

Names: OpenTelemetry's semantic conventions for generative AI (`gen_ai.*`), HTTP and servers; what they have no name
for is `prefixgate.*`. No prompt, no answer and no key is ever among the attributes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from gateway import __version__
from gateway.request_record import Outcome
from gateway.telemetry.operations import operation_of
from gateway.telemetry.shown import LONGEST, shown

if TYPE_CHECKING:
    from gateway.request_record import Attempt, RequestRecord
    from gateway.telemetry.trace_context import TraceContext

Attributes = Mapping[str, str | bool | int | float]

_SCOPE: Final = InstrumentationScope("prefixgate", __version__)
_BAD_OUTCOMES: Final = frozenset({Outcome.WORKER_ERROR, Outcome.FAILED, Outcome.CUT})


def span_of(record: RequestRecord, trace: TraceContext, resource: Resource, epoch_ns: int) -> ReadableSpan:
    """The span of a finished request. `epoch_ns` is the wall clock, in ns since 1970, when the loop's stood at 0."""

    def wall(seconds: float) -> int:
        return epoch_ns + round(seconds * 1e9)

    operation = operation_of(record.kind)
    name = f"{operation} {record.model}" if record.model else operation or shown(record.method)
    start = wall(record.arrived)
    return ReadableSpan(
        name=name,
        context=_context(trace, trace.span_id, remote=False),
        parent=_context(trace, trace.parent_id, remote=True) if trace.parent_id is not None else None,
        resource=resource,
        attributes=_attributes(record),
        events=[Event(name, fields, max(wall(at), start)) for name, fields, at in _events(record)],
        kind=SpanKind.SERVER,
        status=Status(StatusCode.ERROR, record.error[:LONGEST]) if record.outcome in _BAD_OUTCOMES else Status(),
        start_time=start,
        end_time=max(wall(record.finished_at), start),
        instrumentation_scope=_SCOPE,
    )


def _context(trace: TraceContext, span_id: bytes, *, remote: bool) -> SpanContext:
    return SpanContext(int(trace.trace_id, 16), int(span_id, 16), remote, TraceFlags(TraceFlags.SAMPLED))


def _attributes(record: RequestRecord) -> Attributes:
    usage = record.usage
    worker = record.worker
    known: dict[str, str | bool | int | float | None] = {
        "gen_ai.operation.name": operation_of(record.kind) or None,
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.response_model,
        "gen_ai.usage.input_tokens": usage.prompt,
        "gen_ai.usage.output_tokens": usage.completion,
        "gen_ai.usage.cache_read.input_tokens": usage.cached,
        "http.request.method": shown(record.method),
        "http.response.status_code": record.status or None,
        "url.path": shown(record.path),
        "error.type": (record.error[:LONGEST] or record.outcome) if record.outcome != Outcome.OK else None,
        "prefixgate.request_id": shown(record.request_id),
        "prefixgate.tenant": record.tenant or None,
        "prefixgate.class": record.service_class or None,
        "prefixgate.queue_time": record.queued_s if record.service_class else None,
        "prefixgate.dialect": record.dialect or None,
        "prefixgate.outcome": record.outcome.value,
        "prefixgate.stream": record.streams,
        "prefixgate.session_affinity": record.session,
        "prefixgate.worker": worker,
        "prefixgate.attempts": len(record.attempts),
        "prefixgate.prompt_tokens": record.prompt_tokens if worker is not None else None,
        "prefixgate.predicted_cached_tokens": record.cached_tokens if worker is not None else None,
        "prefixgate.response_bytes": record.response_bytes,
    }
    if record.first_byte_at:
        known["prefixgate.time_to_first_byte"] = record.first_byte_at - record.arrived
    return {name: value for name, value in known.items() if value is not None}


def _events(record: RequestRecord) -> Iterator[tuple[str, Attributes, float]]:
    """The stages, in order: name, attributes, time."""
    if record.attempts:
        yield "tokenized", {"prefixgate.prompt_tokens": record.prompt_tokens}, record.attempts[0].at
    for attempt in record.attempts:
        yield "routed", _choice(attempt), attempt.at
    if record.first_byte_at:
        yield "first_byte", {}, record.first_byte_at


def _choice(attempt: Attempt) -> Attributes:
    fields: dict[str, str | int | float] = {
        "prefixgate.worker": attempt.worker,
        "prefixgate.candidates": len(attempt.candidates),
        "prefixgate.predicted_cached_tokens": attempt.decision.cached_tokens,
    }
    if attempt.decision.costs:
        fields["prefixgate.cost_s"] = attempt.decision.costs[attempt.decision.chosen]
    if attempt.fault:
        fields["prefixgate.fault"] = attempt.fault[:LONGEST]
    return fields
