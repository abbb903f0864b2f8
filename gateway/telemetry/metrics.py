"""Metrics of requests: an observer that counts, and a collector that tells Prometheus.

Labels are bounded: routes, outcomes and faults are few, a worker is one of the fleet, and a model becomes a label only
once a request for it was given to a worker. No prompt or key is ever one; tenants have metrics of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway.cache_drift import CacheDrift
from gateway.request_record import Outcome
from gateway.telemetry.operations import operation_of
from gateway.telemetry.series import FIRST_TOKEN_SECONDS, OUTPUT_TOKEN_SECONDS, SECONDS, TOKENS, Histogram
from policies.routing import CHOICES
from policies.types import WorkerId

if TYPE_CHECKING:
    from gateway.dialects.base import Usage
    from gateway.request_record import RequestRecord

log = logging.getLogger(__name__)

OTHER: Final = "other"
_OK: Final = Outcome.OK
_FIRST_ERROR_STATUS: Final = 400
_MAX_MODELS: Final = 1000
_MAX_WORKERS: Final = 4096
_MAX_FAULTS: Final = 32


class _Route:
    """One kind of request for one model."""

    __slots__ = (
        "cached", "choices", "completion", "duration", "first_token", "input", "kind", "model", "output", "per_token",
        "predicted", "prompt", "requests", "restored",
    )  # fmt: skip

    def __init__(self, kind: str, model: str) -> None:
        self.kind = kind
        self.model = model
        self.requests: dict[tuple[Outcome, int], int] = {}
        self.duration = Histogram(SECONDS)
        self.first_token = Histogram(FIRST_TOKEN_SECONDS)
        self.per_token = Histogram(OUTPUT_TOKEN_SECONDS)
        self.input = Histogram(TOKENS)
        self.output = Histogram(TOKENS)
        self.prompt = 0
        self.predicted = 0
        self.restored = 0
        self.choices: dict[str, int] = {}
        self.cached = 0
        self.completion = 0


class _Worker:
    """What was tried on one worker."""

    __slots__ = ("attempts", "compared_predicted", "compared_reported", "faults", "missed", "retries")

    def __init__(self) -> None:
        self.attempts = 0
        self.faults: dict[str, int] = {}
        self.retries: dict[str, int] = {}
        self.compared_predicted = 0
        self.compared_reported = 0
        self.missed = 0


class RequestMetrics:
    """Counts finished requests; registered with a registry it tells what it counted."""

    def __init__(self, drift: CacheDrift) -> None:
        """`drift` is told of the same requests as this is."""
        self._drift = drift
        self._routes: dict[tuple[str, str | None], _Route] = {}
        self._workers: dict[WorkerId, _Worker] = {}

    # --- counting ---

    def finished(self, record: RequestRecord) -> None:
        """Count one request."""
        route = self._routes.get((record.kind, record.model))
        if route is None:
            route = self._route(record)
        key = (record.outcome, record.status // 100)
        requests = route.requests
        requests[key] = requests.get(key, 0) + 1
        if record.attempts:
            self._served(record, route)

    def forget_workers(self, known: Collection[WorkerId]) -> None:
        """Drop the series of workers that have gone."""
        for worker in [worker for worker in self._workers if worker not in known]:
            del self._workers[worker]
            self._drift.forget(worker)

    def _served(self, record: RequestRecord, route: _Route) -> None:
        """A worker was tried at least once."""
        arrived, first, end = record.arrived, record.first_byte_at, record.finished_at
        route.duration.observe(end - arrived)
        route.prompt += record.prompt_tokens
        route.predicted += record.cached_tokens
        attempts = record.attempts
        route.restored += record.restored_tokens
        if (choice := attempts[-1].decision.reason) in CHOICES:
            route.choices[choice] = route.choices.get(choice, 0) + 1
        usage = record.usage
        if record.streams and first and record.status < _FIRST_ERROR_STATUS:
            route.first_token.observe(first - arrived)
            tokens = usage.completion
            if tokens is not None and tokens > 1 and record.outcome is _OK:
                route.per_token.observe((end - first) / (tokens - 1))
        worker = self._worker(attempts[-1].worker)
        worker.attempts += 1
        if attempts[-1].fault or len(attempts) > 1:
            self._failed(record)
        if usage.prompt is not None:
            _count_usage(usage, route)
            if usage.cached is not None:
                self._compare(record, worker, usage.cached)

    def _failed(self, record: RequestRecord) -> None:
        *before, last = record.attempts
        for attempt in before:
            worker = self._worker(attempt.worker)
            worker.attempts += 1
            _add(worker.retries, attempt.fault)
            _add(worker.faults, attempt.fault)
        if last.fault:
            _add(self._worker(last.worker).faults, last.fault)

    def _compare(self, record: RequestRecord, worker: _Worker, reported: int) -> None:
        predicted = record.expected_cached(reported)
        worker.compared_predicted += predicted
        worker.compared_reported += reported
        if predicted > reported:
            worker.missed += predicted - reported

    def _route(self, record: RequestRecord) -> _Route:
        """Where a request is counted whose route and model are not known yet: a client's word makes no label."""
        model = (record.model or "") if record.attempts else ""
        if model and len(self._routes) >= _MAX_MODELS:
            model = OTHER
        key = (record.kind, model or None)
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = _Route(record.kind, model)
        return route

    def _worker(self, worker: WorkerId) -> _Worker:
        known = self._workers.get(worker)
        if known is None:
            if len(self._workers) >= _MAX_WORKERS:
                del self._workers[next(iter(self._workers))]
            known = self._workers[worker] = _Worker()
        return known

    # --- telling ---

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: the registry need not collect to know names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics of requests."""
        yield self._requests()
        yield from self._histograms()
        yield from self._tokens()
        yield self._choices()
        yield from self._attempts()
        yield from self._comparison()

    def _requests(self) -> Metric:
        family = CounterMetricFamily(
            "prefixgate_requests",
            "Requests that are over, by route, model, outcome and class of the status.",
            labels=["route", "model", "outcome", "status"],
        )
        for route in self._routes.values():
            for (outcome, hundreds), count in route.requests.items():
                status = f"{hundreds}xx" if hundreds else "none"
                family.add_metric([route.kind, route.model, outcome.value, status], count)
        return family

    def _histograms(self) -> Iterator[Metric]:
        labels = ["gen_ai_operation_name", "gen_ai_request_model"]
        for name, help_text, attribute in (
            ("gen_ai_server_request_duration_seconds", "Arrival to end, of requests given to a worker.", "duration"),
            ("gen_ai_server_time_to_first_token_seconds", "Arrival to the first byte of a stream.", "first_token"),
            (
                "gen_ai_server_time_per_output_token_seconds",
                "First byte to end of a stream, per output token after the first.",
                "per_token",
            ),
        ):
            family = HistogramMetricFamily(name, help_text, labels=labels)
            for route in self._routes.values():
                _add_histogram(family, [operation_of(route.kind), route.model], getattr(route, attribute))
            yield family
        family = HistogramMetricFamily(
            "gen_ai_client_token_usage",
            "Tokens of a request as its worker reported them, cached ones included.",
            labels=[*labels, "gen_ai_token_type"],
        )
        for route in self._routes.values():
            _add_histogram(family, [operation_of(route.kind), route.model, "input"], route.input)
            _add_histogram(family, [operation_of(route.kind), route.model, "output"], route.output)
        yield family

    def _tokens(self) -> Iterator[Metric]:
        for name, help_text, attribute in (
            ("prompt_tokens", "Prompt tokens as the gateway counted or guessed them.", "prompt"),
            ("predicted_cached_tokens", "Prompt tokens that the chosen workers were thought to hold.", "predicted"),
            (
                "predicted_restored_tokens",
                "Prompt tokens that the chosen workers were thought to restore from slower tiers.",
                "restored",
            ),
            ("reported_cached_tokens", "Prompt tokens that the workers said they held.", "cached"),
            ("completion_tokens", "Output tokens as the workers reported them.", "completion"),
        ):
            family = CounterMetricFamily(f"prefixgate_{name}", help_text, labels=["route", "model"])
            for route in self._routes.values():
                if route.model:
                    family.add_metric([route.kind, route.model], getattr(route, attribute))
            yield family

    def _choices(self) -> Metric:
        family = CounterMetricFamily(
            "prefixgate_routing_choices",
            "Requests of which something could be restored somewhere, by what was chosen.",
            labels=["route", "model", "choice"],
        )
        for route in self._routes.values():
            for choice, count in route.choices.items():
                family.add_metric([route.kind, route.model, choice], count)
        return family

    def _attempts(self) -> Iterator[Metric]:
        family = CounterMetricFamily("prefixgate_attempts", "Tries, by worker.", labels=["worker"])
        for name, worker in self._workers.items():
            family.add_metric([name], worker.attempts)
        yield family
        for kind, help_text in (
            ("faults", "Tries that failed, by worker and what happened."),
            ("retries", "Requests that went to another worker, by the worker they left and why."),
        ):
            family = CounterMetricFamily(f"prefixgate_{kind}", help_text, labels=["worker", "fault"])
            for name, worker in self._workers.items():
                counts: dict[str, int] = getattr(worker, kind)
                for fault, count in counts.items():
                    family.add_metric([name, fault], count)
            yield family

    def _comparison(self) -> Iterator[Metric]:
        for name, help_text, attribute in (
            (
                "predicted",
                "Predicted cached tokens of the requests whose worker reported theirs.",
                "compared_predicted",
            ),
            ("reported", "Reported cached tokens of the same requests.", "compared_reported"),
            ("missed", "Predicted and not found, of the same requests.", "missed"),
        ):
            family = CounterMetricFamily(f"prefixgate_worker_cached_tokens_{name}", help_text, labels=["worker"])
            for worker_id, worker in self._workers.items():
                family.add_metric([worker_id], getattr(worker, attribute))
            yield family
        drift = GaugeMetricFamily(
            "prefixgate_worker_cached_tokens_drift_ratio",
            "Predicted minus reported cached tokens as a share of the prompt, averaged over recent requests.",
            labels=["worker"],
        )
        for worker_id in self._workers:
            drift.add_metric([worker_id], self._drift.drift(worker_id))
        yield drift


def _count_usage(usage: Usage, route: _Route) -> None:
    route.input.observe(usage.prompt or 0)
    if usage.completion is not None:
        route.completion += usage.completion
        route.output.observe(usage.completion)
    if usage.cached is not None:
        route.cached += usage.cached


def _add(counts: dict[str, int], fault: str) -> None:
    if fault not in counts and len(counts) >= _MAX_FAULTS:
        fault = OTHER
    counts[fault] = counts.get(fault, 0) + 1


def _add_histogram(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    if histogram.n:
        family.add_metric(labels, histogram.buckets(), sum_value=histogram.total)
