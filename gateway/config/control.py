"""Settings of the control plane and of what the gateway tells about itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gateway.config.base import Port, Strict
from gateway.config.fields import ApiKey, CollectorUrl, HeaderName, HostText, Name, NewPath
from gateway.config.units import Duration


class Admin(Strict):
    """The control plane: health, metrics and administration, on a port of its own."""

    host: HostText = "127.0.0.1"
    """Address to listen on."""
    port: Port | None = 9400
    """TCP port; `0` takes a free one, and `null` switches the control plane off."""
    token: ApiKey | None = None
    """Bearer token for everything under `/admin`. Without one these paths are closed. Write it as `${NAME}`."""
    requests_kept: int = Field(default=1000, ge=0, le=100_000)
    """Recent requests kept with the explanation of where they went."""


class Telemetry(Strict):
    """OpenTelemetry: a span for each request."""

    endpoint: CollectorUrl | None = None
    """OTLP/HTTP collector, for example `http://127.0.0.1:4318`. Without one no spans are made."""
    headers: Annotated[dict[HeaderName, ApiKey], Field(strict=False)] = Field(default_factory=dict)
    """Headers for the collector."""
    service_name: Name = "prefixgate"
    """`service.name` of the spans."""
    sample: float = Field(default=1.0, ge=0, le=1)
    """Share of the requests without a `traceparent` of their own that get a span; one with a `traceparent` is
    recorded as it says."""
    queue: int = Field(default=4096, ge=1)
    """Spans that wait to be sent; what is beyond is dropped and counted."""


class Log(Strict):
    """What the program writes to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe message to write."""
    format: Literal["text", "json"] = "text"
    """Lines for people, or one JSON object a line."""
    access: bool = False
    """Write a line for each request."""
    audit_file: NewPath | None = None
    """A file to which a JSON line is appended for whatever of a tenant's was forgotten: when, by whom, what. Made with
    mode 0600; each line is safe on disk before the answer."""


class Reload(Strict):
    """Taking up a changed configuration file. SIGHUP always does it at once."""

    watch: Duration = Field(default=2.0, ge=0)
    """How often the file, and the certificates it names, are looked at for changes. `0` waits for SIGHUP."""
