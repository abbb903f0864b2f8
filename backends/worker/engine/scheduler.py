"""What each step of the engine computes, and what its result means for every sequence. Pure: no clock, no tensors.

One state machine: *idle* or *a step under way*. `schedule` plans a step, and exactly one of `commit` (its result) and
`abort` (it failed) ends it; `cancel` and `clear_cache` are for the time between steps. `add` is always allowed.

Order is (priority, arrival), lowest first, for who is admitted and, backwards, for who is preempted. As in vLLM v1,
running sequences go before waiting ones, a long prompt is computed in chunks beside the decoding ones under a budget of
tokens, nobody overtakes the head of the queue, and only for want of memory is a sequence preempted: its blocks are
freed, and it is computed again from what is still cached of them. Where it differs from vLLM:

- Sequences that decode come before the chunks of prompts, so a long prompt of high priority stalls nobody.
- An admission must leave room for the rest of every running prompt and for one more block of each running sequence. So
  for `block_size` steps after an admission nobody is preempted, whatever the pressure: no storms.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence as Items
from dataclasses import dataclass

from backends.worker.engine.block_manager import BlockManager
from backends.worker.engine.sequence import Sequence, Status
from backends.worker.messages import EngineStats, FinishReason, Submit, TokenLogprobs, TokensOut
from cache.block_hash import TOKEN_BYTES
from cache.kv_events import KvEvent


class RequestRefusedError(Exception):
    """The engine does not take a request. `param` is its field at fault; None where the engine is."""

    def __init__(self, reason: str, param: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Raises ValueError for limits under which some request could never be computed."""

    max_num_seqs: int
    """Sequences that run at a time."""
    max_num_batched_tokens: int
    """Tokens computed in one step."""
    max_model_len: int
    """Prompt and output tokens of one sequence."""
    max_waiting: int
    """Sequences in the queue; preempted ones come on top."""
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    eos_token_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1 or self.max_waiting < 1:
            raise ValueError("max_num_seqs and max_waiting must be positive")
        if self.max_model_len < 2:
            raise ValueError("max_model_len must leave room for one prompt token and one output token")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("max_num_batched_tokens must be at least max_num_seqs: each may decode one token")
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError("without chunked prefill max_num_batched_tokens must be at least max_model_len")


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Compute tokens `start : start + count` of a sequence, whose block table covers them."""

    sequence: Sequence
    start: int
    count: int
    samples: bool
    """Sample the next token from the last position."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. KV of all its tokens must be written before any is read (layer by layer): an item may have blocks that
    an earlier item of the same step fills.
    """

    items: tuple[Scheduled, ...]
    """Decoding sequences first, then prompts in chunks, then prompts that begin."""
    n_tokens: int
    """To compute, all items together; positive."""


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.priority, sequence.arrival


def _is_prefill(sequence: Sequence) -> bool:
    return sequence.n_tokens - sequence.n_computed > 1


class Scheduler:
    """The engine's sequences. `blocks` is its own to change."""

    def __init__(self, config: SchedulerConfig, blocks: BlockManager) -> None:
        self.config = config
        self.blocks = blocks
        self._sequences: dict[str, Sequence] = {}
        self._waiting: list[Sequence] = []  # both sorted by `_order`
        self._running: list[Sequence] = []
        self._aside: dict[str, Sequence] = {}
        self._ended: list[Sequence] = []
        self._step: StepPlan | None = None
        self._blocked: tuple[Sequence, int] | None = None  # head of the queue that did not fit, and `releases` then
        self._arrivals = self._steps = self._preemptions = 0
        self._prompt_tokens = self._cached_tokens = self._generation_tokens = 0

    # --- requests ---

    def add(self, submit: Submit, *, aside: bool = False, now: float = 0.0) -> Sequence:
        """Queue a request, or put it `aside` until `admit`, while its KV is looked for elsewhere. `now` is for the
        times of what is cached.

        Raises RequestRefusedError when its prompt is empty or leaves no room for an output token, when it could need
        more blocks than there are, when the queue is full or the id is in use.
        """
        self._check(submit)
        sequence = Sequence(submit, self._arrivals, now)
        self._arrivals += 1
        self._sequences[sequence.id] = sequence
        if aside:
            self._aside[sequence.id] = sequence
        else:
            insort(self._waiting, sequence, key=_order)
        return sequence

    def admit(self, sequence: Sequence) -> None:
        """Queue a sequence that was put aside, in the place that it would have; one that was cancelled is no error."""
        if self._aside.pop(sequence.id, None) is sequence:
            insort(self._waiting, sequence, key=_order)
            self._blocked = None

    def cancel(self, request_id: str) -> bool:
        """Forget a request and free its blocks; False when there is none of this id. Between steps only."""
        self._assert_idle()
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return False
        if self._aside.pop(request_id, None) is None:
            if sequence.status is Status.WAITING:
                del self._waiting[bisect_left(self._waiting, _order(sequence), key=_order)]
            else:
                self._running.remove(sequence)
        self._end(sequence)
        return True

    @property
    def has_work(self) -> bool:
        """Is any request not finished?"""
        return bool(self._sequences)

    @property
    def n_waiting(self) -> int:
        """Sequences in the queue, those put aside left out."""
        return len(self._waiting)

    @property
    def can_step(self) -> bool:
        """Is any request not finished and not put aside?"""
        return len(self._sequences) > len(self._aside)

    # --- steps ---

    def schedule(self) -> StepPlan | None:
        """Plan the next step; None when there is nothing to do."""
        self._assert_idle()
        items, budget, preempted = self._plan_running()
        if not preempted:
            budget = self._admit(items, budget)
        if not items:
            return None
        self._step = StepPlan(tuple(items), self.config.max_num_batched_tokens - budget)
        return self._step

    def commit(self, plan: StepPlan, sampled: Items[tuple[int, TokenLogprobs | None]]) -> list[TokensOut]:
        """The step was computed: `sampled` holds a token for each item that samples, in order. Returns what is to be
        told, one for each of these. Raises ValueError, and changes nothing, when their number is another.
        """
        self._assert_under_way(plan)
        n_sampling = sum(1 for item in plan.items if item.samples)
        if len(sampled) != n_sampling:
            raise ValueError(f"{len(sampled)} sampled tokens for {n_sampling} sequences that sample")
        self._step = None
        self._steps += 1
        self._generation_tokens += n_sampling
        tokens = iter(sampled)
        outputs: list[TokensOut] = []
        for item in plan.items:
            sequence = item.sequence
            sequence.n_computed = item.start + item.count
            if not sequence.admitted:
                self._note_admission(sequence, item.start)
            if item.samples:
                outputs.append(self._append(sequence, *next(tokens)))
        self.blocks.commit()
        return outputs

    def abort(self, plan: StepPlan) -> None:
        """The step failed: nothing of it stays cached, and its sequences wait to be computed again. Whether another
        attempt can do better, the caller knows: it may cancel them.
        """
        self._assert_under_way(plan)
        self._step = None
        self.blocks.abort()
        for item in plan.items:
            self._running.remove(item.sequence)
            self._requeue(item.sequence)

    def recompute_all(self) -> None:
        """Whatever runs waits to be computed from its first token on; nothing stays cached. Between steps only."""
        self._assert_idle()
        for sequence in [*self._running]:
            self._requeue(sequence)
        self._running.clear()
        self.blocks.clear(())

    # --- state ---

    def take_events(self) -> tuple[KvEvent, ...]:
        """Changes of the prefix cache since the last call, in order; those of a step from its commit on."""
        return self.blocks.take_events()

    def take_ended(self) -> list[Sequence]:
        """Sequences that came to their end since the last call, cancelled ones left out."""
        ended, self._ended = self._ended, []
        return ended

    def stats(self) -> EngineStats:
        """Load and counters, as of now."""
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting) + len(self._aside),
            free_blocks=self.blocks.free_blocks,
            cached_blocks=self.blocks.cached_blocks,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generation_tokens=self._generation_tokens,
            preemptions=self._preemptions,
        )

    def clear_cache(self) -> None:
        """Forget the prefix cache. Running sequences go on; what they hold is not found. Between steps only."""
        self._assert_idle()
        self.blocks.clear(self._running)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every sequence is where its status says and the pool accounts for all blocks."""
        idle = [*self._waiting, *self._aside.values()]
        assert all(each.status is Status.WAITING and not each.n_computed for each in idle)
        assert all(each.status is Status.RUNNING and each.block_table for each in self._running)
        listed = [*self._waiting, *self._running, *self._aside.values()]
        assert {each.id: each for each in listed} == self._sequences, "a sequence is lost"
        assert len(listed) == len(self._sequences), "a sequence is listed twice"
        assert [*map(_order, self._waiting)] == sorted(map(_order, self._waiting)), "the queue is out of order"
        assert [*map(_order, self._running)] == sorted(map(_order, self._running)), "the running are out of order"
        assert not any(each.block_table for each in idle), "a waiting sequence holds blocks"
        self.blocks.check_integrity(self._running)

    # --- planning ---

    def _plan_running(self) -> tuple[list[Scheduled], int, bool]:
        """Items of the running sequences, the budget that is left, and whether anybody was preempted."""
        budget, before = self.config.max_num_batched_tokens, self._preemptions
        planned: dict[Sequence, int] = {}
        allocate = self.blocks.allocate
        for sequence in sorted(self._running, key=_is_prefill):
            if not budget:
                break
            if sequence.status is not Status.RUNNING:
                continue  # preempted for one of those before it
            count = min(sequence.n_tokens - sequence.n_computed, budget)
            while not allocate(sequence, sequence.n_computed + count):
                victim = self._preempt()
                budget += planned.pop(victim, 0)
                if victim is sequence:
                    break
            else:
                planned[sequence] = count
                budget -= count
        # Only now is it certain who stays in the step.
        return [self._place(*each) for each in planned.items()], budget, self._preemptions > before

    def _admit(self, items: list[Scheduled], budget: int) -> int:
        """Admit from the head of the queue while budget, places and blocks suffice; the budget that is left."""
        if not self._waiting or self._blocked == (self._waiting[0], self.blocks.releases):
            return budget
        promised = sum(map(self._growth, self._running))
        while self._waiting and budget and len(self._running) < self.config.max_num_seqs:
            sequence = self._waiting[0]
            matched = self.blocks.match(sequence) if self.config.enable_prefix_caching else []
            start = len(matched) * self.blocks.block_size
            left = sequence.n_tokens - start
            if left > budget and not self.config.enable_chunked_prefill:
                break
            if self._growth(sequence) - len(matched) + promised > self.blocks.free_blocks - self.blocks.idle(matched):
                self._blocked = (sequence, self.blocks.releases)
                break
            count = min(left, budget)
            allocated = self.blocks.allocate(sequence, start + count, matched)
            assert allocated, "there is room for more than this"
            self._start(sequence, start)
            items.append(self._place(sequence, count))
            promised += self._growth(sequence)
            budget -= count
        return budget

    def _start(self, sequence: Sequence, n_found: int) -> None:
        del self._waiting[0]
        insort(self._running, sequence, key=_order)
        sequence.status = Status.RUNNING
        sequence.n_computed = n_found

    def _place(self, sequence: Sequence, count: int) -> Scheduled:
        """The item of a sequence that stays in this step, what it fills being found from now on."""
        start = sequence.n_computed
        if self.config.enable_prefix_caching:
            self.blocks.register(sequence, start + count)
        return Scheduled(sequence, start, count, start + count == sequence.n_tokens)

    def _growth(self, sequence: Sequence) -> int:
        """Blocks that it needs for the tokens it has, and one more if it may live to fill that; less those it holds."""
        blocks = self.blocks
        known = blocks.blocks_for(sequence.n_tokens)
        return min(known + 1, blocks.blocks_for(self._most_tokens(sequence.request))) - len(sequence.block_table)

    def _most_tokens(self, request: Submit) -> int:
        """Tokens whose KV a request can come to need. That of the last token sampled is never computed."""
        n_prompt = len(request.token_ids) // TOKEN_BYTES
        return min(n_prompt + request.params.max_tokens, self.config.max_model_len) - 1

    def _preempt(self) -> Sequence:
        """Take the blocks of the last in order."""
        victim = self._running.pop()
        self._preemptions += 1
        self._requeue(victim)
        return victim

    def _requeue(self, sequence: Sequence) -> None:
        self.blocks.free(sequence)
        sequence.status = Status.WAITING
        sequence.n_computed = 0
        insort(self._waiting, sequence, key=_order)

    # --- results ---

    def _note_admission(self, sequence: Sequence, n_found: int) -> None:
        sequence.admitted = True
        sequence.cached_tokens = n_found
        self._prompt_tokens += sequence.n_prompt
        self._cached_tokens += n_found

    def _append(self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None) -> TokensOut:
        sequence.append(token)
        reason = self._finish_reason(sequence, token)
        if reason is not None:
            self._running.remove(sequence)
            self._end(sequence)
            self._ended.append(sequence)
        return TokensOut(
            sequence.id,
            (token,),
            reason,
            token if reason is FinishReason.STOP else None,
            sequence.cached_tokens,
            None if logprobs is None else (logprobs,),
        )

    def _finish_reason(self, sequence: Sequence, token: int) -> FinishReason | None:
        params, n_output = sequence.params, sequence.n_output
        if n_output >= params.min_tokens and (
            token in params.stop_token_ids or (token in self.config.eos_token_ids and not params.ignore_eos)
        ):
            return FinishReason.STOP
        if n_output >= params.max_tokens or sequence.n_tokens >= self.config.max_model_len:
            return FinishReason.LENGTH
        return None

    def _end(self, sequence: Sequence) -> None:
        self.blocks.free(sequence)
        sequence.status = Status.FINISHED
        del self._sequences[sequence.id]

    # --- checks ---

    def _check(self, submit: Submit) -> None:
        n_prompt, rest = divmod(len(submit.token_ids), TOKEN_BYTES)
        most = self.config.max_model_len
        if not n_prompt or rest:
            raise RequestRefusedError("the prompt holds no token", "prompt")
        if submit.params.max_tokens < 1:
            raise RequestRefusedError("max_tokens must be at least 1", "max_tokens")
        if n_prompt >= most:
            raise RequestRefusedError(
                f"the prompt has {n_prompt} tokens; at most {most - 1} leave room for one output token", "prompt"
            )
        room = self.blocks.n_blocks * self.blocks.block_size
        needed = self._most_tokens(submit)
        if self.blocks.blocks_for(needed) > self.blocks.n_blocks:
            param = "prompt" if n_prompt > room else "max_tokens"
            raise RequestRefusedError(f"{needed} tokens may have to be kept; the KV pool holds {room}", param)
        if submit.id in self._sequences:
            raise RequestRefusedError("a request with this id is in progress")
        n_waiting = len(self._waiting) + len(self._aside)
        if n_waiting >= self.config.max_waiting:
            raise RequestRefusedError(f"the queue is full: {n_waiting} requests wait")

    def _assert_idle(self) -> None:
        if self._step is not None:
            raise RuntimeError("a step is under way: commit or abort it first")

    def _assert_under_way(self, plan: StepPlan) -> None:
        if plan is not self._step:
            raise RuntimeError("this step is not the one under way")
