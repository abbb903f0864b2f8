"""Gauges over numbers that a test sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from backends.kv_subscriber import FeedStats
from backends.worker_status import Standing, WorkerStatus
from gateway.shared_limits import SharingCounts
from gateway.telemetry.gauges import Gauges, SpanCountsView, TokenCache
from policies.types import WorkerId


def status(name: str = "w1", standing: Standing = Standing.READY, **changes: object) -> WorkerStatus:
    fields: dict[str, object] = {
        "id": WorkerId(name), "url": f"http://{name}:8000", "source": "config", "standing": standing, "models": ("m",),
        "weight": 1.0, "active": 2, "served": 10, "queued_tokens": 70.5, "prefill_tokens_per_s": 8000.0,
        "block_size": 16, "kv_blocks": 1000, "blocks_known": 321, "kv_feed": "live", "running": 2, "waiting": 0,
        "kv_used": 0.25, "connections": 4, "out_for": None, **changes,
    }  # fmt: skip
    return WorkerStatus(**fields)  # type: ignore[arg-type]  # the fields' own types, or a test's mistake


@dataclass
class SpanCounts:
    sent: int = 5
    dropped: int = 1
    failed: int = 2


@dataclass
class CacheCounts:
    hits: int = 3
    misses: int = 4
    reused_chars: int = 500
    new_chars: int = 60
    bytes: int = 7000


@dataclass
class Numbers:
    """What there is to read."""

    statuses: list[WorkerStatus] = field(default_factory=lambda: [status()])
    feeds: list[tuple[WorkerId, FeedStats]] = field(default_factory=lambda: [(WorkerId("w1"), FeedStats(batches=3))])
    ejections: dict[WorkerId, int] = field(default_factory=lambda: {WorkerId("w1"): 1})
    ready: tuple[bool, str] = (True, "")
    spans: SpanCounts | None = field(default_factory=SpanCounts)

    def gauges(self) -> Gauges:
        caches: Mapping[str, TokenCache] = {"m": CacheCounts()}

        def spans() -> SpanCountsView | None:
            return self.spans

        return Gauges(
            statuses=lambda: self.statuses,
            ready=lambda: self.ready,
            in_flight=lambda: 2,
            client_connections=lambda: 9,
            held_bytes=lambda: 12345,
            index_blocks=lambda: 321,
            kv_feeds=lambda: self.feeds,
            ejections=lambda: self.ejections,
            token_caches=lambda: caches,
            spans=spans,
            sharing=lambda: SharingCounts(up=True, gateways=3, exchanges=70, errors=2),
        )
