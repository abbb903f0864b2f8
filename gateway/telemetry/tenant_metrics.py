"""Metrics of tenants: an observer that counts, and a collector that tells Prometheus.

The label is a name out of the configuration, so there are as many as it has tenants. What shows no key of one is not
counted here; as a request that was answered 4xx it is among all requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.request_record import Outcome

if TYPE_CHECKING:
    from gateway.request_record import RequestRecord
    from gateway.tenancy import Tenant

_REFUSALS: Final = frozenset({"path_not_allowed", "model_not_allowed", "limit_exceeded", "rate_limit_exceeded"})
"""Codes of the errors by which a tenant is told that it may not."""


class _Counts:
    """Of one tenant."""

    __slots__ = ("cached", "charged", "completion", "prompt", "refusals", "requests")

    def __init__(self) -> None:
        self.requests: dict[tuple[Outcome, int], int] = {}
        self.refusals: dict[str, int] = {}
        self.prompt = 0
        self.cached = 0
        self.completion = 0
        self.charged = 0


class TenantMetrics:
    """Counts the finished requests of tenants; registered with a registry it tells what it counted."""

    def __init__(self, tenants: Callable[[], Mapping[str, Tenant]]) -> None:
        """`tenants` are those in force, by name. Series of others are dropped when somebody asks."""
        self._tenants = tenants
        self._counts: dict[str, _Counts] = {}

    def finished(self, record: RequestRecord) -> None:
        """Count one request."""
        name = record.tenant
        if not name:
            return
        counts = self._counts.get(name)
        if counts is None:
            counts = self._counts[name] = _Counts()
        key = (record.outcome, record.status // 100)
        counts.requests[key] = counts.requests.get(key, 0) + 1
        if not record.attempts:
            if record.error in _REFUSALS:
                counts.refusals[record.error] = counts.refusals.get(record.error, 0) + 1
            return
        usage = record.usage
        counts.prompt += record.prompt_tokens if usage.prompt is None else usage.prompt
        counts.cached += usage.cached or 0
        counts.completion += usage.completion or 0
        counts.charged += record.charged_tokens

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: the registry need not collect to know names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics of tenants; none where there are none."""
        tenants = self._tenants()
        for name in [name for name in self._counts if name not in tenants]:
            del self._counts[name]
        if not tenants:
            return
        requests = CounterMetricFamily(
            "prefixgate_tenant_requests",
            "Requests of a tenant that are over, by outcome and class of the status.",
            labels=["tenant", "outcome", "status"],
        )
        refusals = CounterMetricFamily(
            "prefixgate_tenant_refusals",
            "Requests that a tenant may not make, or not now, by the error's code.",
            labels=["tenant", "code"],
        )
        for name, counts in self._counts.items():
            for (outcome, hundreds), count in counts.requests.items():
                requests.add_metric([name, outcome.value, f"{hundreds}xx" if hundreds else "none"], count)
            for code, count in counts.refusals.items():
                refusals.add_metric([name, code], count)
        yield requests
        yield refusals
        yield from self._tokens()
        running = GaugeMetricFamily(
            "prefixgate_tenant_requests_in_flight", "Requests of a tenant that are not over.", labels=["tenant"]
        )
        for name, tenant in tenants.items():
            running.add_metric([name], tenant.limiter.running)
        yield running

    def _tokens(self) -> Iterator[Metric]:
        for name, help_text, attribute in (
            ("prompt", "Prompt tokens of a tenant, as reported, else as counted or guessed.", "prompt"),
            ("cached", "Of these, what the workers said they held.", "cached"),
            ("completion", "Output tokens of a tenant, as reported.", "completion"),
            ("charged", "Tokens charged against the rates of a tenant.", "charged"),
        ):
            family = CounterMetricFamily(f"prefixgate_tenant_{name}_tokens", help_text, labels=["tenant"])
            for tenant, counts in self._counts.items():
                family.add_metric([tenant], getattr(counts, attribute))
            yield family
