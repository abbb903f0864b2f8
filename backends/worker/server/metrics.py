"""The metrics page of a worker, under vLLM's names. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Final

from backends.engine_api.prometheus_text import Histogram, escaped, sample_lines
from backends.worker.messages import EngineStats, FinishReason, Ready

_ITL_BUCKETS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_E2E_BUCKETS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip

_TIER_GAUGES: Final = {
    "kv_tier_round_trip_seconds": "round_trip",
    "kv_tier_seconds_per_token": "seconds_per_token",
    "kv_tier_entries": "entries",
    "kv_tier_bytes": "bytes",
    "kv_tier_capacity_bytes": "capacity",
}


class WorkerMetrics:
    """What the server measures; the engine's own counters come with `EngineStats`."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.ttft = Histogram()
        self.inter_token = Histogram(_ITL_BUCKETS)
        self.e2e = Histogram(_E2E_BUCKETS)
        self.finished: Counter[FinishReason] = Counter()
        """Sequences by how they ended; `abort` is a client that left, or an error."""

    def page(self, ready: Ready, stats: EngineStats, *, prefix_caching: bool) -> str:
        """The page in Prometheus' text format."""
        labels = f'engine="0",model_name="{escaped(self._model)}"'
        gauges = {
            "num_requests_running": stats.running,
            "num_requests_waiting": stats.waiting,
            "kv_cache_usage_perc": 1.0 - stats.free_blocks / ready.blocks if ready.blocks else 0.0,
        }
        counters = {
            "prefix_cache_queries": stats.prompt_tokens,
            "prefix_cache_hits": stats.cached_tokens,
            "external_prefix_cache_hits": stats.restored_tokens,
            "num_preemptions": stats.preemptions,
            "prompt_tokens": stats.prompt_tokens,
            "generation_tokens": stats.generation_tokens,
        }
        lines = sample_lines("vllm", gauges, counters, labels)
        lines.append("# TYPE vllm:request_success_total counter")
        lines += [
            f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {float(self.finished[reason])}'
            for reason in FinishReason
        ]
        sizes = (
            f'block_size="{ready.block_size}",num_gpu_blocks="{ready.blocks}",'
            f'enable_prefix_caching="{prefix_caching}",engine="0"'
        )
        lines += ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{sizes}}} 1.0"]
        lines += _tier_lines(stats)
        lines += self.ttft.lines("vllm:time_to_first_token_seconds", labels)
        # The older name beside the newer one: dashboards know either.
        lines += self.inter_token.lines("vllm:time_per_output_token_seconds", labels)
        lines += self.inter_token.lines("vllm:inter_token_latency_seconds", labels)
        lines += self.e2e.lines("vllm:e2e_request_latency_seconds", labels)
        return "\n".join(lines) + "\n"


def _tier_lines(stats: EngineStats) -> list[str]:
    """Of KV beyond the pool, under names of our own. A router can tell from the first two what a restore costs."""
    lines: list[str] = []
    for name, field in _TIER_GAUGES.items():
        if stats.tiers:
            lines.append(f"# TYPE prefixgate:{name} gauge")
        for tier in stats.tiers:
            labels = f'tier="{escaped(tier.tier)}",store="{escaped(tier.store)}"'
            lines.append(f"prefixgate:{name}{{{labels}}} {float(getattr(tier, field))}")
    if stats.tiers:
        lines.append("# TYPE prefixgate:kv_tier_expired_total counter")
    for tier in stats.tiers:
        labels = f'tier="{escaped(tier.tier)}",store="{escaped(tier.store)}"'
        lines.append(f"prefixgate:kv_tier_expired_total{{{labels}}} {float(tier.expired)}")
    if stats.tiers:
        lines.append("# TYPE prefixgate:kv_events_total counter")
    for what, count in sorted(stats.kv_counts.items()):
        lines.append(f'prefixgate:kv_events_total{{what="{escaped(what)}"}} {float(count)}')
    return lines
