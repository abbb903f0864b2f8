"""Slower tiers of the simulated engine: exact times, what is kept and told, and a store over several engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from backends.engine_metrics import read_load
from backends.simulated.block_pool import Removed, Stored
from backends.simulated.engine import EngineConfig, SimulatedEngine
from backends.simulated.kv_tiers import BlockTier, TierConfig
from backends.simulated.prometheus_text import Flavour
from backends.simulated.sequence import SimRequest, TokenOut
from backends.simulated.timing import LinearPrefill
from backends.simulated.told_events import told
from cache.kv_events import BlockStored
from policies.restore_route import TierPrice
from policies.types import Tier
from tests.simulated_fixtures import FAST, one_worker
from tests.test_simulated_engine import ask, run_dry

HOST = TierConfig(100, 0.01, 0.001)
SLOW = LinearPrefill(100.0)


def engine(
    blocks: int = 12, *, host: TierConfig | None = HOST, store: BlockTier | None = None, **changes: Any
) -> SimulatedEngine:
    """10 ms a token to compute, 1 ms to restore from its host."""
    return SimulatedEngine(EngineConfig(blocks=blocks, block_size=4, timing=SLOW, host=host, **changes), store)


def serve(it: SimulatedEngine, name: str, ids: range, at: float) -> TokenOut:
    it.submit(ask(name, ids), at)
    [out] = run_dry(it)
    return out


def events(it: SimulatedEngine) -> list[tuple[Tier, str, int]]:
    """Tier, what, how many blocks."""
    return [
        (event.tier, "stored" if isinstance(event, Stored) else "removed", len(event.hashes))
        for batch in it.take_kv_events()
        for event in batch.events
        if isinstance(event, Stored | Removed)
    ]


def test_what_left_the_device_is_restored_at_its_price() -> None:
    it = engine()
    assert serve(it, "a", range(21), 0.0).times == (0.21,)
    assert serve(it, "b", range(100, 145), 1.0).times == (1.45,)  # needs all twelve blocks
    assert events(it) == [
        (Tier.DEVICE, "stored", 5),
        (Tier.HOST, "stored", 5),
        (Tier.DEVICE, "removed", 5),
        (Tier.DEVICE, "stored", 11),
        (Tier.HOST, "stored", 11),
    ]
    again = serve(it, "a2", range(21), 2.0)
    assert again.cached_tokens == 20
    assert again.times == pytest.approx((2.0 + 0.01 + 20 * 0.001 + 0.01,)), (
        "round trip, tokens, and the last one computed"
    )
    assert it.stats().prefix_cache_hits == 20


def test_what_is_on_the_device_is_not_restored_and_a_tail_is_behind_it() -> None:
    it = engine()
    serve(it, "a", range(41), 0.0)
    serve(it, "b", range(100, 124), 1.0)  # the last blocks of a have to go
    assert it.pool.cached < 16
    held = len(it.pool.match(ask("a", range(41)).hashes, 10))
    again = serve(it, "a2", range(41), 2.0)
    assert (held, again.cached_tokens) == (6, 40)
    assert again.times == pytest.approx((2.0 + 0.01 + 16 * 0.001 + 0.01,))


def test_nothing_is_restored_that_is_computed_sooner() -> None:
    it = engine(host=TierConfig(100, 0.5, 0.001))
    serve(it, "a", range(21), 0.0)
    serve(it, "b", range(100, 145), 1.0)
    assert serve(it, "a2", range(21), 2.0).cached_tokens == 0


def test_one_transfer_comes_after_the_other() -> None:
    it = engine(blocks=40)
    for name, start in (("a", 0), ("b", 100), ("c", 200)):
        serve(it, name, range(start, start + 41), start / 100)
    serve(it, "d", range(500, 655), 10.0)  # all of them are gone
    it.submit(ask("a2", range(41)), 20.0)
    it.submit(ask("b2", range(100, 141)), 20.0)
    firsts = [out.times[0] for out in run_dry(it) if out.first]
    assert firsts == pytest.approx([20.0 + 0.05 + 0.01, 20.0 + 2 * 0.05 + 0.01])


def test_a_tier_forgets_what_was_used_longest_ago_the_tail_first() -> None:
    it = engine(host=TierConfig(6, 0.01, 0.001))
    serve(it, "a", range(17), 0.0)
    serve(it, "b", range(100, 113), 1.0)
    [host] = it.tiers.tiers
    a, b = ask("a", range(17)).hashes, ask("b", range(100, 113)).hashes
    assert [block in host for block in a] == [True, True, True, False]
    assert all(block in host for block in b)
    assert len(host) == 6
    assert events(it)[-2:] == [(Tier.HOST, "removed", 1), (Tier.HOST, "stored", 3)]


def test_a_cancelled_restore_gives_its_blocks_back() -> None:
    it = engine()
    serve(it, "a", range(21), 0.0)
    serve(it, "b", range(100, 145), 1.0)
    it.submit(ask("a2", range(21)), 2.0)
    assert (it.stats().waiting, it.pool.used, it.idle) == (1, 5, False)
    with pytest.raises(ValueError, match="in use"):
        it.submit(ask("a2", range(21)), 2.0)
    assert it.cancel("a2", 2.005)
    assert (it.pool.used, it.idle, it.next_event_at()) == (0, True, None)
    it.check_integrity()


def test_who_finds_no_room_to_restore_does_so_in_its_turn() -> None:
    it = engine(host=TierConfig(100, 0.0, 0.0001), max_num_seqs=2, max_batched_tokens=2048)
    serve(it, "a", range(37), 0.0)
    serve(it, "b", range(100, 145), 1.0)
    it.submit(ask("c", range(200, 245)), 2.0)
    it.submit(ask("a2", range(37)), 2.001)
    assert it.pool.used == 12, "c has all of it"
    outputs = run_dry(it)
    assert [(out.id, out.cached_tokens) for out in outputs] == [("c", 0), ("a2", 36)]


def test_a_store_is_read_by_all_and_told_by_one() -> None:
    store = BlockTier(Tier.REDIS, TierConfig(100, 0.01, 0.001), "s")
    one, two, three = (engine(host=None, store=store) for _ in range(3))
    serve(one, "a", range(21), 0.0)
    assert (Tier.REDIS, "stored", 5) in events(one)
    assert serve(two, "a", range(21), 1.0).cached_tokens == 20
    assert events(two) == [(Tier.DEVICE, "stored", 5)], "the store had it: nothing to tell"
    one.tiers.close()
    assert serve(three, "a", range(21), 2.0).cached_tokens == 20
    assert (Tier.REDIS, "stored", 5) in events(three), "who told of it is gone"
    assert [price.store for price in one.tiers.prices] == ["s"]


def test_who_told_of_a_block_tells_that_another_has_pushed_it_out() -> None:
    store = BlockTier(Tier.REDIS, TierConfig(5, 0.01, 0.001), "s")
    one, two = (engine(host=None, store=store) for _ in range(2))
    serve(one, "a", range(21), 0.0)
    events(one)
    serve(two, "b", range(100, 121), 1.0)
    assert events(one) == [(Tier.REDIS, "removed", 5)]
    one.advance(2.0)
    assert events(one) == []


def test_a_cleared_cache_has_no_host_and_leaves_the_store_to_others() -> None:
    store = BlockTier(Tier.REDIS, TierConfig(100, 0.01, 0.001), "s")
    it, other = engine(store=store), engine(store=store)
    serve(it, "a", range(21), 0.0)
    assert it.clear_cache(1.0)
    assert len(it.tiers.tiers[0]) == 0
    assert len(store) == 5
    events(it)
    serve(other, "a", range(21), 2.0)
    assert (Tier.REDIS, "stored", 5) in events(other)


def test_answers_of_unknown_tokens_are_not_kept() -> None:
    it = engine()
    request = ask("a", range(9), 12)
    it.submit(SimRequest("a", request.hashes, 9, 12), 0.0)
    run_dry(it)
    assert len(it.tiers.tiers[0]) == 2


def test_events_tell_the_medium() -> None:
    it = engine()
    serve(it, "a", range(9), 0.0)
    media = [
        event.medium
        for batch in it.take_kv_events()
        for each in batch.events
        if isinstance(event := told(each, block_size=4), BlockStored)
    ]
    assert media == ["GPU", "CPU"]


@pytest.mark.parametrize("bad", [{"blocks": 0}, {"round_trip_s": -1.0}, {"s_per_token": 0.0}])
def test_a_tier_that_cannot_be_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a tier needs"):
        TierConfig(**{"blocks": 1, **bad})  # type: ignore[arg-type]  # numbers of both kinds


@pytest.mark.parametrize("flavour", Flavour)
async def test_prices_are_on_the_metrics_page(flavour: Flavour) -> None:
    config = replace(FAST, host=TierConfig(9, 0.2, 0.002))
    async with (
        one_worker(engine=config, store=TierConfig(9, 0.4, 0.004), flavour=flavour) as worker,
        aiohttp.ClientSession(base_url=worker.url) as http,
        http.get("/metrics") as answer,
    ):
        host, redis = read_load(await answer.read()).tiers
    assert host == TierPrice(Tier.HOST, 0.001, 1e-5)
    assert redis[:3] == (Tier.REDIS, 0.002, 2e-5)
    assert redis.store.startswith("simulated-")
