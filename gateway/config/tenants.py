"""Settings of tenants: who they are, what they may do, what they are promised."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gateway.config.base import Strict
from gateway.config.fields import (
    FilePath,
    IssuerUrl,
    KeyDigest,
    KeyPrefix,
    LongSecret,
    Name,
    NewPath,
    PathPattern,
    RedisUrl,
    TenantName,
)
from gateway.config.response_cache import TenantResponses
from gateway.config.semantic_cache import TenantSemantic
from gateway.config.units import Duration, Size

PriorityClass = Literal["interactive", "standard", "batch"]


class Slo(Strict):
    """What a tenant is promised."""

    ttft: Duration | None = Field(default=None, gt=0)
    """Longest time from the arrival of a request to the first token of its answer."""
    tpot: Duration | None = Field(default=None, gt=0)
    """Longest time per token after the first."""


class TenantRates(Strict):
    """How much may be asked. What is beyond is answered 429 with `Retry-After`."""

    requests_per_minute: int | None = Field(default=None, ge=1, le=10**9)
    """Requests for workers. So many may come at once; then they come back evenly over the minute."""
    tokens_per_minute: int | None = Field(default=None, ge=1, le=10**12)
    """Prompt and output tokens together, cached ones too. A prompt is charged when it comes, an answer when it is
    over."""
    concurrent: int | None = Field(default=None, ge=1)
    """Requests at a time."""


class TenantCaps(Strict):
    """The most that one request may ask for. What asks for more is answered 400: nothing is silently made less."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Output tokens: `max_tokens`, `max_completion_tokens`, `max_output_tokens`. A chat or response that names none
    is sent on with this one."""
    n: int | None = Field(default=None, ge=1)
    """Answers to one prompt: `n`, `best_of`."""


class TenantKv(Strict):
    """What its KV may take at each worker of our own, and how long it is kept; other engines are told nothing."""

    ttl: Duration | None = Field(default=None, ge=0.001, le=10**8)
    """KV that was not used for so long is not used again, in no tier. By default as long as there is room."""
    host: Size | None = Field(default=None, ge=0, le=1 << 60)
    """The most bytes that it takes in the host memory of a worker, beside the worker's own bounds; 0: none."""
    disk: Size | None = Field(default=None, ge=0, le=1 << 60)
    """The same on its disk."""
    redis: Size | None = Field(default=None, ge=0, le=1 << 60)
    """The most bytes in Redis that come from one worker, as far as it has written them since it started."""
    pin: bool | None = None
    """Keep the beginnings of its prompts in host memory and on disk, whoever else needs room: those used last, in a
    quarter of each at most, and in no more than its quota. By default not."""


class TenantCache(Strict):
    """What is kept for it, and who else may meet that."""

    group: TenantName | None = None
    """Name of a group of tenants that share what the workers have cached: prompts of all tenants that name the same
    group can be told to be cached, or not, by each of them. By default a tenant shares with nobody. A request that
    brings a `cache_salt` of its own is kept out of the group."""
    kv: TenantKv = TenantKv()
    """What its KV may take at the workers, and how long it is kept."""
    responses: TenantResponses = TenantResponses()
    """Its answers in the response cache, which no other tenant sees, be it of its group or not."""
    semantic: TenantSemantic = TenantSemantic()
    """What is served to it by meaning."""


class TenantModelCache(Strict):
    """What is kept of its requests to one model."""

    kv: TenantKv = TenantKv()
    """KV at the workers; what is not given here is as for the tenant."""
    responses: TenantResponses = TenantResponses()
    """Answers of this model; what is not given here is as for the tenant."""
    semantic: TenantSemantic = TenantSemantic()
    """What is served of it by meaning. With settings of its own it learns by itself."""


class TenantModel(Strict):
    """What differs for one model."""

    name: Name
    """The model's name, as the workers serve it."""
    priority: PriorityClass | None = None
    """Its class, in place of the tenant's."""
    slo: Slo = Slo()
    """What is promised for it; what is not given here is as for the tenant."""
    rates: TenantRates = TenantRates()
    """Rates for this model alone, beside those of the tenant as a whole, which hold too."""
    caps: TenantCaps = TenantCaps()
    """Its caps; what is not given here is as for the tenant."""
    cache: TenantModelCache = TenantModelCache()
    """What is kept of its requests."""


class Tenant(Strict):
    """One tenant."""

    name: TenantName
    """Its name in logs, metrics and keys."""
    keys: Annotated[tuple[KeyDigest, ...], Field(strict=False)] = ()
    """Digests of its API keys, `sha256:` and 64 hexadecimal digits, as `prefixgate keys new` prints them; never the
    keys. More may be in `keys_file`."""
    priority: PriorityClass = "standard"
    """The class of its requests: how urgent they are."""
    weight: float = Field(default=1.0, ge=0.001, le=1000)
    """Its share beside the other tenants' of its class: 2 is twice as much as 1."""
    slo: Slo = Slo()
    """What it is promised."""
    rates: TenantRates = TenantRates()
    """How much it may ask."""
    models: Annotated[tuple[Name, ...], Field(strict=False, min_length=1)] | None = None
    """Models that it may use, by the names that clients send or those under which workers serve them; by default all.
    Others are answered 403, and not listed."""
    paths: Annotated[tuple[PathPattern, ...], Field(strict=False, min_length=1)] | None = None
    """Paths that it may use, `*` at the end for all that begin so; by default all. Others are answered 403."""
    caps: TenantCaps = TenantCaps()
    """The most that one request may ask for."""
    cache: TenantCache = TenantCache()
    """What is kept for it, and who else may meet that."""
    kv_epoch: int = Field(default=0, ge=0, le=2**31)
    """How often its KV was forgotten. A gateway counts by itself, in `state_dir`; of both counts the larger holds, so
    that this tells the gateways that were not asked to forget. Never make it smaller."""
    per_model: Annotated[tuple[TenantModel, ...], Field(strict=False)] = ()
    """What differs for single models."""


JwtAlgorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


class JwtIssuer(Strict):
    """An issuer of tokens (JWT) that name a tenant, beside keys."""

    issuer: Name
    """What a token must have as `iss`, to the letter."""
    audience: Name
    """What a token must have as, or among, its `aud`."""
    claim: Name = "tenant"
    """The claim that holds the tenant's name."""
    jwks_url: IssuerUrl | None = None
    """Where the issuer publishes its keys: `https`, or `http` on this machine."""
    jwks_file: FilePath | None = None
    """A file with its keys, in place of a URL; taken up when it changes."""
    algorithms: Annotated[tuple[JwtAlgorithm, ...], Field(strict=False, min_length=1)] = ("RS256", "ES256")
    """Algorithms of signatures that are accepted; a key is used with its own only."""
    leeway: Duration = Field(default=30.0, ge=0, le=600)
    """How much the issuer's clock may differ."""
    refresh: Duration = Field(default=300.0, ge=1)
    """How often the keys at the URL are read; sooner where a token names one that is not known."""


class SharedLimits(Strict):
    """A Redis through which the gateways of a fleet hold the tenants' rates together. No request waits for it, and
    while it is away each gateway holds them alone.
    """

    redis: RedisUrl
    """`redis://[user:password@]host[:port][/db]`, `rediss://` for TLS, or `unix:///path`. Write it as `${NAME}`."""
    tls_ca: FilePath | None = None
    """Whom the certificate of a `rediss://` server must be signed by; by default one of the system's authorities."""
    prefix: KeyPrefix = "prefixgate:limits:"
    """What keys begin with; the same for all gateways of a fleet, another one for another fleet."""
    interval: Duration = Field(default=0.2, ge=0.05, le=10)
    """Time between two exchanges. What the others let in is known here after two of them."""
    timeout: Duration = Field(default=0.5, ge=0.01, le=10)
    """For one exchange, connecting included. A Redis that is slower is away."""
    ttl: Duration = Field(default=5.0, ge=0.5, le=60)
    """A gateway that is not heard of for so long is gone, and its concurrent requests count no longer."""


class Tenants(Strict):
    """Who may use the gateway. Without any tenant it asks nobody for a key."""

    members: Annotated[tuple[Tenant, ...], Field(strict=False)] = ()
    """The tenants. With at least one, every request but `GET /health` needs a key of one of them."""
    keys_file: NewPath | None = None
    """File with further digests of keys, written by `prefixgate keys` and taken up when it changes. It need not exist
    yet."""
    jwt: JwtIssuer | None = None
    """An issuer whose tokens are accepted as keys of tenants. Needs `pip install 'prefixgate[jwt]'`."""
    salt_key: LongSecret | None = None
    """Secret from which the tenants' cache salts are made, 32 characters or more; the same for all gateways of a
    fleet. Write it as `${NAME}`. Without one a key is made once and kept in `state_dir`."""
    state_dir: NewPath | None = None
    """Folder for that key, and for the count of how often a tenant's KV was forgotten; made where it is needed. By
    default `$STATE_DIRECTORY`, or `prefixgate` in `$XDG_STATE_HOME`, or `~/.local/state/prefixgate`."""
    shared_limits: SharedLimits | None = None
    """Rates that all gateways of a fleet hold together. By default each counts for itself."""
