"""Metrics of admission: who waits and waited, who was refused, how right the predicted latencies are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway.telemetry.series import SECONDS, Histogram

if TYPE_CHECKING:
    from backends.fleet_state import FleetState
    from gateway.admission import AdmissionGate
    from gateway.request_record import RequestRecord


class AdmissionMetrics:
    """Counts the finished requests that had a class; registered with a registry it tells what it counted."""

    def __init__(self, gate: Callable[[], AdmissionGate | None], fleet: FleetState) -> None:
        """`gate` is the one in force."""
        self._gate = gate
        self._fleet = fleet
        self._waited: dict[str, Histogram] = {}

    def finished(self, record: RequestRecord) -> None:
        """Count one request."""
        name = record.service_class
        if not name or not record.attempts:
            return
        waited = self._waited.get(name)
        if waited is None:
            waited = self._waited[name] = Histogram(SECONDS)
        waited.observe(record.queued_s)

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: the registry need not collect to know names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics of admission; none where nobody waits in the gateway."""
        gate = self._gate()
        if gate is None:
            return
        waiting = GaugeMetricFamily(
            "prefixgate_admission_waiting", "Requests that wait for their turn.", labels=["class"]
        )
        for each, count in gate.queue.waiting_by_class().items():
            waiting.add_metric([each.name.lower()], count)
        yield waiting
        yield GaugeMetricFamily("prefixgate_admission_waiting_bytes", "Bytes of their bodies.", value=gate.queue.bytes)
        refusals = CounterMetricFamily(
            "prefixgate_admission_refusals", "Requests that were not sent, by why.", labels=["class", "reason"]
        )
        for (each, reason), count in gate.refusals.items():
            refusals.add_metric([each.name.lower(), reason.value], count)
        yield refusals
        yield GaugeMetricFamily(
            "prefixgate_admission_pressure",
            "Recent latency of interactive requests, its 95th percentile, of the objective; of the model most pressed.",
            value=gate.pressure,
        )
        waited = HistogramMetricFamily(
            "prefixgate_admission_wait_seconds", "Time in the queue of requests that were sent.", labels=["class"]
        )
        for name, histogram in self._waited.items():
            waited.add_metric([name], histogram.buckets(), histogram.total)
        yield waited
        yield from self._errors()

    def _errors(self) -> Iterator[Metric]:
        error = GaugeMetricFamily(
            "prefixgate_predicted_ttft_error_ratio",
            "Mean absolute error of predicted times to first token, of what they were.",
            labels=["worker"],
        )
        below = GaugeMetricFamily(
            "prefixgate_predicted_ttft_coverage_ratio",
            "Share of times to first token that were below the predicted 90th percentile.",
            labels=["worker"],
        )
        for worker, latency in self._fleet.latencies():
            errors = latency.model.ttft_errors
            if errors.count:
                error.add_metric([worker.id], errors.mape)
                below.add_metric([worker.id], errors.coverage)
        yield error
        yield below
