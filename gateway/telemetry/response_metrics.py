"""Metrics of the response cache: what it answered, what it could not, and what its stores hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.telemetry.families import counter

if TYPE_CHECKING:
    from gateway.request_record import RequestRecord
    from gateway.response_caching import ResponseCaching

_counter = partial(counter, "prefixgate_response_cache")


class ResponseMetrics:
    """Counts the requests that the cache was asked about; registered with a registry it tells what it counted."""

    def __init__(self, caching: Callable[[], ResponseCaching | None]) -> None:
        """`caching` is the one in force."""
        self._caching = caching
        self._results: Counter[tuple[str, str]] = Counter()

    def finished(self, record: RequestRecord) -> None:
        """Count one request."""
        if record.cache:
            self._results[record.kind, record.cache] += 1

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: the registry need not collect to know names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics of the response cache; none where no answers are kept."""
        caching = self._caching()
        if caching is None:
            return
        yield _counter("requests", "Requests by what the cache had for them.", ["route", "result"], self._results)
        reasons = {(reason,): count for reason, count in caching.refusals.items()}
        yield _counter("refusals", "Requests not looked up and answers not kept, by why.", ["reason"], reasons)
        yield _counter("coalesced", "Requests answered by another's call.", [], {(): caching.flights.coalesced})
        yield _counter("refreshes", "Stale answers that were fetched anew.", [], {(): caching.refreshed})
        yield _counter("saved_tokens", "Tokens of the answers that it gave.", [], {(): caching.saved_tokens})
        events = {tuple(name.split(": ")): count for name, count in caching.cache.counts().items() if ": " in name}
        yield _counter("events", "What has happened in its stores.", ["event", "tier"], events)
        waiting = caching.flights.table.waiting
        yield GaugeMetricFamily("prefixgate_response_cache_waiting", "Requests that wait for another's.", value=waiting)
        stats = caching.cache.memory_stats()
        yield GaugeMetricFamily("prefixgate_response_cache_entries", "Answers in memory.", value=stats.entries)
        yield GaugeMetricFamily("prefixgate_response_cache_bytes", "Bytes of memory they take.", value=stats.bytes)
