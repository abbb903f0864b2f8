"""How many workers a trace needs, which routing gives what, and what caches are worth: replays in virtual time. Pure.

A question is a `Scenario`; `judge` answers it for one fleet, `fewest` looks for the smallest that will do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from backends.simulated.engine import EngineConfig
from backends.simulated.kv_tiers import TierConfig
from gateway.replay.arrival import Arrival
from gateway.replay.customers import Customer
from gateway.replay.records import RequestRecord
from gateway.replay.slo import Slos
from gateway.replay.stats import Distribution, distribution
from gateway.replay.virtual_admission import AdmissionStage
from gateway.replay.virtual_fleet import VirtualResult, replay_virtually
from policies.admission_types import AdmissionSettings, ServiceClass
from policies.routing import make_policy

COARSE_TOKENS: Final = 256
"""Blocks as large as this are simulated where the trace tells nothing of smaller ones."""

Watch = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is asked of a fleet."""

    arrivals: Sequence[Arrival]
    engine: EngineConfig
    slos: Mapping[ServiceClass, Slos]
    """A class that is not named has no objectives, and whatever is answered counts."""
    customers: Sequence[Customer] = ()
    """By arrival; empty where all are of one tenant and of the standard class."""
    admission: str | None = None
    """None: each request is sent to a worker as soon as it comes."""
    settings: AdmissionSettings = field(default_factory=AdmissionSettings)
    speed: float = 1.0
    store: TierConfig | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """Requests of one class, or of one tenant."""

    requests: int
    met: int
    refused: int
    """At once, or after having waited."""

    @property
    def share(self) -> float:
        """Of its requests, those answered within all objectives."""
        return self.met / self.requests if self.requests else 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """One replay in figures: seconds, shares of 1, rates per second of the trace's own time."""

    workers: int
    routing: str
    prefix_cache: bool
    met: int
    goodput: float
    """Requests per second answered within their objectives."""
    classes: Mapping[str, ClassFigures]
    tenants: Mapping[str, ClassFigures]
    ttft: Distribution | None
    tpot: Distribution | None
    hit_share: float
    imbalance: float
    """The most loaded worker's computed prompt tokens ÷ the mean."""
    computed_tokens: int
    demoted: int
    duration: float
    """Until the last answer."""

    def enough(self, target: float) -> bool:
        """Whether at least that share of each class was answered within its objectives."""
        return all(each.share >= target for each in self.classes.values())

    @property
    def share(self) -> float:
        """Of all requests, those answered within their objectives."""
        return self.met / sum(each.requests for each in self.classes.values())

    @property
    def refused(self) -> int:
        """Requests of all classes that were not served."""
        return sum(each.refused for each in self.classes.values())


def judge(
    scenario: Scenario, workers: int, routing: str, *, prefix_cache: bool = True, watch: Watch | None = None
) -> Verdict:
    """What so many workers and this routing make of it. Raises ValueError for a routing or admission not there."""
    arrivals = scenario.arrivals if prefix_cache else unshared(scenario.arrivals)
    stage = None
    if scenario.admission is not None:
        stage = AdmissionStage(scenario.admission, scenario.customers, scenario.slos, scenario.settings)
    result = replay_virtually(
        arrivals,
        make_policy(routing),
        workers=workers,
        engine=scenario.engine,
        speed=scenario.speed,
        seed=scenario.seed,
        store=scenario.store,
        admission=stage,
        watch=watch,
    )
    return _verdict(scenario, result, workers, routing, prefix_cache)


def _verdict(scenario: Scenario, result: VirtualResult, workers: int, routing: str, prefix_cache: bool) -> Verdict:
    records = result.records
    customers = scenario.customers or [Customer()] * len(records)
    met = [
        slos.met(record) if (slos := scenario.slos.get(customer.service_class)) else record.ok
        for record, customer in zip(records, customers, strict=True)
    ]
    came = max(record.scheduled for record in records)
    return Verdict(
        workers=workers,
        routing=routing,
        prefix_cache=prefix_cache,
        met=sum(met),
        goodput=sum(met) / came if came else 0.0,
        classes=_by([customer.service_class.name.lower() for customer in customers], records, met),
        tenants=_by([customer.tenant for customer in customers], records, met),
        ttft=distribution(record.ttft for record in records if record.ok and record.ttft is not None),
        tpot=distribution(record.tpot for record in records if record.ok and record.tpot is not None),
        hit_share=_hit_share(records),
        imbalance=result.imbalance if any(result.load) else 1.0,
        computed_tokens=sum(result.load),
        demoted=result.demoted,
        duration=max((record.finished or 0.0 for record in records), default=0.0),
    )


def _by(names: Sequence[str], records: Sequence[RequestRecord], met: Sequence[bool]) -> dict[str, ClassFigures]:
    counts: dict[str, list[int]] = {}
    for name, record, good in zip(names, records, met, strict=True):
        count = counts.setdefault(name, [0, 0, 0])
        count[0] += 1
        count[1] += good
        count[2] += record.error is not None
    return {name: ClassFigures(*counts[name]) for name in sorted(counts)}


def _hit_share(records: Sequence[RequestRecord]) -> float:
    """Of the prompt tokens that were served: what was refused had no chance of a hit."""
    served = [record for record in records if record.cached_tokens is not None]
    total = sum(record.input_tokens for record in served)
    return sum(record.cached_tokens or 0 for record in served) / total if total else 0.0


def fewest(
    least: int, most: int, target: float, judged: Callable[[int], Verdict]
) -> tuple[int | None, dict[int, Verdict]]:
    """The smallest number of workers of `least` to `most` that is enough, or None, with all that were judged.

    Doubles until it is enough, then halves what is left: more workers are taken never to be worse.
    """
    verdicts: dict[int, Verdict] = {}
    short, tried = least - 1, least
    while True:
        verdicts[tried] = judged(tried)
        if verdicts[tried].enough(target):
            break
        if tried == most:
            return None, verdicts
        short, tried = tried, min(2 * tried, most)
    while tried - short > 1:
        middle = (short + tried) // 2
        verdicts[middle] = judged(middle)
        if verdicts[middle].enough(target):
            tried = middle
        else:
            short = middle
    return tried, verdicts


def unshared(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """The same requests, no block of which was ever seen before: as without a prefix cache."""
    out, next_id = [], 0
    for arrival in arrivals:
        count = len(arrival.block_ids)
        out.append(replace(arrival, block_ids=tuple(range(next_id, next_id + count))))
        next_id += count
    return out


def coarse(
    engine: EngineConfig, arrivals: Sequence[Arrival], store: TierConfig | None = None
) -> tuple[EngineConfig, TierConfig | None]:
    """The same engine and store with larger blocks, where the trace's own are multiples of them: a fraction of the
    work for nearly the same figures, as a prompt's blocks are all or nothing anyway.
    """
    size = engine.block_size
    sizes = {arrival.block_tokens for arrival in arrivals}
    times = next((n for n in range(COARSE_TOKENS // size, 1, -1) if all(block % (n * size) == 0 for block in sizes)), 1)
    host = engine.host
    return (
        replace(
            engine,
            block_size=size * times,
            blocks=max(engine.blocks // times, 1),
            host=None if host is None else replace(host, blocks=max(host.blocks // times, 1)),
        ),
        None if store is None else replace(store, blocks=max(store.blocks // times, 1)),
    )


def fitting(arrivals: Sequence[Arrival], engine: EngineConfig) -> list[Arrival]:
    """Those whose prompt and answer fit into an engine's context: it would refuse the others."""
    limit = engine.context_tokens
    return [arrival for arrival in arrivals if arrival.input_tokens + arrival.output_tokens <= limit]
