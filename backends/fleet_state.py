"""The fleet as this gateway knows it: which worker serves which model, what each has in flight, who is cooling down.

Synchronous and without a clock: choosing a worker and reserving its capacity happen in one turn of the loop, with no
await in between, so that two requests never take the same free place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from backends.model_names import Served, canonical_names
from policies.prefill_queue import PrefillQueue
from policies.routing import WorkerView
from policies.types import WorkerId


@dataclass(slots=True)
class Reservation:
    """One request's place on one worker, from the choice until `release`."""

    worker: Worker
    ticket: int
    released: bool = False


@dataclass(slots=True, eq=False)
class Worker:
    """One worker. What is configured does not change; what is learnt belongs to the fleet."""

    id: WorkerId
    host: str
    port: int
    block_size: int = 16
    configured_models: tuple[str, ...] = ()
    max_model_len: int | None = None
    """As configured; None to believe what it says itself."""
    kv_blocks: int | None = None
    publishes_events: bool = False
    prefill: PrefillQueue = field(default_factory=PrefillQueue)
    model_cards: tuple[dict[str, object], ...] = ()
    active: int = 0
    served: int = 0
    failures: int = 0
    resting_until: float = 0.0
    authority: bytes = b""
    name_only: WorkerView = field(init=False)
    """The view for policies that look at nothing but which workers there are."""

    def __post_init__(self) -> None:
        """Render once what every request to it needs."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.authority = f"{host}:{self.port}".encode()
        self.name_only = WorkerView(self.id, 0, 0.0, None)

    @property
    def models(self) -> tuple[str, ...]:
        """The model names it answers to: as configured, else as it said itself."""
        return self.configured_models or tuple(str(card["id"]) for card in self.model_cards)

    @property
    def longest_prompt(self) -> int | None:
        """Tokens of the longest prompt it can hold, where that is known."""
        by_blocks = self.kv_blocks * self.block_size if self.kv_blocks else None
        told = [length for card in self.model_cards if type(length := card.get("max_model_len")) is int]
        by_context = self.max_model_len or max(told, default=None)
        bounds = [bound for bound in (by_context, by_blocks) if bound]
        return min(bounds) if bounds else None

    def view(self, now: float) -> WorkerView:
        """Its state at this moment, frozen."""
        prefill = self.prefill
        queued = prefill.remaining(now) if prefill.total else 0.0
        return WorkerView(self.id, self.active, queued, prefill.rate, prefill.recent(now))

    def load(self) -> WorkerView:
        """The same for policies that count requests only."""
        return WorkerView(self.id, self.active, 0.0, None)


class FleetState:
    """All workers, by model. Every method is synchronous; `now` is in seconds of the caller's clock."""

    def __init__(
        self, workers: Iterable[Worker], *, cooldown: float, cooldown_max: float, tokenized: Sequence[str] = ()
    ) -> None:
        """A worker that refuses a connection rests `cooldown` seconds, twice as long each further time.
        `tokenized` are the names of models that have a tokenizer.
        """
        self.workers: tuple[Worker, ...] = tuple(workers)
        self._cooldown = cooldown
        self._cooldown_max = cooldown_max
        self._tokenized = tuple(tokenized)
        self._tickets = 0
        self._rest_ends = 0.0  # nobody rests past this time
        self._by_id = {worker.id: worker for worker in self.workers}
        self._by_model: dict[str, tuple[Worker, ...]] = {}
        self._chains: dict[str, tuple[str, str]] = {}
        self._block_sizes: dict[str, tuple[int, ...]] = {}
        self._longest: dict[str, int | None] = {}
        self._group()

    @property
    def models(self) -> tuple[str, ...]:
        """Every model name that some worker answers to."""
        return tuple(self._by_model)

    def learn_models(self, worker: Worker, cards: Sequence[dict[str, object]]) -> None:
        """Take in what a worker's `/v1/models` said: objects with at least a string `id`."""
        cards = tuple(card for card in cards if isinstance(card.get("id"), str))
        if cards != worker.model_cards:
            worker.model_cards = cards
            self._group()

    def merged_cards(self) -> list[dict[str, object]]:
        """One model object per name over the whole fleet, the first worker's words where several serve it."""
        merged: dict[str, dict[str, object]] = {}
        for name, workers in self._by_model.items():
            told = [card for worker in workers for card in worker.model_cards if card["id"] == name]
            merged[name] = told[0] if told else {"id": name, "object": "model", "created": 0, "owned_by": "unknown"}
        return list(merged.values())

    def worker(self, worker: WorkerId) -> Worker:
        """The worker of that id. Raises KeyError."""
        return self._by_id[worker]

    def chain_of(self, model: str) -> tuple[str, str]:
        """The base model, by its canonical name, and the adapter that a name stands for."""
        return self._chains.get(model, (model, ""))

    def base_model(self, worker: Worker) -> str | None:
        """The name under which a worker's blocks are chained; None before it has told its models."""
        return self.chain_of(worker.models[0])[0] if worker.models else None

    def block_sizes(self, model: str) -> tuple[int, ...]:
        """The block sizes of the workers that serve this name."""
        return self._block_sizes.get(model, ())

    def longest_prompt(self, model: str) -> int | None:
        """Tokens of the longest prompt that any worker of this model can hold; None where one does not tell."""
        return self._longest.get(model)

    def serving(self, model: str) -> tuple[Worker, ...]:
        """The workers that answer to this name, in the order of the configuration; empty for an unknown name."""
        return self._by_model.get(model, ())

    def candidates(self, workers: Sequence[Worker], tried: Sequence[Worker], now: float) -> Sequence[Worker]:
        """Those of `workers` that may be tried now. One that rests is left out unless all that are left rest."""
        left = [worker for worker in workers if worker not in tried] if tried else workers
        if now > self._rest_ends:
            return left
        awake = [worker for worker in left if worker.resting_until <= now]
        return awake or left

    def reserve(self, worker: Worker, lacking: float | None, now: float, *, streams: bool) -> Reservation:
        """Book one request with so many uncached prompt tokens, or None where nobody counts them."""
        self._tickets += 1
        worker.active += 1
        if lacking is not None:
            worker.prefill.push(self._tickets, lacking, now, streams=streams)
        return Reservation(worker, self._tickets)

    def first_byte(self, reservation: Reservation, now: float) -> None:
        """Its prefill is over, and the worker is well."""
        worker = reservation.worker
        if worker.failures:
            self.wake(worker)
        worker.prefill.answered(reservation.ticket, now)

    def refused(self, reservation: Reservation, now: float) -> None:
        """The worker answered with an error: that is quick, and tells nothing about its speed or health."""
        reservation.worker.prefill.drop(reservation.ticket, now)

    def release(self, reservation: Reservation, now: float) -> None:
        """The request is over, however it ended. Safe to call twice."""
        if reservation.released:
            return
        reservation.released = True
        worker = reservation.worker
        worker.active -= 1
        worker.served += 1
        worker.prefill.drop(reservation.ticket, now)

    def rest(self, worker: Worker, now: float) -> bool:
        """It could not be reached: leave it alone for a while. True where this is news."""
        news = worker.failures == 0
        pause = min(self._cooldown * 2.0**worker.failures, self._cooldown_max)
        if worker.resting_until <= now:  # of many requests that fail at once, the first one counts
            worker.failures = min(worker.failures + 1, 30)
            worker.resting_until = now + pause
            self._rest_ends = max(self._rest_ends, now + pause)
        return news

    def wake(self, worker: Worker) -> None:
        """It has answered: it rests no longer."""
        worker.failures = 0
        worker.resting_until = 0.0

    def check_integrity(self) -> None:
        """Raise AssertionError unless counts and queues agree; for tests and idle moments."""
        for worker in self.workers:
            assert worker.active >= len(worker.prefill), f"{worker.id}: queue longer than what is active"
            assert worker.active > 0 or worker.prefill.total == 0, f"{worker.id}: idle with work queued"

    def _group(self) -> None:
        by_model: dict[str, list[Worker]] = {}
        for worker in self.workers:
            for model in worker.models:
                by_model.setdefault(model, []).append(worker)
        self._by_model = {model: tuple(workers) for model, workers in by_model.items()}
        self._block_sizes = {
            model: tuple(sorted({worker.block_size for worker in workers})) for model, workers in by_model.items()
        }
        self._longest = {model: _longest(workers) for model, workers in self._by_model.items()}
        self._chains = canonical_names(
            [Served(worker.models, worker.model_cards) for worker in self.workers], self._tokenized
        )


def _longest(workers: Iterable[Worker]) -> int | None:
    longest = 0
    for worker in workers:
        bound = worker.longest_prompt
        if bound is None:
            return None
        longest = max(longest, bound)
    return longest
