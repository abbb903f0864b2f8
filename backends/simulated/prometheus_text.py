"""The metrics page, under vLLM's names or SGLang's. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from backends.engine_api.prometheus_text import Histogram, escaped, sample_lines
from backends.simulated.engine import EngineConfig, EngineStats
from policies.restore_route import TierPrice

_ROUND_TRIP: Final = "prefixgate:kv_tier_round_trip_seconds"
_PER_TOKEN: Final = "prefixgate:kv_tier_seconds_per_token"  # noqa: S105 - a tier's price


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


def tier_lines(prices: Sequence[TierPrice]) -> list[str]:
    """What restoring takes, for each tier, under the gateway's own names."""
    round_trips: list[str] = []
    per_token: list[str] = []
    for price in prices:
        labels = f'{{tier="{price.tier.value}",store="{escaped(price.store)}"}}'
        round_trips.append(f"{_ROUND_TRIP}{labels} {price.round_trip_s!r}")
        per_token.append(f"{_PER_TOKEN}{labels} {price.s_per_token!r}")
    if not prices:
        return []
    return [f"# TYPE {_ROUND_TRIP} gauge", *round_trips, f"# TYPE {_PER_TOKEN} gauge", *per_token]


def _page(lines: list[str], name: str, ttft: Histogram, labels: str) -> str:
    return "\n".join([*lines, *ttft.lines(name, labels)]) + "\n"
