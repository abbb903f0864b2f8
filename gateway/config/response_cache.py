"""Settings of the response cache: which answers are kept, where, and for how long."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.config.base import Strict
from gateway.config.fields import KeyPrefix, LongSecret, NewPath, RedisUrl
from gateway.config.units import Duration, Size


class ResponseTtls(Strict):
    """How long answers are fresh, where it differs from `ttl`; `0` keeps none."""

    chat: Duration | None = Field(default=None, ge=0)
    """Of `/v1/chat/completions`."""
    completion: Duration | None = Field(default=None, ge=0)
    """Of `/v1/completions`."""
    responses: Duration | None = Field(default=None, ge=0)
    """Of `/v1/responses`."""
    messages: Duration | None = Field(default=None, ge=0)
    """Of `/v1/messages`."""
    embedding: Duration | None = Field(default=None, ge=0)
    """Of `/v1/embeddings`."""


class ResponseDisk(Strict):
    """Answers on disk outlive a restart."""

    path: NewPath
    """Folder, made where it is needed, for this gateway alone."""
    size: Size = Field(default=1 << 30, ge=1 << 20)
    """Bytes that it may take."""


class ResponseRedis(Strict):
    """Answers that all gateways of a fleet share."""

    url: RedisUrl
    """`redis://[user:password@]host[:port][/db]`, `rediss://` for TLS, or `unix:///path`. Write it as `${NAME}`."""
    prefix: KeyPrefix = "prefixgate:responses:"
    """What keys begin with; the same for all gateways of a fleet, another one for another fleet."""
    timeout: Duration = Field(default=0.25, ge=0.01, le=10)
    """For one call, connecting included. A Redis that is slower is a miss, and rests for a while."""


class ResponseCache(Strict):
    """Answers to requests that were asked before, word for word. Nothing is kept unless `mode` says so."""

    mode: Literal["off", "on"] = "off"
    """`on`: requests at temperature 0 and embeddings are answered from the cache, and others whose client asks for it
    by `Cache-Control: max-age=…` or `x-prefixgate-cache: on`."""
    ttl: Duration = Field(default=3600.0, ge=0)
    """How long an answer is fresh."""
    ttl_by_route: ResponseTtls = ResponseTtls()
    """Where that differs from route to route."""
    stale_while_revalidate: Duration = Field(default=0.0, ge=0)
    """How long after that it is served while another one is fetched."""
    stale_if_error: Duration = Field(default=0.0, ge=0)
    """How long after `ttl` it is served where no worker gives an answer."""
    memory: Size = Field(default=256 << 20, ge=1 << 20)
    """Bytes of answers in this process's memory."""
    disk: ResponseDisk | None = None
    """Answers on disk too."""
    redis: ResponseRedis | None = None
    """Answers in Redis too."""
    encryption_key: LongSecret | None = None
    """Secret with which answers on disk and in Redis are encrypted, 32 characters or more. Write it as `${NAME}`."""
    max_entry: Size = Field(default=1 << 20, ge=1024)
    """A longer answer is not kept."""
    tenant_share: float = Field(default=0.5, gt=0, le=1)
    """Share of each store that the answers of one tenant may take."""
    lookup_timeout: Duration = Field(default=0.05, gt=0, le=10)
    """How long a request waits for disk and Redis."""
    coalesce: bool = True
    """Send one of several identical requests at a time, whose answer is for all."""
    coalesce_wait: Duration = Field(default=120.0, gt=0)
    """How long such a request waits for the other's answer before it is sent by itself."""
    pace: Duration = Field(default=0.0, ge=0, le=1)
    """Time between two events of a stream that comes from the cache; `0` sends all of them at once."""


class TenantResponses(Strict):
    """Its answers in the response cache, which no other tenant sees."""

    mode: Literal["off", "on"] | None = None
    """In place of `response_cache.mode`."""
    ttl: Duration | None = Field(default=None, ge=0)
    """In place of `response_cache.ttl` and `ttl_by_route`."""
