"""What the prefix index knows of one worker, and the rules by which an event counts for it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from cache.block_hash import ChainKey, root_hash
from cache.kv_events import EngineHash
from policies.types import BlockHash, Tier

if TYPE_CHECKING:
    from cache.kv_events import BlockStored
    from policies.types import WorkerId

_TIERS: Final[dict[str, Tier]] = {
    "GPU": Tier.DEVICE,
    "DEVICE": Tier.DEVICE,
    "CPU": Tier.HOST,
    "CPU_PINNED": Tier.HOST,
    "CPU_TIER1": Tier.HOST,
    "HOST": Tier.HOST,
    "DISK": Tier.DISK,
    "SSD": Tier.DISK,
    "STORAGE": Tier.DISK,
    "CPU_TIER2": Tier.DISK,
    "REDIS": Tier.REDIS,
}
_FULL_ATTENTION: Final = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
_MAX_ROOTS: Final = 4096


class PrefixIndexStats:
    """Counters of what events told and the index could not use. They only grow."""

    __slots__ = (
        "evicted",
        "expired",
        "foreign_block_size",
        "ignored_group",
        "not_plain",
        "unknown_medium",
        "unknown_parent",
        "unknown_salt",
    )

    def __init__(self) -> None:
        self.unknown_parent = 0
        """Blocks whose parent is not known."""
        self.unknown_salt = 0
        """Blocks at the start of a prompt that may be salted or not: the engine does not tell."""
        self.unknown_medium = 0
        self.foreign_block_size = 0
        """Blocks of another size than the worker's."""
        self.ignored_group = 0
        """Blocks of a cache group that does not count."""
        self.not_plain = 0
        """Blocks that depend on images or prompt embeddings."""
        self.evicted = 0
        """Entries dropped because the index was full."""
        self.expired = 0
        """Predicted entries that no event confirmed in time."""

    def as_dict(self) -> dict[str, int]:
        """Name of each counter and its value."""
        return {name: getattr(self, name) for name in self.__slots__}


EngineMap = dict[EngineHash, BlockHash]
"""Engine hash -> ours, oldest first."""


class Victims(NamedTuple):
    """A worker's oldest entries of one map, as they were when they were looked up."""

    tier: Tier
    engines: EngineMap | None
    """The map; None when they are predictions."""
    hashes: list[int]
    """Engine hashes, or blocks that are predicted, oldest last."""


NO_VICTIMS: Final = Victims(Tier.DEVICE, None, [])


class WorkerTraits(NamedTuple):
    """What the index was told of a worker; no event changes it."""

    model: str
    block_size: int | None = None
    capacity: int | None = None
    """Blocks in its cache, where its predictions are kept as the engine keeps blocks: least recently used first out."""
    salts_told: bool = False
    """Its events are known to tell the salt of a prompt that has one."""


class WorkerBlocks:
    """What is known of one worker."""

    __slots__ = (
        "bit", "block_size", "engines", "extra_refs", "id", "ignored_groups", "latest_deadline", "main_group",
        "n_exact", "predicted", "retired", "roots", "salts", "salts_told", "slot", "stores", "torn_until", "traits",
        "victims",
    )  # fmt: skip

    def __init__(self, worker: WorkerId, slot: int, traits: WorkerTraits) -> None:
        self.id = worker
        self.slot = slot
        self.bit = 1 << slot
        self.traits = traits
        self.retired = False
        """Cleared or removed, and still being swept out of the tables."""
        self.salts: dict[str, float] = {}
        """Salts of requests under way to it, and until when, as far as its events do not tell theirs."""
        self.stores: dict[Tier, str] = {}
        """Its tiers that other workers can read too, and the names of the stores behind them."""
        self.reset()

    def reset(self) -> None:
        """Know nothing; the caller has taken its blocks out of the index."""
        self.block_size = self.traits.block_size
        self.salts_told = self.traits.salts_told
        """Its events tell salts: it was said, or seen."""
        self.engines: dict[tuple[int, Tier], EngineMap] = {}
        """Engine hash -> ours, per data-parallel rank and tier, oldest first."""
        self.extra_refs: Counter[tuple[Tier, BlockHash]] = Counter()
        """References beyond the first, where several engine hashes stand for one of ours. Rare."""
        self.begin_predictions()
        self.n_exact = 0
        self.main_group: int | None = None
        self.ignored_groups: set[int] = set()
        self.roots: dict[tuple[str, str], BlockHash] = {}

    def begin_predictions(self) -> None:
        """Predict nothing; the caller has taken what was predicted out of the index."""
        self.predicted: dict[BlockHash, float] = {} if self.traits.capacity is None else OrderedDict()
        """Device blocks that only a routing decision speaks for, and when they expire. Of a worker with a capacity:
        when they were last used, least recently used first, and each block behind those that follow it in a prompt.
        """
        self.latest_deadline = 0.0
        self.torn_until = 0.0
        """Of a prompt that is predicted up to this time both ends may be there and something between them not."""
        self.victims = NO_VICTIMS

    @property
    def size(self) -> int:
        """Entries: what `max_blocks` bounds."""
        return self.n_exact + len(self.predicted)

    def tear(self) -> None:
        """Blocks that events told of go: there may now be holes in all that was predicted so far."""
        self.torn_until = self.latest_deadline

    def choose_victims(self, n_blocks: int) -> None:
        """Look up the oldest entries of the largest map; of the predictions where there is nothing else."""
        tier: Tier = Tier.DEVICE
        engines: EngineMap | None = None
        if self.n_exact:
            (_, tier), engines = max(self.engines.items(), key=_length)
        hashes: list[int] = list(islice(self.predicted if engines is None else engines, n_blocks))
        hashes.reverse()
        self.victims = Victims(tier, engines, hashes)

    @property
    def recency(self) -> OrderedDict[BlockHash, float] | None:
        """`predicted` of a worker with a capacity; None for another."""
        predicted = self.predicted
        return predicted if isinstance(predicted, OrderedDict) else None

    def root(self, adapter: str, salt: str, block_size: int) -> BlockHash:
        """Our parent of a prompt's first block."""
        key = (adapter, salt)
        root = self.roots.get(key)
        if root is None:
            if len(self.roots) >= _MAX_ROOTS:
                self.roots.clear()
            root = self.roots[key] = root_hash(ChainKey(self.traits.model, block_size, adapter=adapter, salt=salt))
        return root


def tier_of(medium: str | None) -> Tier | None:
    """The tier a medium belongs to: absent is the device, an unknown one is None."""
    return Tier.DEVICE if medium is None else _TIERS.get(medium.upper())


def follows_group(state: WorkerBlocks, event: BlockStored) -> bool:
    """Whether the event's cache group decides if a block counts as held: the first full-attention group seen
    does.
    """
    full = event.group_kind in _FULL_ATTENTION
    if event.group is None:
        return full
    if not full:
        state.ignored_groups.add(event.group)
        return False
    if state.main_group is None:
        state.main_group = event.group
    return event.group == state.main_group


def _length(item: tuple[tuple[int, Tier], EngineMap]) -> int:
    return len(item[1])
