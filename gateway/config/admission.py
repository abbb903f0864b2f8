"""Settings of admission: which requests wait in the gateway, in which order, for how long."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.config.base import Strict
from gateway.config.fields import HeaderName
from gateway.config.units import Duration, Size


class Interactive(Strict):
    """The `interactive` class."""

    reserve: float = Field(default=0.0, ge=0, le=0)
    """It goes first, and needs none."""
    late: Literal["refuse", "demote", "keep"] = "refuse"
    """What becomes of a request that cannot meet its objective any more: it is refused at once, goes on in the next
    lower class, or stays."""
    max_wait: Duration = Field(default=60.0, gt=0)
    """Longest time in the queue; then it is answered 503."""


class Standard(Strict):
    """The `standard` class."""

    reserve: float = Field(default=0.05, ge=0, lt=1)
    """Share of the prompt tokens sent to workers that the class gets at least while higher ones have more than enough
    to do."""
    late: Literal["refuse", "demote", "keep"] = "demote"
    """What becomes of a request that cannot meet its objective any more: it is refused at once, goes on in the next
    lower class, or stays."""
    max_wait: Duration = Field(default=300.0, gt=0)
    """Longest time in the queue; then it is answered 503."""


class Batch(Strict):
    """The `batch` class."""

    reserve: float = Field(default=0.02, ge=0, lt=1)
    """Share of the prompt tokens sent to workers that the class gets at least while higher ones have more than enough
    to do."""
    late: Literal["refuse", "keep"] = "keep"
    """What becomes of a request that cannot meet its objective any more: it is refused at once, or stays."""
    max_wait: Duration = Field(default=3600.0, gt=0)
    """Longest time in the queue; then it is answered 503."""
    yield_from: float = Field(default=0.6, gt=0)
    """It begins to be held back when interactive times to first token reach this share of their objective..."""
    yield_all: float = Field(default=0.9, gt=0)
    """...and gets its reserve alone from this share on."""


AdmissionClass = Interactive | Standard | Batch


class Admission(Strict):
    """Requests wait in the gateway and not in the workers, which get no more than they can start soon."""

    policy: Literal["none", "fair", "fcfs", "priority"] = "none"
    """`none`: every request goes to a worker at once. `fair`: by class, between tenants by what they weigh, each
    tenant's by deadline. `priority`: by class alone. `fcfs`: first come, first served."""
    worker_queue: Duration = Field(default=0.2, gt=0)
    """A worker gets more as long as its prompts should be computed within this time."""
    max_running: int | None = Field(default=None, ge=1)
    """Requests at one worker at a time, at most. Set it to what its engine runs at once (`max_num_seqs`)."""
    deadline_header: HeaderName | None = None
    """Name of a request header with the milliseconds in which the first token is wanted, for example
    `x-ttft-deadline-ms`. It counts where it asks for more than the tenant's objective."""
    max_waiting: int = Field(default=10_000, ge=1)
    """Requests in the queue. The fuller it is, the less of it one tenant may hold."""
    max_waiting_bytes: Size = Field(default=1 << 30, ge=1)
    """Bytes of their bodies."""
    tenant_max_waiting: int | None = Field(default=None, ge=1)
    """Requests of one tenant in the queue, of each class; beyond, it is answered 429."""
    tenant_max_waiting_bytes: Size | None = Field(default=None, ge=1)
    """Bytes of their bodies."""
    interactive: Interactive = Interactive()
    """Requests that somebody waits for; see `priority` of a tenant."""
    standard: Standard = Standard()
    """All others."""
    batch: Batch = Batch()
    """Requests that may take hours: they fill what the others leave."""
