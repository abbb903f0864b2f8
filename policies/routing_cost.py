"""The default policy: each worker's predicted time to first token, plus what serving it there costs everybody else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policies.routing_types import Needs, Prompt, RouteDecision, WorkerView, decided, lowest

DEFAULT_PREFILL_RATE: Final = 8_000.0
"""Tokens/s of a worker nobody has seen at work; where all are unknown it cancels out."""


class PredictedCost:
    """The worker with the lowest predicted time to first token, plus what serving it there costs everybody else.

    What waits ahead and what this worker lacks of the prompt are both uncached tokens, so they add up; a match
    only ever saves the tokens it covers. Three terms more, in the same unit:

    - recomputing delays whoever comes next on that worker, the more so the fuller the fleet is: what is lacked is
      weighed between `idle_weight` and `full_weight`;
    - each unfinished request costs `decode_tokens`, so that decoding spreads too;
    - `spread` of what the worker was given of late is added: where nothing else tells workers apart, or all share
      one prefix, work still evens out over a minute.

    A worker of weight 2 counts as if it did everything twice as fast.
    """

    needs = Needs.PREFIXES
    uses_key = False

    def __init__(
        self,
        *,
        idle_weight: float = 1.0,
        full_weight: float = 5.0,
        decode_tokens: float = 64.0,
        spread: float = 0.02,
    ) -> None:
        self._idle_weight = idle_weight
        self._extra_weight = full_weight - idle_weight
        self._decode_tokens = decode_tokens
        self._spread = spread

    def choose(self, prompt: Prompt, workers: Sequence[WorkerView], sample: float) -> RouteDecision:
        """The cheapest one, at random among equals, with the costs of all."""
        tokens, cached, _ = prompt
        ids, actives, queues, rates, recents, weights = zip(*workers)  # noqa: B905 - one length by type; asking costs time
        known = [rate for rate in rates if rate]
        usual = sum(known) / len(known) if known else DEFAULT_PREFILL_RATE
        lack_weight = self._idle_weight + self._extra_weight * fullness(tokens, queues)
        decode, spread, held = self._decode_tokens, self._spread, cached.get
        costs = [
            (queued + decode * active + spread * recent + lack_weight * (tokens - held(worker, 0)))
            / ((rate or usual) * weight)
            for worker, active, queued, rate, recent, weight in zip(  # noqa: B905 - see above
                ids, actives, queues, rates, recents, weights
            )
        ]
        index = lowest(costs, sample)
        return decided((index, cached.get(workers[index].id, 0), costs, "lowest cost"))


def fullness(tokens: int, queues: Sequence[float]) -> float:
    """How full the fleet is for a prompt of so many tokens, from 0 (nobody has work) to 1 (long queues everywhere),
    by what each worker has queued.
    """
    queued = sum(queues) / len(queues)
    return queued / (queued + tokens) if queued > 0 else 0.0
