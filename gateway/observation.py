"""Who is told of requests that are over: metrics, drift, the list of recent ones, access lines, spans."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

from backends.fleet_state import FleetState
from gateway.admin.recent import RecentRequests
from gateway.background import BackgroundTasks, cancelled
from gateway.cache_drift import CacheDrift
from gateway.config import Config
from gateway.config_change import same_collector
from gateway.pipeline import RequestPipeline
from gateway.request_record import Observer
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.admission_metrics import AdmissionMetrics
from gateway.telemetry.metrics import RequestMetrics
from gateway.telemetry.response_metrics import ResponseMetrics
from gateway.telemetry.span_export import SpanExport
from gateway.telemetry.tenant_metrics import TenantMetrics
from gateway.telemetry.trace_context import trace_of
from gateway.tenancy import Tenant


class Observation:
    """The observers that a configuration wants, and the task that sends spans."""

    def __init__(
        self, config: Config, pipeline: RequestPipeline, state: FleetState, background: BackgroundTasks
    ) -> None:
        """The pipeline has its caches and its gate already."""
        self.drift = CacheDrift(lambda worker: state.worker(worker).block_size)
        self.requests = RequestMetrics(self.drift)
        self.tenants = TenantMetrics(self._tenants)
        self.admission = AdmissionMetrics(lambda: pipeline.gate, state)
        self.responses = ResponseMetrics(lambda: pipeline.responses)
        self.recent = RecentRequests(config.admin.requests_kept)
        self.spans: SpanExport | None = None
        self._sending: asyncio.Task[None] | None = None
        self._config = config
        self._pipeline = pipeline
        self._background = background
        self._loop = asyncio.get_running_loop()
        self.configure(config, self._exporter(config))

    def exporter(self, config: Config) -> SpanExport | None:
        """What is to send spans; the one that does, where they go to the same collector. Nothing is changed."""
        return self.spans if same_collector(self._config, config) else self._exporter(config)

    def _exporter(self, config: Config) -> SpanExport | None:
        return None if config.telemetry.endpoint is None else SpanExport(config.telemetry, loop_time=self._loop.time)

    def configure(self, config: Config, spans: SpanExport | None) -> None:
        """Take up another configuration, and what `exporter` has made for it."""
        self._config = config
        if spans is not self.spans:
            if self.spans is not None:
                self._background.start(_last_spans(self.spans, self._sending), "the last spans")
            self.spans, self._sending = spans, None
        if self.spans is not None and self._sending is None:
            self._sending = self._background.start(self.spans.run(), "spans")
        self.recent.keep(config.admin.requests_kept)
        sample = config.telemetry.sample
        new_id = random.Random().randbytes  # noqa: S311 - ids are to be unique, not secret
        self._pipeline.trace = None if self.spans is None else lambda given: trace_of(given, new_id, sample)
        self._pipeline.observers = tuple(self._observers(config))

    def _observers(self, config: Config) -> list[Observer]:
        observers: list[Observer] = [self.requests, self.drift]
        if config.admin.requests_kept:
            observers.append(self.recent)
        if config.tenants.members:
            observers.append(self.tenants)
        if self._pipeline.gate is not None:
            observers.append(self.admission)
        if self._pipeline.responses is not None:
            observers.append(self.responses)
        if config.log.access:
            observers.append(AccessLog())
        if self.spans is not None:
            observers.append(self.spans)
        return observers

    def _tenants(self) -> Mapping[str, Tenant]:
        tenancy = self._pipeline.tenancy
        return {} if tenancy is None else tenancy.tenants


async def _last_spans(spans: SpanExport, sending: asyncio.Task[None] | None) -> None:
    """The configuration names another collector, or none: what waits goes where it was meant to go."""
    if sending is not None:
        await cancelled([sending])
    await spans.close()
