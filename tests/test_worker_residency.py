"""What stores hold, as a gateway's index learns it from the worker's events."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from backends.worker.engine.block_manager import BlockManager
from backends.worker.engine.sequence import Sequence
from backends.worker.kv.chunks import Chunking
from backends.worker.kv.residency import Residency
from cache.kv_codec import FrameSpec
from cache.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from cache.kv_keys import Dtype, Geometry
from cache.prefix_index import PrefixIndex
from policies.types import BlockHash, Tier, WorkerId
from tests.worker_core_fixtures import MODEL, ask

SIZE = 4
WORKER = WorkerId("w")
GEOMETRY = Geometry(n_layers=1, kv_heads=1, head_dim=8, block_size=SIZE, dtype=Dtype.FP32)
CHUNK = Chunking(bytes(32), GEOMETRY).n_tokens


class Setting:
    """A worker's residency and the index of a gateway that follows its events."""

    def __init__(self, most: int = 1000) -> None:
        self.residency = Residency(SIZE, most=most)
        self.blocks = BlockManager(64, SIZE, MODEL)
        self.index = PrefixIndex(max_blocks=10_000)
        self.index.add_worker(WORKER, model=MODEL, block_size=SIZE, salts_told=True)
        self.chunking = Chunking(bytes(32), GEOMETRY)

    def named(self, ids: Iterable[int], salt: str = "") -> tuple[list[FrameSpec], list[BlockHash]]:
        sequence = Sequence(ask("a", [*ids, 0], salt=salt))
        self.blocks.match(sequence)
        specs = self.chunking.frames(sequence, sequence.n_tokens - 1)
        self.residency.name(sequence, specs)
        return specs, sequence.hashes

    def told(self) -> tuple[KvEvent, ...]:
        events = self.residency.take_events()
        for event in events:
            self.index.apply(WORKER, event)
        self.index.check_integrity()
        return events

    def tiers(self, hashes: list[BlockHash]) -> dict[Tier, int]:
        return self.index.match_tiers(hashes).get(WORKER, {})


@pytest.mark.parametrize("salt", ["", "a tenant's"])
def test_an_index_knows_the_tier_of_what_was_stored(salt: str) -> None:
    it = Setting()
    specs, hashes = it.named(range(3 * CHUNK), salt)
    n_blocks = CHUNK // SIZE
    for spec in specs:
        it.residency.moved(Tier.HOST, spec.key, True)
    it.residency.moved(Tier.DISK, specs[0].key, True)
    assert it.residency.has_news
    first, second = it.told()
    assert isinstance(first, BlockStored)
    assert (first.medium, len(first.block_hashes), first.parent) == ("CPU", 3 * n_blocks, None)
    assert isinstance(second, BlockStored)
    assert second.medium == "DISK"
    assert it.told() == ()
    assert it.tiers(hashes) == {Tier.HOST: 3 * n_blocks}
    for spec in reversed(specs):
        it.residency.moved(Tier.HOST, spec.key, False)
    (gone,) = it.told()
    assert isinstance(gone, BlockRemoved)
    assert it.tiers(hashes) == {Tier.DISK: n_blocks}


def test_what_is_told_is_told_once() -> None:
    it = Setting()
    specs, _ = it.named(range(CHUNK))
    for _ in range(3):
        it.residency.moved(Tier.REDIS, specs[0].key, True)
    assert len(it.told()) == 1
    it.residency.moved(Tier.HOST, specs[0].key, False)
    assert it.told() == ()


def test_prompts_that_do_not_follow_each_other_are_told_apart() -> None:
    it = Setting()
    for ids in (range(CHUNK), range(5, 5 + CHUNK)):
        it.residency.moved(Tier.HOST, it.named(ids)[0][0].key, True)
    assert len(it.told()) == 2


def test_unknown_frames_are_nobody_s_news() -> None:
    it = Setting()
    it.residency.moved(Tier.HOST, it.chunking.frames(Sequence(ask("a", range(CHUNK))), CHUNK)[0].key, True)
    assert it.told() == ()


def test_after_all_was_cleared_it_is_told_again() -> None:
    it = Setting()
    specs, hashes = it.named(range(CHUNK))
    it.residency.moved(Tier.HOST, specs[0].key, True)
    it.told()
    it.residency.moved(Tier.DISK, specs[0].key, True)
    it.residency.forget()
    it.index.apply(WORKER, AllBlocksCleared())
    assert it.told() == ()
    it.residency.moved(Tier.HOST, specs[0].key, True)
    it.told()
    assert it.tiers(hashes) == {Tier.HOST: CHUNK // SIZE}


def test_what_is_known_is_bounded_and_what_is_forgotten_is_no_longer_claimed() -> None:
    it = Setting(most=8)
    chance = random.Random(1)
    known: dict[int, tuple[list[FrameSpec], list[BlockHash]]] = {}
    for _ in range(200):
        number = chance.randrange(20)
        known[number] = it.named(range(100 * number, 100 * number + 2 * CHUNK))
        for spec in known[number][0]:
            it.residency.moved(chance.choice([Tier.HOST, Tier.DISK]), spec.key, chance.random() < 0.7)
        it.told()
        assert len(it.residency) <= 8
        assert len(it.index) <= 8 * 2 * CHUNK // SIZE
