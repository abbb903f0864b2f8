"""A registry of the gateway's own, and its text for Prometheus or OpenMetrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from gateway.telemetry.gauges import GaugeCollector, Gauges
from gateway.telemetry.metrics import RequestMetrics

_END: Final = b"# EOF\n"


def make_registry(gauges: Gauges, requests: RequestMetrics) -> CollectorRegistry:
    """A registry with all there is to tell."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(requests)
    registry.register(GaugeCollector(gauges, requests))
    ProcessCollector(registry=registry)
    return registry


async def render(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """The metrics and their content type, as an `Accept` header wants them; Prometheus' text unless it says else.

    A large fleet has thousands of lines: after each metric others have their turn.
    """
    encode, content_type = choose_encoder(accept)
    parts: list[bytes] = []
    ended = False
    for family in registry.collect():
        text: bytes = encode(_Single(family))
        ended = ended or text.endswith(_END)
        parts.append(text.removesuffix(_END))
        await asyncio.sleep(0)
    return b"".join([*parts, _END] if ended else parts), content_type


class _Single(CollectorRegistry):
    """A registry of one metric, for the encoders."""

    def __init__(self, family: Metric) -> None:
        super().__init__(auto_describe=False)
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [self._family]
