"""Under which salt an engine stored a prompt, where its events may not tell.

A salt is part of the hash of a prompt's first block, so an engine keeps salted and unsalted blocks apart. Newer
releases tell the salt (vLLM in `extra_keys`, SGLang in `cache_salt`); of older ones an event of a salted block looks
just like that of an unsalted one. Filed as unsalted it would promise others what the engine will not honour.

So while requests with a salt are under way to a worker that was never heard to tell one, an event that begins a prompt
needs evidence: it belongs to the one chain, salted or not, of which its blocks are predicted on that worker (or known
under the same engine hash). Where there is none, or more than one, the blocks are left out, and for them only
predictions speak. A worker that no salted request is under way to is believed: what others may have sent it past this
gateway, nobody can know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xxhash import xxh3_64_intdigest

from cache.block_hash import TOKEN_BYTES, extend_chain
from policies.types import BlockHash, Tier

if TYPE_CHECKING:
    from cache.kv_events import BlockStored
    from cache.worker_blocks import WorkerBlocks

_MAX_SALTS: Final = 64
"""Salts under way to one worker that are tried, each with one hash; prompts with an older one are left out."""


def note_salt(state: WorkerBlocks, salt: str, until: float) -> None:
    """A request with this salt goes to the worker: its events may come until then."""
    if state.salts_told:
        return
    salts = state.salts
    salts[salt] = max(until, salts.pop(salt, until))
    if len(salts) > _MAX_SALTS:
        del salts[next(iter(salts))]


def lapse_salts(state: WorkerBlocks, now: float) -> None:
    """Forget the salts of requests that are no longer under way."""
    for salt in [salt for salt, until in state.salts.items() if until <= now]:
        del state.salts[salt]


def root_of(state: WorkerBlocks, event: BlockStored, rank: int) -> BlockHash | None:
    """Our parent of the event's blocks, which begin a prompt; None where it cannot be known."""
    if event.salt is not None:
        state.salts_told = True
        state.salts.clear()
    if state.salts_told or not state.salts:
        return state.root(event.adapter, event.salt or "", event.block_size)
    first = event.token_ids[: TOKEN_BYTES * event.block_size]
    known = _known(state, event, rank)
    found: list[BlockHash] = []
    for salt in ("", *state.salts):
        root = state.root(event.adapter, salt, event.block_size)
        block = BlockHash(xxh3_64_intdigest(first, root))
        if block == known:
            return root
        if block in state.predicted:
            found.append(root)
    if known is not None:
        # Told before under a salt that is known no longer.
        return None
    if len(found) > 1:
        # Prompts that begin alike, with a system prompt perhaps: the last block tells more.
        chains = [extend_chain(root, event.token_ids, event.block_size) for root in found]
        found = [root for root, chain in zip(found, chains, strict=True) if chain[-1] in state.predicted]
    return found[0] if len(found) == 1 else None


def _known(state: WorkerBlocks, event: BlockStored, rank: int) -> BlockHash | None:
    """What the event's first block is, where the engine has told of it before."""
    for tier in Tier:
        engines = state.engines.get((rank, tier))
        if engines is not None and (block := engines.get(event.block_hashes[0])) is not None:
            return block
    return None
