"""Compares what the gateway thought a worker held of a prompt with what the worker says it found in its cache.

The two part when something is amiss: a tokenizer or a chat template that is not the engine's, another block size,
events that are lost, an engine whose prefix cache is off. Routing then follows prefixes that are not there, or
overlooks some that are, and no request fails for it; so it is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import exp
from typing import Final

from gateway.request_record import Outcome, RequestRecord
from policies.types import WorkerId

log = logging.getLogger(__name__)

_SCALE_TOKENS: Final = 100_000.0
"""Prompt tokens over which the average forgets: some 50 requests of 2,000 tokens."""
_BOUND: Final = 0.15
"""Share of the prompts by which prediction and report may differ on average."""


@dataclass(slots=True)
class Drift:
    """What is known of one worker. Tokens count since it was first seen."""

    predicted: int = 0
    """Tokens it was thought to hold..."""
    reported: int = 0
    """...and those it says it had, of the same prompts."""
    compared: int = 0
    """Requests of which both numbers are known."""
    prompt_tokens: int = 0
    """Tokens of their prompts."""
    average: float = 0.0
    """Predicted share minus reported share, averaged with each prompt's tokens as its weight; older ones count less.
    Above 0, the worker has less than it is thought to have."""
    apart: bool = False
    """Have the two drifted apart?"""

    def add(self, predicted: int, reported: int, prompt_tokens: int, *, block_size: int) -> None:
        """Take in one prompt. A difference of less than a block is rounding: only whole blocks are ever cached, and
        the last token never counts as cached here.
        """
        self.predicted += predicted
        self.reported += reported
        self.prompt_tokens += prompt_tokens
        self.compared += 1
        difference = predicted - reported
        share = 0.0 if abs(difference) <= block_size else max(-1.0, min(difference / prompt_tokens, 1.0))
        self.average += (share - self.average) * (1.0 - exp(-prompt_tokens / _SCALE_TOKENS))

    def judge(self, bound: float) -> bool:
        """Has it changed whether the two are apart? They meet again at half the distance at which they part."""
        before = self.apart
        self.apart = abs(self.average) > (bound / 2 if before else bound)
        return self.apart is not before


class CacheDrift:
    """Observes requests that are over. An `Observer`; synchronous, O(1) for each."""

    def __init__(self, block_size: Callable[[WorkerId], int], *, bound: float = _BOUND) -> None:
        """`block_size` tells a worker's tokens per block; it may raise KeyError for one that has gone. `bound` is a
        share of the prompt, from 0 to 1.
        """
        self._block_size = block_size
        self._bound = bound
        self._drifts: dict[WorkerId, Drift] = {}

    def finished(self, record: RequestRecord) -> None:
        """Compare, where there is something to compare: an answer that is whole, and both numbers of it."""
        worker, usage = record.worker, record.usage
        if worker is None or record.outcome is not Outcome.OK or usage.cached is None or record.prompt_tokens <= 0:
            return
        try:
            block_size = self._block_size(worker)
        except KeyError:
            return
        told = usage.prompt if usage.prompt is not None and usage.prompt > 0 else record.prompt_tokens
        # Where the prompt's length was a guess, shares of it are right and tokens are not.
        scale = told / record.prompt_tokens
        reported = min(max(usage.cached, 0), told)
        predicted = min(round(record.expected_cached(round(reported / scale)) * scale), told)
        drift = self._drifts.setdefault(worker, Drift())
        drift.add(predicted, reported, told, block_size=block_size)
        if drift.judge(self._bound):
            self._say(worker, drift)

    def drift(self, worker: WorkerId) -> float:
        """Average of the predicted share minus the reported one, from -1 to 1; 0 where nothing was compared."""
        return self._drifts[worker].average if worker in self._drifts else 0.0

    def of(self, worker: WorkerId) -> Drift:
        """All numbers of a worker."""
        return self._drifts.get(worker) or Drift()

    def workers(self) -> Iterable[WorkerId]:
        """Those of which something was compared."""
        return tuple(self._drifts)

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone."""
        self._drifts.pop(worker, None)

    @staticmethod
    def _say(worker: WorkerId, drift: Drift) -> None:
        if not drift.apart:
            log.info("worker %s: what it finds in its cache is again what was predicted", worker)
            return
        side = "less" if drift.average > 0 else "more"
        log.warning(
            "worker %s finds %s in its cache than was predicted, by %.0f %% of its prompts' tokens: are its tokenizer,"
            " chat template, block size and KV events those of the configuration?",
            worker,
            side,
            100 * abs(drift.average),
        )
