"""Tenants and classes share a small fleet in virtual time: what a flood of one costs the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from random import Random

import pytest

from policies.admission import AdmissionQueue, make_admission
from policies.admission_types import AdmissionSettings, Queued, Request, ServiceClass, Ticket

RATE = 10_000.0
"""Tokens/s that a worker prefills, one request after the other."""
WORKERS = 4
SECONDS = 60.0
SLO_S = 2.0


@dataclass
class Load:
    """Poisson arrivals of one tenant."""

    tenant: str
    share: float
    """Of the fleet's capacity."""
    tokens: tuple[float, float] = (200.0, 2_000.0)
    service_class: ServiceClass = ServiceClass.INTERACTIVE


@dataclass
class Outcome:
    """Requests by tenant."""

    offered: dict[str, int] = field(default_factory=dict)
    good: dict[str, int] = field(default_factory=dict)
    """First token within the SLO; for batch, at all."""


def arrivals(loads: list[Load], seed: int) -> list[tuple[float, Load, float]]:
    events = []
    for load in loads:
        draw = Random(f"{load.tenant} {seed}")  # the same whoever else is there
        each = sum(load.tokens) / 2
        now = 0.0
        while (now := now + draw.expovariate(load.share * RATE * WORKERS / each)) < SECONDS:
            events.append((now, load, draw.uniform(*load.tokens)))
    return sorted(events, key=lambda event: event[0])


def simulate(admission: AdmissionQueue, loads: list[Load], seed: int = 1) -> Outcome:
    """Every request's fate. Workers take one at a time, so all that waits is in the queue."""
    outcome = Outcome({load.tenant: 0 for load in loads}, {load.tenant: 0 for load in loads})
    ends: list[tuple[float, Ticket, float, Load]] = []
    loads_of: dict[Ticket, tuple[Load, float]] = {}
    free = WORKERS

    def room(model: str) -> int:
        return free

    def dispatch(now: float) -> None:
        nonlocal free
        while picked := admission.next(now, room):
            load, arrived = loads_of.pop(picked.ticket)
            heappush(ends, (now + picked.request.tokens / RATE, picked.ticket, arrived, load))
            free -= 1
        for gone in admission.expire(now):
            del loads_of[gone.ticket]

    def finish(now: float) -> None:
        nonlocal free
        while ends and ends[0][0] <= now:
            end, ticket, arrived, load = heappop(ends)
            assert admission.finished(ticket)
            free += 1
            outcome.good[load.tenant] += load.service_class is ServiceClass.BATCH or end - arrived <= SLO_S
            dispatch(end)

    for now, load, tokens in arrivals(loads, seed):
        finish(now)
        outcome.offered[load.tenant] += 1
        due = now + SLO_S if load.service_class is ServiceClass.INTERACTIVE else inf
        asked = Request(load.tenant, "m", tokens, load.service_class, deadline=due, lead_s=tokens / RATE, size=1_000)
        wait = admission.tokens_ahead(asked) / (RATE * WORKERS) + tokens / RATE
        answer = admission.offer(asked, now, wait)
        if isinstance(answer, Queued):
            loads_of[answer.ticket] = load, now
        dispatch(now)
    finish(inf)
    admission.check_integrity()
    assert not admission.running
    return outcome


OTHERS = [Load("one", 0.2), Load("two", 0.2), Load("three", 0.2, (100.0, 600.0))]


def costs(name: str, flood: Load) -> list[float]:
    """Share of its goodput that each other tenant loses to `flood`."""
    settings = AdmissionSettings(max_waiting=100_000)
    alone = simulate(make_admission(name, settings), OTHERS)
    beside = simulate(make_admission(name, settings), [*OTHERS, flood])
    return [1 - beside.good[load.tenant] / alone.good[load.tenant] for load in OTHERS]


@pytest.mark.parametrize("share", [1.0, 4.0])
@pytest.mark.parametrize("tokens", [(200.0, 2_000.0), (1.0, 100.0), (4_000.0, 12_000.0)])
def test_a_flood_costs_other_tenants_next_to_nothing(share: float, tokens: tuple[float, float]) -> None:
    assert max(costs("fair", Load("flood", share, tokens))) <= 0.05


def test_without_turns_the_same_flood_costs_nearly_everything() -> None:
    assert min(costs("fcfs", Load("flood", 2.0))) > 0.8
    assert min(costs("priority", Load("flood", 2.0))) > 0.8


def test_a_flood_of_batch_work_costs_interactive_work_next_to_nothing() -> None:
    flood = Load("flood", 2.0, (1_000.0, 4_000.0), ServiceClass.BATCH)
    assert max(costs("fair", flood)) <= 0.05
    assert min(costs("fcfs", flood)) > 0.8


def test_batch_work_fills_what_is_idle() -> None:
    batch = Load("batch", 2.0, (1_000.0, 4_000.0), ServiceClass.BATCH)
    outcome = simulate(make_admission("fair", AdmissionSettings(max_waiting=100_000)), [Load("one", 0.5), batch])
    served = outcome.good["batch"] / outcome.offered["batch"]
    assert outcome.good["one"] / outcome.offered["one"] >= 0.99
    # All of it is dispatched in the end; the queue is empty only when it is.
    assert served == 1.0


def test_what_is_refused_at_once_would_have_been_late() -> None:
    """Of the flood itself, as much is served in time as there is room for: no work is done in vain."""
    flood = [Load("flood", 2.0)]
    fair = simulate(make_admission("fair", AdmissionSettings(max_waiting=100_000)), flood)
    fcfs = simulate(make_admission("fcfs", AdmissionSettings(max_waiting=100_000)), flood)
    assert fair.good["flood"] / fair.offered["flood"] >= 0.48
    assert fcfs.good["flood"] / fcfs.offered["flood"] <= 0.1
