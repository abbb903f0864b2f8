"""A registry of the gateway's own, and its text for Prometheus or OpenMetrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from gateway.telemetry.admission_metrics import AdmissionMetrics
from gateway.telemetry.gauges import GaugeCollector, Gauges
from gateway.telemetry.metrics import RequestMetrics
from gateway.telemetry.response_metrics import ResponseMetrics
from gateway.telemetry.semantic_metrics import SemanticMetrics
from gateway.telemetry.tenant_metrics import TenantMetrics

_END: Final = b"# EOF\n"
_SAMPLES_AT_ONCE: Final = 300
"""About a millisecond of the loop's time."""


def make_registry(
    gauges: Gauges,
    requests: RequestMetrics,
    *more: TenantMetrics | AdmissionMetrics | ResponseMetrics | SemanticMetrics,
) -> CollectorRegistry:
    """A registry with all there is to tell."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in (requests, *more):
        registry.register(collector)
    registry.register(GaugeCollector(gauges, requests))
    ProcessCollector(registry=registry)
    return registry


async def render(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """The metrics and their content type, as an `Accept` header wants them; Prometheus' text unless it says else.

    A large fleet has thousands of lines: others have their turn every few hundred.
    """
    encode, content_type = choose_encoder(accept)
    parts: list[bytes] = []
    ended = False
    for family in registry.collect():
        for at, part in enumerate(_parts(family)):
            text: bytes = encode(_Single(part))
            ended = ended or text.endswith(_END)
            parts.append(_without_head(text) if at else text.removesuffix(_END))
            await asyncio.sleep(0)
    return b"".join([*parts, _END] if ended else parts), content_type


def _parts(family: Metric) -> Iterator[Metric]:
    """The metric itself, or one of many samples piece by piece."""
    if len(family.samples) <= _SAMPLES_AT_ONCE:
        yield family
        return
    for start in range(0, len(family.samples), _SAMPLES_AT_ONCE):
        part = Metric(family.name, family.documentation, family.type, family.unit)
        part.samples = family.samples[start : start + _SAMPLES_AT_ONCE]
        yield part


def _without_head(text: bytes) -> bytes:
    """The samples alone: a label's line break is escaped, so none of theirs begins like a comment."""
    return b"".join(line + b"\n" for line in text.split(b"\n") if line and not line.startswith(b"#"))


class _Single(CollectorRegistry):
    """A registry of one metric, for the encoders."""

    def __init__(self, family: Metric) -> None:
        super().__init__(auto_describe=False)
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [self._family]
