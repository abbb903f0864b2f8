"""What is known of one request: filled on its way, read by whoever watches when it is over.

A record refers to nothing that is large or that lives longer than the request's own numbers: no body, no connection,
no prompt. Times are seconds of the loop's clock unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from gateway.dialects.base import NO_USAGE, Usage
from gateway.telemetry.trace_context import TraceContext
from policies.restore_route import PricedRun
from policies.routing import NOTHING_RESTORABLE, RouteDecision, WorkerView
from policies.types import TierRun, WorkerId


class Outcome(StrEnum):
    """How a request ended."""

    OK = "ok"
    """The worker's answer is out, complete, and was no error."""
    CLIENT_ERROR = "client_error"
    """Answered 4xx, by us or by a worker."""
    WORKER_ERROR = "worker_error"
    """A worker's own 5xx, or an error event in its stream, was passed on."""
    FAILED = "failed"
    """No worker gave an answer: ours is an error."""
    CUT = "cut"
    """The worker failed after the first byte of its answer."""
    CLIENT_GONE = "client_gone"
    """The client left before the end."""


class Attempt:
    """One try on one worker, and why there."""

    __slots__ = ("at", "cached", "candidates", "decision", "fault", "restorable", "runs", "worker")

    def __init__(  # noqa: PLR0917 - one is made for each attempt, and naming arguments takes time
        self,
        worker: WorkerId,
        candidates: Sequence[WorkerView],
        cached: Mapping[WorkerId, int],
        decision: RouteDecision,
        at: float,
        runs: Mapping[WorkerId, Sequence[TierRun]] | None = None,
        restorable: Mapping[WorkerId, Sequence[PricedRun]] = NOTHING_RESTORABLE,
    ) -> None:
        """`cached` are prompt tokens by worker; `runs` blocks by worker and tier, in order, where any is not on a
        device; `restorable` those behind `cached` that have a price, in tokens.
        """
        self.worker = worker
        self.candidates = candidates
        self.cached = cached
        self.decision = decision
        self.at = at
        self.runs = runs
        self.restorable = restorable
        self.fault = ""


class RequestRecord:
    """One request."""

    __slots__ = (
        "arrived", "attempts", "cache", "cache_refusal", "cached_tokens", "charged_tokens", "dialect", "error",
        "finished_at", "first_byte_at", "kind", "method", "model", "outcome", "path", "predicted_ttft",
        "prompt_tokens", "queued_s", "request_id", "response_bytes", "response_model", "restored_tokens", "routed_at",
        "service_class", "session", "status", "streams", "tenant", "trace", "traceparent", "usage",
    )  # fmt: skip

    def __init__(self, request_id: bytes, method: bytes, path: bytes, arrived: float) -> None:
        self.request_id = request_id
        self.method = method
        self.path = path
        self.arrived = arrived
        self.traceparent: bytes | None = None  # as the client sent it
        self.trace: TraceContext | None = None  # where a span is made: what went on to the worker
        self.tenant = ""  # by name, "" where there are none or it showed no key of one
        self.charged_tokens = 0  # against its tenant's rates
        self.service_class = ""  # in which it was sent or refused, "" where none are told apart
        self.queued_s = 0.0  # waited here for its turn
        self.predicted_ttft: float | None = None  # seconds from being sent, None where nobody asks
        self.kind = ""  # of the route, "" where there is none
        self.dialect = ""
        self.model: str | None = None  # as served, not as the client named it
        self.response_model: str | None = None
        self.streams = False
        self.session = False  # went where its session was
        self.prompt_tokens = 0  # counted, or guessed
        self.cached_tokens = 0  # that the chosen worker was thought to hold on its device
        self.restored_tokens = 0  # that it was thought to restore behind those
        self.cache = ""  # what the response cache had for it, "" where it was not asked
        self.cache_refusal = ""  # why it was not asked, or did not keep the answer
        self.usage: Usage = NO_USAGE  # as the worker reported
        self.routed_at = 0.0  # of the last attempt
        self.first_byte_at = 0.0
        self.finished_at = 0.0
        self.status = 0
        self.response_bytes = 0
        self.error = ""  # code or fault where it did not end well
        self.outcome = Outcome.OK
        self.attempts: list[Attempt] = []

    def expected_cached(self, reported: int) -> int:
        """What of the prompt its worker was thought not to compute, beside the number that it reported: what it held
        and what it would restore. Whether it restores is for the worker to say, so all between is as predicted.
        """
        return min(max(reported, self.cached_tokens), self.cached_tokens + self.restored_tokens)

    @property
    def worker(self) -> WorkerId | None:
        """The worker tried last."""
        return self.attempts[-1].worker if self.attempts else None


class Observer(Protocol):
    """Is told of every request that is over; synchronous, quick, and must not raise."""

    def finished(self, record: RequestRecord) -> None:
        """The request is over, however it ended. The record will not change any more, but a long answer may turn out
        not to be kept.
        """
