"""One worker as it is shown to people and machines: what the control plane lists."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from policies.types import WorkerId


class Standing(StrEnum):
    """May a worker be given requests?"""

    READY = "ready"
    WAITING = "waiting"
    """It has not told its models yet."""
    RESTING = "resting"
    """It refused a connection a moment ago."""
    EJECTED = "ejected"
    """Its answers, or their absence, put it out for a while."""
    UNHEALTHY = "unhealthy"
    """It fails its probes."""
    HUNG = "hung"
    """It says that it is well and makes no progress."""
    DRAINING = "draining"
    """It finishes what it has and gets nothing new."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What is known of one worker at one moment."""

    id: WorkerId
    url: str
    source: str
    """Who named it: `config`, `admin`, or `dns NAME`."""
    standing: Standing
    models: tuple[str, ...]
    weight: float
    active: int
    """Requests sent by this gateway and not finished."""
    served: int
    queued_tokens: float
    prefill_tokens_per_s: float | None
    block_size: int
    kv_blocks: int | None
    blocks_known: int
    """Blocks that the index holds for it."""
    kv_feed: str | None
    """State of its KV events; None where it publishes none."""
    running: int | None
    """As its own `/metrics` say; None where they do not."""
    waiting: int | None
    kv_used: float | None
    connections: int
    out_for: float | None
    """Seconds until it is used again, where that is known."""
