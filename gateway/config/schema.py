"""Every setting there is: its type, its default and what it means.

The reference in docs/configuration.md and the JSON Schema are made from these models. A section is frozen;
unknown keys and values of another type are refused, never converted.
"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from gateway.config.consistency import inconsistencies
from gateway.config.fields import (
    ApiKey,
    EndpointText,
    FilePath,
    HeaderName,
    HostText,
    Name,
    TokenizerSource,
    TopicText,
    UrlText,
    WorkerName,
)
from gateway.config.units import Duration, Size
from policies.types import WorkerId

Port = Annotated[int, Field(ge=0, le=65535)]


class Strict(BaseModel):
    """Base of all sections: frozen, no unknown keys, no conversions, no infinities."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


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
    max_attempts: int = Field(default=3, ge=1, le=16)
    """Workers tried for one request, the first included. None is tried after the response's first byte."""
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
    simulated engine uses. Without it the model is routed by load alone. Relative paths start at the file."""
    chat_template: FilePath | None = None
    """Jinja chat template that replaces the tokenizer's own, as with the engine's `--chat-template`."""


class KvEvents(Strict):
    """Where a worker publishes the blocks that it stores and evicts."""

    endpoint: EndpointText
    """ZMQ PUB socket of the worker, `tcp://host:port`, as in its `--kv-events-config`."""
    replay_endpoint: EndpointText | None = None
    """ZMQ ROUTER socket that replays missed events. Without it a gap empties what is known of the worker."""
    topic: TopicText = ""
    """Topic to subscribe to; empty takes all."""


def _name_from_url(fields: dict[str, object]) -> WorkerId:
    return WorkerId(urlsplit(str(fields["url"])).netloc)


class Worker(Strict):
    """One engine that answers OpenAI requests."""

    url: UrlText
    """`http://host:port` of the engine."""
    name: WorkerName = Field(default_factory=_name_from_url)
    """Its name in logs, reports and response headers: unique, visible ASCII characters without spaces."""
    models: Annotated[tuple[Name, ...], Field(strict=False, min_length=1)] | None = None
    """Names of the models it serves; by default the gateway asks the worker."""
    api_key: ApiKey | None = None
    """Bearer key for the gateway's own requests to the worker (`/v1/models`). Requests of clients keep the
    header that the client sent. Write it as `${NAME}`."""
    block_size: int = Field(default=16, ge=1, le=1024)
    """Tokens per KV block, as in the engine's `--block-size`."""
    kv_blocks: int | None = Field(default=None, ge=1)
    """Blocks its KV cache holds; a prompt that needs more never goes there."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Longest prompt plus answer it accepts, in tokens; by default as its `/v1/models` says."""
    prefill_tokens_per_s: float | None = Field(default=None, gt=0)
    """Its prefill speed as a first estimate; by default it is learnt from its answers."""
    kv_events: KvEvents | None = None
    """Its KV events. Without them the gateway predicts what the worker holds from what it sent there."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to connect to."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 80


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


class Routing(Strict):
    """Which worker a request goes to."""

    policy: Literal["cost", "least_loaded", "round_robin"] = "cost"
    """`cost`: lowest predicted time to first token, cached prefixes included. `least_loaded`: fewest
    requests in flight. `round_robin`: in turn."""
    cost: CostPolicy = CostPolicy()
    """Tunables of the `cost` policy."""


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


class Log(Strict):
    """What the program writes to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe message to write."""
    format: Literal["text", "json"] = "text"
    """Lines for people, or one JSON object a line."""
    access: bool = False
    """Write a line for each request."""


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
    """Models whose prompts the gateway can tokenize. Others that the workers serve are routed by load."""
    workers: Annotated[tuple[Worker, ...], Field(strict=False, min_length=1)]
    """The engines behind the gateway, at least one."""
    routing: Routing = Routing()
    """Which worker a request goes to."""
    tokens: Tokens = Tokens()
    """From prompt text to tokens."""
    index: Index = Index()
    """Which worker holds which block."""
    response_headers: ResponseHeaders = ResponseHeaders()
    """Headers added to responses."""
    log: Log = Log()
    """What the program writes to standard error."""

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        problems = inconsistencies(self)
        if problems:
            text = "; ".join(f"{problem.path}: {problem.text}" for problem in problems)
            raise PydanticCustomError("inconsistent", "{text}", {"text": text, "problems": problems})
        return self
