"""Several stores as one: what is looked for is found in the fastest that has it.

A frame goes at once into the fastest tier that takes it. The slower ones get it behind the caller's back, by rules
(`policies.write_behind`): when it is used again, when somebody is known to come back for it, while nothing else is to
be done, and before the end.

A tier that fails is a tier that has nothing. One that keeps failing rests (`policies.tier_rest`), and nothing is asked
of it meanwhile; what it should have got is held back. So a dead Redis costs hits, and never an error. Deadlines are
those of the stores: a disk that hangs holds up whoever asks it, and all writes behind.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Final, NamedTuple

from cache.byte_pieces import total_bytes
from cache.guarded_tier import GuardedTier
from cache.store import BlockStore, Buffer, ChunkKey, FrameInfo, StoreError, StoreStats
from cache.tier_told import Moved, Told
from cache.tier_writer import Frame, TierWriter
from policies.kv_policy import NO_KV_POLICY
from policies.types import Tier
from policies.write_behind import WriteRules


class Forgot(NamedTuple):
    """What was removed of some tenants."""

    found: Mapping[Tier, int]
    """Frames by tier, one may be in several; with `complete`, all of them are gone."""
    left: tuple[Tier, ...]
    """Tiers that cannot tell whose a frame is."""
    complete: bool


_NOTHING_KNOWN: Final = -1
_PATIENCE: Final = 5.0
"""Seconds that `remove` waits for somebody who writes the same frame."""


class TieredStore:
    """A `BlockStore` over others, which it closes. No lock is held while one of them works.

    A frame may be in several tiers: sizes in `stats` are sums, hits, misses and writes are this store's own.
    """

    def __init__(
        self,
        stores: Sequence[BlockStore],
        *,
        rules: WriteRules = WriteRules(),  # noqa: B008 - it is frozen
        clock: Callable[[], float] = time.monotonic,
        moved: Moved | None = None,
    ) -> None:
        """`stores` with the fastest first, each of another tier; `clock` tells when tiers have rested enough. `moved`
        is told of each frame that a tier gets or loses, as far as that is known. Raises ValueError.
        """
        if not stores or len({store.tier for store in stores}) < len(stores):
            raise ValueError("a tiered store has at least one store, and no two of the same tier")
        self._lock = threading.Condition()
        self._counts: Counter[str] = Counter()
        self._own: Counter[str] = Counter()
        self._writes: dict[ChunkKey, _Write] = {}
        self._closed = False
        self._tiers = [GuardedTier(store, clock, self._count) for store in stores]
        self._by_tier = {tier.tier: tier for tier in self._tiers}
        self._told = Told(self._by_tier, moved)
        self._writer = TierWriter(self._tiers, rules, self._told, self._arrived, self._count)

    @property
    def tier(self) -> Tier:
        """The fastest."""
        return self._tiers[0].tier

    @property
    def counts(self) -> Counter[str]:
        """A copy of what has happened so far: `failed: <tier>`, `rests: <tier>`, `written behind`; and why
        frames did not go behind: `dropped behind` (too many, or too many attempts), `evicted before` (from the
        faster tiers), `refused behind` (too large, over a quota), `orphaned behind` (the one before it is missing
        there), `broken behind` (a bug in a store).
        """
        with self._lock:
            return Counter(self._counts)

    def locate(self, keys: Sequence[ChunkKey]) -> list[Tier]:
        """For each of the leading keys that any tier has, the fastest such tier. What is found, and what a tier had
        and has not any more, is told to `moved`. Raises StoreError where this store is closed.
        """
        self._check_open()
        searches = [_Search(tier, self) for tier in self._tiers]
        found: list[Tier] = []
        while len(found) < len(keys):
            first = next((one for one in searches if one.has(keys, len(found))), None)
            if first is None:
                break
            found.append(first.tier.tier)
        return found

    def contains(self, keys: Sequence[ChunkKey]) -> int:
        """See `BlockStore`."""
        return len(self.locate(keys))

    def read_from(
        self, tier: Tier, key: ChunkKey, pieces: Sequence[memoryview], *, expires: float | None = None
    ) -> bool:
        """See `BlockStore.read_into`, from that tier alone. False for a failure too, and where this store is closed."""
        with self._lock:
            if self._closed:
                return False
        return self._read([self._by_tier[tier]], key, pieces, expires)

    def read_into(self, key: ChunkKey, pieces: Sequence[memoryview], *, expires: float | None = None) -> bool:
        """See `BlockStore`: from the fastest tier that delivers it, and only there `expires` counts."""
        self._check_open()
        return self._read(self._tiers, key, pieces, expires)

    def note(self, key: ChunkKey, n_bytes: int, info: FrameInfo) -> bool:
        """Somebody has a frame of that size at hand that was computed, or read and found good. True where the fastest
        tier has it: it counts as used once more, and there `info` holds from now on (see `Keeper`). Otherwise it is to
        be written, and so comes up from a slow tier.
        """
        with self._lock:
            if self._closed:
                return False
        fastest = self._tiers[0]
        if not fastest.contains([key]):
            return False
        if info.policy is not NO_KV_POLICY:
            fastest.renew(key, info)
        self._behind(key, Frame(n_bytes, info), but=fastest.tier)
        return True

    def write(self, key: ChunkKey, pieces: Sequence[Buffer], info: FrameInfo) -> bool:
        """See `BlockStore`. True where a tier took it now: the fastest that rests not and refuses not. The others get
        it later, or not, by the rules. One that is there already counts as used.
        """
        self._check_open()
        if info.parent == key:
            raise ValueError("a frame does not come before itself")
        frame = Frame(total_bytes(pieces), info)
        with self._writing(key) as write:
            at, kept = self._place(self._tiers, key, pieces, info, write) if write else (self._tiers[0], False)
        if at is not None:
            self._behind(key, frame, but=at.tier)
        with self._lock:
            self._own["writes"] += kept
        return kept

    def remove(self, key: ChunkKey) -> bool:
        """See `BlockStore`. From all tiers that can be asked, and from what is still to be written. What is being
        written at the moment is waited for, or taken back when it is done if that takes too long.
        """
        self._check_open()
        return any(self._remove(key).values())

    def expire(self, most: int = 256) -> int:
        """Drop frames whose time is over from tiers that keep times by themselves, at most so many from each; how many
        these were. To be called now and then.
        """
        self._check_open()
        return sum(tier.expire(most) or 0 for tier in self._tiers)

    def forget_tenants(self, tenants: Collection[str], *, dry_run: bool = False, seconds: float = inf) -> Forgot:
        """Remove what was written with one of these as `FrameInfo.tenant`, or count it, for so long. Of stores that
        cannot tell whose a frame is, what no other store has stays: see `Forgot.left`. Raises StoreError where this one
        is closed.
        """
        self._check_open()
        deadline = time.monotonic() + seconds
        found: dict[Tier, int] = {}
        keys: dict[ChunkKey, None] = {}
        left: list[Tier] = []
        complete = True
        for tier in self._tiers:
            # Its source may have evicted it, and where it goes it is not yet.
            keys.update(dict.fromkeys(self._writer.under_way(tenants)))
            here = tier.of_tenants(tenants, max(0.0, deadline - time.monotonic()))
            if here is not None and here.untold:
                left.append(tier.tier)
                continue
            complete = complete and here is not None and here.complete
            found[tier.tier] = len(here.keys) if here else 0
            keys.update(dict.fromkeys(here.keys if here else ()))
        for key in () if dry_run else keys:
            if time.monotonic() > deadline:
                complete = False
                break
            removed = self._remove(key)
            complete = complete and all(removed[tier] is not None for tier in found)
        return Forgot(found, tuple(left), complete)

    def lost(self, tier: Tier, key: ChunkKey) -> None:
        """The store of that tier has evicted it. For the stores' `evicted` callbacks; from any thread."""
        self._told.lost(tier, key)

    def quiet(self, quiet: bool) -> None:
        """Has the caller nothing to compute? Then what the rules hold back is written too, the oldest first."""
        self._writer.quiet(quiet)

    def flush(self, deadline_s: float) -> bool:
        """Write to every tier what is held back or due. False where that took longer, or would."""
        return self._writer.flush(deadline_s)

    def stats(self) -> StoreStats:
        """See `BlockStore`, and the class."""
        each = [tier.stats() for tier in self._tiers]
        with self._lock:
            own = self._own
            return StoreStats(
                entries=sum(one.entries for one in each), bytes=sum(one.bytes for one in each),
                capacity=sum(one.capacity for one in each), hits=own["hits"], misses=own["misses"],
                writes=own["writes"], evictions=sum(one.evictions for one in each),
                errors=sum(one.errors for one in each), expired=sum(one.expired for one in each),
            )  # fmt: skip

    def stats_of(self, tier: Tier) -> StoreStats:
        """What that store says of itself; while it rests, what it said before."""
        return self._by_tier[tier].stats()

    def close(self) -> None:
        """See `BlockStore`. What was not written behind by now is not: `flush` comes first."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._writer.close()
        for tier in self._tiers:
            tier.close()

    # --- frames ----------------------------------------------------------------------------------------------------

    def _remove(self, key: ChunkKey) -> Mapping[Tier, bool | None]:
        """By tier, whether it was there; None where the tier could not be asked, and may have it still."""
        self._writer.forget(key)
        with self._lock:
            write = self._writes.get(key)
            if write is not None:
                write.removed = True
                self._lock.wait_for(lambda: self._writes.get(key) is not write, _PATIENCE)
        was_here: dict[Tier, bool | None] = {}
        for tier in reversed(self._tiers):  # what is promoted meanwhile looks back at where it came from
            mark = self._told.mark()
            removed = was_here[tier.tier] = tier.remove(key)
            if removed is None:
                self._count(f"not removed: {tier.tier}")
                continue
            self._told.missing(tier.tier, key, mark)
        return was_here

    def _read(
        self, tiers: Sequence[GuardedTier], key: ChunkKey, pieces: Sequence[memoryview], expires: float | None
    ) -> bool:
        for tier in tiers:
            mark = self._told.mark()
            found = tier.read_into(key, pieces, expires=expires)
            if found:
                break
            if found is False:
                self._told.vanished(tier.tier, key, mark)
        else:
            found = False
        with self._lock:
            self._own["hits" if found else "misses"] += 1
        return bool(found)

    def _place(
        self, tiers: Sequence[GuardedTier], key: ChunkKey, pieces: Sequence[Buffer], info: FrameInfo, write: _Write
    ) -> tuple[GuardedTier | None, bool]:
        """The fastest tier that has the frame now, and whether it has just got it."""
        for tier in tiers:
            mark = self._told.mark()
            kept = tier.write(key, pieces, info)
            with self._lock:
                removed = write.removed
            if removed:
                if kept:
                    tier.remove(key)
                break
            if kept or (kept is False and tier.contains([key])):
                self._arrived(tier, key, mark)
                return tier, bool(kept)
        return None, False

    def _promote(self, key: ChunkKey, pieces: Sequence[Buffer], info: FrameInfo, source: GuardedTier) -> None:
        fastest = self._tiers[0]
        with self._writing(key) as write:
            if write is None or not self._place([fastest], key, pieces, info, write)[1]:
                return
            if source.contains([key]) != 0:
                self._count("promoted")
                return
            # It was removed after it had been read: it must not come back.
            mark = self._told.mark()
            fastest.remove(key)
            self._told.missing(fastest.tier, key, mark)

    def _behind(self, key: ChunkKey, frame: Frame, *, but: Tier) -> None:
        """The slow tiers get it by the rules, but those that have it."""
        if len(self._tiers) > 1:
            present = [tier for tier in self._by_tier if tier is but or self._told.knows(tier, key)]
            self._writer.add(key, frame, present=present)

    @contextmanager
    def _writing(self, key: ChunkKey) -> Iterator[_Write | None]:
        """None: another one writes it at the moment."""
        mine = _Write()
        with self._lock:
            write = mine if self._writes.setdefault(key, mine) is mine else None
        try:
            yield write
        finally:
            if write is not None:
                with self._lock:
                    del self._writes[key]
                    if write.removed:
                        self._lock.notify_all()

    # --- who is told -----------------------------------------------------------------------------------------------

    def _arrived(self, tier: GuardedTier, key: ChunkKey, mark: int) -> None:
        self._found(tier, [key], mark)

    def _found(self, tier: GuardedTier, keys: Sequence[ChunkKey], mark: int) -> None:
        for key in self._told.here(tier.tier, keys, mark):
            again = self._told.mark()
            if tier.contains([key]) == 0:
                self._told.missing(tier.tier, key, again)

    # --- small things ----------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        with self._lock:
            if self._closed:
                raise StoreError("the store is closed")

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1


class _Write:
    """By a caller, of one frame."""

    __slots__ = ("removed",)

    def __init__(self) -> None:
        self.removed = False
        """It was removed meanwhile."""


class _Search:
    """How far one tier is known to hold the keys that `locate` walks."""

    def __init__(self, tier: GuardedTier, store: TieredStore) -> None:
        self.tier = tier
        self._store = store
        self._end = _NOTHING_KNOWN
        """Of the keys before it as many as were walked are here; it is not."""
        self._away = False

    def has(self, keys: Sequence[ChunkKey], at: int) -> bool:
        """Is keys[at] here? Asked in order, and of the tier at most once for each gap."""
        if at > self._end and not self._away:
            self._ask(keys, at)
        return at < self._end

    def _ask(self, keys: Sequence[ChunkKey], at: int) -> None:
        store = self._store
        mark = store._told.mark()  # noqa: SLF001 - part of it
        n_here = self.tier.contains(keys[at:])
        if n_here is None:
            self._away = True
            return
        self._end = at + n_here
        store._found(self.tier, keys[at : self._end], mark)  # noqa: SLF001 - part of it
        if self._end < len(keys):
            store._told.vanished(self.tier.tier, keys[self._end], mark)  # noqa: SLF001 - part of it
