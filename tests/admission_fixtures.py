"""An admission queue whose rules are told one by one, and what is said to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any, Final

from policies.admission import AdmissionQueue
from policies.admission_types import (
    AdmissionSettings,
    ClassRules,
    Dispatched,
    Queued,
    Request,
    ServiceClass,
    Ticket,
)

INTERACTIVE, STANDARD, BATCH = ServiceClass


PLAIN: Final = AdmissionSettings(interactive=ClassRules(), standard=ClassRules(), batch=ClassRules(), quantum=100.0)


def queue(**settings: Any) -> AdmissionQueue:
    """One without reserves, in which nothing expires, unless told otherwise."""
    return AdmissionQueue(replace(PLAIN, **settings))


def request(tenant: str = "a", service_class: ServiceClass = STANDARD, *, model: str = "m", tokens: float = 100.0,
            weight: float = 1.0, deadline: float = inf, lead_s: float = 0.0, size: int = 0,
            max_running: int | None = None) -> Request:  # fmt: skip
    return Request(tenant, model, tokens, service_class, weight, deadline, lead_s, size, max_running)


def offer(admission: AdmissionQueue, asked: Request, now: float = 0.0, wait: float = 0.0) -> Ticket:
    answer = admission.offer(asked, now, wait)
    assert isinstance(answer, Queued)
    return answer.ticket


def roomy(model: str) -> int:
    return 1


def take(admission: AdmissionQueue, now: float = 0.0, room: Callable[[str], int] = roomy) -> Dispatched:
    picked = admission.next(now, room)
    assert picked is not None
    return picked


def drain(admission: AdmissionQueue, now: float = 0.0) -> list[Ticket]:
    """Everything in the order of its dispatch; nothing finishes."""
    order = []
    while picked := admission.next(now, roomy):
        order.append(picked.ticket)
    return order
