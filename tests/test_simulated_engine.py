"""The simulated engine in virtual time: exact times, exact hits, exact order of eviction."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from backends.simulated.block_pool import Removed, Stored
from backends.simulated.engine import (
    EngineConfig,
    QueueFullError,
    RequestTooLongError,
    SimulatedEngine,
)
from backends.simulated.kv_chain import EngineHash
from backends.simulated.kv_tiers import BlockTier, TierConfig
from backends.simulated.sequence import SimRequest, TokenOut, request_from_ids
from backends.simulated.timing import LinearPrefill, PublishedTiming
from policies.types import Tier, TokenIds

TIMING = PublishedTiming()


def token_ids(*ids: int) -> TokenIds:
    return TokenIds(array("I", ids).tobytes())


def ask(request_id: str, ids: range, max_tokens: int = 1, *, salt: str = "", per_token: bool = False) -> SimRequest:
    request = request_from_ids(request_id, token_ids(*ids), max_tokens, block_size=4, salt=salt)
    return SimRequest(
        request.id,
        request.hashes,
        request.n_tokens,
        max_tokens,
        token_ids=request.token_ids,
        output_ids=token_ids(*range(9000, 9000 + max_tokens)),
        root=request.root,
        per_token=per_token,
    )


def small(blocks: int = 64, **changes: object) -> SimulatedEngine:
    return SimulatedEngine(EngineConfig(blocks=blocks, block_size=4, **changes))  # type: ignore[arg-type]  # plain ints as hashes


def run_dry(engine: SimulatedEngine) -> list[TokenOut]:
    outputs = []
    while (at := engine.next_event_at()) is not None:
        outputs += engine.advance(at)
        engine.check_integrity()
    return outputs


def times_of(outputs: list[TokenOut], request_id: str) -> list[float]:
    return [at for out in outputs if out.id == request_id for at in out.times]


def test_published_timing_model() -> None:
    assert TIMING.prefill_ms(0) == 0.0
    assert TIMING.prefill_ms(1000) == pytest.approx(0.4209989 + 15.18344 + 16.50142)
    assert TIMING.decode_ms(0.0) == 5.74
    assert TIMING.decode_ms(1.0) == pytest.approx(34.01)
    assert TIMING.step_s(0, decoding=False, kv_used=1.0) == 0.0


def test_one_request_takes_the_model_s_time_token_by_token() -> None:
    engine = small(8)
    engine.submit(ask("a", range(10), 5), 2.0)
    outputs = run_dry(engine)
    prefill = TIMING.prefill_ms(10) / 1000
    three, four = TIMING.decode_ms(3 / 8) / 1000, TIMING.decode_ms(4 / 8) / 1000
    expected = [2 + prefill]
    for step in (three, three, four, four):  # 10 + 2 tokens fill three blocks, the fourth comes after that
        expected.append(expected[-1] + step)
    assert times_of(outputs, "a") == pytest.approx(expected)
    assert [(out.n_tokens, out.first, out.finished) for out in outputs] == [
        (1, True, False),
        (4, False, True),
    ]


def test_speed_divides_every_duration() -> None:
    slow, fast = small(), small(speed=10.0)
    for engine in (slow, fast):
        engine.submit(ask("a", range(30), 20), 0.0)
    lived, raced = times_of(run_dry(slow), "a"), times_of(run_dry(fast), "a")
    assert raced == pytest.approx([at / 10 for at in lived])


def test_streamed_tokens_have_the_times_of_coalesced_ones() -> None:
    whole, streamed = small(), small()
    whole.submit(ask("a", range(9), 30), 0.0)
    streamed.submit(ask("a", range(9), 30, per_token=True), 0.0)
    once, each = run_dry(whole), run_dry(streamed)
    assert times_of(each, "a") == pytest.approx(times_of(once, "a"))
    assert (len(once), len(each)) == (2, 30)


def test_a_late_caller_gets_the_same_times() -> None:
    punctual, late = small(), small()
    for engine in (punctual, late):
        engine.submit(ask("a", range(20), 12, per_token=True), 0.0)
        engine.submit(ask("b", range(50, 60), 9, per_token=True), 0.01)
    at_once = late.advance(100.0)
    assert times_of(at_once, "a") == pytest.approx(times_of(outputs := run_dry(punctual), "a"))
    assert times_of(at_once, "b") == pytest.approx(times_of(outputs, "b"))


def test_a_repeated_prompt_hits_all_but_the_block_of_its_last_token() -> None:
    engine = small()
    prompts = [("a", 10, 0), ("b", 10, 8), ("c", 8, 4), ("d", 9, 8), ("e", 30, 8), ("f", 3, 0)]
    for at, (name, prompt, cached) in enumerate(prompts):
        engine.submit(ask(name, range(prompt)), float(at))
        (out,) = run_dry(engine)
        assert (out.id, out.cached_tokens) == (name, cached)
    stats = engine.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (70, 28)
    assert stats.kv_usage == 0.0


def test_generated_blocks_are_hits_of_the_next_turn() -> None:
    engine = small()
    first = ask("a", range(6), 7)
    engine.submit(first, 0.0)
    run_dry(engine)
    # 6 + 7 tokens; the thirteenth was sampled but never computed: three full blocks.
    ids = TokenIds(first.token_ids + first.output_ids)
    engine.submit(request_from_ids("b", TokenIds(ids + token_ids(1, 2, 3)), 1, block_size=4), 1.0)
    assert run_dry(engine)[0].cached_tokens == 12


def test_salts_share_nothing() -> None:
    engine = small()
    for name, salt in [("a", ""), ("b", "x"), ("c", "y"), ("d", "x")]:
        engine.submit(ask(name, range(9), salt=salt), engine.next_event_at() or 5.0)
    assert [out.cached_tokens for out in run_dry(engine)] == [0, 0, 0, 8]


def test_eviction_takes_the_oldest_release_first_and_tails_before_heads() -> None:
    engine = small(6)
    engine.submit(ask("a", range(12)), 0.0)  # three blocks
    run_dry(engine)
    engine.submit(ask("b", range(100, 112)), 1.0)  # the other three
    run_dry(engine)
    (stored_a,), (stored_b,) = (batch.events for batch in engine.take_kv_events())
    assert isinstance(stored_a, Stored)
    assert isinstance(stored_b, Stored)
    engine.submit(ask("c", range(200, 208)), 2.0)  # two blocks: the tail of "a"
    run_dry(engine)
    (batch,) = engine.take_kv_events()
    assert batch.events[0] == Removed(stored_a.hashes[:0:-1])
    engine.submit(ask("d", range(12)), 3.0)  # hits the head of "a", needs two more: the tail of "b"
    assert run_dry(engine)[0].cached_tokens == 4
    (batch,) = engine.take_kv_events()
    assert batch.events[0] == Removed(stored_b.hashes[:0:-1])


def test_a_hit_makes_blocks_young_again() -> None:
    engine = small(6)
    for at, (name, prompt) in enumerate([("a", range(9)), ("b", range(100, 109)), ("a2", range(9))]):
        engine.submit(ask(name, prompt), float(at))
        run_dry(engine)
    engine.submit(ask("c", range(200, 212)), 4.0)  # three blocks: two tails without hash or of "b", never "a"
    run_dry(engine)
    engine.submit(ask("a3", range(9)), 5.0)
    assert run_dry(engine)[0].cached_tokens == 8


def test_long_prompts_are_cut_under_the_token_budget_while_others_decode() -> None:
    engine = small(max_batched_tokens=16, max_num_seqs=4)
    engine.submit(ask("a", range(4), 4), 0.0)
    engine.submit(ask("b", range(100, 140), 1), 0.0)
    outputs = run_dry(engine)
    # step 1: 4 + 12 of 40; steps 2, 3: one token for "a", 15 for "b"; the 28th..40th: 12, 15, 13
    used = [(1 + 3) / 64, (2 + 7) / 64, (2 + 10) / 64]
    ends = [TIMING.step_s(16, decoding=False, kv_used=used[0])]
    ends.append(ends[-1] + TIMING.step_s(15, decoding=True, kv_used=used[1]))
    ends.append(ends[-1] + TIMING.step_s(13, decoding=True, kv_used=used[2]))
    assert times_of(outputs, "b") == pytest.approx([ends[2]])
    assert times_of(outputs, "a")[:3] == pytest.approx(ends)


def test_a_request_of_the_same_step_hits_what_that_step_computes() -> None:
    engine = small()
    engine.submit(ask("a", range(9)), 0.0)
    engine.submit(ask("b", range(9)), 0.0)
    outputs = run_dry(engine)
    assert [out.cached_tokens for out in outputs] == [0, 8]
    assert times_of(outputs, "b") == pytest.approx([TIMING.prefill_ms(9 + 1) / 1000])


def test_a_request_joins_at_the_next_step_not_in_the_middle_of_one() -> None:
    engine = small()
    engine.submit(ask("a", range(4), 50), 0.0)
    first = TIMING.prefill_ms(4) / 1000
    engine.advance(first)
    step = TIMING.decode_ms(2 / 64) / 1000
    engine.submit(ask("b", range(100, 104), 1), first + 2.5 * step)
    outputs = run_dry(engine)
    joined = TIMING.step_s(4, decoding=True, kv_used=3 / 64)
    assert times_of(outputs, "b") == pytest.approx([first + 3 * step + joined])


def test_first_come_first_served_under_the_sequence_limit() -> None:
    engine = small(max_num_seqs=2)
    for name in "abcd":
        engine.submit(ask(name, range(ord(name) * 100, ord(name) * 100 + 4), 3), 0.0)
    engine.advance(0.0)
    assert (engine.stats().running, engine.stats().waiting) == (2, 2)
    assert [out.id for out in run_dry(engine) if out.first] == ["a", "b", "c", "d"]


def test_preemption_is_last_in_first_out_and_recomputes() -> None:
    engine = small(4, max_model_len=16)
    engine.submit(ask("a", range(4), 9), 0.0)
    engine.submit(ask("b", range(100, 104), 9), 0.0)
    outputs = run_dry(engine)
    assert engine.stats().preemptions == 1
    assert [out.id for out in outputs if out.finished] == ["a", "b"]
    for name in "ab":
        assert sum(out.n_tokens for out in outputs if out.id == name) == 9
        assert sum(out.first for out in outputs if out.id == name) == 1
    # Both need a third block at token 9; "b" gives way with 5 tokens made, comes back after "a".
    finished_a = times_of(outputs, "a")[-1]
    b = times_of(outputs, "b")
    assert sum(at < finished_a for at in b) == 5
    # Its 9 tokens come back: one block of prompt and one generated are still cached unless "a" took them.
    assert b[5] - finished_a == pytest.approx(TIMING.prefill_ms(9 - 4) / 1000)
    assert engine.stats().generation_tokens == 18


def test_cancel_frees_blocks_at_once_in_every_phase() -> None:
    engine = small(8, max_num_seqs=8, max_batched_tokens=8)
    engine.submit(ask("decoding", range(8), 9), 0.0)
    engine.advance(TIMING.prefill_ms(8) / 1000 + 0.001)
    engine.submit(ask("prefilling", range(100, 116), 4), engine.next_event_at() or 0.0)
    engine.submit(ask("waiting", range(200, 208), 4), engine.next_event_at() or 0.0)
    now = engine.next_event_at() or 0.0
    engine.advance(now)
    assert (engine.stats().running, engine.stats().waiting) == (2, 1)
    for name in ("waiting", "prefilling", "decoding"):
        assert engine.cancel(name, now)
        assert not engine.cancel(name, now)
        engine.check_integrity()
    assert engine.pool.used == 0
    assert engine.idle
    assert run_dry(engine) == []


def test_linear_prefill_serves_in_order_and_decodes_for_free() -> None:
    engine = small(timing=LinearPrefill(100.0))
    engine.submit(ask("a", range(50), 20), 0.0)
    engine.submit(ask("b", range(100, 120), 20), 0.0)
    engine.submit(ask("c", range(50), 20), 0.1)
    outputs = run_dry(engine)
    assert times_of(outputs, "a") == pytest.approx([0.5] * 20)
    assert times_of(outputs, "b") == pytest.approx([0.7] * 20)
    assert times_of(outputs, "c") == pytest.approx([0.72] * 20)  # 48 of 50 tokens were cached


def test_prompts_can_be_given_as_hashes_alone() -> None:
    engine = SimulatedEngine(EngineConfig(blocks=100, block_size=512, max_model_len=40_000))
    first = request_from_ids("x", token_ids(*range(16)), 1, block_size=1).hashes  # any 16 chained hashes do
    engine.submit(SimRequest("a", first, 16 * 512, 700), 0.0)
    engine.submit(SimRequest("b", first, 16 * 512 + 100, 1), 1.0)
    outputs = run_dry(engine)
    assert [out.cached_tokens for out in outputs if out.first] == [0, 16 * 512]
    stored = [event for batch in engine.take_kv_events() for event in batch.events]
    assert [len(event.hashes) for event in stored if isinstance(event, Stored)] == [
        16,
        1,
    ]  # and one generated block


def test_what_does_not_fit_is_refused() -> None:
    engine = small(4, max_waiting=1)
    with pytest.raises(RequestTooLongError):
        engine.submit(ask("long", range(14), 3), 0.0)
    with pytest.raises(ValueError, match="at least one"):
        engine.submit(ask("empty", range(0), 3), 0.0)
    engine.submit(ask("a", range(4)), 0.0)
    with pytest.raises(QueueFullError):
        engine.submit(ask("b", range(4)), 0.0)
    engine.advance(0.0)
    with pytest.raises(ValueError, match="in use"):
        engine.submit(ask("a", range(4)), 0.0)
    with pytest.raises(ValueError, match="time went back"):
        engine.advance(-1.0)


class EngineMachine(RuleBasedStateMachine):
    """Any order of arrivals, cancellations and waits: no block lost, every token once, true events."""

    host: TierConfig | None = None
    store: TierConfig | None = None

    def __init__(self) -> None:
        super().__init__()
        self.engine = SimulatedEngine(
            EngineConfig(
                blocks=12, block_size=4, max_num_seqs=3, max_batched_tokens=10, max_model_len=48, host=self.host
            ),
            None if self.store is None else BlockTier(Tier.REDIS, self.store, "s"),
        )
        self.now = 0.0
        self.names = 0
        self.left: dict[str, int] = {}
        self.held: dict[Tier, set[int]] = {tier: set() for tier in Tier}

    @rule(
        start=st.sampled_from([0, 0, 4, 100]),
        length=st.integers(1, 30),
        max_tokens=st.integers(1, 18),
        per_token=st.booleans(),
    )
    def submit(self, start: int, length: int, max_tokens: int, *, per_token: bool) -> None:
        self.names += 1
        name = str(self.names)
        request = ask(name, range(start, start + length), max_tokens, per_token=per_token)
        self.engine.submit(request, self.now)
        self.left[name] = max_tokens

    @precondition(lambda self: bool(self.left))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.left)))
        assert self.engine.cancel(name, self.now)
        del self.left[name]

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.02, 0.3]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.read(self.engine.advance(self.now))

    @rule()
    def go_to_next_event(self) -> None:
        at = self.engine.next_event_at()
        if at is not None:
            self.now = max(self.now, at)
            self.read(self.engine.advance(self.now))

    def read(self, outputs: list[TokenOut]) -> None:
        for out in outputs:
            assert len(out.times) == out.n_tokens >= 1
            assert list(out.times) == sorted(out.times)
            assert out.times[-1] <= self.now
            self.left[out.id] -= out.n_tokens
            assert out.finished == (self.left[out.id] == 0)
            if out.finished:
                del self.left[out.id]

    @invariant()
    def nothing_is_lost(self) -> None:
        self.engine.check_integrity()
        stats = self.engine.stats()
        assert stats.running + stats.waiting == len(self.left)
        for batch in self.engine.take_kv_events():
            for event in batch.events:
                if isinstance(event, Stored):
                    assert event.parent is None or event.parent in set(event.hashes).union(*self.held.values())
                    assert not self.held[event.tier] & set(event.hashes)
                    self.held[event.tier] |= set(event.hashes)
                elif isinstance(event, Removed):
                    assert self.held[event.tier] >= set(event.hashes)
                    self.held[event.tier] -= set(event.hashes)

    def teardown(self) -> None:
        while (at := self.engine.next_event_at()) is not None:
            self.now = max(self.now, at)
            self.read(self.engine.advance(self.now))
        self.nothing_is_lost()
        assert self.left == {}
        assert len(self.held[Tier.DEVICE]) == self.engine.pool.cached
        for each in self.engine.tiers.tiers:
            assert len(self.held[each.tier]) == len(each) <= each.config.blocks
            assert all(EngineHash(block) in each for block in self.held[each.tier])


class TieredEngineMachine(EngineMachine):
    """The same with a quick host tier and a store behind it that is larger and slower."""

    host = TierConfig(6, 0.001, 0.0001)
    store = TierConfig(20, 0.003, 0.0005)


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTieredEngineMachine = TieredEngineMachine.TestCase
TestTieredEngineMachine.settings = TestEngineMachine.settings
