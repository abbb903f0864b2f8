"""Settings of routing: the policies, their tunables, sessions and aliases."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gateway.config.base import Strict
from gateway.config.fields import HeaderName, Name
from gateway.config.units import Duration

Fallbacks = Annotated[tuple[Name, ...], Field(strict=False, min_length=1)]


class CostPolicy(Strict):
    """The `cost` policy: predicted time to first token, counted in uncached prompt tokens."""

    recompute_weight_idle: float = Field(default=1.0, ge=0)
    """Price of a prompt token that the worker must recompute, when the fleet is idle. A token that already
    waits in the worker's queue costs 1."""
    recompute_weight_full: float = Field(default=5.0, ge=0)
    """The same when the fleet is full: recomputing then also delays everyone behind. In between it rises with
    the load."""
    decode_weight: float = Field(default=64.0, ge=0)
    """Price of each sequence that the worker is answering, in uncached prompt tokens."""
    spread_weight: float = Field(default=0.02, ge=0)
    """Price of each uncached prompt token that the worker was given within the last minute or so: evens out
    work where nothing else tells workers apart."""
    seed: int | None = None
    """Seed of the choice among equals, to repeat a run exactly; by default it differs each time."""


class ConsistentHash(Strict):
    """The `consistent_hash` policy: equal keys go to the same worker, whoever else comes and goes."""

    bound: float = Field(default=1.25, ge=1)
    """A worker with more than so many times the mean load passes requests on to the next in their order."""


class PrefixAffinity(Strict):
    """The `prefix_affinity` policy: the longest match, unless the load is uneven."""

    match_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the prompt that must be held for a match to count."""
    imbalance_requests: int = Field(default=32, ge=0)
    """The load is uneven when the busiest worker has more than so many requests more than the least busy..."""
    imbalance_ratio: float = Field(default=1.1, ge=1)
    """...and more than so many times as many."""


class Sessions(Strict):
    """Requests that stay together because the client says so."""

    header: HeaderName | None = None
    """Name of a request header, for example `x-session-id`: requests with the same value go to the same worker
    as long as it is well."""
    ttl: Duration = Field(default=3600.0, gt=0)
    """How long after its last request a session, or an answer of `/v1/responses`, is remembered."""
    max_entries: int = Field(default=100_000, ge=1)
    """Sessions and answers remembered; the least recently used are forgotten first."""


class Routing(Strict):
    """Which worker a request goes to."""

    policy: Literal[
        "cost", "slo", "least_loaded", "round_robin", "random", "power_of_two", "consistent_hash", "prefix_affinity"
    ] = "cost"
    """`cost`: lowest predicted time to first token, cached prefixes included. `slo`: the same, held to what the
    tenant was promised: among the workers that should keep it, and loose promises make room for tight ones.
    `prefix_affinity`: the longest
    match, unless the load is uneven. `least_loaded`: fewest requests in flight. `power_of_two`: the less loaded of
    two drawn at random. `consistent_hash`: by session, `prompt_cache_key`, `user` or the beginning of the prompt.
    `round_robin`: in turn. `random`: at random."""
    cost: CostPolicy = CostPolicy()
    """Tunables of the `cost` policy, which hold for `slo` too."""
    consistent_hash: ConsistentHash = ConsistentHash()
    """Tunables of the `consistent_hash` policy."""
    prefix_affinity: PrefixAffinity = PrefixAffinity()
    """Tunables of the `prefix_affinity` policy."""
    sessions: Sessions = Sessions()
    """Requests that stay together because the client says so."""
    slow_start: Duration = Field(default=0.0, ge=0)
    """A worker that is new, or back after it was ejected, takes this long to get its full share. `0` gives it at
    once."""
    aliases: Annotated[dict[Name, Name], Field(strict=False)] = Field(default_factory=dict)
    """Further names for models: the name a client sends, and the name under which the workers serve it. The
    worker gets its own name. `/v1/models` lists an alias with its model as
    `root`."""
    fallbacks: Annotated[dict[Name, Fallbacks], Field(strict=False)] = Field(default_factory=dict)
    """Models to take in place of one, in order, by the names that workers serve: for a request that comes while no
    worker of its model is well and has room. The worker gets the other model's name, and the answer tells it."""
