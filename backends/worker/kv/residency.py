"""What the stores hold of what this worker has come across, and the KV events that tell of it.

Stores know frames by digests; the gateway knows blocks by hashes of their tokens. In between stands what is kept here
of each chunk that was written or looked for: its block hashes and tokens, some hundred bytes. A chunk that nobody asks
for is forgotten when there are too many, and the gateway told that it is gone: it may be believed to hold less than it
does, never more. Of what a store held before this process began the gateway hears when it is first looked for.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence as Items
from typing import Final, NamedTuple

from backends.worker.engine.sequence import Sequence
from cache.kv_codec import FrameSpec
from cache.kv_events import BlockRemoved, BlockStored, EngineHash, KvEvent
from cache.store import ChunkKey
from policies.types import Tier, TokenIds

MOST_CHUNKS: Final = 1 << 16

_MEDIUM: Final = {Tier.HOST: "CPU", Tier.DISK: "DISK", Tier.REDIS: "REDIS"}
"""As engines name them in events."""


class _Chunk:
    __slots__ = ("hashes", "parent", "salt", "tiers", "token_ids")

    def __init__(
        self, hashes: tuple[EngineHash, ...], parent: EngineHash | None, token_ids: TokenIds, salt: str
    ) -> None:
        self.hashes = hashes
        self.parent = parent
        self.token_ids = token_ids
        self.salt = salt
        self.tiers: set[Tier] = set()
        """Where the gateway was told that it is."""


class _News(NamedTuple):
    tier: Tier
    chunk: _Chunk
    here: bool


class Residency:
    """Safe to be used by several threads; all but `take_events` only note."""

    def __init__(self, block_size: int, *, most: int = MOST_CHUNKS) -> None:
        self._block_size = block_size
        self._most = most
        self._chunks: OrderedDict[ChunkKey, _Chunk] = OrderedDict()  # those used last at the end
        self._news: list[_News] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Chunks that it knows."""
        return len(self._chunks)

    @property
    def has_news(self) -> bool:
        """Is there anything to tell?"""
        return bool(self._news)

    def name(self, sequence: Sequence, specs: Items[FrameSpec]) -> None:
        """These chunks of a sequence, of which the hashes are known, are about to be written or looked for."""
        size = self._block_size
        with self._lock:
            for spec in specs:
                if spec.key in self._chunks:
                    self._chunks.move_to_end(spec.key)
                    continue
                first, n_blocks = spec.first_token // size, spec.n_tokens // size
                hashes = tuple(map(EngineHash, sequence.hashes[first : first + n_blocks]))
                parent = EngineHash(sequence.hashes[first - 1]) if first else None
                ids = sequence.token_bytes(spec.first_token, spec.first_token + spec.n_tokens)
                self._chunks[spec.key] = _Chunk(hashes, parent, ids, sequence.request.salt)
            while len(self._chunks) > self._most:
                _, chunk = self._chunks.popitem(last=False)
                self._news += [_News(tier, chunk, here=False) for tier in chunk.tiers]

    def moved(self, tier: Tier, key: ChunkKey, here: bool) -> None:
        """A store got a frame, has it, or has it no longer."""
        with self._lock:
            chunk = self._chunks.get(key)
            if chunk is None or (tier in chunk.tiers) is here:
                return
            if here:
                chunk.tiers.add(tier)
            else:
                chunk.tiers.remove(tier)
            self._news.append(_News(tier, chunk, here))

    def forget(self) -> None:
        """The gateway was told that all is gone: what is found again is told again."""
        with self._lock:
            for chunk in self._chunks.values():
                chunk.tiers.clear()
            self._news.clear()

    def take_events(self) -> tuple[KvEvent, ...]:
        """What has changed since the last call, in order, in as few events as say the same."""
        with self._lock:
            news, self._news = self._news, []
        events: list[KvEvent] = []
        run: list[_News] = []
        for each in news:
            if run and not _continues(run[-1], each):
                events.append(self._event(run))
                run = []
            run.append(each)
        if run:
            events.append(self._event(run))
        return tuple(events)

    def _event(self, run: list[_News]) -> KvEvent:
        tier, first, here = run[0]
        medium = _MEDIUM[tier]
        hashes = tuple(block_hash for each in run for block_hash in each.chunk.hashes)
        if not here:
            return BlockRemoved(hashes, medium=medium)
        return BlockStored(
            hashes,
            first.parent,
            TokenIds(b"".join(each.chunk.token_ids for each in run)),
            self._block_size,
            medium=medium,
            salt=first.salt or None if first.parent is None else None,
        )


def _continues(before: _News, after: _News) -> bool:
    if (before.tier, before.here) != (after.tier, after.here):
        return False
    return not after.here or before.chunk.hashes[-1] == after.chunk.parent
