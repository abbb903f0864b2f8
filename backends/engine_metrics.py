"""The load of a worker, read from its Prometheus page. Pure.

Sources of the names: vLLM `v1/metrics/loggers.py`, SGLang `srt/metrics/collector.py`, TensorRT-LLM
`tensorrt_llm/metrics/collector.py`; the format is Prometheus' text format 0.0.4 or OpenMetrics.

A page may tell of several engines (data-parallel ranks): what they have is added up, the share in use is averaged.
SGLang may show every rank of one engine, or a series for each priority beside their sum: these say the same thing
several times, and are counted once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, auto
from math import isfinite
from typing import Final

from policies.restore_route import LONGEST_STORE, TierPrice
from policies.types import Tier

PAGE_LIMIT: Final = 4 << 20
"""Bytes of a page that are read; what comes behind is left out."""
_LARGEST: Final = float(1 << 53)
_Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What a worker tells of itself; None for what it does not tell."""

    running: int | None = None
    """Requests in its batch."""
    waiting: int | None = None
    """Requests in its queue."""
    kv_used: float | None = None
    """Share of the KV cache in use, from 0 to 1."""
    block_size: int | None = None
    """Tokens per block."""
    kv_blocks: int | None = None
    """Blocks its KV cache holds, over all ranks."""
    prefix_queries: int | None = None
    """Prompt tokens looked up in its prefix cache since it started..."""
    prefix_hits: int | None = None
    """...and those found there."""
    prompt_tokens: int | None = None
    """Prompt tokens since it started."""
    generation_tokens: int | None = None
    """Tokens it has made since it started: while this grows, it is at work."""
    tiers: tuple[TierPrice, ...] = ()
    """What it takes to restore from its tiers, the fastest first and at most one of each kind; only those of which both
    numbers are told and can be."""

    @property
    def tells(self) -> bool:
        """Was anything known found on the page?"""
        return any(getattr(self, each.name) not in (None, ()) for each in fields(self))

    @property
    def kv_tokens(self) -> int | None:
        """Tokens its KV cache holds, where both numbers are told."""
        return self.kv_blocks * self.block_size if self.kv_blocks and self.block_size else None

    def blocks_of(self, block_size: int) -> int | None:
        """Its capacity in blocks of another size, as an index needs it; None where it is not told."""
        tokens = self.kv_tokens
        return None if tokens is None else tokens // block_size


class _What(Enum):
    """What a series tells. Several names may mean the same."""

    RUNNING = auto()
    WAITING = auto()
    KV_USED = auto()
    BLOCK_SIZE = auto()
    BLOCKS = auto()
    TOKENS = auto()
    CONFIG = auto()
    QUERIES = auto()
    HITS = auto()
    PROMPT = auto()
    GENERATED = auto()
    ROUND_TRIP = auto()
    PER_TOKEN = auto()


_NAMES: Final[Mapping[bytes, _What]] = {
    b"vllm:num_requests_running": _What.RUNNING,
    b"vllm:num_requests_waiting": _What.WAITING,
    b"vllm:kv_cache_usage_perc": _What.KV_USED,
    b"vllm:gpu_cache_usage_perc": _What.KV_USED,
    b"vllm:cache_config_info": _What.CONFIG,
    b"vllm:prefix_cache_queries": _What.QUERIES,
    b"vllm:prefix_cache_queries_total": _What.QUERIES,
    b"vllm:gpu_prefix_cache_queries": _What.QUERIES,
    b"vllm:gpu_prefix_cache_queries_total": _What.QUERIES,
    b"vllm:prefix_cache_hits": _What.HITS,
    b"vllm:prefix_cache_hits_total": _What.HITS,
    b"vllm:gpu_prefix_cache_hits": _What.HITS,
    b"vllm:gpu_prefix_cache_hits_total": _What.HITS,
    b"vllm:prompt_tokens": _What.PROMPT,
    b"vllm:prompt_tokens_total": _What.PROMPT,
    b"vllm:generation_tokens": _What.GENERATED,
    b"vllm:generation_tokens_total": _What.GENERATED,
    b"sglang:num_running_reqs": _What.RUNNING,
    b"sglang:num_queue_reqs": _What.WAITING,
    b"sglang:token_usage": _What.KV_USED,
    b"sglang:max_total_num_tokens": _What.TOKENS,
    b"sglang:page_size": _What.BLOCK_SIZE,
    b"sglang:num_pages": _What.BLOCKS,
    b"sglang:cache_config_info": _What.CONFIG,
    b"sglang:cached_tokens_total": _What.HITS,
    b"sglang:prompt_tokens_total": _What.PROMPT,
    b"sglang:generation_tokens_total": _What.GENERATED,
    b"trtllm_num_requests_running": _What.RUNNING,
    b"trtllm_num_requests_waiting": _What.WAITING,
    b"trtllm_kv_cache_utilization": _What.KV_USED,
    b"trtllm_kv_cache_max_blocks": _What.BLOCKS,
    b"trtllm_kv_cache_tokens_per_block": _What.BLOCK_SIZE,
    b"trtllm_prompt_cached_tokens_total": _What.HITS,
    b"trtllm_prompt_tokens_total": _What.PROMPT,
    b"trtllm_generation_tokens_total": _What.GENERATED,
    b"prefixgate:kv_tier_round_trip_seconds": _What.ROUND_TRIP,
    b"prefixgate:kv_tier_seconds_per_token": _What.PER_TOKEN,
}
_FAMILIES: Final = (b"vllm:", b"sglang:", b"trtllm_", b"prefixgate:kv_tier_")
_TIERS: Final = (_What.ROUND_TRIP, _What.PER_TOKEN)
_KINDS: Final = {tier.value: tier for tier in Tier if tier is not Tier.DEVICE}
_SAME_ENGINE: Final = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "moe_dp_rank", "attn_tp_rank", "pid"})
"""Labels by which series of one engine differ that all tell the same."""
_RANKS: Final = ("engine", "dp_rank")


@dataclass(slots=True)
class _Page:
    """Values by what they tell and by the labels that tell engines apart."""

    values: dict[tuple[bytes, _What], dict[object, float]] = field(default_factory=dict)
    tiers: dict[tuple[_What, Tier], float] = field(default_factory=dict)
    stores: dict[Tier, str] = field(default_factory=dict)

    def add(self, name: bytes, what: _What, labels: _Labels, value: float) -> None:
        if labels.get("priority"):
            return  # its sum over all priorities has this label empty, or not at all
        if what is _What.CONFIG:
            self._add_config(labels)
            return
        if what in _TIERS:
            self._add_tier(what, labels, value)
            return
        apart = frozenset(item for item in labels.items() if item[0] not in _SAME_ENGINE)
        self._put(name, what, apart, value)

    def _add_config(self, labels: _Labels) -> None:
        rank = tuple(labels.get(label) for label in _RANKS)
        for what, label in (
            (_What.BLOCK_SIZE, "block_size"),
            (_What.BLOCK_SIZE, "page_size"),
            (_What.BLOCKS, "num_gpu_blocks"),
            (_What.BLOCKS, "num_pages"),
        ):
            text = labels.get(label, "")
            # Not before the engine has measured its memory: until then it says "None".
            if text.isascii() and text.isdigit() and len(text) < 16:
                self._put(b"config", what, rank, float(text))

    def _add_tier(self, what: _What, labels: _Labels, value: float) -> None:
        """Of several ranks the slowest counts; ranks that name different stores share none of them as one worker."""
        tier = _KINDS.get(labels.get("tier", ""))
        if tier is None:
            return
        store = labels.get("store", "")
        if len(store) > LONGEST_STORE or self.stores.setdefault(tier, store) != store:
            self.stores[tier] = ""
        self.tiers[what, tier] = max(value, self.tiers.get((what, tier), 0.0))

    def _prices(self) -> tuple[TierPrice, ...]:
        told = [
            TierPrice(tier, self.tiers[_What.ROUND_TRIP, tier], self.tiers[_What.PER_TOKEN, tier], store)
            for tier in _KINDS.values()
            if (store := self.stores.get(tier)) is not None and all((what, tier) in self.tiers for what in _TIERS)
        ]
        return tuple(price for price in told if price.credible)

    def _put(self, name: bytes, what: _What, apart: object, value: float) -> None:
        seen = self.values.setdefault((name, what), {})
        seen[apart] = max(value, seen.get(apart, 0.0))

    def of(self, what: _What) -> list[float]:
        """The values of the first name that tells this; an old and a new name may stand side by side."""
        return next((list(seen.values()) for (_, told), seen in self.values.items() if told is what), [])

    def total(self, what: _What) -> int | None:
        values = self.of(what)
        return int(sum(values)) if values else None

    def load(self) -> EngineLoad:
        used = self.of(_What.KV_USED)
        block_size = int(max(self.of(_What.BLOCK_SIZE), default=0.0)) or None
        blocks = self.total(_What.BLOCKS)
        tokens = self.total(_What.TOKENS)
        if blocks is None and tokens is not None and block_size is not None:
            blocks = tokens // block_size
        prompt = self.total(_What.PROMPT)
        queries, hits = self.total(_What.QUERIES), self.total(_What.HITS)
        if queries is None and hits is not None:
            queries = prompt  # engines without a count of their own look every prompt up
        return EngineLoad(
            running=self.total(_What.RUNNING),
            waiting=self.total(_What.WAITING),
            kv_used=min(sum(used) / len(used), 1.0) if used else None,
            block_size=block_size,
            kv_blocks=blocks or None,
            prefix_queries=queries,
            prefix_hits=hits,
            prompt_tokens=prompt,
            generation_tokens=self.total(_What.GENERATED),
            tiers=self._prices(),
        )


def read_load(page: bytes) -> EngineLoad:
    """The load that a page tells. Never raises: a line that cannot be read is skipped, and so is NaN."""
    found = _Page()
    if len(page) > PAGE_LIMIT:
        page = page[: page.rfind(b"\n", 0, PAGE_LIMIT) + 1]  # of a line cut in two, the number would be another
    for line in page.split(b"\n"):
        if not line.startswith(_FAMILIES):
            continue
        name = line.partition(b"{")[0].split(maxsplit=1)[0]
        what = _NAMES.get(name)
        if what is None:
            continue
        sample = _sample(line, len(name))
        if sample is not None:
            found.add(name, what, *sample)
    return found.load()


def _sample(line: bytes, at: int) -> tuple[_Labels, float] | None:
    """Labels and value of a line whose name ends at `at`; None where it is not in order."""
    labels: dict[str, str] = {}
    rest = line[at:].lstrip()
    if rest.startswith(b"{"):
        end = _read_labels(rest, labels)
        if end < 0:
            return None
        rest = rest[end:]
    words = rest.split(maxsplit=1)  # behind the value: a time, an exemplar
    try:
        value = float(words[0])
    except (IndexError, ValueError):
        return None
    return (labels, value) if isfinite(value) and 0 <= value <= _LARGEST else None


def _read_labels(text: bytes, labels: dict[str, str]) -> int:
    """Read `{name="value",…}` into `labels`; the place behind it, or -1. Each byte is looked at a few times at most."""
    at = 1
    while True:
        equals = text.find(b'="', at)
        closing = text.find(b"}", at, equals if equals >= 0 else len(text))
        if closing >= 0:
            return closing + 1
        if equals < 0:
            return -1
        start = equals + 2
        end = _closing_quote(text, start)
        if end < 0:
            return -1
        name = text[at:equals].strip(b" ,\t").decode("ascii", "replace")
        labels[name] = text[start:end].decode("utf-8", "replace")
        at = end + 1


def _closing_quote(text: bytes, start: int) -> int:
    """The first quote from `start` on that no backslash escapes, or -1."""
    end = text.find(b'"', start)
    while end >= 0:
        run = end
        while run > start and text[run - 1] == ord("\\"):
            run -= 1
        if (end - run) % 2 == 0:
            return end
        start, end = end + 1, text.find(b'"', end + 1)
    return -1
