"""One inference engine: it takes sequences and makes steps. A step schedules, computes, samples and commits.

No sockets here: `engine_process` has them.
"""

from __future__ import annotations

import logging
import time

import msgspec

from backends.worker.engine.scheduler import RequestRefusedError, Scheduled, Scheduler, StepPlan
from backends.worker.kv.kv_tiers import KvTiers
from backends.worker.messages import EngineStats, ForgetKv, KvForgotten, Refused, StepDone, Submit
from backends.worker.model.runner import Chunk, ModelRunner
from backends.worker.model.sampler import BadLogitsError, Sampler, SamplerRow
from cache.block_hash import TOKEN_BYTES
from cache.kv_events import KvEvent
from policies.restore_price import attended

log = logging.getLogger(__name__)

_BAD_NUMBERS = "the model computed no numbers for this sequence (NaN or infinity)"


class Engine:
    """Of one thread. A step that raises leaves the engine unusable: end the process."""

    def __init__(
        self, scheduler: Scheduler, runner: ModelRunner, sampler: Sampler, *, tiers: KvTiers | None = None
    ) -> None:
        self.scheduler = scheduler
        self.tiers = tiers
        self.runner = runner
        self._sampler = sampler
        self._eos = tuple(scheduler.config.eos_token_ids)
        self._forgotten: list[KvForgotten] = []

    @property
    def has_work(self) -> bool:
        """Is there anything to compute?"""
        return self.scheduler.has_work

    @property
    def can_step(self) -> bool:
        """Is there anything to compute now, and not only KV to wait for?"""
        return self.scheduler.can_step

    def submit(self, request: Submit, now: float = 0.0) -> Refused | None:
        """Queue a sequence, or look for its KV first; the answer says why it cannot be taken."""
        tiers = self.tiers
        look = tiers is not None and tiers.worth_looking(len(request.token_ids) // TOKEN_BYTES)
        try:
            sequence = self.scheduler.add(request, aside=look, now=now)
        except RequestRefusedError as error:
            return Refused(request.id, error.reason, error.param)
        if tiers is not None and look and not tiers.look(sequence, now):
            self.scheduler.admit(sequence)
        return None

    def settle(self, now: float) -> None:
        """Take what was restored: what waits for no KV any more joins the queue."""
        if self.tiers is not None:
            for sequence in self.tiers.settle(now, self.scheduler.n_waiting):
                self.scheduler.admit(sequence)
            self.tiers.breathe(now, busy=self.scheduler.has_work)

    def cancel(self, sequence_id: str) -> None:
        """Forget a sequence and free its blocks at once; one that has ended is no error."""
        self.scheduler.cancel(sequence_id)

    def clear(self) -> None:
        """Forget the prefix cache."""
        self.scheduler.clear_cache()
        if self.tiers is not None:
            self.tiers.forget()

    def forget_kv(self, asked: ForgetKv) -> None:
        """Have stores forget; `take_forgotten` tells when they have."""
        if self.tiers is None:
            self._forgotten.append(KvForgotten(id=asked.id, found={}))
        else:
            self.tiers.forget_salts(asked)

    @property
    def forgets(self) -> bool:
        """Is something being forgotten, of which is still to be told?"""
        return bool(self._forgotten) or (self.tiers is not None and self.tiers.forgets)

    def take_forgotten(self) -> list[KvForgotten]:
        """What stores have forgotten since the last call."""
        done, self._forgotten = self._forgotten, []
        return done if self.tiers is None else done + self.tiers.take_forgotten()

    def step(self) -> tuple[StepDone, tuple[Refused, ...]]:
        """Make one step. The second part names sequences that had to be dropped in it."""
        plan = self.scheduler.schedule()
        if plan is None:
            return self.told(), ()
        start = time.perf_counter()
        logits = self.runner.execute([_chunk(item) for item in plan.items])
        sampling = [item for item in plan.items if item.samples]
        rows = [self._row(item) for item in sampling]
        try:
            sampled = self._sampler.sample(logits, rows)
        except BadLogitsError as error:
            return self._drop(plan, [sampling[at].sequence.id for at in error.rows])
        outputs = self.scheduler.commit(plan, sampled)
        ended = self.scheduler.take_ended()
        if self.tiers is not None:
            pairs = sum(attended(item.count, item.start) for item in plan.items)
            self.tiers.computed(plan.n_tokens, pairs, time.perf_counter() - start)
            for sequence in ended:
                self.tiers.keep(sequence)
        return StepDone(outputs=tuple(outputs), events=self._events(), stats=self.stats()), ()

    def stats(self) -> EngineStats:
        """Load and counters, as of now."""
        stats = self.scheduler.stats()
        if self.tiers is None:
            return stats
        counts = self.tiers.counts
        restored, kept = counts.pop("restored_tokens", 0), counts.pop("kept_tokens", 0)
        return msgspec.structs.replace(
            stats, restored_tokens=restored, kept_tokens=kept, tiers=self.tiers.stats(), kv_counts=dict(counts)
        )

    @property
    def has_news(self) -> bool:
        """Is there anything to tell besides what a step tells?"""
        return self.tiers is not None and self.tiers.has_news

    def close(self, within: float = 5.0) -> None:
        """Let what is being kept be written, for so many seconds, and close the stores."""
        if self.tiers is not None:
            self.tiers.close(within)

    def told(self) -> StepDone:
        """What there is to tell without a step."""
        return StepDone(events=self._events(), stats=self.stats())

    def _events(self) -> tuple[KvEvent, ...]:
        events = self.scheduler.take_events()
        return events if self.tiers is None else events + self.tiers.take_events()

    def _drop(self, plan: StepPlan, ids: list[str]) -> tuple[StepDone, tuple[Refused, ...]]:
        """Where KV is no number, nobody knows how far it got: none is kept, and the others are computed anew."""
        self.scheduler.abort(plan)
        for sequence_id in ids:
            self.scheduler.cancel(sequence_id)
        self.scheduler.recompute_all()
        if self.tiers is not None:
            self.tiers.forget()
        # Not what is being kept or restored: that is of sequences that came to their end, and somebody else's to write.
        self.runner.pool.data[self.scheduler.blocks.unused] = 0
        log.error("%d of %d sequences dropped: %s", len(ids), len(plan.items), _BAD_NUMBERS)
        return self.told(), tuple(Refused(sequence_id, _BAD_NUMBERS) for sequence_id in ids)

    def _row(self, item: Scheduled) -> SamplerRow:
        sequence = item.sequence
        params = sequence.params
        penalised = params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1
        return SamplerRow(
            params,
            sequence.n_output,
            prompt_ids=sequence.ids(0, sequence.n_prompt) if params.repetition_penalty != 1 else (),
            output_ids=sequence.ids(sequence.n_prompt, sequence.n_tokens) if penalised else (),
            suppressed=(*self._eos, *params.stop_token_ids) if sequence.bars_stops else (),
        )


def _chunk(item: Scheduled) -> Chunk:
    sequence = item.sequence
    ids = sequence.ids(item.start, item.start + item.count)
    return Chunk(ids, item.start, sequence.block_table, item.samples)
