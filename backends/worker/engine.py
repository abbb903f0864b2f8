"""One inference engine: takes sequences, and makes steps. A step schedules, computes, samples and commits.

Pure but for the device: no clock, no sockets. `engine_process` gives it both.
"""

from __future__ import annotations

import logging

from backends.worker.messages import Refused, StepDone, Submit, TokenLogprobs
from backends.worker.runner import Chunk, ModelRunner
from backends.worker.sampler import BadLogitsError, Sampler, SamplerRow
from backends.worker.scheduler import RequestRefusedError, Scheduled, Scheduler, StepPlan

log = logging.getLogger(__name__)


class Engine:
    """Not thread-safe: one thread calls everything, between steps."""

    def __init__(self, scheduler: Scheduler, runner: ModelRunner, sampler: Sampler) -> None:
        self.scheduler = scheduler
        self._runner = runner
        self._sampler = sampler

    @property
    def has_work(self) -> bool:
        """Is there anything to compute?"""
        return self.scheduler.has_work

    def submit(self, request: Submit) -> Refused | None:
        """Queue a sequence; what it answers says why it cannot be taken."""
        try:
            self.scheduler.add(request)
        except RequestRefusedError as error:
            return Refused(request.id, error.reason, error.param)
        return None

    def cancel(self, sequence_id: str) -> None:
        """Forget a sequence and free its blocks at once."""
        self.scheduler.cancel(sequence_id)

    def clear(self) -> None:
        """Forget the prefix cache."""
        self.scheduler.clear_cache()

    def step(self) -> tuple[StepDone, list[Refused]]:
        """Make one step. The second part names sequences whose logits were not numbers: they are dropped."""
        plan = self.scheduler.schedule()
        if plan is None:
            return self.told(), []
        sampled, bad = self._compute(plan)
        outputs = self.scheduler.commit(plan, sampled)
        dropped = [self._drop(sequence_id) for sequence_id in bad]
        gone = set(bad)
        told = tuple(each for each in outputs if each.id not in gone)
        return StepDone(outputs=told, events=self.scheduler.take_events(), stats=self.scheduler.stats()), dropped

    def told(self) -> StepDone:
        """What there is to tell without a step."""
        return StepDone(events=self.scheduler.take_events(), stats=self.scheduler.stats())
