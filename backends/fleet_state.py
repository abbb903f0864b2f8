"""The fleet as this gateway knows it: which worker serves which model, what each has in flight, who is left out.

Synchronous and without a clock: choosing a worker and reserving its capacity happen in one turn of the loop, with no
await in between, so that two requests never take the same free place.

A worker may be left out for five reasons. It drains, or has no room: then it gets nothing. It rests, since it refused
a connection a moment ago, or it fails its probes: then it gets nothing unless all others do too. It is ejected for
what its answers show: then it gets nothing unless too few are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from operator import attrgetter
from typing import Final

from backends.fleet_worker import Reservation, Worker
from backends.model_names import OUR_NAME, Served, canonical_names
from policies.ejection import EjectionRules, Ejections, Outcome
from policies.latency_model import FleetLatency, WorkerLatency
from policies.types import WorkerId

_MOST_DOUBLINGS: Final = 30
_id_of: Final = attrgetter("id")
_PROMPTS: Final = 64


class FleetState:
    """All workers, by model. Every method is synchronous; `now` is in seconds of the caller's clock."""

    def __init__(
        self,
        workers: Iterable[Worker] = (),
        *,
        cooldown: float,
        cooldown_max: float,
        tokenized: Sequence[str] = (),
        ejection: EjectionRules | None = None,
    ) -> None:
        """A worker that refuses a connection rests `cooldown` seconds, twice as long each further time.
        `tokenized` are the names of models that have a tokenizer.
        """
        self.workers: tuple[Worker, ...] = ()
        self.ejections = Ejections(ejection or EjectionRules())
        self._cooldown = cooldown
        self._cooldown_max = cooldown_max
        self._tokenized = tuple(tokenized)
        self.predicts = False
        """Are times to first token predicted, and learnt from? That costs some 20 µs a request."""
        self.prompt_tokens = 0.0
        """Of a request of late: an average, in which each counts for a 64th."""
        self.n_first_tokens = 0
        """That came of requests for which something was predicted."""
        self._latency: dict[Worker, WorkerLatency] = {}
        self._latency_classes: dict[str, FleetLatency] = {}
        self._tickets = 0
        self._next_sweep = 0.0
        self._impaired: set[Worker] = set()  # whoever may have a reason to be left out
        self._by_id: dict[WorkerId, Worker] = {}
        self._by_model: dict[str, tuple[Worker, ...]] = {}
        self._chains: dict[str, tuple[str, str]] = {}
        self._block_sizes: dict[str, tuple[int, ...]] = {}
        self._longest: dict[str, int | None] = {}
        for worker in workers:
            self.add(worker)

    # -- who there is

    def add(self, worker: Worker) -> None:
        """A worker joins. Raises ValueError where its name is taken."""
        if worker.id in self._by_id:
            raise ValueError(f"there is a worker {worker.id} already")
        self._by_id[worker.id] = worker
        self.workers = (*self.workers, worker)
        self.ejections.add(worker.id)
        self.look_after(worker)
        self.regroup()

    def remove(self, worker: Worker) -> None:
        """It leaves. Requests it still has keep their reservations."""
        del self._by_id[worker.id]
        self._latency.pop(worker, None)
        self.workers = tuple(other for other in self.workers if other is not worker)
        self.ejections.remove(worker.id)
        self._impaired.discard(worker)
        self.regroup()

    def configure(
        self, *, cooldown: float, cooldown_max: float, tokenized: Sequence[str], ejection: EjectionRules
    ) -> None:
        """Take up other settings; who is ejected comes back where the rules of ejection have changed."""
        self._cooldown = cooldown
        self._cooldown_max = cooldown_max
        self._tokenized = tuple(tokenized)
        if ejection != self.ejections.rules:
            self.ejections = Ejections(ejection)
            for worker in self.workers:
                self.ejections.add(worker.id)
        self.regroup()

    @property
    def models(self) -> tuple[str, ...]:
        """Every model name that some worker answers to."""
        return tuple(self._by_model)

    def learn_models(self, worker: Worker, cards: Sequence[dict[str, object]]) -> None:
        """Take in what a worker's `/v1/models` said: objects with at least a string `id`."""
        cards = tuple(card for card in cards if isinstance(card.get("id"), str))
        if cards != worker.model_cards:
            worker.model_cards = cards
            worker.is_ours = any(card.get("owned_by") == OUR_NAME for card in cards)
            self.regroup()

    def learn_capacity(self, worker: Worker, kv_blocks: int) -> None:
        """Take in how many blocks a worker says that its KV cache holds."""
        if kv_blocks != worker.told_kv_blocks:
            worker.told_kv_blocks = kv_blocks
            self.regroup()
            if worker in self._latency:
                self._latency[worker].hold(worker.kv_tokens or inf)

    def learn_kv_used(self, worker: Worker, share: float | None, running: int | None, now: float) -> None:
        """Take in what share of its KV cache a worker says is in use, by so many running requests; None: not said."""
        worker.learn_kv_used(share)
        if share is not None and worker in self._latency:
            self._latency[worker].told_used(share, running, now)

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

    def find(self, worker: WorkerId) -> Worker | None:
        """The worker of that id, if it is still there."""
        return self._by_id.get(worker)

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

    def latency_of(self, worker: Worker) -> WorkerLatency:
        """What is learnt of how long it takes. Those of one model begin with what the others have shown."""
        latency = self._latency.get(worker)
        if latency is None:
            fleet = self._latency_classes.setdefault(self.base_model(worker) or "", FleetLatency())
            latency = self._latency[worker] = WorkerLatency(fleet, kv_tokens=worker.kv_tokens or inf)
        return latency

    def latencies(self) -> list[tuple[Worker, WorkerLatency]]:
        """Of all workers that something was predicted for; a copy."""
        return [*self._latency.items()]

    def serving(self, model: str) -> tuple[Worker, ...]:
        """The workers that answer to this name, in the order of the configuration; empty for an unknown name."""
        return self._by_model.get(model, ())

    # -- who may be tried

    def candidates(self, workers: Sequence[Worker], tried: Sequence[Worker], now: float) -> Sequence[Worker]:
        """Those of `workers` that may be tried now; empty where none has room or all drain."""
        if tried:
            known = set(tried)
            workers = [worker for worker in workers if worker not in known]
        return workers if not self._impaired else self._well(workers, now)

    def _well(self, workers: Sequence[Worker], now: float) -> Sequence[Worker]:
        taking = [worker for worker in workers if not worker.draining and worker.has_room()]
        awake = [worker for worker in taking if worker.resting_until <= now and not worker.unhealthy]
        return self.ejections.usable(awake or taking, now, _id_of)

    def usable(self, now: float) -> bool:
        """Is there a worker that may be given requests?"""
        return any(
            bool(worker.models) and not worker.draining and worker.resting_until <= now and not worker.unhealthy
            for worker in self.workers
        )

    def look_after(self, worker: Worker) -> None:
        """Something about it has changed that may leave it out: look from now on at every choice. Nothing for one that
        has left.
        """
        if self._by_id.get(worker.id) is worker:
            self._impaired.add(worker)

    def sweep(self, now: float) -> list[Worker]:
        """Stop looking after those that are well again; returns who is back from an ejection. Call it often."""
        back: list[Worker] = []
        if now >= self._next_sweep:
            self._next_sweep = now + self.ejections.rules.sweep_s
            back = [self._by_id[worker] for worker in self.ejections.sweep(now) if worker in self._by_id]
        for worker in back:
            worker.hung = False
            worker.ramp_from = now
        self._impaired = {
            worker
            for worker in self._impaired
            if worker.draining
            or worker.unhealthy
            or worker.resting_until > now
            or worker.limits.bounded
            or self.ejections.until(worker.id) is not None
        }
        return back

    # -- a request's way

    def reserve(
        self,
        worker: Worker,
        lacking: float | None,
        now: float,
        *,
        streams: bool,
        generates: bool = True,
        cached: float = 0.0,
        restore_s: float = 0.0,
    ) -> Reservation:
        """Book one request with so many prompt tokens to compute behind those that are `cached` or restored, or None
        where nobody counts them; `restore_s` until it has restored. Only one that `generates` tokens tells by its
        silence that a worker hangs.
        """
        self._tickets += 1
        worker.active += 1
        worker.pending += 1
        if lacking is not None:
            worker.prefill.push(self._tickets, lacking, now, streams=streams, restore_s=restore_s)
            worker.unseen_tokens += lacking
            self.prompt_tokens += (lacking + cached - self.prompt_tokens) / _PROMPTS
        reservation = Reservation(worker, self._tickets, generates, streams, lacking=lacking or 0.0)
        if self.predicts and lacking is not None:
            latency = self.latency_of(worker)
            reservation.predicted = latency.predict(now, lacking, cached, restore_s)
            latency.sent(self._tickets, reservation.predicted, now, streams=streams)
        return reservation

    def first_byte(self, reservation: Reservation, now: float) -> None:
        """Its prefill is over, and the worker is well."""
        worker = reservation.worker
        self._answered(reservation, now)
        if reservation.generates:
            worker.progress.progressed(now)  # even an answer that is over before anybody looks is a sign of life
        if worker.failures:
            self.wake(worker)
        worker.prefill.answered(reservation.ticket, now)
        if reservation.predicted is not None:
            self.n_first_tokens += reservation.streams
            self.latency_of(worker).first_token(reservation.ticket, now)

    def refused(self, reservation: Reservation, now: float) -> None:
        """The worker answered with an error: that is quick, and tells nothing about its speed or health."""
        self._answered(reservation, now)
        reservation.worker.prefill.drop(reservation.ticket, now)

    def _answered(self, reservation: Reservation, now: float) -> None:
        worker = reservation.worker
        if reservation.flight is not None:
            worker.progress.streaming(now, reservation.flight)
        if reservation.pending:
            reservation.pending = False
            worker.pending -= 1

    def release(self, reservation: Reservation, now: float, *, output_tokens: int = 0) -> None:
        """The request is over, however it ended: with so many tokens, or 0 where it failed or nobody knows. Safe to
        call twice.
        """
        if reservation.released:
            return
        reservation.released = True
        worker = reservation.worker
        worker.active -= 1
        worker.served += 1
        worker.pending -= reservation.pending
        worker.unseen_tokens -= reservation.lacking + output_tokens
        worker.prefill.drop(reservation.ticket, now)
        if reservation.flight is not None:
            worker.progress.ended(now, reservation.flight)
        if reservation.predicted is not None:
            self.latency_of(worker).ended(reservation.ticket, now, output_tokens)

    # -- what tells of its health

    def record(self, worker: Worker, outcome: Outcome, now: float) -> bool:
        """How a request ended; True where the worker has just been ejected for it. One that has left counts no more:
        another may have its name.
        """
        if outcome is Outcome.OK and not worker.failing:
            return False
        worker.failing = outcome is not Outcome.OK
        if self._by_id.get(worker.id) is not worker:
            return False
        ejected = self.ejections.record(worker.id, outcome, now)
        if ejected:
            worker.ejections += 1
            self.look_after(worker)
        return ejected

    def eject_hung(self, worker: Worker, now: float) -> bool:
        """It makes no progress: eject it. False where it is out already, or as many as may be are."""
        if self.find(worker.id) is not worker:
            return False
        worker.hung = True
        self.look_after(worker)
        ejected = self.ejections.force(worker.id, now)
        worker.ejections += ejected
        return ejected

    def rest(self, worker: Worker, now: float) -> bool:
        """It could not be reached: leave it alone for a while. True where this is news."""
        if self.find(worker.id) is not worker:
            return False  # it has left, and another one may have its name
        news = worker.failures == 0
        pause = min(self._cooldown * 2.0**worker.failures, self._cooldown_max)
        if worker.resting_until <= now:  # of many requests that fail at once, the first one counts
            worker.failures = min(worker.failures + 1, _MOST_DOUBLINGS)
            worker.resting_until = now + pause
            self.look_after(worker)
        return news

    def wake(self, worker: Worker) -> None:
        """It has answered: it rests no longer."""
        worker.failures = 0
        worker.resting_until = 0.0

    def probed(self, worker: Worker, now: float, *, well: bool, fail_after: int, well_after: int) -> bool:
        """An active probe came back, or did not. True where this changes what is thought of the worker."""
        if well:
            worker.probe_failures = 0
            worker.probe_successes += 1
            if worker.resting_until > now:
                self.wake(worker)
            if not worker.unhealthy or worker.probe_successes < well_after:
                return False
            worker.unhealthy = False
            worker.ramp_from = now
            return True
        worker.probe_successes = 0
        worker.probe_failures += 1
        if worker.unhealthy or worker.probe_failures < fail_after:
            return False
        worker.unhealthy = True
        self.look_after(worker)
        return True

    def check_integrity(self) -> None:
        """Raise AssertionError unless counts and queues agree; for tests and idle moments."""
        for worker in self.workers:
            assert worker.active >= len(worker.prefill), f"{worker.id}: queue longer than what is active"
            assert worker.active > 0 or worker.prefill.total == 0, f"{worker.id}: idle with work queued"
            assert 0 <= worker.pending <= worker.active, f"{worker.id}: more pending than active"

    def regroup(self) -> None:
        """Work out anew who serves what; after any change of names."""
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
