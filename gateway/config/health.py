"""Settings of what happens when workers fail: probes, ejection, breakers, retries."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.config.base import Strict
from gateway.config.fields import UrlPath
from gateway.config.units import Duration


class Probe(Strict):
    """Active probes of each worker."""

    path: UrlPath = "/health"
    """What is asked for; any status below 400 says that the worker is well, and 404 that it has no such path."""
    interval: Duration = Field(default=5.0, gt=0)
    """How often each worker is asked."""
    timeout: Duration = Field(default=5.0, gt=0)
    """Longest time that the answer may take."""
    unhealthy_after: int = Field(default=3, ge=1)
    """Probes in a row that must fail before a worker is left out."""
    healthy_after: int = Field(default=1, ge=1)
    """Probes in a row that must succeed before it is taken back."""
    metrics_interval: Duration = Field(default=2.0, gt=0)
    """How often each worker's `/metrics` is read, for its load and its progress."""


class Ejection(Strict):
    """Workers are left out for what their answers show."""

    consecutive_failures: int = Field(default=5, ge=1)
    """Answers in a row with status 5xx, or none at all, after which a worker is ejected."""
    base: Duration = Field(default=30.0, gt=0)
    """How long the first time; each further time so much longer."""
    max: Duration = Field(default=300.0, gt=0)
    """Where that ends."""
    max_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the fleet that may be ejected together; one worker always may."""
    panic_share: float = Field(default=0.5, ge=0, le=1)
    """When less than this share of a model's workers is left, all of them are used again, well or not."""
    sweep: Duration = Field(default=10.0, gt=0)
    """For each such time that a worker goes without being ejected, one earlier ejection is forgotten."""


class Hung(Strict):
    """A worker that has work, says that it is healthy, and makes no progress."""

    after: Duration = Field(default=30.0, gt=0)
    """Time without a token, on any request of the worker, after which it counts as hung."""
    patience: float = Field(default=4.0, ge=1)
    """Where the worker does not tell its progress: it may take so many times as long as its queue should."""


class Retries(Strict):
    """Further attempts after a worker has received the request. None is made after the first byte of an answer."""

    share: float = Field(default=0.2, ge=0, le=1)
    """Retries under way at once, as a share of the requests in flight..."""
    minimum: int = Field(default=3, ge=0)
    """...but always at least so many."""
    statuses: Annotated[tuple[Annotated[int, Field(ge=500, le=599)], ...], Field(strict=False)] = (500, 502, 503, 504)
    """A worker's answer with one of these statuses is not passed on while another worker may be tried."""


class Breaker(Strict):
    """What one worker is asked for at once at most; a request that no worker may take is answered 503."""

    max_requests: int | None = Field(default=None, ge=1)
    """Requests sent and not finished. By default there is no bound."""
    max_connections: int | None = Field(default=None, ge=1)
    """Connections in use. By default there is no bound."""
    max_pending: int | None = Field(default=None, ge=1)
    """Requests sent that have no byte of an answer yet. By default there is no bound."""


class Health(Strict):
    """How workers that fail are found, left out and taken back."""

    probe: Probe = Probe()
    """Active probes of each worker."""
    ejection: Ejection = Ejection()
    """Workers are left out for what their answers show."""
    hung: Hung = Hung()
    """A worker that has work, says that it is healthy, and makes no progress."""
    retries: Retries = Retries()
    """Further attempts after a worker has received the request."""
    breaker: Breaker = Breaker()
    """What one worker is asked for at once at most."""
