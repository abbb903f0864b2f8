"""What a request that waits in front of a fleet has to expect: who could start it soon, and when its first token comes.

For the gateway's admission and for its rehearsal in virtual time alike. Synchronous; `now` is of the fleet's clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from backends.fleet_state import FleetState
from backends.fleet_worker import Worker
from policies.admission import AdmissionQueue
from policies.drain_rate import DrainRate
from policies.types import WorkerId
from policies.worker_room import DEFAULT_WINDOW_S, starts_soon, takes_more

_LEARNT: Final = 16
"""First tokens from which on a prediction is good enough to refuse somebody."""
_UNKNOWN_RATE: Final = 8_000.0


class Rooms(NamedTuple):
    """Of some workers, at one moment."""

    free: int
    """How many could start one more within the window."""
    among: list[Worker]
    """Those that take one more at all. One that could not start it soon may have most of its prompt, which takes longer
    to compute elsewhere than to wait for: routing knows what is queued, and weighs it.
    """


class FleetForecast:
    """Of one queue in front of a fleet that predicts. Who fills the queue tells `drains` what comes and goes."""

    def __init__(
        self, fleet: FleetState, *, window_s: float = DEFAULT_WINDOW_S, most_running: int | None = None
    ) -> None:
        """`window_s` and `most_running` as in `has_room`."""
        self.window_s = window_s
        self.most_running = most_running
        self.drains: defaultdict[str, DrainRate] = defaultdict(DrainRate)
        """By model, each of which has workers of its own; none but what workers serve is ever waited for."""
        self._fleet = fleet

    def look(self, queue: AdmissionQueue, now: float) -> None:
        """All were dispatched for which there was room: does what waits still wait for room, or is it held back?"""
        for model, drain in self.drains.items():
            if queue.holds_back(model):
                drain.idle()
            elif queue.waiting_for(model):
                drain.queued(now)

    def rooms(self, workers: Sequence[Worker], now: float) -> Rooms:
        """Which of the workers could start one more soon, and which take one more at all."""
        free, among = 0, []
        for worker in workers:
            if not takes_more(worker.active, self.most_running, self._kv_share(worker)):
                continue
            among.append(worker)
            prefill = worker.prefill
            queued = prefill.remaining(now) if prefill.total else 0.0
            free += starts_soon(queued, prefill.rate, worker.pending, self.window_s)
        return Rooms(free, among)

    def _kv_share(self, worker: Worker) -> float | None:
        """Of its device cache, with two prompts more of the size that comes these days: one that does not fit waits
        there for others to end.
        """
        share, tokens = worker.kv_share, worker.kv_tokens
        return share if share is None or not tokens else share + 2 * self._fleet.prompt_tokens / tokens

    def first_token(
        self, workers: Sequence[Worker], held: Mapping[WorkerId, int], n_tokens: int, now: float, *, alone: bool
    ) -> float:
        """Seconds to the first token of a prompt that is sent now to the better of two workers: the one that holds most
        of it, by `held` tokens of each, and the one with least to do. 0 before enough was learnt to refuse anybody by.
        `alone`: nobody waits. Then trying costs nobody anything, and whoever is always refused teaches nothing.
        """
        if self._fleet.n_first_tokens < _LEARNT or not workers:
            return 0.0
        idlest = min(workers, key=lambda worker: (worker.prefill.remaining(now), worker.active))
        likely = {idlest, max(workers, key=lambda worker: held.get(worker.id, 0))} if held else {idlest}
        said = [
            self._fleet.latency_of(worker).predict(now, n_tokens - cached, cached)
            for worker in likely
            for cached in [held.get(worker.id, 0)]
        ]
        best = min(said, key=lambda each: each.ttft_s)
        return best.ttft_s * best.ttft_s / best.ttft_p90_s if alone else best.ttft_s

    def turn(self, model: str, tokens_ahead: float, workers: Sequence[Worker]) -> float:
        """Seconds until so many tokens have left a model's queue for its workers; 0 before enough was learnt."""
        if self._fleet.n_first_tokens < _LEARNT:
            return 0.0
        rate = self.drains[model].rate or sum(worker.prefill.rate or _UNKNOWN_RATE for worker in workers)
        return tokens_ahead / rate if rate else 0.0
