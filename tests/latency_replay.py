"""Latency predictions beside what simulated engines then did, in virtual time and without a clock: those that the
gateway's own fleet state makes when it sends a request, with requests waiting in front of the fleet or not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf
from statistics import fmean, median
from typing import NamedTuple

from backends.simulated.engine import EngineConfig, SimulatedEngine
from backends.simulated.sequence import request_from_ids
from gateway.replay.arrival import Arrival
from gateway.replay.plan import timed_chains
from gateway.replay.records import RequestRecord
from gateway.replay.virtual_admission import AdmissionStage
from gateway.replay.virtual_engines import prompt_ids
from gateway.replay.virtual_fleet import replay_virtually
from policies.latency_model import Prediction, Situation, WorkerLatency
from policies.routing import Prompt, RouteDecision, RoutingPolicy, WorkerView, make_policy
from tests.latency_floor import Floor, Floors

TICK_S = 3.0
"""Mooncake's times are whole multiples of this."""


class Request(NamedTuple):
    """One request as it went, and what was said of it. Seconds and tokens."""

    arrived: float
    sent: float
    """To its worker: when it arrived, or later where it waited in the gateway."""
    first: float
    finished: float
    output: int
    said: Prediction
    """When it was sent."""
    expected_s: float | None
    """From its arrival to its first token, as expected then, where requests wait in the gateway."""
    naive_s: float | None
    """Queued and own uncached tokens ÷ the worker's learnt rate; None while that is not known."""
    floor: Floor | None = None
    """What copies of the engine said, of some requests."""


class _Noting:
    """A routing policy that keeps what the gateway knew of the worker it chose."""

    def __init__(self, policy: RoutingPolicy) -> None:
        self._policy = policy
        self.needs = policy.needs
        self.uses_key = policy.uses_key
        self.naive: list[float | None] = []

    def choose(self, prompt: Prompt, workers: Sequence[WorkerView], sample: float) -> RouteDecision:
        decision = self._policy.choose(prompt, workers, sample)
        view = workers[decision.chosen]
        lacking = prompt.tokens - decision.cached_tokens
        self.naive.append((view.queued_tokens + lacking) / view.prefill_rate if view.prefill_rate else None)
        return decision


def spread(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """What came in one tick, evenly over it: recorded times are rounded down, real ones are not."""
    out: list[Arrival] = []
    for _, together in groupby(arrivals, key=lambda arrival: arrival.at):
        rows = list(together)
        out += [replace(row, at=row.at + TICK_S * place / len(rows)) for place, row in enumerate(rows)]
    return out


def capacity_speed(arrivals: Sequence[Arrival], *, workers: int, engine: EngineConfig) -> float:
    """The speed-up at which requests come as fast as the fleet gets through when all are there at once."""
    at_once = replay_virtually(arrivals, make_policy("cost"), workers=workers, engine=engine, speed=1e6)
    took = max(record.finished or 0.0 for record in at_once.records)
    chains = timed_chains(arrivals)
    span = max(arrivals[chain[0]].at + sum(arrivals[i].pause or 0.0 for i in chain[1:]) for chain in chains)
    return span / took


def requests(
    arrivals: Sequence[Arrival],
    *,
    workers: int,
    engine: EngineConfig,
    speed: float,
    waits: bool = False,
    floor_every: int = 0,
) -> list[Request]:
    """All that were answered, in the order in which they were sent: at once, or, where each `waits`, when a worker has
    room. Of every so many-th it is found out how well its time could be known; 0: of none.
    """
    floors = Floors(floor_every, [arrival.output_tokens for arrival in arrivals]) if floor_every else None
    noting = _Noting(make_policy("cost"))
    stage = AdmissionStage("fair") if waits else None
    result = replay_virtually(
        arrivals,
        noting,
        workers=workers,
        engine=engine,
        speed=speed,
        admission=stage,
        predicts=True,
        submitted=None if floors is None else floors.submitted,
    )
    sent = [record for record in result.records if record.dispatched is not None]
    sent.sort(key=lambda record: (record.dispatched, record.index))
    naive = [None] * len(sent) if waits else noting.naive  # who goes first of those that wait is not known here
    found = floors.found if floors else {}
    return [
        _request(record, each)._replace(floor=found.get(record.index)) for record, each in zip(sent, naive, strict=True)
    ]


def _request(record: RequestRecord, naive_s: float | None) -> Request:
    assert record.sent is not None
    assert record.dispatched is not None
    assert record.predicted is not None
    assert record.first_token is not None
    assert record.finished is not None
    return Request(
        record.sent,
        record.dispatched,
        record.first_token,
        record.finished,
        record.tokens_made,
        record.predicted,
        record.expected_s,
        naive_s,
    )


@dataclass(frozen=True)
class Judged:
    """Mean errors (|predicted − measured| ÷ measured) and coverage of the upper quantile, after the warm-up."""

    n: int
    ttft: float
    ttft_median: float
    """Median error."""
    ttft_s: float
    """Mean error in seconds."""
    naive_ttft: float | None
    ttft_p90: float
    tpot: float
    tpot_p90: float
    by_situation: dict[str, tuple[int, float, float]]
    """Of each: how many, error, coverage."""
    on_arrival: float | None
    """Error of what was expected when requests came that then waited in the gateway."""
    floors: tuple[int, float, float, float] | None
    """Of how many it was found out; there, the errors of what was predicted, of the engine's copy that knows lengths,
    and of the one that does not.
    """


def judged(rows: Sequence[Request], *, warm_up: int = 500) -> Judged:
    """TPOT is judged of requests that were over before the last one came: after that, load is not the trace's."""
    rows = rows[warm_up:]
    last = rows[-1].sent
    decodes = [
        ((row.finished - row.first) / (row.output - 1), row.said)
        for row in rows
        if row.output > 1 and row.finished <= last
    ]
    by_situation = {}
    for situation in Situation:
        some = [row for row in rows if row.said.situation is situation]
        if some:
            by_situation[situation.name.lower()] = (len(some), _ttft_error(some), _ttft_covered(some))
    waited = [abs(row.expected_s / (row.first - row.arrived) - 1.0) for row in rows if row.expected_s is not None]
    naive = [abs(row.naive_s / (row.first - row.sent) - 1.0) for row in rows if row.naive_s is not None]
    return Judged(
        n=len(rows),
        ttft=_ttft_error(rows),
        ttft_median=median(abs(row.said.ttft_s / (row.first - row.sent) - 1.0) for row in rows),
        ttft_s=fmean(abs(row.said.ttft_s - (row.first - row.sent)) for row in rows),
        naive_ttft=fmean(naive) if naive else None,
        ttft_p90=_ttft_covered(rows),
        tpot=fmean(abs(one.tpot_s / tpot - 1.0) for tpot, one in decodes),
        tpot_p90=fmean(tpot <= one.tpot_p90_s for tpot, one in decodes),
        by_situation=by_situation,
        on_arrival=fmean(waited) if waited else None,
        floors=_floors(rows),
    )


def _floors(rows: Sequence[Request]) -> tuple[int, float, float, float] | None:
    some = [(row, row.floor) for row in rows if row.floor is not None]
    if not some:
        return None
    errors = [[abs(said / (row.first - row.sent) - 1.0) for said in (row.said.ttft_s, *floor)] for row, floor in some]
    predicted, known, drawn = (fmean(column) for column in zip(*errors, strict=True))
    return len(some), predicted, known, drawn


def _ttft_error(rows: Sequence[Request]) -> float:
    return fmean(abs(row.said.ttft_s / (row.first - row.sent) - 1.0) for row in rows)


def _ttft_covered(rows: Sequence[Request]) -> float:
    return fmean(row.first - row.sent <= row.said.ttft_p90_s for row in rows)


def slowed(*, per_second: float, before: int, after: int, factor: float, seed: int = 1) -> list[tuple[float, float]]:
    """(predicted, measured) TTFT on one engine that takes `factor` times as long from request number `before` on."""
    rng = random.Random(seed)
    config = EngineConfig()
    engine, worker = SimulatedEngine(config), WorkerLatency(kv_tokens=config.blocks * config.block_size)
    sent: dict[str, tuple[float, float]] = {}
    pairs: dict[int, tuple[float, float]] = {}
    at = 0.0
    for number in range(before + after):
        at += rng.expovariate(per_second)
        _tell(engine, at, worker, sent, pairs)
        if number == before:
            engine.config = replace(config, speed=1.0 / factor)
        tokens, answer = rng.randint(100, 3_000), rng.randint(20, 200)
        predicted = worker.predict(at, tokens)
        worker.sent(number, predicted, at)
        sent[str(number)] = (at, predicted.ttft_s)
        arrival = Arrival(at, tokens, answer, tuple(range(number << 8, (number << 8) + -(-tokens // 512))), 512)
        engine.submit(
            request_from_ids(str(number), prompt_ids(arrival), answer, block_size=config.block_size, model="m"), at
        )
    _tell(engine, inf, worker, sent, pairs)
    return [pairs[number] for number in sorted(pairs)]


def _tell(
    engine: SimulatedEngine,
    until: float,
    worker: WorkerLatency,
    sent: dict[str, tuple[float, float]],
    pairs: dict[int, tuple[float, float]],
) -> None:
    """Live until then, and tell the model at the time what came out."""
    made: dict[str, int] = {}
    while (moment := engine.next_event_at()) is not None and moment <= until:
        for output in engine.advance(moment):
            number = int(output.id)
            if output.first:
                at, predicted = sent[output.id]
                pairs[number] = (predicted, output.times[0] - at)
                worker.first_token(number, output.times[0])
            made[output.id] = made.get(output.id, 0) + len(output.times)
            if output.finished:
                worker.ended(number, output.times[-1], made[output.id])
        engine.take_kv_events()
