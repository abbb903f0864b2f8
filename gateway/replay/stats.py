"""Figures of a replay from its records: pure, exact, in seconds and tokens."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gateway.replay.arrival import Arrival
    from gateway.replay.records import RequestRecord
    from gateway.replay.slo import Slos, WarmUp

_NUMBERS: Final = re.compile(r"([0-9]{1,18})")

SLICES: Final = 20
"""Parts of the replay, equal in requests, for which the hit share is told one by one."""


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of ascending ``ordered`` lies, linear between the two nearest
    ranks.

    This is definition 7 of Hyndman and Fan (1996), numpy's default: rank ``share * (n - 1)``, counted from 0.
    """
    if not ordered:
        raise ValueError("no values")
    rank = share * (len(ordered) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of ``count`` values, seconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


def distribution(values: Iterable[float]) -> Distribution | None:
    """None of no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Distribution(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=percentile(ordered, 0.5),
        p90=percentile(ordered, 0.9),
        p99=percentile(ordered, 0.99),
        max=ordered[-1],
    )


def one_cache_hits(rows: Iterable[Arrival]) -> list[int]:
    """For each arrival, in order, the input tokens that one unbounded cache shared by all would serve.

    A hit is the longest run of leading blocks that earlier arrivals brought, a partial last block included.
    """
    seen: set[int] = set()
    hits = []
    for row in rows:
        blocks = next((n for n, block_id in enumerate(row.block_ids) if block_id not in seen), len(row.block_ids))
        hits.append(min(blocks * row.block_tokens, row.input_tokens))
        seen.update(row.block_ids[blocks:])
    return hits


def one_cache_hit_share(rows: Sequence[Arrival]) -> float:
    """Share of all input tokens that one unbounded cache would serve: the limit for any fleet. 0 of no
    rows.
    """
    total = sum(row.input_tokens for row in rows)
    return sum(one_cache_hits(rows)) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Hits:
    """Tokens served from cache, of the requests whose usage told ``cached_tokens``, beside the trace's own
    limit.
    """

    requests: int
    prompt_tokens: int
    cached_tokens: int
    input_tokens: int  # of the trace, same requests
    limit_tokens: int

    @property
    def share(self) -> float | None:
        """Tokens from cache ÷ prompt tokens."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def limit(self) -> float | None:
        """What one unbounded cache for all would have reached."""
        return self.limit_tokens / self.input_tokens if self.input_tokens else None

    @property
    def of_limit(self) -> float | None:
        """``share`` ÷ ``limit``."""
        return self.share / self.limit if self.share is not None and self.limit else None


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What one worker answered; ``worker`` is None for answers that did not name theirs."""

    worker: str | None
    requests: int
    failed: int
    input_tokens: int
    output_tokens: int
    hits: Hits
    ttft_p50: float | None


@dataclass(frozen=True, slots=True)
class ErrorClass:
    """Requests that failed alike, with the first one's words."""

    kind: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that met every objective of one set."""

    slos: Slos
    met: int
    share: float  # of the requests sent
    per_second: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A replay in figures; shares are 0 to 1, times seconds, rates per second of the replay's own time. What was sent
    to warm up is in none of them but ``warm_up``.
    """

    warm_up: int
    planned: int
    sent: int
    succeeded: int
    duration: float  # start (or end of the warm-up) to the last answer
    ttft: Distribution | None
    tpot: Distribution | None
    itl: Distribution | None
    e2e: Distribution | None
    lateness: Distribution | None
    hits: Hits
    slices: tuple[Hits, ...]
    goodput: tuple[Goodput, ...]  # of each set of objectives
    requests_per_second: float
    input_tokens_per_second: float
    output_tokens_per_second: float
    prompt_ratio: float | None  # prompt tokens as the server counted them / the trace's
    output_ratio: float | None  # tokens generated / tokens asked for
    workers: tuple[WorkerLoad, ...]
    max_over_mean_requests: float | None
    max_over_mean_input: float | None
    errors: tuple[ErrorClass, ...]

    @property
    def failed(self) -> int:
        """Sent and not answered in full."""
        return self.sent - self.succeeded


def mark_warm_up(records: Iterable[RequestRecord], warm_up: WarmUp) -> None:
    """Mark what was sent first, so that `summarize` leaves it out."""
    if not warm_up:
        return
    for place, record in enumerate(in_order(records)):
        record.warm_up = place < warm_up.requests or (record.sent or 0.0) < warm_up.seconds


def in_order(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Those that were sent, in the order in which they were."""
    return sorted((record for record in records if record.sent is not None), key=lambda record: record.sent or 0.0)


def summarize(records: Sequence[RequestRecord], *, slos: Sequence[Slos] = (), fleet_size: int | None = None) -> Summary:
    """``fleet_size`` adds workers that answered nothing to the mean of max ÷ mean."""
    every, records = records, [record for record in records if not record.warm_up]
    sent = in_order(records)
    done = [record for record in sent if record.ok]
    warm_up = len(every) - len(records)
    start = sent[0].sent or 0.0 if warm_up and sent else 0.0
    duration = max((record.finished or 0.0 for record in sent), default=start) - start
    workers = _worker_loads(sent)
    return Summary(
        warm_up=warm_up,
        planned=len(records),
        sent=len(sent),
        succeeded=len(done),
        duration=duration,
        ttft=distribution(record.ttft for record in done if record.ttft is not None),
        tpot=distribution(record.tpot for record in done if record.tpot is not None),
        itl=distribution(chain.from_iterable(record.gaps.kept for record in done)),
        e2e=distribution(record.latency for record in done if record.latency is not None),
        lateness=distribution(record.lateness for record in sent if record.lateness is not None),
        hits=hits_of(done),
        slices=tuple(hits_of(part) for part in _slices(sent)),
        goodput=tuple(_goodput(sent, each, duration) for each in slos if each),
        requests_per_second=_rate(len(done), duration),
        input_tokens_per_second=_rate(sum(record.input_tokens for record in done), duration),
        output_tokens_per_second=_rate(sum(record.tokens_made for record in done), duration),
        prompt_ratio=_ratio((record.prompt_tokens, record.input_tokens) for record in done if not record.estimated),
        output_ratio=_ratio((record.tokens_made, record.output_tokens) for record in done),
        workers=workers,
        max_over_mean_requests=_max_over_mean([load.requests for load in workers if load.worker], fleet_size),
        max_over_mean_input=_max_over_mean([load.input_tokens for load in workers if load.worker], fleet_size),
        errors=_errors(sent),
    )


def hits_of(records: Iterable[RequestRecord]) -> Hits:
    """Tokens of the answers that told how many came from cache."""
    told = [record for record in records if record.ok and record.cached_tokens is not None and record.prompt_tokens]
    return Hits(
        requests=len(told),
        prompt_tokens=sum(record.prompt_tokens or 0 for record in told),
        cached_tokens=sum(record.cached_tokens or 0 for record in told),
        input_tokens=sum(record.input_tokens for record in told),
        limit_tokens=sum(record.limit_tokens for record in told),
    )


def quarter(slices: Sequence[Hits], number: int) -> Hits:
    """The slices of quarter ``number`` (0 to 3) taken together."""
    edges = [round(len(slices) * part / 4) for part in (number, number + 1)]
    part = slices[edges[0] : edges[1]]
    return Hits(
        requests=sum(hits.requests for hits in part),
        prompt_tokens=sum(hits.prompt_tokens for hits in part),
        cached_tokens=sum(hits.cached_tokens for hits in part),
        input_tokens=sum(hits.input_tokens for hits in part),
        limit_tokens=sum(hits.limit_tokens for hits in part),
    )


def _slices(records: Sequence[RequestRecord]) -> list[Sequence[RequestRecord]]:
    parts = min(SLICES, len(records))
    edges = [len(records) * part // parts for part in range(parts + 1)] if parts else []
    return [records[start:stop] for start, stop in pairwise(edges)]


def _worker_loads(records: Sequence[RequestRecord]) -> tuple[WorkerLoad, ...]:
    by_worker: dict[str | None, list[RequestRecord]] = defaultdict(list)
    for record in records:
        if record.status is not None:  # without an answer it is not known who had it
            by_worker[record.worker].append(record)
    return tuple(
        _worker_load(worker, by_worker[worker]) for worker in sorted(by_worker, key=lambda name: natural(name or ""))
    )


def _worker_load(worker: str | None, records: Sequence[RequestRecord]) -> WorkerLoad:
    done = [record for record in records if record.ok]
    ttft = distribution(record.ttft for record in done if record.ttft is not None)
    return WorkerLoad(
        worker=worker,
        requests=len(records),
        failed=len(records) - len(done),
        input_tokens=sum(record.input_tokens for record in records),
        output_tokens=sum(record.tokens_made for record in records),
        hits=hits_of(done),
        ttft_p50=ttft.p50 if ttft else None,
    )


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sort key by which worker-2 comes before worker-10, wherever the numbers stand."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBERS.split(name))


def _max_over_mean(loads: Sequence[int], fleet_size: int | None) -> float | None:
    total = sum(loads)
    return max(loads) * max(len(loads), fleet_size or 0) / total if total else None


def _goodput(records: Sequence[RequestRecord], slos: Slos, duration: float) -> Goodput:
    met = sum(map(slos.met, records))
    return Goodput(slos=slos, met=met, share=met / len(records) if records else 0.0, per_second=_rate(met, duration))


def _errors(records: Iterable[RequestRecord]) -> tuple[ErrorClass, ...]:
    failed = [record for record in records if record.error is not None]
    examples = {record.error: record.error_detail or "" for record in reversed(failed)}
    counts = Counter(record.error for record in failed)
    return tuple(ErrorClass(kind or "", count, examples[kind]) for kind, count in counts.most_common())


def _rate(amount: float, duration: float) -> float:
    return amount / duration if duration > 0 else 0.0


def _ratio(pairs: Iterable[tuple[int | None, int]]) -> float | None:
    known = [(part, whole) for part, whole in pairs if part is not None]
    whole = sum(whole for _, whole in known)
    return sum(part for part, _ in known) / whole if whole else None
