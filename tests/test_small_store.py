"""The memory tier of answers: the contracts of stores, and what a frame costs."""

from __future__ import annotations

import tracemalloc

import pytest

from cache.small_store import ENTRY_BYTES, SmallStore
from cache.store import FrameInfo
from policies.eviction import make_eviction
from tests.entry_store_contract import EntryStoreContract, NewEntries
from tests.store_contract import ALONE, NewStore, StoreContract, chunk_key, frame_of


class TestSmallStore(StoreContract):
    has_quotas = True
    examples = 20
    rounds = 200

    @pytest.fixture(params=["lru", "gdsf"])
    def new_store(self, request: pytest.FixtureRequest) -> NewStore:
        def new(capacity: int, tenant_bytes: int | None = None) -> SmallStore:
            policy = make_eviction(request.param, default_quota=tenant_bytes)
            return SmallStore(capacity, policy=policy, tenant_bytes=tenant_bytes)

        return new


class TestSmallStoreOfEntries(EntryStoreContract):
    @pytest.fixture
    def new_entries(self) -> NewEntries:
        return SmallStore


# Those that keep the most for a frame; hit_density has tables besides, of the same size however many there are.
@pytest.mark.parametrize("policy", ["lru", "s3_fifo", "gdsf"])
def test_the_bound_is_on_what_it_really_takes(policy: str) -> None:
    capacity = 2 << 20
    tracemalloc.start()
    try:
        store = SmallStore(capacity, policy=make_eviction(policy))
        before = tracemalloc.get_traced_memory()[0]
        for number in range(4_000):
            store.write(chunk_key(number), [bytes([number % 256]) * 400], FrameInfo(tenant=f"tenant {number % 50}"))
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert store.stats().evictions > 2_000
    assert held <= capacity
    assert store.stats().entries * (400 + ENTRY_BYTES) == store.stats().bytes <= capacity


def test_what_expires_by_the_policy_makes_room_first() -> None:
    now = 0.0
    store = SmallStore(3 * (1_000 + ENTRY_BYTES), policy=make_eviction("lru_ttl", ttl=10.0), clock=lambda: now)
    old, used, new = map(chunk_key, "oun")
    for key in (old, used):
        assert store.write(key, [frame_of(key, 1_000)], ALONE) is True
    now = 9.0
    assert store.read(used) is not None
    now = 12.0
    for key in (new, chunk_key("more")):
        assert store.write(key, [frame_of(key, 1_000)], ALONE) is True
    assert [store.contains([key]) for key in (old, used, new)] == [0, 1, 1]


def test_a_store_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        SmallStore(0)
