"""A sequence's KV as chunks for stores: which tokens, under which key. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Final

from backends.worker.engine.sequence import Sequence
from cache.kv_codec import FrameSpec
from cache.kv_keys import Geometry, chunk_keys
from cache.store import ChunkKey

_WANTED_BYTES: Final = 3 << 20
"""Of a chunk: large enough for a store's bandwidth to count and not its latency."""
_MOST_BLOCKS: Final = 4
"""A prompt's remainder that fills no chunk is not stored: with small models chunks are kept short for it."""


@dataclass(frozen=True, slots=True)
class Chunking:
    """How prompts of one model are cut. A chunk is whole blocks, and the same ones wherever it is found."""

    fingerprint: bytes
    """Digest of the model's weights, 32 bytes."""
    geometry: Geometry

    @property
    def n_blocks(self) -> int:
        """Blocks in a chunk."""
        return max(1, min(_MOST_BLOCKS, round(_WANTED_BYTES / self.geometry.block_bytes)))

    @property
    def n_tokens(self) -> int:
        """Tokens in a chunk."""
        return self.n_blocks * self.geometry.block_size

    def frames(self, sequence: Sequence, n_tokens: int, *, first: int = 0) -> list[FrameSpec]:
        """The whole chunks of the sequence's leading `n_tokens` tokens, from chunk number `first` on."""
        salt = _encoded(sequence.request.salt)
        size = self.n_tokens
        keys: list[ChunkKey] = list(
            chunk_keys(
                self.fingerprint,
                self.geometry,
                salt,
                sequence.token_bytes(0, n_tokens),
                chunk_tokens=size,
            )
        )
        return [
            FrameSpec(
                key=key,
                parent=keys[at - 1] if at else None,
                fingerprint=self.fingerprint,
                geometry=self.geometry,
                first_token=at * size,
                n_tokens=size,
                salt=salt,
            )
            for at, key in zip(count(first), keys[first:], strict=False)
        ]


def owner_tenant(owner: str) -> str:
    """What stores call whoever is told as the owner of KV; no salt looks like it."""
    return f"owner {owner}"


def tenant_of(salt: str) -> str:
    """What stores are told as the tenant of frames under a salt."""
    return _encoded(salt).hex()


def _encoded(salt: str) -> bytes:
    return salt.encode("utf-8", "surrogatepass")
