"""Metrics of the semantic cache: what it found, what it learnt, what it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.telemetry.families import counter

if TYPE_CHECKING:
    from gateway.semantic_caching import SemanticCaching

_counter = partial(counter, "prefixgate_semantic")


class SemanticMetrics:
    """Registered with a registry it tells what was counted."""

    def __init__(self, caching: Callable[[], SemanticCaching | None]) -> None:
        """`caching` is the one in force."""
        self._caching = caching

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: the registry need not collect to know names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics of the semantic cache; none where it is off."""
        caching = self._caching()
        if caching is None:
            return
        yield _counter("lookups", "Questions looked up, by what came of it.", ["result"], _by_one(caching.lookups))
        yield _counter("refusals", "Requests that are not looked up, by why.", ["reason"], _by_one(caching.refusals))
        guards = _by_one(caching.questions.refusals)
        yield _counter("guard_refusals", "Similar questions that a guard refused.", ["guard"], guards)
        yield _counter("labels", "Comparisons of answers.", ["source", "label"], dict(caching.labels))
        yield _counter("changes", "Times that what was known no longer held.", [], {(): caching.changes})
        index = caching.questions.stats()
        yield _gauge("entries", "Questions in the index.", index.entries)
        yield _gauge("bytes", "Bytes of memory they take.", index.bytes)
        yield _gauge("file_bytes", "Bytes of their file.", index.file_bytes)
        yield _counter("evictions", "Questions that made room for others.", [], {(): index.evictions})
        yield _gauge("waiting", "What waits for the thread that searches.", caching.questions.waiting)
        embedding = caching.batcher.stats()
        yield _counter("embedded", "Texts embedded.", [], {(): embedding.texts})
        yield _counter("embedding_seconds", "Time in the embedder.", [], {(): embedding.seconds})
        misses = _by_one(embedding.misses)
        yield _counter("embedding_misses", "Texts without a vector, by why.", ["reason"], misses)


def _by_one(counts: Mapping[Any, float]) -> dict[tuple[str], float]:
    return {(str(label),): count for label, count in counts.items()}


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"prefixgate_semantic_{name}", text, value=value)
