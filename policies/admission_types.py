"""What is said to an admission queue, and what it answers: plain frozen values, times in seconds of one clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum, auto
from math import inf
from typing import Final, NamedTuple, NewType

Ticket = NewType("Ticket", int)
"""One accepted request, from `offer` until it is over; never given out twice by one queue."""


MOST_TOKENS: Final = 1e9
"""No request is charged more."""


class ServiceClass(IntEnum):
    """Who goes first. The order of the numbers is the order of service."""

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2


class Late(StrEnum):
    """What becomes of a request that cannot make its deadline, before it is queued and while it waits."""

    REFUSE = auto()
    DEMOTE = auto()
    """It goes on in the next lower class, without a deadline."""
    KEEP = auto()
    """It waits on. Its deadline only says where it stands among its tenant's others."""


class Reason(StrEnum):
    """Why a request is not served."""

    DEADLINE = auto()
    """It cannot make its deadline any more."""
    WAITED = auto()
    """It has waited as long as its class lets it."""
    QUEUE_FULL = auto()
    QUEUE_BYTES = auto()
    TENANT_FULL = auto()
    TENANT_BYTES = auto()


class Request(NamedTuple):
    """What admission needs to know of a request."""

    tenant: str
    model: str
    """What it needs room for. Names that the same workers serve (aliases, adapters on one base model) must come as
    one: all that is promised between classes and tenants holds for each model by itself."""
    tokens: float
    """Uncached prompt tokens, as estimated now; `correct` and `finished` set it right."""
    service_class: ServiceClass = ServiceClass.STANDARD
    weight: float = 1.0
    """The tenant's, beside others of the class; between a millionth and a million. The latest one counts."""
    deadline: float = inf
    """When its first token is due."""
    lead_s: float = 0.0
    """Predicted time from dispatch to its first token: it must be dispatched that long before its deadline."""
    size: int = 0
    """Bytes that are held while it waits."""
    max_running: int | None = None
    """How many requests of this tenant may be dispatched and not finished; at least 1. The latest one counts."""


def check_request(request: Request) -> None:
    """Raises ValueError for values that mean nothing."""
    _, _, tokens, _, weight, deadline, lead_s, size, max_running = request
    if not (
        1e-6 <= weight <= 1e6
        and 0 <= tokens <= MOST_TOKENS
        and size >= 0
        and 0 <= lead_s < inf
        and -inf < deadline <= inf
    ):
        raise ValueError(
            f"no request: weight {weight!r}, {tokens!r} tokens, {size!r} bytes, due at {deadline!r},"
            f" {lead_s!r} s to its first token"
        )
    if max_running is not None and max_running < 1:
        raise ValueError(f"a tenant that may run nothing: {max_running!r}")


class Queued(NamedTuple):
    """It waits."""

    ticket: Ticket
    service_class: ServiceClass
    """The one asked for, or a lower one where it was demoted."""


class Refused(NamedTuple):
    """It was not queued, and nothing is kept of it."""

    reason: Reason
    retry_after_s: float
    """After which there may be room for it, within the bounds of the settings."""


class Dispatched(NamedTuple):
    """It goes to a worker now, and counts as running until `finished` or `put_back`."""

    ticket: Ticket
    request: Request
    service_class: ServiceClass
    waited_s: float


class Expired(NamedTuple):
    """It waited and is not served; its ticket is worth nothing any more."""

    ticket: Ticket
    request: Request
    reason: Reason
    waited_s: float


@dataclass(frozen=True, slots=True)
class ClassRules:
    """How one class is treated. Raises ValueError for values that mean nothing."""

    reserve: float = 0.0
    """Share of the tokens dispatched for a model that the class gets at least, while it has something to dispatch."""
    late: Late = Late.KEEP
    max_wait_s: float = inf

    def __post_init__(self) -> None:
        if not 0 <= self.reserve < 1 or not self.max_wait_s > 0:
            raise ValueError(f"no rules of a class: reserve {self.reserve!r}, at most {self.max_wait_s!r} s")


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """Raises ValueError for values that mean nothing, or that contradict each other."""

    interactive: ClassRules = ClassRules(0.0, Late.REFUSE, 60.0)
    standard: ClassRules = ClassRules(0.05, Late.DEMOTE, 300.0)
    batch: ClassRules = ClassRules(0.02, Late.KEEP, 3600.0)
    max_waiting: int = 10_000
    """Requests. The fuller the queue, the less of it one tenant may hold in one class: eight times what is left free.
    One alone may fill eight ninths, and there is always room for somebody who has nothing waiting."""
    max_bytes: int = 1 << 30
    """The same, of `Request.size`."""
    tenant_max_waiting: int | None = None
    """Requests of one tenant in one class."""
    tenant_max_bytes: int | None = None
    quantum: float = 256.0
    """Tokens × weight that a tenant may send before it is the next one's turn."""
    burst: float = 65_536.0
    """Tokens × weight that a tenant which asked for less than its share may have saved up, to go before others with."""
    least_charge: float = 32.0
    """Tokens that a request is charged at least: with all of its prompt cached it still takes a place."""
    yield_from: float = 0.6
    """Interactive latency of a model ÷ its objective from which on the model's batch work gets less..."""
    yield_all: float = 0.9
    """...and from which on it gets its reserve alone."""
    min_retry_s: float = 1.0
    max_retry_s: float = 60.0

    @property
    def rules(self) -> tuple[ClassRules, ClassRules, ClassRules]:
        """By `ServiceClass`."""
        return self.interactive, self.standard, self.batch

    def __post_init__(self) -> None:
        if self.interactive.reserve:
            raise ValueError("the highest class needs no reserve")
        if self.standard.reserve + self.batch.reserve >= 1:
            raise ValueError("reserves that leave nothing to the highest class")
        if self.batch.late is Late.DEMOTE:
            raise ValueError("there is no class below the lowest")
        limits = (self.max_waiting, self.max_bytes, self.tenant_max_waiting, self.tenant_max_bytes)
        if any(limit is not None and limit < 1 for limit in limits):
            raise ValueError(f"limits below 1: {limits}")
        if not 0 <= self.burst < inf:
            raise ValueError(f"nobody saves up {self.burst!r} tokens")
        if not 1 <= self.quantum < inf or not 1 <= self.least_charge <= MOST_TOKENS:
            raise ValueError(f"below 1: quantum {self.quantum!r}, least charge {self.least_charge!r}")
        if not 0 < self.yield_from < self.yield_all < inf:
            raise ValueError(f"no way to yield: {self.yield_from!r} to {self.yield_all!r}")
        if not 0 <= self.min_retry_s <= self.max_retry_s:
            raise ValueError(f"no range to retry in: {self.min_retry_s!r} to {self.max_retry_s!r} s")
