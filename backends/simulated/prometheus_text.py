"""The metrics page, under vLLM's names. Pure."""

from __future__ import annotations

from bisect import bisect_left

from backends.simulated.engine import EngineConfig, EngineStats

_TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip


class Histogram:
    """Seconds, in vLLM's buckets for the time to the first token."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_TTFT_BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one value."""
        self._counts[bisect_left(_TTFT_BUCKETS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, labels: str) -> list[str]:
        """Cumulative buckets, sum and count."""
        total, lines = 0, []
        for bound, count in zip((*map(str, _TTFT_BUCKETS), "+Inf"), self._counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {total}')
        return [*lines, f"{name}_sum{{{labels}}} {self._sum}", f"{name}_count{{{labels}}} {total}"]


def render(config: EngineConfig, stats: EngineStats, *, model: str, ttft: Histogram, finished: int) -> str:
    """The page in Prometheus' text format."""
    escaped = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    labels = f'engine="0",model_name="{escaped}"'
    gauges = {
        "num_requests_running": stats.running,
        "num_requests_waiting": stats.waiting,
        "kv_cache_usage_perc": stats.kv_usage,
    }
    counters = {
        "prefix_cache_queries": stats.prefix_cache_queries,
        "prefix_cache_hits": stats.prefix_cache_hits,
        "num_preemptions": stats.preemptions,
        "prompt_tokens": stats.prompt_tokens,
        "generation_tokens": stats.generation_tokens,
        "request_success": finished,
    }
    lines: list[str] = []
    for name, value in gauges.items():
        lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{labels}}} {float(value)}"]
    for name, value in counters.items():
        lines += [f"# TYPE vllm:{name}_total counter", f"vllm:{name}_total{{{labels}}} {float(value)}"]
    sizes = f'block_size="{config.block_size}",num_gpu_blocks="{config.blocks}",enable_prefix_caching="True"'
    lines += ["# TYPE vllm:cache_config_info gauge", f'vllm:cache_config_info{{{sizes},engine="0"}} 1.0']
    name = "vllm:time_to_first_token_seconds"
    lines += [f"# TYPE {name} histogram", *ttft.lines(name, labels)]
    return "\n".join(lines) + "\n"
