"""Settings of the workers, and of where they are found."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field

from gateway.config.base import Port, Strict
from gateway.config.fields import ApiKey, EndpointText, FilePath, HostText, Name, TopicText, UrlText, WorkerName
from gateway.config.units import Duration
from policies.types import WorkerId


class KvEvents(Strict):
    """Where a worker publishes the blocks that it stores and evicts."""

    endpoint: EndpointText
    """ZMQ PUB socket of the worker, `tcp://host:port`, as in its `--kv-events-config`."""
    replay_endpoint: EndpointText | None = None
    """ZMQ ROUTER socket that replays missed events. Without it a gap empties what is known of the worker."""
    topic: TopicText = ""
    """Topic to subscribe to; empty takes all."""
    ranks: int = Field(default=1, ge=1, le=1024)
    """Data-parallel ranks behind the URL; each publishes on the port of the one before plus 1."""


class UpstreamTls(Strict):
    """TLS to a worker whose URL is `https`."""

    ca: FilePath | None = None
    """Certificates (PEM) that the worker's must be signed by; by default those of the system."""
    certificate: FilePath | None = None
    """The gateway's own certificate chain (PEM), for workers that ask for one."""
    key: FilePath | None = None
    """Its private key (PEM)."""
    server_name: HostText | None = None
    """Name that the worker's certificate must carry; by default the host in the URL."""
    verify: bool = True
    """Check the worker's certificate. Switch this off for a try only."""


class WorkerSettings(Strict):
    """What is set for a worker, wherever it was found."""

    models: Annotated[tuple[Name, ...], Field(strict=False, min_length=1)] | None = None
    """Names of the models it serves; by default the gateway asks the worker."""
    api_key: ApiKey | None = None
    """Bearer key that the worker wants, for the gateway's own requests and for those of clients. Write it as
    `${NAME}`."""
    forward_client_key: bool = False
    """Let the client's own credentials (`Authorization`, `x-api-key`, `api-key`, `Cookie`) reach the worker, where
    `api_key` is not set."""
    cache_salt: bool = True
    """Give it the tenants' cache salts, where there are tenants: `cache_salt` in the body of a request. Engines such as
    vLLM and SGLang take it. Without it the worker's KV cache is not kept apart by tenant."""
    kv_policy: bool | None = None
    """Tell it in a header what the tenants' KV may take and how long it is kept (`tenants.members[].cache.kv`). By
    default workers are told that say in `/v1/models` that they are prefixgate's own."""
    weight: float = Field(default=1.0, gt=0, le=1000)
    """Its share of the work beside the others': 2 is twice as much as 1."""
    block_size: int = Field(default=16, ge=1, le=1024)
    """Tokens per KV block, as in the engine's `--block-size`."""
    kv_blocks: int | None = Field(default=None, ge=1)
    """Blocks its KV cache holds; by default as its `/metrics` says. A prompt that needs more never goes there."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Longest prompt plus answer it accepts, in tokens; by default as its `/v1/models` says."""
    prefill_tokens_per_s: float | None = Field(default=None, gt=0)
    """Its prefill speed as a first estimate; by default it is learnt from its answers."""
    tls: UpstreamTls = UpstreamTls()
    """TLS to a worker whose URL is `https`."""


def _name_from_url(fields: dict[str, object]) -> WorkerId:
    return WorkerId(urlsplit(str(fields["url"])).netloc)


class Worker(WorkerSettings):
    """One engine that answers OpenAI requests."""

    url: UrlText
    """`http://host:port` or `https://host:port` of the engine."""
    name: WorkerName = Field(default_factory=_name_from_url)
    """Its name in logs, reports and response headers: unique, visible ASCII characters without spaces."""
    kv_events: KvEvents | None = None
    """Its KV events. Without them the gateway predicts what the worker holds from what it sent there."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to connect to."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def uses_tls(self) -> bool:
        """Is it reached by TLS?"""
        return self.url.startswith("https:")


class DiscoveredEvents(Strict):
    """KV events of discovered workers, on the host of each."""

    port: int = Field(default=5557, ge=1, le=65535)
    """Port of the worker's PUB socket."""
    replay_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of its ROUTER socket that replays missed events."""
    topic: TopicText = ""
    """Topic to subscribe to; empty takes all."""
    ranks: int = Field(default=1, ge=1, le=1024)
    """Data-parallel ranks of each worker."""


class DnsDiscovery(WorkerSettings):
    """Workers behind one DNS name; all the other settings hold for each of them."""

    name: HostText
    """Name to look up, for example a headless service."""
    record: Literal["A", "SRV"] = "A"
    """`A` gives addresses (IPv6 ones too), whose port is `port`; `SRV` gives hosts, ports and weights."""
    port: Port | None = None
    """Port of the workers, for `A` records."""
    scheme: Literal["http", "https"] = "http"
    """How they are spoken to."""
    interval: Duration = Field(default=10.0, gt=0)
    """How often the name is looked up; sooner where the record says that it will not last that long."""
    timeout: Duration = Field(default=5.0, gt=0)
    """Longest time that a lookup may take. When it fails, the workers known stay."""
    nameserver: HostText | None = None
    """Name server to ask, by default the system's."""
    nameserver_port: int = Field(default=53, ge=1, le=65535)
    """Port of that name server."""
    kv_events: DiscoveredEvents | None = None
    """Their KV events."""


class Discovery(Strict):
    """Workers that are found instead of listed."""

    dns: Annotated[tuple[DnsDiscovery, ...], Field(strict=False)] = ()
    """DNS names to look up."""
    drain: Duration = Field(default=30.0, ge=0)
    """How long requests may go on at a worker that has gone from the list."""
