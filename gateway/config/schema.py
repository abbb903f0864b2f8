"""Every setting there is: its type, its default and what it means.

The reference in docs/configuration.md and the JSON Schema are made from these models. A section is frozen;
unknown keys and values of another type are refused, never converted.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from gateway.config.admission import Admission
from gateway.config.base import Port, Strict
from gateway.config.consistency import inconsistencies
from gateway.config.control import Admin, Log, Reload, Telemetry
from gateway.config.fields import (
    FilePath,
    HeaderName,
    HostText,
    Name,
    NetworkText,
    PathPattern,
    TokenizerSource,
)
from gateway.config.health import Health
from gateway.config.response_cache import ResponseCache
from gateway.config.routing import Routing
from gateway.config.semantic_cache import SemanticCache
from gateway.config.tenants import Tenants
from gateway.config.units import Duration, Size
from gateway.config.workers import Discovery, Worker


class ListenTls(Strict):
    """TLS for clients."""

    certificate: FilePath
    """The gateway's certificate chain (PEM). A changed file is taken up without a restart."""
    key: FilePath
    """Its private key (PEM)."""
    client_ca: FilePath | None = None
    """Clients must show a certificate signed by one of these (PEM)."""


class Listen(Strict):
    """Where clients connect."""

    host: HostText = "127.0.0.1"
    """Address to listen on. `0.0.0.0` accepts connections from other machines."""
    port: Port = 8000
    """TCP port. `0` takes a free one, which the log then names; `host` must then be an address, as a name may
    stand for several."""
    backlog: int = Field(default=1024, ge=1, le=65535)
    """Connections the kernel holds until the gateway accepts them."""
    reuse_port: bool = False
    """Let several gateway processes share the port (`SO_REUSEPORT`)."""
    tls: ListenTls | None = None
    """TLS for clients; without it they speak plain HTTP."""
    trusted_proxies: Annotated[tuple[NetworkText, ...], Field(strict=False)] = ()
    """Addresses or networks of proxies whose `X-Forwarded-For`, `-Proto` and `-Host` go on to the workers, the
    proxy's own address added. From all others these headers, and `Forwarded`, are dropped."""


class Limits(Strict):
    """What one client may make the gateway hold, and for how long."""

    head_bytes: Size = Field(default=32 << 10, ge=1024)
    """Longest request line and headers; more is answered 431."""
    body_bytes: Size = Field(default=32 << 20, ge=1024)
    """Longest request body; more is answered 413."""
    total_body_bytes: Size = Field(default=1 << 30, ge=1024)
    """Request bodies held at once over all connections; further ones are answered 503."""
    head_timeout: Duration = Field(default=10.0, gt=0)
    """Time from the first byte of a request to the end of its headers; more is answered 408."""
    body_timeout: Duration = Field(default=60.0, gt=0)
    """Time from the end of the headers to the end of the body; more is answered 408."""
    idle_timeout: Duration = Field(default=75.0, gt=0)
    """How long a kept-alive connection may wait for its next request before it is closed."""
    max_connections: int = Field(default=10_000, ge=1)
    """Client connections open together; further ones are closed."""
    buffer_bytes: Size = Field(default=256 << 10, ge=4096)
    """Response bytes held per connection for a client that reads slowly; then the worker is paused."""
    pipelined_bytes: Size = Field(default=64 << 10, ge=0)
    """Bytes of further requests read ahead on a connection while one is being answered."""
    drain_timeout: Duration = Field(default=30.0, ge=0)
    """How long requests in flight may go on after the gateway was told to stop; then they are cut off."""


class Upstream(Strict):
    """Connections to the workers."""

    connect_timeout: Duration = Field(default=5.0, gt=0)
    """Longest time to open a connection to a worker."""
    first_byte_timeout: Duration = Field(default=600.0, gt=0)
    """Longest time from the request's last byte to the response's first: queueing and prefill included."""
    idle_timeout: Duration = Field(default=300.0, gt=0)
    """Longest time between two reads of one response."""
    keepalive: Duration = Field(default=60.0, gt=0)
    """How long an unused connection stays in the pool. Keep it below the worker's own keep-alive time."""
    max_idle_connections: int = Field(default=256, ge=0)
    """Unused connections kept per worker. `0` pools none: each request opens its own."""
    request_timeout: Duration = Field(default=3600.0, gt=0)
    """Longest time of a request as a whole, all attempts together."""
    max_attempts: int = Field(default=3, ge=1, le=16)
    """Workers that may receive one request, the first included; one that could not be reached does not count. None is
    tried after the response's first byte."""
    cooldown: Duration = Field(default=1.0, gt=0)
    """How long a worker is left out after it refused a connection; doubles with each further refusal."""
    cooldown_max: Duration = Field(default=30.0, gt=0)
    """Where that doubling ends."""
    model_refresh: Duration = Field(default=10.0, gt=0)
    """How often `/v1/models` of each worker is read."""


class Model(Strict):
    """A model whose prompts the gateway can tokenize."""

    name: Name
    """The name clients send in `model`, as the workers serve it."""
    tokenizer: TokenizerSource = None
    """Directory with `tokenizer.json` and `tokenizer_config.json`, or `embedded` for the one that the
    simulated engine uses. Without it prompts are compared by their text, or tokenized by a worker where it publishes
    KV events. Relative paths start at the file."""
    chat_template: FilePath | None = None
    """Jinja chat template that replaces the tokenizer's own, as with the engine's `--chat-template`."""


class Routes(Strict):
    """Paths that are passed through beside those the gateway understands."""

    passthrough: Annotated[tuple[PathPattern, ...], Field(strict=False)] = (
        "/v1/audio/*",
        "/v1/images/*",
        "/v1/files",
        "/v1/files/*",
        "/v1/moderations",
        "/v1/rerank",
        "/v1/score",
    )
    """Paths whose requests go to a worker untouched, chosen by load; `*` at the end stands for anything. Whatever
    is not listed is answered 404."""


class Tokens(Strict):
    """From prompt text to tokens."""

    cache_bytes: Size = Field(default=256 << 20, ge=1 << 20)
    """Memory for prefixes already tokenized, per model."""
    piece_chars: int = Field(default=2048, ge=64)
    """Length of the pieces in which prefixes are remembered, in characters."""
    inline_chars: int = Field(default=16_384, ge=0)
    """Text not seen before up to this length is tokenized at once; longer text goes to a thread."""
    wait: Duration = Field(default=0.05, ge=0)
    """Longest time a request waits for such a thread; then it is routed by the part already known."""
    max_chars: int = Field(default=4_000_000, ge=1)
    """Longest prompt text, in characters, that is tokenized; a longer one is routed by its length alone."""
    max_messages: int = Field(default=2_000, ge=1)
    """Most messages of a chat that is rendered; one of more is routed by its length alone."""
    threads: int = Field(default=1, ge=1, le=64)
    """Threads that tokenize long new text."""
    fast: bool = True
    """Use the faster tokenizer library where it proves equal to the reference on sample texts at start."""


class Index(Strict):
    """Which worker holds which block."""

    max_blocks: int = Field(default=2_000_000, ge=1)
    """Blocks the index remembers over all workers; the oldest are forgotten first."""
    prediction_ttl: Duration = Field(default=5.0, gt=0)
    """How long after its prefill should be over a block counts as held that no event has confirmed."""
    unconfirmed_ttl: Duration = Field(default=300.0, gt=0)
    """The same for workers that publish no events, where nothing can confirm it."""


class ResponseHeaders(Strict):
    """Headers added to responses."""

    worker: HeaderName | None = None
    """Name of a header that tells the client which worker answered, for example `x-prefixgate-worker`."""


class Config(Strict):
    """A whole configuration file."""

    listen: Listen = Listen()
    """Where clients connect."""
    limits: Limits = Limits()
    """What one client may make the gateway hold, and for how long."""
    upstream: Upstream = Upstream()
    """Connections to the workers."""
    models: Annotated[tuple[Model, ...], Field(strict=False)] = ()
    """Models whose prompts the gateway can tokenize. Prompts of others that the workers serve are compared
    by their text."""
    workers: Annotated[tuple[Worker, ...], Field(strict=False)] = ()
    """The engines behind the gateway, at least one unless they are discovered."""
    discovery: Discovery = Discovery()
    """Workers that are found instead of listed."""
    routing: Routing = Routing()
    """Which worker a request goes to."""
    health: Health = Health()
    """How workers that fail are found, left out and taken back."""
    routes: Routes = Routes()
    """Paths that are passed through beside those the gateway understands."""
    tokens: Tokens = Tokens()
    """From prompt text to tokens."""
    index: Index = Index()
    """Which worker holds which block."""
    response_headers: ResponseHeaders = ResponseHeaders()
    """Headers added to responses."""
    response_cache: ResponseCache = ResponseCache()
    """Answers to requests that were asked before; see [response_cache.md](response_cache.md)."""
    semantic_cache: SemanticCache = SemanticCache()
    """Answers to requests that only mean the same; see [semantic_cache.md](semantic_cache.md)."""
    admission: Admission = Admission()
    """Which requests wait in the gateway, and in which order; see [admission.md](admission.md)."""
    tenants: Tenants = Tenants()
    """Who may use the gateway, and how much; see [tenants.md](tenants.md)."""
    admin: Admin = Admin()
    """The control plane: health, metrics and administration."""
    telemetry: Telemetry = Telemetry()
    """OpenTelemetry: a span for each request."""
    log: Log = Log()
    """What the program writes to standard error."""
    reload: Reload = Reload()
    """Taking up a changed configuration file."""

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        problems = inconsistencies(self)
        if problems:
            text = "; ".join(f"{problem.path}: {problem.text}" for problem in problems)
            raise PydanticCustomError("inconsistent", "{text}", {"text": text, "problems": problems})
        return self
