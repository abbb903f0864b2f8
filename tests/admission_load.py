"""Two classes and four tenants, one of them flooding, in front of a virtual fleet: what each admission policy makes of
it. Exact and repeatable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from backends.simulated.engine import EngineConfig
from gateway.replay.arrival import Arrival
from gateway.replay.customers import Customer, customers_of
from gateway.replay.records import RequestRecord
from gateway.replay.slo import Slos
from gateway.replay.stats import percentile
from gateway.replay.virtual_admission import AdmissionStage
from gateway.replay.virtual_fleet import replay_virtually
from policies.admission_types import AdmissionSettings, ClassRules, Late, ServiceClass
from policies.routing import make_policy
from tests.latency_replay import capacity_speed

INTERACTIVE, BATCH = ServiceClass.INTERACTIVE, ServiceClass.BATCH
RESERVE: Final = 0.02
"""Share of tokens reserved for batch work: the default."""
DEMANDS: Final = {"a": (INTERACTIVE, 0.25), "b": (INTERACTIVE, 0.25), "c": (BATCH, 0.15)}
"""What three of the tenants ask for, as shares of capacity; the fourth, d, asks for the rest of the load."""
_CALM: Final = 0.15
"""What d asks for where it does not flood."""
_PARTS: Final = 10


@dataclass(frozen=True)
class Workload:
    """A trace, the fleet it goes to, and what is promised. `users` a worker measure the capacity where answers bring
    forth requests; None: all at once.
    """

    arrivals: Sequence[Arrival]
    engine: EngineConfig
    workers: int
    ttft: float
    tpot: float
    batch_ttft: float = 60.0
    users: int | None = None

    @property
    def slos(self) -> dict[ServiceClass, Slos]:
        """By class."""
        return {INTERACTIVE: Slos(ttft=self.ttft, tpot=self.tpot), BATCH: Slos(ttft=self.batch_ttft)}

    def capacity(self) -> float:
        """The speed at which requests come as fast as the fleet gets through at its best."""
        if self.users is None:
            return capacity_speed(self.arrivals, workers=self.workers, engine=self.engine)
        result = replay_virtually(
            self.arrivals,
            make_policy("cost"),
            workers=self.workers,
            engine=self.engine,
            concurrency=self.users * self.workers,
        )
        return self.arrivals[-1].at / max(record.finished or 0.0 for record in result.records)


@dataclass(frozen=True)
class Outcome:
    """Rates per second, shares of 1."""

    goodput: float
    came: float
    """Requests of all kinds: what goodput would be if each of them were within its objectives."""
    interactive: float
    """Share of interactive requests within their objectives, refused ones included."""
    batch: float
    tenants: Mapping[str, float]
    """Goodput of each."""
    jain: float
    """Jain's index of goodput ÷ max-min fair share of the capacity: 1 is even, 1/4 is all to one."""
    cost: Mapping[str, float]
    """By what share of its goodput the flood diminishes each other tenant's; empty where that was not measured."""
    slowest_batch: float
    """Of ten equal parts of the time, the least share of all served prompt tokens that was batch work."""
    ttft_p99: float
    """Interactive; likewise the next."""
    tpot_p99: float
    refused: int


def settings(reserve: float) -> AdmissionSettings:
    """The defaults, but that batch work too late for its objective is refused: nobody would count it."""
    return AdmissionSettings(batch=ClassRules(reserve, Late.REFUSE, 3600.0))


def demand(load: float, flood: ServiceClass = BATCH) -> dict[Customer, float]:
    """What each tenant asks for, as shares of capacity, where all together ask for `load`."""
    rest = load - sum(share for _, share in DEMANDS.values())
    return {Customer(name, each): share for name, (each, share) in DEMANDS.items()} | {Customer("d", flood): rest}


def outcome(  # noqa: PLR0917 - what a replay is of
    workload: Workload,
    policy: str,
    load: float,
    capacity: float,
    flood: ServiceClass = BATCH,
    reserve: float = RESERVE,
) -> Outcome:
    """That load, as a share of capacity, under that admission policy, with d flooding in that class."""
    shares = demand(load, flood)
    rest = shares[Customer("d", flood)]
    customers = customers_of(workload.arrivals, shares, seed=1)
    speed = capacity * load
    records = virtual_run(workload, policy, workload.arrivals, customers, speed, reserve)
    span = max(arrival.at for arrival in workload.arrivals) / speed
    found = judged(workload, load, flood, customers, records, span)
    keep, drop = Customer("keep"), Customer("drop")
    calm = customers_of(workload.arrivals, {keep: min(_CALM / rest, 1.0), drop: max(1 - _CALM / rest, 0.0)}, seed=2)
    chosen = [n for n, each in enumerate(customers) if each.tenant != "d" or calm[n] is keep or calm[n] == keep]
    fewer = [customers[n] for n in chosen]
    calmly = virtual_run(workload, policy, [workload.arrivals[n] for n in chosen], fewer, speed, reserve)
    goodput = _goodput(fewer, _met(workload, fewer, calmly), span)
    return replace(found, cost={name: 1 - found.tenants[name] / goodput[name] for name in DEMANDS})


def judged(  # noqa: PLR0917 - what a replay is of
    workload: Workload,
    load: float,
    flood: ServiceClass,
    customers: Sequence[Customer],
    records: Sequence[RequestRecord],
    span: float,
) -> Outcome:
    """What came of a replay whose arrivals took `span` seconds; what the flood costs is not known from it alone."""
    met = _met(workload, customers, records)
    tenants = _goodput(customers, met, span)
    rate = len(records) / span / load
    """Requests per second that are the whole capacity."""
    entitled = fair_shares({each.tenant: share for each, share in demand(load, flood).items()}, 1.0)
    interactive = [n for n, each in enumerate(customers) if each.service_class is INTERACTIVE]
    batch = [n for n, each in enumerate(customers) if each.service_class is BATCH]
    return Outcome(
        goodput=sum(met) / span,
        came=len(records) / span,
        interactive=fmean(met[n] for n in interactive),
        batch=fmean(met[n] for n in batch),
        tenants=tenants,
        jain=jain([tenants[name] / (entitled[name] * rate) for name in entitled]),
        cost={},
        slowest_batch=_slowest(records, batch, span),
        ttft_p99=_p99([records[n].ttft for n in interactive]),
        tpot_p99=_p99([records[n].tpot for n in interactive]),
        refused=sum(record.error is not None for record in records),
    )


def virtual_run(  # noqa: PLR0917 - what a replay is of
    workload: Workload,
    policy: str,
    arrivals: Sequence[Arrival],
    customers: Sequence[Customer],
    speed: float,
    reserve: float,
) -> Sequence[RequestRecord]:
    """In virtual time; `policy` "none" keeps nobody waiting."""
    stage = AdmissionStage(policy, customers, workload.slos, settings(reserve))
    return replay_virtually(
        arrivals,
        make_policy("cost"),
        workers=workload.workers,
        engine=workload.engine,
        speed=speed,
        admission=None if policy == "none" else stage,
    ).records


def _met(workload: Workload, customers: Sequence[Customer], records: Sequence[RequestRecord]) -> list[bool]:
    slos = workload.slos
    return [slos[each.service_class].met(record) for record, each in zip(records, customers, strict=True)]


def _goodput(customers: Sequence[Customer], met: Sequence[bool], span: float) -> dict[str, float]:
    found = dict.fromkeys("abcd", 0.0)
    for customer, good in zip(customers, met, strict=True):
        found[customer.tenant] += good / span
    return found


def _slowest(records: Sequence[RequestRecord], batch: Sequence[int], span: float) -> float:
    served, of_batch, chosen = [0.0] * _PARTS, [0.0] * _PARTS, set(batch)
    for n, record in enumerate(records):
        if record.first_token is not None and record.first_token < span:
            part = int(record.first_token / span * _PARTS)
            served[part] += record.input_tokens
            of_batch[part] += record.input_tokens * (n in chosen)
    return min(mine / total if total else 0.0 for mine, total in zip(of_batch, served, strict=True))


def _p99(values: Sequence[float | None]) -> float:
    known = sorted(value for value in values if value is not None)
    return percentile(known, 0.99) if known else 0.0


def fair_shares(demands: Mapping[str, float], capacity: float) -> dict[str, float]:
    """Max-min fair: nobody gets more than it asks for, and nobody less than another who asks for more."""
    left, shares = capacity, {}
    for place, (name, demand) in enumerate(sorted(demands.items(), key=lambda item: item[1])):
        shares[name] = min(demand, left / (len(demands) - place))
        left -= shares[name]
    return shares


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index; 0 of nothing."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0
