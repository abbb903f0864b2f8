"""The metrics page, under vLLM's names or SGLang's. Pure."""

from __future__ import annotations

from enum import StrEnum

from backends.engine_api.prometheus_text import Histogram, escaped, sample_lines
from backends.simulated.engine import EngineConfig, EngineStats


class Flavour(StrEnum):
    """Whose names the page has."""

    VLLM = "vllm"
    SGLANG = "sglang"


class Throughput:
    """Generated tokens in a second, between two looks at the page."""

    def __init__(self, now: float) -> None:
        self._at = now
        self._tokens = 0

    def look(self, now: float, tokens: int) -> float:
        """The rate since the last look; `tokens` is the total by now."""
        seconds, made = now - self._at, tokens - self._tokens
        self._at, self._tokens = now, tokens
        return made / seconds if seconds > 0 else 0.0


def render(config: EngineConfig, stats: EngineStats, *, model: str, ttft: Histogram, finished: int) -> str:
    """The page in Prometheus' text format, as vLLM has it."""
    labels = f'engine="0",model_name="{escaped(model)}"'
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
    lines = sample_lines("vllm", gauges, counters, labels)
    sizes = f'block_size="{config.block_size}",num_gpu_blocks="{config.blocks}",enable_prefix_caching="True"'
    lines += ["# TYPE vllm:cache_config_info gauge", f'vllm:cache_config_info{{{sizes},engine="0"}} 1.0']
    return _page(lines, "vllm:time_to_first_token_seconds", ttft, labels)


def render_sglang(
    config: EngineConfig, stats: EngineStats, *, model: str, ttft: Histogram, finished: int, gen_throughput: float
) -> str:
    """The page as SGLang has it. Source: its `metrics/collector.py` and documentation of production metrics.

    Used tokens are those of blocks in use; cached ones that nobody uses could be evicted, and do not count.
    """
    labels = f'engine_type="unified",model_name="{escaped(model)}",pp_rank="0",tp_rank="0"'
    tokens = config.blocks * config.block_size
    gauges = {
        "num_running_reqs": stats.running,
        "num_queue_reqs": stats.waiting,
        "num_used_tokens": round(stats.kv_usage * tokens),
        "token_usage": stats.kv_usage,
        "cache_hit_rate": stats.prefix_cache_hits / max(1, stats.prefix_cache_queries),
        "gen_throughput": gen_throughput,
        "max_total_num_tokens": tokens,
    }
    counters = {
        "prompt_tokens": stats.prompt_tokens,
        "generation_tokens": stats.generation_tokens,
        "cached_tokens": stats.prefix_cache_hits,
        "num_requests": finished,
    }
    return _page(sample_lines("sglang", gauges, counters, labels), "sglang:time_to_first_token_seconds", ttft, labels)


def _page(lines: list[str], name: str, ttft: Histogram, labels: str) -> str:
    return "\n".join([*lines, *ttft.lines(name, labels)]) + "\n"
