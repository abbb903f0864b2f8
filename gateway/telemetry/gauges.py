"""Metrics that are read when somebody asks: the fleet, the index, the feeds and what the gateway holds."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from backends.kv_subscriber import FeedStats
from backends.worker_status import Standing, WorkerStatus
from gateway import __version__
from policies.types import WorkerId

if TYPE_CHECKING:
    from gateway.telemetry.metrics import RequestMetrics

log = logging.getLogger(__name__)

_LIVE: Final = "live"


class TokenCache(Protocol):
    """Counts of a cache of tokenized prefixes; `cache.prompt_blocks.PromptBlockCache` is one."""

    hits: int
    misses: int
    reused_chars: int
    new_chars: int

    @property
    def bytes(self) -> int:
        """Bytes it holds."""


class SpanCountsView(Protocol):
    """Counters of the span export; `gateway.telemetry.span_export.SpanCounts` is one."""

    sent: int
    dropped: int
    failed: int


class SharingCountsView(Protocol):
    """How the sharing of limits goes; `gateway.shared_limits.SharingCounts` is one."""

    up: bool
    gateways: int
    exchanges: int
    errors: int


@dataclass(frozen=True, slots=True)
class Gauges:
    """Where the numbers come from. Each is called once a scrape, on the loop, and must be quick."""

    statuses: Callable[[], Sequence[WorkerStatus]]
    ready: Callable[[], tuple[bool, str]]
    in_flight: Callable[[], int]
    """Requests that have arrived and are not over."""
    client_connections: Callable[[], int]
    held_bytes: Callable[[], int]
    """Bytes of request bodies held."""
    index_blocks: Callable[[], int]
    """Entries of the index, of all workers."""
    kv_feeds: Callable[[], Iterable[tuple[WorkerId, FeedStats]]]
    """One for each feed: a worker with several data-parallel ranks is named several times."""
    ejections: Callable[[], Mapping[WorkerId, int]]
    """Times that each worker was put out."""
    token_caches: Callable[[], Mapping[str, TokenCache]]
    """By model."""
    spans: Callable[[], SpanCountsView | None] = lambda: None
    """None where no spans are made."""
    sharing: Callable[[], SharingCountsView | None] = lambda: None
    """None where limits are not shared."""


class GaugeCollector:
    """Reads the gauges. One that fails is left out, and the scrape goes on."""

    def __init__(self, gauges: Gauges, requests: RequestMetrics | None = None) -> None:
        """The series of `requests` for workers that have gone are dropped on the way."""
        self._gauges = gauges
        self._requests = requests
        self._failed: set[str] = set()
        self._errors = 0

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: the registry need not collect to know names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All gauges."""
        build = InfoMetricFamily("prefixgate_build", "The program.")
        build.add_metric([], {"version": __version__})
        yield build
        for source in (
            self._workers,
            self._ejections,
            self._feeds,
            self._gateway,
            self._caches,
            self._spans,
            self._sharing,
        ):
            yield from self._guarded(source)
        errors = CounterMetricFamily("prefixgate_scrape_errors", "Sources of metrics that failed when they were read.")
        errors.add_metric([], self._errors)
        yield errors

    def _guarded(self, source: Callable[[], Iterator[Metric]]) -> Iterator[Metric]:
        name = source.__name__
        try:
            yield from source()
        except Exception:
            self._errors += 1
            if name not in self._failed:
                log.exception("metrics of %s could not be read", name.strip("_"))
            self._failed.add(name)
        else:
            self._failed.discard(name)

    def _workers(self) -> Iterator[Metric]:
        statuses = self._gauges.statuses()
        if self._requests is not None:
            self._requests.forget_workers({status.id for status in statuses})
        standing = GaugeMetricFamily(
            "prefixgate_worker_standing", "1 for the standing that a worker has.", labels=["worker", "standing"]
        )
        for status in statuses:
            for one in Standing:
                standing.add_metric([status.id, one.value], float(status.standing is one))
        yield standing
        for name, help_text, read in _WORKER_GAUGES:
            family = GaugeMetricFamily(f"prefixgate_worker_{name}", help_text, labels=["worker"])
            for status in statuses:
                value = read(status)
                if value is not None:
                    family.add_metric([status.id], float(value))
            yield family

    def _ejections(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "prefixgate_worker_ejections", "Times that a worker was put out for its failures.", labels=["worker"]
        )
        for worker, count in self._gauges.ejections().items():
            family.add_metric([worker], count)
        yield family

    def _feeds(self) -> Iterator[Metric]:
        names = [field.name for field in dataclasses.fields(FeedStats)]
        totals: dict[WorkerId, list[int]] = {}
        for worker, stats in self._gauges.kv_feeds():
            known = totals.setdefault(worker, [0] * len(names))
            for at, name in enumerate(names):
                known[at] += getattr(stats, name)
        for at, name in enumerate(names):
            family = CounterMetricFamily(f"prefixgate_kv_feed_{name}", _FEED_HELP[name], labels=["worker"])
            for worker, counts in totals.items():
                family.add_metric([worker], counts[at])
            yield family

    def _gateway(self) -> Iterator[Metric]:
        gauges = self._gauges
        for name, help_text, value in (
            ("ready", "1 while the gateway takes requests and has a worker for them.", gauges.ready()[0]),
            ("requests_in_flight", "Requests that have arrived and are not over.", gauges.in_flight()),
            ("client_connections", "Open connections of clients.", gauges.client_connections()),
            ("held_bytes", "Bytes of request bodies held.", gauges.held_bytes()),
            ("index_blocks", "Entries of the prefix index, of all workers together.", gauges.index_blocks()),
        ):
            family = GaugeMetricFamily(f"prefixgate_{name}", help_text)
            family.add_metric([], float(value))
            yield family

    def _caches(self) -> Iterator[Metric]:
        caches = self._gauges.token_caches()
        size = GaugeMetricFamily("prefixgate_token_cache_bytes", "Bytes of tokenized prefixes held.", labels=["model"])
        for model, cache in caches.items():
            size.add_metric([model], cache.bytes)
        yield size
        for name, help_text in (
            ("hits", "Prompts that were wholly known."),
            ("misses", "Prompts with an unknown tail."),
            ("reused_chars", "Characters whose tokens were known."),
            ("new_chars", "Characters whose tokens were not known."),
        ):
            family = CounterMetricFamily(f"prefixgate_token_cache_{name}", help_text, labels=["model"])
            for model, cache in caches.items():
                family.add_metric([model], getattr(cache, name))
            yield family

    def _spans(self) -> Iterator[Metric]:
        counts = self._gauges.spans()
        if counts is None:
            return
        family = CounterMetricFamily("prefixgate_spans", "Spans, by what became of them.", labels=["result"])
        family.add_metric(["sent"], counts.sent)
        family.add_metric(["dropped"], counts.dropped)
        family.add_metric(["failed"], counts.failed)
        yield family

    def _sharing(self) -> Iterator[Metric]:
        counts = self._gauges.sharing()
        if counts is None:
            return
        for name, help_text, value in (
            ("up", "1 while the tenants' limits are shared with other gateways, 0 while Redis is away.", counts.up),
            ("gateways", "Gateways that share them, this one among them, as far as is known.", counts.gateways),
        ):
            gauge = GaugeMetricFamily(f"prefixgate_shared_limits_{name}", help_text)
            gauge.add_metric([], float(value))
            yield gauge
        for name, help_text, value in (
            ("exchanges", "Exchanges with Redis that succeeded.", counts.exchanges),
            ("errors", "Exchanges with Redis that failed.", counts.errors),
        ):
            counter = CounterMetricFamily(f"prefixgate_shared_limits_{name}", help_text)
            counter.add_metric([], value)
            yield counter


_WORKER_GAUGES: Final[Sequence[tuple[str, str, Callable[[WorkerStatus], float | None]]]] = (
    ("active_requests", "Requests of this gateway that are not over.", lambda status: status.active),
    ("queued_tokens", "Uncached prompt tokens that it has yet to prefill.", lambda status: status.queued_tokens),
    (
        "prefill_tokens_per_second",
        "Its prefill speed as learnt from its answers.",
        lambda status: status.prefill_tokens_per_s,
    ),
    ("index_blocks", "Blocks that the prefix index holds for it.", lambda status: status.blocks_known),
    ("kv_blocks", "Blocks that its KV cache has.", lambda status: status.kv_blocks),
    (
        "kv_feed_live",
        "1 while every KV event of it is known; missing where it publishes none.",
        lambda status: None if status.kv_feed is None else float(status.kv_feed == _LIVE),
    ),
    ("connections", "Open connections to it.", lambda status: status.connections),
    ("weight", "Its share of the work beside the others'.", lambda status: status.weight),
    ("running_requests", "Requests that it is running, by its own metrics.", lambda status: status.running),
    ("waiting_requests", "Requests that wait in it, by its own metrics.", lambda status: status.waiting),
    ("kv_used_ratio", "Part of its KV cache in use, by its own metrics.", lambda status: status.kv_used),
)

_FEED_HELP: Final[Mapping[str, str]] = {
    "batches": "Batches of KV events applied.",
    "events": "KV events applied.",
    "skipped_events": "KV events in good batches that could not be understood.",
    "malformed": "Messages or payloads that could not be understood.",
    "duplicates": "Batches that had come before.",
    "gaps": "Times that batches were missing.",
    "restarts": "Times that the engine turned out to be another one.",
    "replays": "Times that missing batches were asked for.",
    "replayed_batches": "Batches that came that way.",
    "forgotten": "Times that everything known was forgotten.",
}
