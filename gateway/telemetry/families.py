"""Counts as families of metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily


def counter(
    prefix: str, name: str, text: str, labels: Sequence[str], counts: Mapping[Any, float]
) -> CounterMetricFamily:
    """`counts` by a tuple with a value for each label."""
    family = CounterMetricFamily(f"{prefix}_{name}", text, labels=labels)
    for values, count in counts.items():
        family.add_metric(list(values), count)
    return family
