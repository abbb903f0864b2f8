"""What a tenant may do and what it is promised, as plain values. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from policies.kv_policy import NO_KV_POLICY, KvPolicy


class Priority(StrEnum):
    """The class of a request, the most urgent first."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Rates:
    """How much may be asked; None is no limit."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    """Prompt and output tokens together."""
    concurrent: int | None = None
    """Requests that have arrived and are not over."""


@dataclass(frozen=True, slots=True)
class Caps:
    """The most that one request may ask for; None is no limit."""

    max_tokens: int | None = None
    """Output tokens of one answer."""
    n: int | None = None
    """Answers to one prompt."""


@dataclass(frozen=True, slots=True)
class ResponsePolicy:
    """What of the response cache differs for a tenant; None is nothing."""

    enabled: bool | None = None
    ttl_s: float | None = None
    """How long its answers are fresh."""


@dataclass(frozen=True, slots=True)
class SemanticRules:
    """What of the semantic cache differs for a tenant, or one of its models; None is nothing."""

    mode: str | None = None
    delta: float | None = None
    ttl_s: float | None = None
    group: str = ""
    """The model, where it differs from the tenant's others and so learns by itself."""


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """What is kept of a tenant's requests, and how long."""

    kv: KvPolicy = NO_KV_POLICY
    """KV at the workers; its owner is told by whoever knows the secret that it is made of."""
    responses: ResponsePolicy = field(default_factory=ResponsePolicy)
    """Its answers, where any are kept."""
    semantic: SemanticRules = field(default_factory=SemanticRules)
    """What is served to it by meaning."""


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """What holds for the requests of one tenant to one model."""

    name: str = "default"
    priority: Priority = Priority.STANDARD
    weight: float = 1.0
    """Its share beside the other tenants' of its class."""
    slo_ttft_s: float | None = None
    """Promised time from arrival to the first output token."""
    slo_tpot_s: float | None = None
    """Promised time per output token after the first."""
    caps: Caps = field(default_factory=Caps)
    cache: CachePolicy = field(default_factory=CachePolicy)


NO_RATES: Final = Rates()
DEFAULT_POLICY: Final = TenantPolicy()
"""Of every request where no tenants are configured."""
