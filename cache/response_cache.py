"""Answers already known: by exact key, in memory, and behind it on disk and in Redis.

A lookup in memory takes some microseconds and waits for nothing, so that it may be made in an event loop; the slower
tiers are for a thread of the caller's. Answers are written to memory at once and to the others behind. Whatever fails
is a miss. What is found is checked three times: that it is whole and of this key (`response_entry`), that it has not
been forgotten (`epochs`), and that it is fresh enough for this request (`policies.response_freshness`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from os import urandom
from typing import Final, NamedTuple

from cache.entry_tier import EntryTier, Tally
from cache.entry_writer import EntryWriter, frame_info
from cache.epochs import Epochs
from cache.response_entry import (
    HEAD_BYTES,
    EntryKeys,
    ResponseEntry,
    Stamp,
    decode_entry,
    decode_head,
    encode_entry,
)
from cache.response_epochs import NONCE_BYTES, ForgetRule
from cache.response_key import ResponseKey, model_tag, scope_tag, store_key, tag_of
from cache.response_openings import Openings, prefix_digest
from cache.small_store import SmallStore
from cache.store import ChunkKey, StoreError, StoreStats
from policies.response_freshness import NOTHING_SAID, CacheDirectives, Freshness, FreshnessRules, Verdict, judge
from policies.types import Tier

_WHOLE: Final = 1 << 40
"""Bytes, more than any frame has."""
_PATIENCE: Final = 5.0
"""Seconds for a write that is under way, and for all that wait at the end."""


class Found(NamedTuple):
    """An answer that may be served, as its freshness allows."""

    entry: ResponseEntry
    freshness: Freshness
    """FRESH, STALE_WHILE_REVALIDATE or STALE_IF_ERROR."""
    age: int
    """Seconds, for the header `Age`."""
    tier: Tier
    """Where it was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """What was forgotten, or would be."""

    entries: Mapping[Tier, int] = field(default_factory=dict)
    """By tier; one answer may be in several."""
    waiting: int = 0
    """Writes that were still to be made."""
    noted: bool = True
    """It is in the log of what was forgotten. If not, it holds in this process alone, until it could be written down:
    other gateways, and this one after a restart, know nothing of it yet.
    """
    complete: bool = True
    """All tiers were walked to their end. If not, what is left lies there until it is evicted, and is not read."""


class ResponseCache:
    """Safe for many threads."""

    def __init__(
        self,
        memory: SmallStore,
        slower: Sequence[EntryTier] = (),
        *,
        epochs: Epochs,
        keys: EntryKeys | None = None,
        most_entry_bytes: int = 4 << 20,
        most_waiting_bytes: int = 32 << 20,
        wall: Callable[[], float] = time.time,
        tally: Tally | None = None,
    ) -> None:
        """`slower`: the other tiers, the faster ones first; all of them, and `epochs`, are closed with the cache.
        `keys`: what is written there is encrypted. `most_waiting_bytes`: of answers that each of them has still to get.
        `wall`: seconds since 1970. `tally`: where the tiers count, if they do.
        """
        self._memory = memory
        self._slower = tuple(slower)
        self._epochs = epochs
        self._keys = keys
        self._most_entry_bytes = most_entry_bytes
        self._wall = wall
        self._tally = Tally() if tally is None else tally
        self._count = self._tally.add
        self._writers = [
            EntryWriter(
                tier,
                encode=partial(encode_entry, keys=keys),
                readable=self._readable,
                count=self._count,
                most_bytes=most_waiting_bytes,
            )
            for tier in slower
        ]

    @property
    def has_slower(self) -> bool:
        """Is there anything to ask by `lookup_slower`?"""
        return bool(self._slower)

    def begin(self) -> Stamp | None:
        """To be taken when a request begins, for the entry that its answer may become. None: it may not, since what was
        forgotten is not known at the moment.
        """
        return self._epochs.stamp()

    def lookup(
        self,
        key: ResponseKey,
        rules: FreshnessRules,
        asked: CacheDirectives = NOTHING_SAID,
        *,
        now: float | None = None,
    ) -> Found | None:
        """What memory has, for the event loop. `now`: seconds since 1970, else the clock's. None: a miss."""
        at = store_key(key)
        try:
            frame = self._memory.read(at)
            if frame is None:
                return None
            found, useless = self._check(_Question(key, rules, asked, now), frame, Tier.HOST)
            if useless:
                self._memory.remove(at)
        except StoreError:  # closed
            return None
        self._tell(found, Tier.HOST)
        return found

    def lookup_slower(
        self,
        key: ResponseKey,
        rules: FreshnessRules,
        asked: CacheDirectives = NOTHING_SAID,
        *,
        now: float | None = None,
    ) -> Found | None:
        """What the other tiers have: the first fresh one, else the newest there is. What is found goes to memory too.
        For a thread: it takes as long as the stores do, each within its own deadline.
        """
        best: Found | None = None
        at = store_key(key)
        for tier in self._slower if self._epochs.stamp() is not None else ():
            frame = tier.read(at)
            if frame is None:
                continue
            found, useless = self._check(_Question(key, rules, asked, now), frame, tier.tier)
            if useless:
                tier.remove(at)
            if found is not None and (best is None or found.entry.stored_at > best.entry.stored_at):
                best = found
            if best is not None and best.freshness is Freshness.FRESH:
                break
        if best is not None and not self._has_newer(at, best.entry.stored_at):
            self._remember(key, best.entry)
        self._tell(best, best.tier if best is not None else None)
        return best

    def keep(self, key: ResponseKey, entry: ResponseEntry) -> bool:
        """Store an answer, in place of another one of this key: in memory at once, elsewhere behind. False where it
        was not kept: too large, or forgotten while it was made. Takes some microseconds, and some more per megabyte.
        """
        if len(entry.body) > self._most_entry_bytes or not self._readable(key, entry):
            self._count("refused")
            return False
        kept = self._remember(key, entry)
        for writer in self._writers:
            kept = writer.add(key, entry) or kept
        self._count("kept" if kept else "refused")
        return kept

    def forget(
        self,
        scope: bytes | None = None,
        *,
        model: str | None = None,
        older_than: float | None = None,
        prefix: str | None = None,
        dry_run: bool = False,
        seconds: float = 60.0,
    ) -> Forgotten:
        """Make answers unreadable at once, then remove them: those of a tenant's scope or of all, of one model or of
        all, stored more than `older_than` seconds ago or until now, whose prompts begin with `prefix` (see
        `response_openings`) or however. With `dry_run` they are only counted. For a thread: tiers are walked, which
        ends after `seconds`. Raises ValueError for an empty prefix, and nothing else.
        """
        before = inf if older_than is None else self._wall() - older_than
        tag = None if scope is None else scope_tag(scope)
        begun = None if prefix is None else prefix_digest(prefix, urandom(NONCE_BYTES))
        rule = ForgetRule(tag, None if model is None else model_tag(model), before, begun)
        deadline = time.monotonic() + seconds
        noted = dry_run or self._epochs.forget(rule)
        waiting = 0
        for writer in () if dry_run else self._writers:
            waiting += writer.drop(lambda one: not self._readable(one.key, one.entry), _PATIENCE)
        entries: dict[Tier, int] = {}
        complete = True
        for walk in self._walks():
            entries[walk.tier], whole = walk.purge(rule, dry_run=dry_run, deadline=deadline)
            complete = complete and whole
        return Forgotten(entries=entries, waiting=waiting, noted=noted, complete=complete)

    def sweep(self, older_than: float, *, seconds: float = 60.0) -> Mapping[Tier, int]:
        """Remove what was stored more than `older_than` seconds ago, and so is of no use to anybody, from memory and
        disk; Redis does so by itself. For a thread, now and then: what is not met would lie there until it is evicted.
        """
        rule = ForgetRule(None, None, self._wall() - older_than)
        deadline = time.monotonic() + seconds
        walks = [walk for walk in self._walks() if walk.tier is not Tier.REDIS]
        return {walk.tier: walk.purge(rule, dry_run=False, deadline=deadline)[0] for walk in walks}

    def may_keep(self, key: ResponseKey, model: str, stamp: Stamp, now: float, openings: Openings) -> bool:
        """Will such an answer be kept, as far as it is known `now`? Takes a microsecond."""
        return self._epochs.readable(tag_of(key), model_tag(model), stamp, now, openings)

    def still_readable(self, key: ResponseKey, entry: ResponseEntry) -> bool:
        """Has what was found a while ago not been forgotten since? Takes a microsecond."""
        return self._readable(key, entry)

    def discard(self, key: ResponseKey) -> None:
        """Remove one answer from all tiers; for a thread. A write of it that is under way may come after."""
        at = store_key(key)
        with suppress(StoreError):
            self._memory.remove(at)
        for tier in self._slower:
            tier.remove(at)

    def flush(self, seconds: float = _PATIENCE) -> bool:
        """Wait until all that was kept is written; False where that takes longer."""
        return all(writer.flush(seconds) for writer in self._writers)

    def counts(self) -> Mapping[str, int]:
        """What has happened: `hit: <tier>`, `stale: <tier>`, `kept`, `refused`, `damaged: <tier>`, `expired: <tier>`,
        `forgotten: <tier>`, `dropped: <tier>`, `failed: <tier>`, `rests: <tier>`.
        """
        return self._tally.all()

    def memory_stats(self) -> StoreStats:
        """Of memory alone; waits for nothing."""
        return self._memory.stats()

    def stores(self) -> Mapping[Tier, StoreStats]:
        """Of each tier. Redis is asked for it: for a thread."""
        return {Tier.HOST: self._memory.stats(), **{tier.tier: tier.stats() for tier in self._slower}}

    def close(self) -> None:
        """Write what waits, for a while, and close everything. Lookups after it are misses."""
        for writer in self._writers:
            writer.close(_PATIENCE)
        self._epochs.close()
        self._memory.close()
        for tier in self._slower:
            tier.close()

    def _walks(self) -> list[_Walk]:
        memory = _Walk(Tier.HOST, self._memory.keys, self._memory.read, self._memory.remove, None)
        return [memory, *(_Walk(tier.tier, tier.walk, tier.read, tier.remove, self._keys) for tier in self._slower)]

    # --- one entry ------------------------------------------------------------------------------------------

    def _check(self, question: _Question, frame: bytes, tier: Tier) -> tuple[Found | None, bool]:
        """What of a frame may be served; and whether it is to be removed, since nobody can use it any more."""
        key, rules, asked, now = question
        entry = decode_entry(key, frame, None if tier is Tier.HOST else self._keys)
        if entry is None:
            self._count(f"damaged: {tier}")
            return None, True
        if not self._readable(key, entry):
            # Where what was forgotten is not known, it may turn out to be good.
            known = self._epochs.stamp() is not None
            self._count(f"forgotten: {tier}")
            return None, known
        verdict: Verdict = judge(entry.stored_at, self._wall() if now is None else now, rules, asked)
        if verdict.freshness in {Freshness.EXPIRED, Freshness.BYPASS}:
            self._count(f"expired: {tier}")
            return None, verdict.useless
        return Found(entry, verdict.freshness, verdict.age, tier), False

    def _readable(self, key: ResponseKey, entry: ResponseEntry) -> bool:
        return self._epochs.readable(tag_of(key), model_tag(entry.model), entry.stamp, entry.stored_at, entry.openings)

    def _remember(self, key: ResponseKey, entry: ResponseEntry) -> bool:
        """In memory."""
        at, frame = store_key(key), encode_entry(key, entry)
        with suppress(StoreError):
            self._memory.remove(at)
            kept = self._memory.write(at, [frame], frame_info(key, entry))
            # Forgotten while it was written, and perhaps after memory was purged.
            if kept and not self._readable(key, entry):
                self._memory.remove(at)
                return False
            return kept
        return False

    def _has_newer(self, at: ChunkKey, stored_at: float) -> bool:
        """Did memory get another one while the slower tiers were asked?"""
        with suppress(StoreError):
            head = decode_head(self._memory.read(at, HEAD_BYTES) or b"")
            return head is not None and head.stored_at >= stored_at
        return True

    def _tell(self, found: Found | None, tier: Tier | None) -> None:
        if found is not None:
            self._count(f"{'hit' if found.freshness is Freshness.FRESH else 'stale'}: {tier}")


class _Question(NamedTuple):
    key: ResponseKey
    rules: FreshnessRules
    asked: CacheDirectives
    now: float | None


class _Walk(NamedTuple):
    """A tier to look through."""

    tier: Tier
    keys: Callable[[bytes], Iterator[ChunkKey]]
    read: Callable[[ChunkKey, int], bytes | None]
    remove: Callable[[ChunkKey], bool | None]
    """None: that has failed."""
    entry_keys: EntryKeys | None
    """With which its entries are encrypted."""

    def purge(self, rule: ForgetRule, *, dry_run: bool, deadline: float) -> tuple[int, bool]:
        """How many entries the rule is about, and whether all were looked at and none is left. They are removed, as are
        damaged ones.
        """
        n, whole = 0, True
        try:
            for key in self.keys(rule.scope or b""):
                if time.monotonic() > deadline:
                    return n, False
                if self._is_meant(key, rule):
                    removed = dry_run or self.remove(key)
                    n += removed is True
                    whole = whole and removed is not None
        except StoreError:
            return n, False
        return n, whole

    def _is_meant(self, key: ChunkKey, rule: ForgetRule) -> bool:
        if rule.is_all:
            return True
        head = decode_head(self.read(key, HEAD_BYTES) or b"")
        if head is None or rule.prefix is None:
            return head is None or rule.may_cover(tag_of(head.key), head.model, head.stored_at)
        if not rule.may_cover(tag_of(head.key), head.model, head.stored_at):
            return False
        # With a limit, so that it is no use of the entry; its seal is checked when it is decoded.
        entry = decode_entry(head.key, self.read(key, _WHOLE) or b"", self.entry_keys)
        return entry is None or rule.prefix.matches(entry.openings)
