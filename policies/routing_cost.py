"""The default policy: each worker's predicted time to first token, plus what serving it there costs everybody else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policies.restore_route import RestoreSplit, best_split
from policies.routing_types import Needs, Prompt, RouteDecision, WorkerView, decided, lowest

DEFAULT_PREFILL_RATE: Final = 8_000.0
"""Tokens/s of a worker nobody has seen at work; where all are unknown it cancels out."""

CHOICES: Final = ("holder", "restore", "recompute")
"""Reasons of a decision where something could be restored; see `choice_of`."""


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

    Where a worker has more of the prompt on slower tiers, it is weighed with the cheapest of what it can do there:
    restore some of it, or compute all that its device lacks (`restore_route`). So one price tells whether to go to the
    holder, to restore elsewhere, or to recompute. A restore occupies the worker's I/O and not its engine, which
    computes meanwhile what waits ahead: until the computing of this prompt can begin it takes the longer of the two and
    not their sum. What is restored holds nobody up, so the extra weight is on computed tokens alone. But it needs room:
    what does not fit beside the requests that run waits until they free as much, and counts as so many tokens queued.
    Restored tokens do not show in the queue, so nothing else would tell that a worker is full of them.
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
        tokens, cached, _, restorable, _ = prompt
        ids, actives, queues, rates, recents, weights, _, _ = zip(*workers)  # noqa: B905 - one length by type; asking costs time
        known = [rate for rate in rates if rate]
        usual = sum(known) / len(known) if known else DEFAULT_PREFILL_RATE
        lack_weight = self._idle_weight + self._extra_weight * fullness(tokens, queues)
        decode, spread, held = self._decode_tokens, self._spread, cached.get
        if restorable:
            return self._choose_tiered(prompt, workers, sample, usual, lack_weight)
        costs = [
            (queued + decode * active + spread * recent + lack_weight * (tokens - held(worker, 0)))
            / ((rate or usual) * weight)
            for worker, active, queued, rate, recent, weight in zip(  # noqa: B905 - see above
                ids, actives, queues, rates, recents, weights
            )
        ]
        index = lowest(costs, sample)
        return decided((index, cached.get(workers[index].id, 0), costs, "lowest cost", None))

    def _choose_tiered(
        self, prompt: Prompt, workers: Sequence[WorkerView], sample: float, usual: float, lack_weight: float
    ) -> RouteDecision:
        """The same where some worker can restore: each is weighed with the best of what it can do."""
        tokens, cached, _, restorable, _ = prompt
        splits: list[RestoreSplit] = []
        costs: list[float] = []
        for worker, active, queued, known_rate, recent, weight, wait_s, room in workers:
            rate = known_rate or usual
            split = best_split(
                tokens,
                cached.get(worker, 0),
                restorable.get(worker, ()),
                rate=rate,
                lack_weight=lack_weight,
                wait_s=wait_s,
            )
            ready = max(queued, split.restore_s * rate) + max(0.0, tokens - cached.get(worker, 0) - room)
            work = ready + self._decode_tokens * active + self._spread * recent + lack_weight * split.computed_tokens
            splits.append(split)
            costs.append(work / (rate * weight))
        index = lowest(costs, sample)
        split = splits[index]
        held = cached.get(workers[index].id, 0)
        return decided((index, held, costs, choice_of(split, held, max(cached.values(), default=0)), split))


def choice_of(split: RestoreSplit, held: int, most_held: int) -> str:
    """Which of the three a choice was, where something can be restored: "restore" where the worker restores any of it,
    "holder" where none holds more of it on the device, "recompute" where it does neither. `most_held` is of any worker.
    """
    if split.restored_tokens:
        return "restore"
    return "holder" if held and held >= most_held else "recompute"


def fullness(tokens: int, queues: Sequence[float]) -> float:
    """How full the fleet is for a prompt of so many tokens, from 0 (nobody has work) to 1 (long queues everywhere),
    by what each worker has queued.
    """
    queued = sum(queues) / len(queues)
    return queued / (queued + tokens) if queued > 0 else 0.0
