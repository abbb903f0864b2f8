"""Slower tiers behind a simulated device cache: what sequences leave there, and what it takes to bring it back. Pure.

When a sequence leaves the engine, its full blocks are written to every tier, in no time: real engines write behind.
A tier holds so many blocks, least recently used first out, a sequence's tail before its head. A restore takes a round
trip and so many seconds a token, and an engine does one after the other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from backends.simulated.block_pool import PoolEvent, Removed, Stored
from backends.simulated.kv_chain import EngineHash
from policies.restore_route import PricedRun, RestoreSplit, TierPrice, best_split
from policies.types import Tier


@dataclass(frozen=True, slots=True)
class TierConfig:
    """One tier. Times are seconds of the engine's life, before any speed-up."""

    blocks: int
    round_trip_s: float = 0.002
    s_per_token: float = 1e-5

    def __post_init__(self) -> None:
        """Raise ValueError for what no tier can have."""
        if self.blocks < 1 or not self.round_trip_s >= 0 or not self.s_per_token > 0:
            message = "a tier needs at least one block, a round trip of at least 0 and seconds/token above 0"
            raise ValueError(message)


class BlockTier:
    """The blocks of one tier: one engine's own, or a store that many read.

    Each block is told of by one engine: the one that wrote it, or the next that uses it after that one is gone.
    """

    def __init__(self, tier: Tier, config: TierConfig, store: str = "") -> None:
        self.tier = tier
        self.config = config
        self.store = store
        self._tellers: OrderedDict[EngineHash, EngineTiers | None] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._tellers)

    def __contains__(self, block: EngineHash) -> bool:
        return block in self._tellers

    def keep(self, blocks: Sequence[EngineHash], teller: EngineTiers) -> list[int]:
        """Hold the leading blocks of a chain, as many as there is room for; the places of those that `teller` has to
        tell of. Whoever told of what goes for them hears so.
        """
        tellers = self._tellers
        kept = blocks[: self.config.blocks]
        fresh = [place for place, block in enumerate(kept) if tellers.get(block) is None]
        for place in fresh:
            tellers[kept[place]] = teller
        for block in reversed(kept):
            tellers.move_to_end(block)
        gone: dict[EngineTiers | None, list[EngineHash]] = {}
        while len(tellers) > self.config.blocks:
            block, told_by = tellers.popitem(last=False)
            gone.setdefault(told_by, []).append(block)
        for told_by, lost in gone.items():
            if told_by is not None:
                told_by.lost(self, lost)
        return fresh

    def orphan(self, teller: EngineTiers) -> None:
        """It is gone: what it told of waits for somebody else to tell it."""
        for block, told_by in self._tellers.items():
            if told_by is teller:
                self._tellers[block] = None

    def clear(self) -> None:
        """Hold nothing."""
        self._tellers.clear()


class EngineTiers:
    """The tiers of one engine, fastest first."""

    def __init__(self, tiers: Sequence[BlockTier], *, speed: float, rate: float) -> None:
        """`rate` is its prefill in tokens/s of its life, `speed` how many times faster than life it lives."""
        self.tiers = tuple(tiers)
        self._speed = speed
        self._rate = rate
        self._free_at = float("-inf")
        self._events: list[PoolEvent] = []

    @property
    def prices(self) -> tuple[TierPrice, ...]:
        """What restoring takes, in seconds as they pass."""
        return tuple(
            TierPrice(
                each.tier, each.config.round_trip_s / self._speed, each.config.s_per_token / self._speed, each.store
            )
            for each in self.tiers
        )

    def plan(
        self, hashes: Sequence[EngineHash], held: int, limit: int, *, n_tokens: int, block_size: int, now: float
    ) -> RestoreSplit:
        """What to restore, if anything, of the blocks from `held` up to `limit` of a prompt; as a real worker decides,
        by what is quicker. Changes nothing.
        """
        runs: list[PricedRun] = []
        prices = self.prices
        for block in hashes[held:limit]:
            price = next((price for each, price in zip(self.tiers, prices, strict=True) if block in each), None)
            if price is None:
                break
            if runs and runs[-1].price is price:
                runs[-1] = PricedRun(runs[-1].tokens + block_size, price)
            else:
                runs.append(PricedRun(block_size, price))
        wait = max(self._free_at - now, 0.0)
        return best_split(n_tokens, held * block_size, runs, rate=self._rate * self._speed, wait_s=wait)

    def begin(self, split: RestoreSplit, now: float) -> float:
        """The transfer begins as planned; when it ends."""
        self._free_at = now + split.restore_s
        return self._free_at

    def keep(self, hashes: Sequence[EngineHash], owner: object) -> None:
        """A sequence leaves so many full blocks behind; `owner` travels in the events."""
        for each in self.tiers:
            fresh = each.keep(hashes, self)
            start = 0
            while start < len(fresh):
                stop = start + 1
                while stop < len(fresh) and fresh[stop] == fresh[stop - 1] + 1:
                    stop += 1
                first, last = fresh[start], fresh[stop - 1]
                parent = hashes[first - 1] if first else None
                self._events.append(Stored(tuple(hashes[first : last + 1]), parent, owner, first, each.tier))
                start = stop

    def lost(self, tier: BlockTier, blocks: Sequence[EngineHash]) -> None:
        """Blocks that this engine told of are no longer there."""
        self._events.append(Removed(tuple(blocks), tier.tier))

    def take_events(self) -> list[PoolEvent]:
        """Events since the last call, in order; the caller owns the list."""
        events, self._events = self._events, []
        return events

    def forget(self) -> None:
        """All caches were cleared, which says of itself that nothing is there: its own tiers are emptied, and of a
        shared one it tells no longer.
        """
        for each in self.tiers:
            if each.store:
                each.orphan(self)
            else:
                each.clear()
        self._events.clear()

    def close(self) -> None:
        """The engine is gone."""
        for each in self.tiers:
            each.orphan(self)
