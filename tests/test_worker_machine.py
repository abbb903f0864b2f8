"""The worker's scheduler under everything that may happen to it, against a pool that knows what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from backends.worker.engine.block_manager import HashBlocks
from backends.worker.engine.scheduler import RequestRefusedError, StepPlan
from backends.worker.engine.sequence import Sequence
from backends.worker.messages import FinishReason, SamplingParams, Submit, TokensOut
from cache.block_hash import extend_chain
from cache.kv_events import AllBlocksCleared
from policies.types import BlockHash, TokenIds
from tests.worker_core_fixtures import Mirror, ShadowPool, ask, engine, next_token

EOS = 2
TEXTS = ["0" * 16, "01" * 8, "0001011010110011", "2102100122001102"]
"""Prompts are beginnings of these, so much is shared, to every depth."""


def colliding(parent: BlockHash, ids: TokenIds, block_size: int) -> list[BlockHash]:
    """Five hashes for everything there is."""
    return [BlockHash(each % 5) for each in extend_chain(parent, ids, block_size)]


def constant(parent: BlockHash, ids: TokenIds, block_size: int) -> list[BlockHash]:
    return [BlockHash(7) for _ in extend_chain(parent, ids, block_size)]


def greedy(sequence: Sequence) -> int:
    """Of two tokens one, so that texts meet, and now and then the end."""
    drawn = next_token(sequence, 32)
    return EOS if drawn == 31 else drawn % 2


@dataclass
class Expected:
    """A request as the simplest engine would complete it."""

    submit: Submit
    output: list[int] = field(default_factory=list)

    def append(self, token: int, max_model_len: int) -> FinishReason | None:
        params: SamplingParams = self.submit.params
        self.output.append(token)
        if token == EOS and not params.ignore_eos and len(self.output) >= params.min_tokens:
            return FinishReason.STOP
        n_tokens = len(self.submit.token_ids) // 4 + len(self.output)
        return FinishReason.LENGTH if len(self.output) == params.max_tokens or n_tokens == max_model_len else None


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        n_blocks=st.integers(6, 16),
        block_size=st.integers(1, 4),
        max_num_seqs=st.integers(1, 5),
        extra_budget=st.integers(0, 12),
        chunked=st.booleans(),
        caching=st.sampled_from([True, True, True, False]),
        hash_blocks=st.sampled_from([extend_chain, extend_chain, colliding, constant]),
    )
    def start(
        self,
        *,
        n_blocks: int,
        block_size: int,
        max_num_seqs: int,
        extra_budget: int,
        chunked: bool,
        caching: bool,
        hash_blocks: HashBlocks,
    ) -> None:
        self.max_model_len = min(24, n_blocks * block_size)
        self.scheduler = engine(
            n_blocks,
            block_size,
            hash_blocks=hash_blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + extra_budget if chunked else max(self.max_model_len, max_num_seqs),
            max_model_len=self.max_model_len,
            max_waiting=6,
            enable_chunked_prefill=chunked,
            enable_prefix_caching=caching,
            eos_token_ids=frozenset({EOS}),
        )
        self.shadow = ShadowPool(n_blocks, block_size)
        self.mirror = Mirror()
        self.expected: dict[str, Expected] = {}
        self.n_asked = 0
        self.steps_since_admission = 1_000

    def running(self) -> set[str]:
        return {each.id for each in self.scheduler._running}

    @rule(
        pick=st.integers(0, len(TEXTS) - 1),
        length=st.integers(1, 16),
        tail=st.lists(st.integers(0, 2), max_size=2),
        max_tokens=st.integers(1, 20),
        min_tokens=st.integers(0, 3),
        salt=st.sampled_from(["", "", "s"]),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        n=st.sampled_from([1, 1, 2]),
    )
    def submit(
        self,
        *,
        pick: int,
        length: int,
        tail: list[int],
        max_tokens: int,
        min_tokens: int,
        salt: str,
        priority: int,
        n: int,
    ) -> None:
        text = [int(each) for each in TEXTS[pick][:length]]
        for _ in range(n):
            self.n_asked += 1
            submit = ask(
                f"r{self.n_asked}", text + tail, max_tokens, min_tokens=min_tokens, salt=salt, priority=priority
            )
            too_long = len(text + tail) >= self.max_model_len
            if too_long or len(self.scheduler._waiting) >= 6:
                with pytest.raises(RequestRefusedError) as caught:
                    self.scheduler.add(submit)
                assert (caught.value.param == "prompt") == too_long
            else:
                self.scheduler.add(submit)
                self.expected[submit.id] = Expected(submit)

    @rule(number=st.integers(0, 40))
    def cancel(self, number: int) -> None:
        name = f"r{number}"
        known = self.expected.pop(name, None)
        assert self.scheduler.cancel(name) == (known is not None)

    def schedule(self) -> StepPlan | None:
        before, preemptions = list(self.scheduler._running), self.scheduler.stats().preemptions
        plan = self.scheduler.schedule()
        assert (plan is None) == (not self.expected)
        if plan is None:
            return None
        assert 0 < plan.n_tokens <= self.scheduler.config.max_num_batched_tokens
        assert len(self.running()) <= self.scheduler.config.max_num_seqs
        self.steps_since_admission += 1
        after = self.scheduler._running
        if self.scheduler.stats().preemptions > preemptions:
            assert after == before[: len(after)], (
                "admitted in a step that preempted, or preempted another than the last"
            )
            assert self.steps_since_admission > self.shadow.block_size, "preempted soon after an admission"
        elif len(after) > len(before):
            self.steps_since_admission = 0
        return plan

    @rule()
    def step(self) -> None:
        plan = self.schedule()
        if plan is None:
            return
        self.shadow.write(plan)
        self.shadow.read(plan)
        assert self.scheduler.take_events() == (), "told before it was computed"
        sampling = [item.sequence for item in plan.items if item.samples]
        sampled = [greedy(sequence) for sequence in sampling]
        outputs = self.scheduler.commit(plan, [(token, None) for token in sampled])
        assert [(out.id, out.token_ids) for out in outputs] == [
            (sequence.id, (token,)) for sequence, token in zip(sampling, sampled, strict=True)
        ]
        for out in outputs:
            self.check_output(out)

    @rule(times=st.integers(2, 12))
    def steps(self, times: int) -> None:
        for _ in range(times):
            self.step()
            self.told_is_true()

    @rule()
    def failed_step(self) -> None:
        plan = self.schedule()
        if plan is not None:
            self.shadow.write(plan, spoilt=True)
            self.scheduler.abort(plan)
            assert self.running().isdisjoint(item.sequence.id for item in plan.items)

    @rule()
    def clear(self) -> None:
        self.told_is_true()
        self.scheduler.clear_cache()
        assert self.scheduler.stats().cached_blocks == 0
        (event,) = self.scheduler.take_events()
        assert event == AllBlocksCleared()
        self.mirror.apply([event])

    def check_output(self, out: TokensOut) -> None:
        expected = self.expected[out.id]
        reason = expected.append(out.token_ids[0], self.max_model_len)
        assert out.finish_reason == reason
        assert out.stop_token == (EOS if reason is FinishReason.STOP else None)
        assert out.cached_tokens < len(expected.submit.token_ids) // 4
        if reason is not None:
            del self.expected[out.id]

    @invariant()
    def told_is_true(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check_integrity()
        self.mirror.apply(self.scheduler.take_events())
        assert self.mirror.hashes == self.scheduler.blocks.cached_hashes
        assert self.scheduler.has_work == bool(self.expected)
        running, waiting = self.scheduler._running, self.scheduler._waiting
        assert {each.id for each in (*running, *waiting)} == set(self.expected)
        for each in (*running, *waiting):
            assert each.output_ids == self.expected[each.id].output
        overtaken = [
            (late.id, early.id)
            for late in running
            for early in waiting
            if late.priority == early.priority and late.arrival > early.arrival
        ]
        assert overtaken == []

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(2_000):
            if not self.expected:
                break
            self.step()
            self.told_is_true()
        assert not self.expected, "a sequence does not get on"
        self.told_is_true()
        assert self.scheduler.blocks.free_blocks == self.shadow.n_blocks


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_requests_with_random_cancellations_lose_no_block(seed: int) -> None:
    random = Random(seed)
    n_blocks = 60
    scheduler = engine(n_blocks, 2, max_num_seqs=8, max_num_batched_tokens=24, max_waiting=50)
    shadow, mirror = ShadowPool(n_blocks, 2), Mirror()
    texts = [[random.randrange(50) for _ in range(30)] for _ in range(5)]
    alive: set[str] = set()
    n_finished = n_cancelled = n_sent = 0
    while n_sent < 1_000 or alive:
        while n_sent < 1_000 and len(alive) < 20:
            ids = random.choice(texts)[: random.randrange(1, 30)] + [random.randrange(50)] * random.randrange(6)
            name = f"r{n_sent}"
            scheduler.add(ask(name, ids, random.randrange(1, 25), priority=random.choice([0, 0, 1])))
            alive.add(name)
            n_sent += 1
        plan = scheduler.schedule()
        assert plan is not None
        shadow.write(plan)
        shadow.read(plan)
        for out in scheduler.commit(plan, [(next_token(item.sequence), None) for item in plan.items if item.samples]):
            if out.finish_reason:
                alive.remove(out.id)
                n_finished += 1
        for name in sorted(alive):
            if random.random() < 0.02:
                assert scheduler.cancel(name)
                alive.remove(name)
                n_cancelled += 1
        scheduler.check_integrity()
        mirror.apply(scheduler.take_events())
        assert mirror.hashes == scheduler.blocks.cached_hashes
    stats = scheduler.stats()
    assert n_finished + n_cancelled == 1_000
    assert min(n_finished, n_cancelled, stats.preemptions, stats.cached_tokens) > 50, "nothing was put to the test"
    assert (stats.running, stats.waiting, stats.free_blocks) == (0, 0, n_blocks)
