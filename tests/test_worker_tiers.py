"""KV that is restored: the same text as without, whatever becomes of the stores; and nothing is lost on the way."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from backends.worker.engine.block_manager import BlockManager
from backends.worker.engine.engine import Engine
from backends.worker.engine.scheduler import Scheduler, SchedulerConfig
from backends.worker.kv.chunks import Chunking
from backends.worker.kv.framing import make_framing
from backends.worker.kv.pool_memory import BlockMemory, CopiedMemory, DirectMemory
from backends.worker.kv.residency import Residency
from backends.worker.kv.restore_choice import RestorePrice
from backends.worker.kv.tier_stores import assemble
from backends.worker.messages import SamplingParams, Submit
from backends.worker.model.kv_pool import KvPool
from backends.worker.model.sampler import Sampler
from cache.kv_codec import FrameKeys
from cache.kv_keys import Codec, Dtype, Geometry
from cache.memory_store import MemoryStore
from cache.store import BlockStore, Buffer, ChunkKey, FrameInfo, StoreError, StoreStats
from cache.tiered_store import TieredStore
from policies.kv_policy import KEEP_NOTHING, NO_KV_POLICY, KvPolicy
from policies.restore_price import RestorableChunk, RestorePlan
from policies.types import Tier
from tests import worker_model_fixtures as models
from tests.local_store_contract import Wall
from tests.worker_core_fixtures import token_ids

SIZE = 4
PATIENCE = 30.0


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.saved(models.make(models.Variant("qwen3", "qwen3"), seed=5), tmp_path_factory.mktemp("model"))


class Eager(RestorePrice):
    """Restores all that is found: these models compute faster than any store can read."""

    def __init__(self) -> None:
        super().__init__(step_tokens=64, clock=time.monotonic)

    def plan(self, chunks: Sequence[RestorableChunk], n_tokens: int, *, context: int, waiting: int) -> RestorePlan:
        plan = super().plan(chunks, n_tokens, context=context, waiting=waiting)
        return plan._replace(n_chunks=len(chunks), deadline_s=PATIENCE)


def engine(
    directory: Path,
    *stores: BlockStore,
    n_blocks: int = 64,
    fingerprint: bytes = bytes(32),
    codec: Codec = Codec.RAW,
    keys: FrameKeys | None = None,
    patience: float = 2.0,
    reach: Callable[[KvPool], BlockMemory] = DirectMemory,
    wall: Callable[[], float] = time.time,
) -> Engine:
    runner = models.runner(directory, n_blocks=n_blocks, block_size=SIZE)
    config, pool = runner.decoder.config, runner.pool
    geometry = Geometry(
        n_layers=config.num_layers, kv_heads=config.num_kv_heads, head_dim=config.head_dim, block_size=SIZE,
        dtype=Dtype.FP32, codec=codec,
    )  # fmt: skip
    settings: dict[str, Any] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 120,
        "max_waiting": 2000,
    }
    scheduler = Scheduler(SchedulerConfig(**settings), BlockManager(n_blocks, SIZE, "tiny"))
    residency = Residency(SIZE)
    tiers = assemble(
        TieredStore(stores, moved=residency.moved),
        {store.tier: "" for store in stores},
        chunking=Chunking(fingerprint, geometry),
        framing=make_framing(keys=keys, int8=codec is Codec.INT8),
        memory=reach(pool),
        blocks=scheduler.blocks,
        residency=residency,
        price=Eager(),
        patience=patience,
        wall=wall,
    )
    return Engine(scheduler, runner, Sampler(models.VOCAB), tiers=tiers)


def run(it: Engine, submits: Sequence[Submit]) -> tuple[dict[str, list[int]], int]:
    """Texts by id, and prompt tokens that were found."""
    told: dict[str, list[int]] = {submit.id: [] for submit in submits}
    before = it.scheduler.stats().cached_tokens
    for submit in submits:
        assert it.submit(submit, time.monotonic()) is None
    end = time.monotonic() + PATIENCE
    while it.has_work:
        assert time.monotonic() < end, "a sequence waits for ever"
        it.settle(time.monotonic())
        if not it.can_step:
            time.sleep(0.001)
            continue
        done, dropped = it.step()
        assert not dropped
        for out in done.outputs:
            told.setdefault(out.id, []).extend(out.token_ids)
        it.scheduler.check_integrity()
    return told, it.scheduler.stats().cached_tokens - before


def flush(it: Engine) -> None:
    """Wait until everything is kept."""
    end = time.monotonic() + PATIENCE
    while it.tiers is not None and not it.tiers.idle:
        assert time.monotonic() < end, "a chunk is written for ever"
        it.settle(time.monotonic())
        time.sleep(0.001)
    it.scheduler.check_integrity()
    assert it.scheduler.stats().free_blocks == it.scheduler.blocks.n_blocks, "a block is held for ever"


def ask(number: int, prompt: Sequence[int], *, salt: str = "") -> Submit:
    params = SamplingParams(max_tokens=6, temperature=0.0)
    return Submit(id=f"s{number}", token_ids=token_ids(prompt), params=params, salt=salt)


def prompts(count: int, seed: int) -> list[list[int]]:
    chance = random.Random(seed)
    made: list[list[int]] = []
    for _ in range(count):
        before = chance.choice(made) if made and chance.random() < 0.5 else []
        kept = before[: chance.randint(0, len(before))]
        made.append([*kept, *models.tokens(chance.randint(20, 60), chance.randrange(10**6))][:90])
    return made


def memory() -> MemoryStore:
    return MemoryStore(8 << 20)


@pytest.mark.parametrize(
    ("options", "exact"),
    [
        ({}, True),
        ({"reach": CopiedMemory}, True),
        ({"keys": FrameKeys(bytes(range(32)))}, True),
        ({"codec": Codec.INT8}, False),
        ({"codec": Codec.INT8, "keys": FrameKeys(bytes(32)), "reach": CopiedMemory}, False),
    ],
)
def test_another_engine_restores_what_one_computed(directory: Path, options: Any, exact: bool) -> None:
    store = memory()
    submits = [ask(number, prompt) for number, prompt in enumerate(prompts(12, 1))]
    one = engine(directory, store, **options)
    texts, _ = run(one, submits)
    flush(one)
    other = engine(directory, store, n_blocks=400, **options)
    again, found = run(other, submits)
    flush(other)
    assert again == texts or not exact
    total = sum(len(submit.token_ids) // 4 for submit in submits)
    assert found > total * 0.6
    assert other.tiers is not None
    assert other.tiers.counts["restored_tokens"] > 100


class Wrapped:
    """A store that does something to what is read."""

    def __init__(self, inner: BlockStore, spoil: Callable[[int, Sequence[memoryview]], bool]) -> None:
        self._inner = inner
        self._spoil = spoil
        self._reads = 0

    @property
    def tier(self) -> Tier:
        return self._inner.tier

    def contains(self, keys: Sequence[ChunkKey]) -> int:
        return self._inner.contains(keys)

    def read_into(self, key: ChunkKey, pieces: Sequence[memoryview], *, expires: float | None = None) -> bool:
        self._reads += 1
        return self._inner.read_into(key, pieces, expires=expires) and self._spoil(self._reads, pieces)

    def write(self, key: ChunkKey, pieces: Sequence[Buffer], info: FrameInfo) -> bool:
        return self._inner.write(key, pieces, info)

    def remove(self, key: ChunkKey) -> bool:
        return self._inner.remove(key)

    def stats(self) -> StoreStats:
        return self._inner.stats()

    def close(self) -> None:
        self._inner.close()


def flip(reads: int, pieces: Sequence[memoryview]) -> bool:
    if reads % 3 == 0:
        piece = pieces[reads % len(pieces)]
        piece[reads * 7919 % len(piece)] ^= 1 << reads % 8
    return True


def nonsense(reads: int, pieces: Sequence[memoryview]) -> bool:
    if reads % 2:
        for piece in pieces[1:]:
            piece[:] = b"\xff" * len(piece)  # NaN, as a float
        time.sleep(0.01)  # others compute meanwhile
    return True


def lose(reads: int, pieces: Sequence[memoryview]) -> bool:
    return reads % 4 != 2


def fail(reads: int, pieces: Sequence[memoryview]) -> bool:
    if reads % 5 == 1:
        raise StoreError("out of order")
    return True


def crash(reads: int, pieces: Sequence[memoryview]) -> bool:
    if reads % 5 == 1:
        for piece in pieces[1:]:
            piece[:] = b"\xff" * len(piece)
        raise RuntimeError("a bug")
    return True


def stall(reads: int, pieces: Sequence[memoryview]) -> bool:
    time.sleep(0.02)
    return True


@pytest.mark.parametrize("spoil", [flip, nonsense, lose, fail, crash, stall])
def test_whatever_the_store_does_the_text_is_the_same(directory: Path, spoil: Any) -> None:
    store = memory()
    submits = [ask(number, prompt) for number, prompt in enumerate(prompts(10, 2))]
    one = engine(directory, store)
    texts, _ = run(one, submits)
    flush(one)
    for patience in (5.0, 0.01):
        other = engine(directory, Wrapped(store, spoil), patience=patience)
        again, _ = run(other, submits)
        assert again == texts
        flush(other)
        assert torch.isfinite(other.runner.pool.data).all()


def test_nothing_of_another_salt_or_model_is_restored(directory: Path) -> None:
    store = memory()
    submits = [ask(number, prompt, salt="a") for number, prompt in enumerate(prompts(4, 3))]
    one = engine(directory, store)
    run(one, submits)
    flush(one)
    for salt, fingerprint, found in (("a", bytes(32), True), ("b", bytes(32), False), ("a", b"x" * 32, False)):
        other = engine(directory, store, fingerprint=fingerprint)
        run(other, [ask(number, prompt, salt=salt) for number, prompt in enumerate(prompts(4, 3))])
        flush(other)
        assert other.tiers is not None
        assert bool(other.tiers.counts["restored_tokens"]) is found


def test_a_small_pool_and_cancellations_lose_no_block(directory: Path) -> None:
    store = memory()
    chance = random.Random(4)
    texts = prompts(30, 4)
    it = engine(directory, store, n_blocks=40)
    for number in range(300):
        it.submit(ask(number, chance.choice(texts)), time.monotonic())
        for _ in range(chance.randint(0, 6)):
            it.settle(time.monotonic())
            if it.can_step:
                it.step()
        if chance.random() < 0.3:
            it.cancel(f"s{chance.randint(0, number)}")
        it.scheduler.check_integrity()
    run(it, [])
    flush(it)
    assert it.tiers is not None
    assert it.tiers.counts["restored_tokens"] > 0


class Held(Wrapped):
    """Writes nothing until it may."""

    def __init__(self, inner: BlockStore) -> None:
        super().__init__(inner, lambda *_: True)
        self.may = threading.Event()

    def write(self, key: ChunkKey, pieces: Sequence[Buffer], info: FrameInfo) -> bool:
        return self.may.wait(PATIENCE) and super().write(key, pieces, info)


def test_logits_that_are_no_numbers_spoil_nothing_that_is_being_kept(tmp_path: Path) -> None:
    model = models.make(models.Variant("qwen3", "qwen3"), seed=5)
    with torch.no_grad():
        model.get_input_embeddings().weight[100].fill_(float("nan"))
    directory = models.saved(model, tmp_path)
    store = Held(memory())
    it = engine(directory, store)
    good = ask(1, range(3, 60))
    texts, _ = run(it, [good])
    assert it.submit(ask(2, [100, 101, 102]), time.monotonic()) is None
    _, dropped = it.step()
    assert [each.id for each in dropped] == ["s2"]
    store.may.set()
    flush(it)
    other = engine(directory, store)
    again, found = run(other, [good])
    assert (again, found) == (texts, 48)


def test_what_came_before_the_deadline_is_not_computed(directory: Path) -> None:
    store, may = memory(), threading.Event()
    question = ask(1, range(3, 93))
    one = engine(directory, store)
    texts, _ = run(one, [question])
    flush(one)
    other = engine(directory, Wrapped(store, lambda reads, _: reads < 3 or may.wait(PATIENCE)), patience=0.5)
    again, found = run(other, [question])
    may.set()
    assert (again, found) == (texts, 32)
    assert other.tiers is not None
    assert other.tiers.counts["late"] == 1
    flush(other)
    assert run(other, [question])[0] == texts


def test_nothing_is_looked_for_where_the_pool_has_all_but_a_rest(directory: Path) -> None:
    it = engine(directory, memory())
    run(it, [ask(1, range(3, 60))])
    flush(it)
    assert it.submit(ask(2, range(3, 60)), time.monotonic()) is None
    assert it.tiers is not None
    assert it.tiers.idle
    assert it.submit(ask(3, range(50, 80)), time.monotonic()) is None
    assert not it.tiers.idle


def test_a_restore_waits_for_room_as_the_sequence_would(directory: Path) -> None:
    store = memory()
    question, long = ask(1, range(3, 60)), ask(2, range(30, 95))
    one = engine(directory, store)
    texts, _ = run(one, [question, long])
    flush(one)
    other = engine(directory, store, n_blocks=24, patience=PATIENCE)
    assert other.submit(long, time.monotonic()) is None
    while not other.can_step:
        other.settle(time.monotonic())
    other.step()
    again, found = run(other, [question])
    assert again["s1"] == texts["s1"]
    assert found == 48, "the pool has no room for both at a time"
    flush(other)


def under(policy: KvPolicy, number: int, prompt: Sequence[int], *, salt: str = "s") -> Submit:
    return msgspec.structs.replace(ask(number, prompt, salt=salt), kv=policy)


def test_a_tenants_policy_reaches_the_stores(directory: Path) -> None:
    wall = Wall()
    store = MemoryStore(8 << 20, wall=wall)
    frames: list[FrameInfo] = []

    class Noting(Wrapped):
        def write(self, key: ChunkKey, pieces: Sequence[Buffer], info: FrameInfo) -> bool:
            frames.append(info)
            return super().write(key, pieces, info)

    def life(policy: KvPolicy, prompt: Sequence[int], *, salt: str = "s") -> int:
        """What an engine with an empty pool finds."""
        frames.clear()
        it = engine(directory, Noting(store, lambda *_: True), wall=wall)
        _, found = run(it, [under(policy, 1, prompt, salt=salt)])
        flush(it)
        return found

    policy, prompt = KvPolicy(owner="ab", ttl=60.0, pin=True), range(3, 60)
    assert life(policy, prompt) == 0
    assert {info.tenant for info in frames} == {"owner ab"}
    assert {info.expires for info in frames} == {wall() + 60}
    assert {info.policy for info in frames} == {policy}
    wall.now += 59
    assert life(policy, prompt) == 48, "and so it lives on"
    wall.now += 59
    assert life(policy, prompt) == 48
    wall.now += 60
    assert life(policy, prompt) == 0
    assert store.stats().expired > 0
    kept = store.stats().entries
    assert life(KEEP_NOTHING, prompt) == life(KEEP_NOTHING, models.tokens(57, 1)) == 0, "nor is anything looked for"
    assert (store.stats().entries, frames) == (kept, [])
    assert life(KvPolicy(owner="cd", host=0), prompt, salt="t") == 0
    assert store.stats().entries == kept
    assert frames
    assert life(NO_KV_POLICY, prompt, salt="t") == 0
    assert {info.tenant for info in frames} == {b"t".hex()}
    assert store.stats().entries > kept


def test_what_has_outlived_its_time_is_not_found_in_the_pool(directory: Path) -> None:
    it = engine(directory, memory())
    policy = KvPolicy(ttl=1e-6)  # over before the next one comes
    prompt = range(3, 60)
    assert run(it, [under(policy, 1, prompt)])[1] == 0
    flush(it)
    time.sleep(0.01)
    assert run(it, [under(policy, 2, prompt)])[1] == 0
    flush(it)
    assert run(it, [under(NO_KV_POLICY, 3, prompt)])[1] == 0
    flush(it)
    assert run(it, [under(NO_KV_POLICY, 4, prompt)])[1] == 56
