"""What is said of a worker before it is known: by the configuration, by discovery, by the operator."""

from __future__ import annotations

from dataclasses import dataclass, field

from backends.tls import UpstreamTlsSpec
from policies.breaker import NO_LIMITS, BreakerLimits
from policies.ejection import EjectionRules
from policies.progress import ProgressRules
from policies.types import WorkerId


@dataclass(frozen=True, slots=True)
class FeedSpec:
    """Where a worker publishes its KV events: the endpoints of its first rank, the others' on the ports behind."""

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker. Two that are equal are the same in everything that matters."""

    id: WorkerId
    host: str
    port: int
    source: str = "config"
    tls: UpstreamTlsSpec | None = None
    """None: plain HTTP."""
    models: tuple[str, ...] = ()
    api_key: str | None = None
    forward_client_key: bool = False
    cache_salt: bool = True
    """It takes the salts of tenants."""
    kv_policy: bool | None = None
    """It is told what holds for the KV of tenants; None: if it says that it is one of ours."""
    weight: float = 1.0
    block_size: int = 16
    kv_blocks: int | None = None
    max_model_len: int | None = None
    prefill_tokens_per_s: float | None = None
    feed: FeedSpec | None = None

    @property
    def scheme(self) -> str:
        """Of its URL."""
        return "http" if self.tls is None else "https"

    def __repr__(self) -> str:
        """Without the key: it may end in a log."""
        return f"WorkerSpec({self.id}, {self.scheme}://{self.host}:{self.port})"


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """What holds for all workers alike. Times in seconds."""

    connect_timeout: float = 5.0
    keepalive: float = 60.0
    max_idle: int = 256
    cooldown: float = 1.0
    cooldown_max: float = 30.0
    slow_start: float = 0.0
    model_refresh: float = 10.0
    probe_path: str = "/health"
    probe_interval: float = 5.0
    probe_timeout: float = 5.0
    unhealthy_after: int = 3
    healthy_after: int = 1
    metrics_interval: float = 2.0
    limits: BreakerLimits = NO_LIMITS
    ejection: EjectionRules = field(default_factory=EjectionRules)
    progress: ProgressRules = field(default_factory=ProgressRules)
    tokenized: tuple[str, ...] = ()
    """Names of the models that have a tokenizer."""
