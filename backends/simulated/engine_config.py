"""What a simulated engine is made with and what it tells: sizes, counters, refusals. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from backends.simulated.block_pool import PoolEvent
from backends.simulated.kv_tiers import TierConfig
from backends.simulated.sequence import SimRequest
from backends.simulated.timing import PublishedTiming, StepTiming


class RequestTooLongError(ValueError):
    """Prompt and answer together do not fit into the context."""

    def __init__(self, request: SimRequest, limit: int) -> None:
        super().__init__(f"{request.n_tokens} + {request.max_tokens} tokens do not fit into {limit}")
        self.limit = limit


class QueueFullError(RuntimeError):
    """The bounded waiting queue has no place left."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes and speed of one engine. `speed` 10 lives ten seconds in one."""

    blocks: int = 16_384
    block_size: int = 16
    max_num_seqs: int = 256
    max_batched_tokens: int = 8_192
    max_model_len: int = 32_768
    max_waiting: int | None = None
    timing: StepTiming = field(default_factory=PublishedTiming)
    speed: float = 1.0
    host: TierConfig | None = None
    """Host memory behind the device cache; None: what leaves that is gone."""

    def __post_init__(self) -> None:
        """Raise ValueError for sizes no engine can have."""
        for name in ("blocks", "block_size", "max_num_seqs", "max_model_len", "speed"):
            if getattr(self, name) <= 0:
                message = f"{name} must be above 0"
                raise ValueError(message)
        if self.max_batched_tokens < self.max_num_seqs:
            message = "max_batched_tokens must be at least max_num_seqs: each running sequence decodes in a step"
            raise ValueError(message)

    @property
    def prefill_rate(self) -> float:
        """Tokens/s of a full step, before any speed-up: what a restore is weighed against."""
        return self.max_batched_tokens / self.timing.step_s(self.max_batched_tokens, decoding=False, kv_used=0.0)

    @property
    def context_tokens(self) -> int:
        """The longest sequence served: the context length, or what the whole pool holds if that is less."""
        return min(self.max_model_len, self.blocks * self.block_size)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. Counts are totals since the start; queries and hits are in tokens, as in vLLM."""

    running: int
    waiting: int
    kv_usage: float
    prefix_cache_queries: int
    prefix_cache_hits: int
    prompt_tokens: int
    generation_tokens: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class KvBatch:
    """What one step changed in the prefix cache, at its end."""

    at: float
    events: list[PoolEvent]
