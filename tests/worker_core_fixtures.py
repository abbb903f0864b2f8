"""The worker's pure engine with a runner that needs no model: it knows what every slot of the pool holds."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from xxhash import xxh3_64_intdigest

from backends.worker.engine.block_manager import BlockManager, HashBlocks
from backends.worker.engine.scheduler import Scheduler, SchedulerConfig, StepPlan
from backends.worker.engine.sequence import Sequence
from backends.worker.messages import SamplingParams, Submit, TokensOut
from cache.block_hash import extend_chain
from cache.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from policies.types import TokenIds

MODEL = "tiny"


def token_ids(ids: Iterable[int]) -> TokenIds:
    return TokenIds(array("I", ids).tobytes())


def ask(
    request_id: str, ids: Iterable[int], max_tokens: int = 1, *, salt: str = "", priority: int = 0, **params: object
) -> Submit:
    return Submit(
        id=request_id,
        token_ids=token_ids(ids),
        params=SamplingParams(max_tokens=max_tokens, **params),  # type: ignore[arg-type]  # any of its fields
        salt=salt,
        priority=priority,
    )


def engine(
    n_blocks: int = 64, block_size: int = 4, *, hash_blocks: HashBlocks = extend_chain, **changes: object
) -> Scheduler:
    fields: dict[str, object] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 48,
        "max_waiting": 100,
        **changes,
    }
    config = SchedulerConfig(**fields)  # type: ignore[arg-type]  # any of its fields
    return Scheduler(config, BlockManager(n_blocks, block_size, MODEL, hash_blocks=hash_blocks))


def next_token(sequence: Sequence, vocabulary: int = 3) -> int:
    """Depends on the text so far alone, as a greedy model's does; a small vocabulary makes texts meet."""
    return xxh3_64_intdigest(sequence.token_bytes(0, sequence.n_tokens)) % vocabulary


class ShadowPool:
    """What a runner would have written into each slot: under which salt, after which tokens."""

    def __init__(self, n_blocks: int, block_size: int) -> None:
        self.n_blocks = n_blocks
        self.block_size = block_size
        self.slots: dict[int, tuple[str, bytes]] = {}

    def slot(self, sequence: Sequence, position: int) -> int:
        block = sequence.block_table[position // self.block_size]
        assert 0 <= block < self.n_blocks
        return block * self.block_size + position % self.block_size

    def write(self, plan: StepPlan, *, spoilt: bool = False) -> None:
        """Write KV of all tokens of the step. `spoilt`: it failed half way, what is there now is anybody's guess."""
        written: set[int] = set()
        for item in plan.items:
            for position in range(item.start, item.start + item.count):
                slot = self.slot(item.sequence, position)
                assert slot not in written, "two sequences write one slot in one step"
                written.add(slot)
                self.slots[slot] = ("", b"") if spoilt else self.content(item.sequence, position)
        assert len(written) == plan.n_tokens

    def read(self, plan: StepPlan) -> None:
        """Attend to all that came before: it must be the sequence's own, token for token."""
        for item in plan.items:
            for position in range(item.start + item.count):
                held = self.slots.get(self.slot(item.sequence, position))
                assert held == self.content(item.sequence, position), (item, position)

    @staticmethod
    def content(sequence: Sequence, position: int) -> tuple[str, bytes]:
        return sequence.request.salt, sequence.token_bytes(0, position + 1)


def step(scheduler: Scheduler, shadow: ShadowPool | None = None, *, vocabulary: int = 3) -> list[TokensOut]:
    """One whole step, which there must be."""
    plan = scheduler.schedule()
    assert plan is not None
    if shadow is not None:
        shadow.write(plan)
        shadow.read(plan)
    sampled = [(next_token(item.sequence, vocabulary), None) for item in plan.items if item.samples]
    outputs = scheduler.commit(plan, sampled)
    scheduler.check_integrity()
    return outputs


def run_dry(scheduler: Scheduler, shadow: ShadowPool | None = None) -> list[TokensOut]:
    outputs: list[TokensOut] = []
    while scheduler.has_work:
        outputs += step(scheduler, shadow)
    assert scheduler.schedule() is None
    return outputs


def planned(plan: StepPlan | None) -> list[tuple[str, int, int, bool]]:
    """Id, start, count and whether it samples, of each item."""
    assert plan is not None
    assert plan.n_tokens == sum(item.count for item in plan.items)
    return [(item.sequence.id, item.start, item.count, item.samples) for item in plan.items]


class Mirror:
    """The hashes that can be found, as events alone tell. Strict: nothing told twice, nothing without its parent."""

    def __init__(self) -> None:
        self.hashes: set[int] = set()

    def apply(self, events: Iterable[KvEvent]) -> None:
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.hashes.clear()
            elif isinstance(event, BlockRemoved):
                for block_hash in event.block_hashes:
                    self.hashes.remove(block_hash)
            elif isinstance(event, BlockStored):
                assert len(event.token_ids) == 4 * event.block_size * len(event.block_hashes)
                assert event.parent is None or event.parent in self.hashes
                assert event.salt is None or (event.salt and event.parent is None)
                assert self.hashes.isdisjoint(event.block_hashes)
                self.hashes.update(event.block_hashes)
