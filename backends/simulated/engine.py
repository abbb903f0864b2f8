"""The simulated engine: vLLM's scheduler and prefix cache over modelled time. Pure: the clock is an argument.

One state machine: a sequence is *waiting*, *prefilling* or *decoding*; a run of steps is under way or not.
Every method that takes `now` first lives through all steps that ended until then, each at its exact time, so
a late caller loses nothing. A step decides at its start what it computes (`_schedule`) and has its effects at
its end (`_commit`). Steps that only decode and change nothing else are lived through as one run.

Scheduling follows vLLM v1: running sequences first, then the waiting queue first come, first served; chunked
prefill under a budget of tokens per step; when blocks run out the last admitted sequence is preempted and
recomputed later; a prompt's last token is always computed, so that there is something to sample from.

With slower tiers behind the device cache a sequence may first be *restoring*: where reading what they have of its
prompt is quicker than computing it, into blocks that it holds until it is admitted. Then the blocks are cached as any
others, and the sequence waits as any other. It loses them again where a running sequence needs room, or the head of the
queue while nothing runs. What found no room on arrival, or lost it, restores when its turn comes, and others go ahead.
"""

from __future__ import annotations

import itertools
from collections import deque
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import NamedTuple

from backends.simulated.block_pool import BlockPool
from backends.simulated.engine_config import EngineConfig, EngineStats, KvBatch, QueueFullError, RequestTooLongError
from backends.simulated.kv_tiers import BlockTier, EngineTiers
from backends.simulated.sequence import Sequence, SimRequest, TokenOut
from backends.simulated.step_run import StepRun
from policies.types import Tier

__all__ = ["EngineConfig", "EngineStats", "KvBatch", "QueueFullError", "RequestTooLongError", "SimulatedEngine"]

_TIMES_KEPT = 4096


class _Restore(NamedTuple):
    ends_at: float
    number: int
    sequence: Sequence
    in_turn: bool
    """It was at the head of the queue, and comes back there."""


class SimulatedEngine:
    """Submit, ask when something happens next, advance to then, read what came out."""

    def __init__(self, config: EngineConfig, store: BlockTier | None = None) -> None:
        """`store` is a tier that other engines read too."""
        self.config = config
        self.pool = BlockPool(config.blocks)
        own = [] if config.host is None else [BlockTier(Tier.HOST, config.host)]
        shared = [] if store is None else [store]
        self.tiers = EngineTiers([*own, *shared], speed=config.speed, rate=config.prefill_rate)
        self._restoring: list[_Restore] = []  # a heap
        self._restores = 0
        serial = config.timing.one_at_a_time
        self._max_running = 1 if serial else config.max_num_seqs
        self._budget = config.context_tokens if serial else config.max_batched_tokens
        self._waiting: deque[Sequence] = deque()
        self._running: dict[str, Sequence] = {}  # in order of admission
        self._decoding: set[Sequence] = set()
        self._streaming: dict[Sequence, None] = {}  # the decoding ones with per_token, in order
        self._partial: Sequence | None = None  # admitted, prompt not wholly computed: always the last running
        self._admissions = 0
        self._blocked: tuple[Sequence, int] | None = None
        self._run: StepRun | None = None
        self._now = float("-inf")
        self._ready_at = float("-inf")
        # Decode steps are numbered; a sequence is found under the number of its next change only.
        self._step = 0
        self._grow_due: dict[int, list[Sequence]] = {}
        self._finish_due: dict[int, list[Sequence]] = {}
        self._times: list[float] = []  # ends of decode steps, _times[0] being that of step _times_from + 1
        self._times_from = 0
        self._outputs: list[TokenOut] = []
        self._batches: list[KvBatch] = []
        self._queries = self._hits = self._prompt_tokens = self._generated = self._preemptions = 0

    # -- what callers use --------------------------------------------------------------------------------

    def submit(self, request: SimRequest, now: float) -> None:
        """Queue a request; it joins at the next step's start. Several at one `now` are scheduled together.

        Raises RequestTooLongError, QueueFullError, or ValueError for an empty prompt, an answer of no tokens
        or an id in use.
        """
        self._check(request)
        self._live_until(now, start=False)
        sequence = Sequence(request, self.config.block_size)
        if not self._restore(sequence, now, in_turn=False):
            self._wait(sequence, now, in_turn=False)

    def _wait(self, sequence: Sequence, now: float, *, in_turn: bool) -> None:
        if self._run is None and not self._running and not self._waiting:
            self._ready_at = now
        if in_turn:
            self._waiting.appendleft(sequence)
        else:
            self._waiting.append(sequence)
        self._stop_after_current_step()

    def cancel(self, request_id: str, now: float) -> bool:
        """Drop a request and free its blocks at once; False when it is not here (any more).

        The step under way keeps its duration, as the hardware is busy with it.
        """
        self._live_until(now, start=False)
        self._outputs = [out for out in self._outputs if out.id != request_id]
        sequence = self._running.get(request_id)
        if sequence is None:
            restoring = next((each for each in self._restoring if each.sequence.request.id == request_id), None)
            if restoring is not None:
                self._stop_restoring(restoring)
                return True
            waiting = next((each for each in self._waiting if each.request.id == request_id), None)
            if waiting is None:
                return False
            self._waiting.remove(waiting)
            self._let_go(waiting)
            return True
        self._leave(sequence)
        if self._run is None:
            self._collect_events(now)
        else:
            self._run.prefilling = [pair for pair in self._run.prefilling if pair[0] is not sequence]
            self._stop_after_current_step()
        return True

    def clear_cache(self, now: float) -> bool:
        """Forget all cached blocks; False, and nothing happens, while blocks are in use."""
        self._live_until(now, start=False)
        cleared = self.pool.clear_cache()
        if cleared:
            self.tiers.forget()
            self._collect_events(now)
        return cleared

    def next_event_at(self) -> float | None:
        """When `advance` has something to do next; None while there is no work. Changes nothing."""
        run = self._run
        if run is None:
            at = self._ready_at if self._waiting or self._running else None
        else:
            at = run.end(run.done + 1 if self._streaming else run.steps)
        if self._restoring:
            restored_at = self._restoring[0].ends_at
            return restored_at if at is None else min(at, restored_at)
        return at

    def advance(self, now: float) -> list[TokenOut]:
        """Live until `now`; the outputs since the last call, in order. The caller owns the list."""
        self._live_until(now, start=True)
        for sequence in self._streaming:
            if sequence.reported < self._step:
                self._emit(sequence, finished=False)
        outputs, self._outputs = self._outputs, []
        return outputs

    def take_kv_events(self) -> list[KvBatch]:
        """Changes of the caches since the last call, one batch a step; the caller owns the list."""
        if self._run is None:
            self._collect_events(self._now)  # what other engines have pushed out of a shared store meanwhile
        batches, self._batches = self._batches, []
        return batches

    @property
    def idle(self) -> bool:
        """Whether no request is here."""
        return not (self._running or self._waiting or self._restoring)

    def stats(self) -> EngineStats:
        """Counters and gauges as of the last `advance`."""
        reported_late = sum(self._step - sequence.joined for sequence in self._decoding)
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting) + len(self._restoring),
            kv_usage=self.pool.used / self.pool.capacity,
            prefix_cache_queries=self._queries,
            prefix_cache_hits=self._hits,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generated + reported_late,
            preemptions=self._preemptions,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError unless sequences and pool agree: free + used == capacity, no block lost."""
        self.pool.check_integrity()
        holding = [*self._running.values(), *self._waiting, *(restore.sequence for restore in self._restoring)]
        held = {block for sequence in holding for block in sequence.blocks}
        assert len(held) == self.pool.used
        due = [s for table in (self._grow_due, self._finish_due) for bucket in table.values() for s in bucket]
        assert len(due) == len(self._decoding)
        assert set(due) == self._decoding
        assert all(self._running[s.request.id] is s for s in self._decoding)

    # -- time --------------------------------------------------------------------------------------------

    def _live_until(self, now: float, *, start: bool) -> None:
        """Commit every step that ended until `now`; begin one exactly at `now` only if `start`."""
        if now < self._now:
            message = f"time went back from {self._now} to {now}"
            raise ValueError(message)
        self._now = now
        while True:
            if self._restoring and self._restoring[0].ends_at <= now:
                if not self._go_on(self._restoring[0].ends_at, start=False):
                    self._restored(heappop(self._restoring))
            elif not self._go_on(now, start=start):
                return

    def _go_on(self, limit: float, *, start: bool) -> bool:
        """Begin a step, or commit those that ended until `limit`; False if there is nothing more to do until then."""
        run = self._run
        if run is None:
            due = self._ready_at <= limit if start else self._ready_at < limit
            if not (self._running or self._waiting) or not due:
                return False
            self._run = self._schedule(self._ready_at)
            return True
        ended = run.ended_by(limit)
        if ended > run.done:
            self._commit(run, ended - run.done)
        if run.done < run.steps:
            return False
        self._ready_at = run.end(run.steps)
        self._run = None
        return True

    def _stop_after_current_step(self) -> None:
        if self._run is not None:
            self._run.steps = min(self._run.steps, self._run.done + 1)

    # -- slower tiers ------------------------------------------------------------------------------------

    def _restore(self, sequence: Sequence, now: float, *, in_turn: bool) -> bool:
        """Begin to restore what is worth it of a prompt; False where nothing is, or nothing fits."""
        if not self.tiers.tiers:
            return False
        size = self.config.block_size
        most = (sequence.total - 1) // size
        matched = self.pool.match(sequence.hashes, most)
        split = self.tiers.plan(sequence.hashes, len(matched), most, n_tokens=sequence.total, block_size=size, now=now)
        count = split.restored_tokens // size
        if not count or not self.pool.has_room(count, matched):
            return False
        self.pool.take(matched)
        sequence.blocks = [*matched, *self.pool.allocate(count)]
        sequence.restoring = (len(matched), len(matched) + count)
        self._restores += 1
        heappush(self._restoring, _Restore(self.tiers.begin(split, now), self._restores, sequence, in_turn))
        return True

    def _restored(self, restore: _Restore) -> None:
        """What was restored can be found from now on, by this sequence and by all others."""
        at, _, sequence, in_turn = restore
        first, last = sequence.restoring
        self.pool.store(
            sequence.blocks[first:last],
            sequence.hashes[first:last],
            parent=sequence.hashes[first - 1] if first else None,
            owner=sequence.request,
            first_block=first,
        )
        self._wait(sequence, at, in_turn=in_turn)
        if self._run is None:
            self._collect_events(at)

    def _reclaim(self) -> bool:
        """Take back the blocks of whoever came last among those that only hold them for later; False if nobody does."""
        for sequence in reversed(self._waiting):
            if sequence.blocks:
                self._let_go(sequence)
                return True
        if not self._restoring:
            return False
        last = max(self._restoring, key=attrgetter("number"))
        self._stop_restoring(last)
        self._waiting.append(last.sequence)
        return True

    def _stop_restoring(self, restore: _Restore) -> None:
        self._restoring.remove(restore)
        heapify(self._restoring)
        self._let_go(restore.sequence)

    def _let_go(self, sequence: Sequence) -> None:
        if sequence.blocks:
            self.pool.release(sequence.blocks)
            sequence.blocks = []

    def _keep(self, sequence: Sequence) -> None:
        """Leave full blocks that are computed on the slower tiers; those of unknown tokens nobody could find again."""
        request, size = sequence.request, self.config.block_size
        tokens = sequence.computed if request.output_ids else min(sequence.computed, request.n_tokens)
        n_blocks = min(sequence.stored, tokens // size)
        if n_blocks:
            self.tiers.keep(sequence.hashes[:n_blocks], request)

    # -- the start of a step -----------------------------------------------------------------------------

    def _schedule(self, at: float) -> StepRun:
        preemptions = self._preemptions
        self._grow_decoding()
        budget = self._budget - len(self._decoding)
        prefilling: list[tuple[Sequence, int]] = []
        if self._partial is not None:
            budget -= self._continue_prefill(self._partial, budget, prefilling)
        preempted = self._preemptions > preemptions
        if not preempted:
            self._admit(budget, prefilling, at)
        new_tokens = sum(count for _, count in prefilling)
        decoding = bool(self._decoding)
        kv_used = self.pool.used / self.pool.capacity
        step_s = self.config.timing.step_s(new_tokens, decoding=decoding, kv_used=kv_used) / self.config.speed
        steps = 1 if prefilling or preempted or not decoding else self._steps_without_change()
        return StepRun(at, step_s, steps, decoding=decoding, prefilling=prefilling)

    def _steps_without_change(self) -> int:
        """Decode steps that see the same blocks in use and finish nothing before the last."""
        step = self._step + 1
        while step not in self._finish_due and step + 1 not in self._grow_due:
            step += 1
        return step - self._step

    def _grow_decoding(self) -> None:
        """Give a block to each decoding sequence that needs one in the next step; preempt the last for it."""
        due = self._grow_due.pop(self._step + 1, None)
        if due is None:
            return
        if not self.pool.has_room(len(due)):
            due.sort(key=lambda sequence: sequence.order)
        for sequence in due:
            sequence.due = 0
        for sequence in due:
            if sequence not in self._decoding:
                continue  # preempted for an earlier one
            if self._make_room(1, sequence):
                self._store_full(sequence, len(sequence.blocks))
                sequence.blocks += self.pool.allocate(1)
                self._set_due(sequence)

    def _make_room(self, blocks: int, sequence: Sequence) -> bool:
        """Preempt from the end of the running ones until `blocks` are free; False if `sequence` is hit."""
        while not self.pool.has_room(blocks):
            if self._reclaim():
                continue
            victim = next(reversed(self._running.values()))
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        if sequence in self._decoding and sequence.reported < self._step:
            self._emit(sequence, finished=False)
        self._leave(sequence)
        sequence.blocks = []
        sequence.stored = sequence.computed = 0
        self._waiting.appendleft(sequence)
        self._preemptions += 1

    def _continue_prefill(self, sequence: Sequence, budget: int, prefilling: list[tuple[Sequence, int]]) -> int:
        """Compute up to `budget` more tokens of a partly computed prompt; how many."""
        count = min(sequence.total - sequence.computed, budget)
        needed = self._blocks_for(sequence.computed + count) - len(sequence.blocks)
        if count <= 0 or not self._make_room(needed, sequence):
            return 0
        self._place(sequence, needed, count, prefilling)
        return count

    def _admit(self, budget: int, prefilling: list[tuple[Sequence, int]], at: float) -> None:
        """First come, first served: a head that does not fit is waited for."""
        pool = self.pool
        while self._waiting and budget > 0 and len(self._running) < self._max_running:
            sequence = self._waiting[0]
            if self._blocked == (sequence, pool.releases):
                return
            total = sequence.total
            most_hits = (total - 1) // self.config.block_size
            sequence.hash_up_to(most_hits)
            if not sequence.blocks and self._restore(sequence, at, in_turn=True):
                self._waiting.popleft()
                continue
            matched = pool.match(sequence.hashes, most_hits)
            cached = len(matched) * self.config.block_size
            count = min(total - cached, budget)
            needed = self._blocks_for(cached + count) - len(matched)
            if not pool.has_room(needed, matched):
                if not self._running and self._reclaim():
                    continue
                self._blocked = (sequence, pool.releases)
                return
            self._waiting.popleft()
            pool.take(matched)
            self._let_go(sequence)
            sequence.blocks = matched
            sequence.stored = len(matched)
            sequence.computed = cached
            self._count_first_admission(sequence, cached)
            self._admissions += 1
            sequence.order = self._admissions
            self._running[sequence.request.id] = sequence
            self._place(sequence, needed, count, prefilling)
            budget -= count

    def _count_first_admission(self, sequence: Sequence, cached: int) -> None:
        if sequence.cached_tokens >= 0:
            return  # resumed after a preemption: vLLM reports what the first admission found
        sequence.cached_tokens = cached
        self._queries += sequence.request.n_tokens
        self._hits += cached

    def _place(self, sequence: Sequence, needed: int, count: int, prefilling: list[tuple[Sequence, int]]) -> None:
        """Allocate for `count` tokens that this step computes; full blocks can be matched from now on."""
        sequence.blocks += self.pool.allocate(needed)
        after = sequence.computed + count
        self._store_full(sequence, after // self.config.block_size)
        self._partial = sequence if after < sequence.total else None
        prefilling.append((sequence, count))

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.config.block_size)

    def _store_full(self, sequence: Sequence, n_blocks: int) -> None:
        first = sequence.stored
        if n_blocks <= first:
            return
        sequence.hash_up_to(n_blocks)
        hashes = sequence.hashes
        parent = hashes[first - 1] if first else None
        self.pool.store(
            sequence.blocks[first:n_blocks],
            hashes[first:n_blocks],
            parent=parent,
            owner=sequence.request,
            first_block=first,
        )
        sequence.stored = n_blocks

    # -- the end of a step -------------------------------------------------------------------------------

    def _commit(self, run: StepRun, steps: int) -> None:
        first = run.done + 1
        run.done += steps
        at = run.end(run.done)
        if run.decoding:
            self._times.extend(run.end(step) for step in range(first, run.done + 1))
            self._step += steps
            for sequence in self._finish_due.pop(self._step, ()):
                sequence.due = 0
                self._finish(sequence)
        for sequence, count in run.prefilling:
            sequence.computed += count
            if sequence.computed == sequence.total:
                self._sample_first(sequence, at)
        self._collect_events(at)
        if len(self._times) > _TIMES_KEPT:
            self._trim_times()

    def _collect_events(self, at: float) -> None:
        events = self.pool.take_events()
        if self.tiers.tiers:
            events += self.tiers.take_events()
        if events:
            self._batches.append(KvBatch(at, events))

    def _sample_first(self, sequence: Sequence, at: float) -> None:
        """The prompt is computed (again, if preempted): one token comes of it, decoding gives the rest."""
        request = sequence.request
        first = sequence.output == 0
        sequence.output += 1
        self._generated += 1
        if first:
            self._prompt_tokens += request.n_tokens
        finished = sequence.output == request.max_tokens
        self._outputs.append(TokenOut(request.id, 1, (at,), first, finished, sequence.cached_tokens))
        if finished:
            self._leave(sequence)
            return
        sequence.joined = sequence.reported = self._step
        self._decoding.add(sequence)
        if request.per_token:
            self._streaming[sequence] = None
        self._set_due(sequence)

    def _finish(self, sequence: Sequence) -> None:
        self._emit(sequence, finished=True)
        self._leave(sequence)

    def _emit(self, sequence: Sequence, *, finished: bool) -> None:
        start, stop = sequence.reported - self._times_from, self._step - self._times_from
        times = tuple(self._times[start:stop])
        sequence.reported = self._step
        self._outputs.append(TokenOut(sequence.request.id, len(times), times, False, finished, sequence.cached_tokens))

    def _trim_times(self) -> None:
        oldest = min((sequence.reported for sequence in self._decoding), default=self._step)
        del self._times[: oldest - self._times_from]
        self._times_from = oldest

    # -- one sequence ------------------------------------------------------------------------------------

    def _set_due(self, sequence: Sequence) -> None:
        """File a decoding sequence under the step that needs its next block or, if earlier, is its last.

        Decode step k computes token `computed + (k - joined)`; the first that lies past the blocks held needs
        one more.
        """
        held = len(sequence.blocks) * self.config.block_size
        grow = sequence.joined + held + 1 - sequence.computed
        finish = sequence.joined + sequence.request.max_tokens - sequence.output
        table, sequence.due = (self._grow_due, grow) if grow <= finish else (self._finish_due, finish)
        table.setdefault(sequence.due, []).append(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Out of the running ones, blocks given back; the full ones stay cached."""
        if sequence in self._decoding:
            self._stop_decoding(sequence)
            self._store_full(sequence, sequence.computed // self.config.block_size)
        if self._partial is sequence:
            self._partial = None
        del self._running[sequence.request.id]
        if self.tiers.tiers:
            self._keep(sequence)
        self.pool.release(sequence.blocks)

    def _stop_decoding(self, sequence: Sequence) -> None:
        """Settle the counts that decoding leaves open."""
        self._decoding.discard(sequence)
        self._streaming.pop(sequence, None)
        for table in (self._grow_due, self._finish_due):
            bucket = table.get(sequence.due)
            if bucket is not None and sequence in bucket:
                bucket.remove(sequence)
                if not bucket:
                    del table[sequence.due]
        steps = self._step - sequence.joined
        sequence.output += steps
        sequence.computed += steps
        sequence.joined = self._step
        self._generated += steps

    def _check(self, request: SimRequest) -> None:
        if request.n_tokens < 1 or request.max_tokens < 1:
            message = "a request needs at least one prompt token and one output token"
            raise ValueError(message)
        if request.n_tokens + request.max_tokens > self.config.context_tokens:
            raise RequestTooLongError(request, self.config.context_tokens)
        if self.config.max_waiting is not None and len(self._waiting) >= self.config.max_waiting:
            raise QueueFullError
        here = itertools.chain(self._waiting, (restore.sequence for restore in self._restoring))
        if request.id in self._running or any(each.request.id == request.id for each in here):
            message = f"request id {request.id!r} is in use"
            raise ValueError(message)
