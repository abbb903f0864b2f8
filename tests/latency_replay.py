"""Latency predictions beside what simulated engines then did, in virtual time and without a clock.

A replay over the gateway's own routing is run first; its sends, first tokens and ends are then told to the model in the
order of time. As nothing reads the predictions yet, that is what it would have been told live.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf
from statistics import fmean
from typing import NamedTuple

from backends.simulated.engine import EngineConfig, SimulatedEngine
from backends.simulated.sequence import request_from_ids
from gateway.replay.arrival import Arrival
from gateway.replay.plan import timed_chains
from gateway.replay.records import RequestRecord
from gateway.replay.virtual_engines import prompt_ids
from gateway.replay.virtual_fleet import replay_virtually
from policies.latency_model import FleetLatency, Prediction, Situation, WorkerLatency
from policies.routing import Prompt, RouteDecision, RoutingPolicy, WorkerView, make_policy

TICK_S = 3.0
"""Mooncake's times are whole multiples of this."""


class Request(NamedTuple):
    """One request as it went, and what was known when it was sent. Seconds and tokens."""

    sent: float
    first: float
    finished: float
    worker: str
    uncached: int
    context: int
    output: int
    naive_s: float | None
    """Queued and own uncached tokens ÷ the worker's learnt rate; None while that is not known."""


class _Noting:
    """A routing policy that keeps what the gateway knew of the worker it chose."""

    def __init__(self, policy: RoutingPolicy) -> None:
        self._policy = policy
        self.needs = policy.needs
        self.uses_key = policy.uses_key
        self.notes: list[tuple[int, float, float | None]] = []

    def choose(self, prompt: Prompt, workers: Sequence[WorkerView], sample: float) -> RouteDecision:
        decision = self._policy.choose(prompt, workers, sample)
        view = workers[decision.chosen]
        self.notes.append((decision.cached_tokens, view.queued_tokens, view.prefill_rate))
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


def requests(arrivals: Sequence[Arrival], *, workers: int, engine: EngineConfig, speed: float) -> list[Request]:
    """All that were answered, in the order in which they were sent."""
    noting = _Noting(make_policy("cost"))
    result = replay_virtually(arrivals, noting, workers=workers, engine=engine, speed=speed)
    in_order = sorted(result.records, key=lambda record: (record.sent, record.index))
    return [_request(record, *note) for record, note in zip(in_order, noting.notes, strict=True)]


def _request(record: RequestRecord, cached: int, queued: float, rate: float | None) -> Request:
    assert record.sent is not None
    assert record.first_token is not None
    assert record.finished is not None
    assert record.worker is not None
    lacking = record.input_tokens - cached
    naive = (queued + lacking) / rate if rate else None
    return Request(
        record.sent, record.first_token, record.finished, record.worker, lacking, cached, record.tokens_made, naive
    )


@dataclass(frozen=True)
class Judged:
    """Mean errors (|predicted − measured| ÷ measured) and coverage of the upper quantile, after the warm-up."""

    n: int
    ttft: float
    naive_ttft: float
    ttft_p90: float
    tpot: float
    tpot_p90: float
    by_situation: dict[str, tuple[int, float, float]]
    """Of each: how many, error, coverage."""


def predictions(rows: Sequence[Request], *, kv_tokens: float = inf) -> list[Prediction]:
    """What the model says of each when it is sent, knowing what happened before."""
    fleet = FleetLatency()
    workers: dict[str, WorkerLatency] = {}
    said: list[Prediction] = []
    for now, what, i in _events(rows):
        row = rows[i]
        worker = workers.setdefault(row.worker, WorkerLatency(fleet, kv_tokens=kv_tokens))
        if what == "sent":
            said.append(worker.predict(now, row.uncached, row.context))
            worker.sent(i, said[-1], now)
        elif what == "first":
            worker.first_token(i, now)
        else:
            worker.ended(i, now, row.output)
    return said


def _events(rows: Sequence[Request]) -> Iterator[tuple[float, str, int]]:
    events = []
    for i, row in enumerate(rows):
        events += [(row.first, 0, "first", i), (row.finished, 1, "ended", i), (row.sent, 2, "sent", i)]
    for at, _, what, i in sorted(events):
        yield at, what, i


def judged(rows: Sequence[Request], said: Sequence[Prediction], *, warm_up: int = 500) -> Judged:
    """TPOT is judged of requests that were over before the last one came: after that, load is not the trace's."""
    pairs = list(zip(rows, said, strict=True))[warm_up:]
    last = rows[-1].sent
    decodes = [
        ((row.finished - row.first) / (row.output - 1), one)
        for row, one in pairs
        if row.output > 1 and row.finished <= last
    ]
    by_situation = {}
    for situation in Situation:
        some = [(row, one) for row, one in pairs if one.situation is situation]
        if some:
            by_situation[situation.name.lower()] = (len(some), _ttft_error(some), _ttft_covered(some))
    return Judged(
        n=len(pairs),
        ttft=_ttft_error(pairs),
        naive_ttft=fmean(
            abs(row.naive_s / (row.first - row.sent) - 1.0) for row, _ in pairs if row.naive_s is not None
        ),
        ttft_p90=_ttft_covered(pairs),
        tpot=fmean(abs(one.tpot_s / tpot - 1.0) for tpot, one in decodes),
        tpot_p90=fmean(tpot <= one.tpot_p90_s for tpot, one in decodes),
        by_situation=by_situation,
    )


def _ttft_error(pairs: Sequence[tuple[Request, Prediction]]) -> float:
    return fmean(abs(one.ttft_s / (row.first - row.sent) - 1.0) for row, one in pairs)


def _ttft_covered(pairs: Sequence[tuple[Request, Prediction]]) -> float:
    return fmean(row.first - row.sent <= one.ttft_p90_s for row, one in pairs)


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
