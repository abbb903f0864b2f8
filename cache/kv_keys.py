"""Keys under which the KV of chunks is stored: SHA-256 chained over everything that decides what the KV is.

Whoever holds a key may fetch data by it, so unlike the hashes that steer requests (`block_hash`) these are of a
cryptographic hash, and contain the tenant's salt and a digest of the model's weights. A salt should be hard to guess
(a MAC of the tenant's name, say): who can guess it and the prompt knows the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Final

from cache.block_hash import TOKEN_BYTES
from cache.store import ChunkKey
from policies.types import TokenIds

DIGEST_BYTES: Final = 32
"""Bytes of a key and of a model's fingerprint."""

_DOMAIN: Final = b"prefixgate kv chunk v1"
_SCALE_BYTES: Final = 4


class Dtype(StrEnum):
    """What the pool's numbers are."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"

    @property
    def itemsize(self) -> int:
        """Bytes of one number."""
        return _ITEM_BYTES[self]


_ITEM_BYTES: Final = {Dtype.BF16: 2, Dtype.FP16: 2, Dtype.FP32: 4, Dtype.FP8_E4M3: 1, Dtype.FP8_E5M2: 1}


class Codec(StrEnum):
    """How the pool's numbers are stored."""

    RAW = "raw"
    """As they are: what is restored is what was computed, bit by bit."""
    INT8 = "int8"
    """One signed byte each, with a scale for each head's vector (see `kv_int8`): half as much, and not the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The shape of KV: two workers that differ in any of it share nothing.

    The layout is the pool's, block-major: `[block][layer][K|V][token][head][dim]`, without gaps, numbers little-endian.
    One block is one contiguous run of bytes. Raises ValueError for a number that is not from 1 to 2**32 - 1.
    """

    n_layers: int
    kv_heads: int
    head_dim: int
    block_size: int
    """Tokens in a block."""
    dtype: Dtype
    codec: Codec = Codec.RAW

    def __post_init__(self) -> None:
        for name, number in zip(("n_layers", "kv_heads", "head_dim", "block_size"), self.numbers, strict=True):
            if not 0 < number < 1 << 32:
                raise ValueError(f"{name} must be from 1 to 2**32 - 1, not {number}")

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """Layers, KV heads, dimensions of a head, tokens in a block."""
        return self.n_layers, self.kv_heads, self.head_dim, self.block_size

    @property
    def vectors(self) -> int:
        """Vectors of `head_dim` numbers in a block."""
        return self.n_layers * 2 * self.block_size * self.kv_heads

    @property
    def pool_bytes(self) -> int:
        """Bytes of a block in the pool."""
        return self.vectors * self.head_dim * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in a frame."""
        if self.codec is Codec.RAW:
            return self.pool_bytes
        return self.vectors * (_SCALE_BYTES + self.head_dim)


def chunk_key(
    parent: ChunkKey | None,
    fingerprint: bytes,
    geometry: Geometry,
    salt: bytes,
    token_ids: TokenIds,
    *,
    first_token: int,
    adapter: str = "",
    image_digests: Sequence[bytes] = (),
) -> ChunkKey:
    """The key of the chunk of `token_ids` after `parent`; None: it begins the prompt.

    Each field is a type tag, a length (u64 little-endian) and that many bytes; a list is a field whose length counts
    its items. All are always there and in this order, so no two sets of values have the same bytes. Raises ValueError
    where a digest is not 32 bytes, or the tokens are not whole ids.
    """
    head = _head(fingerprint, geometry, salt, adapter, image_digests)
    return _key(head, parent, first_token, token_ids)


def chunk_keys(
    fingerprint: bytes,
    geometry: Geometry,
    salt: bytes,
    token_ids: TokenIds,
    *,
    chunk_tokens: int,
    adapter: str = "",
    image_digests: Sequence[bytes] = (),
) -> Iterator[ChunkKey]:
    """The key of each whole chunk of `chunk_tokens` from the prompt's beginning on, chained; a remainder has none.

    Raises ValueError where `chunk_tokens` is not a multiple of the block size, and as `chunk_key` does.
    """
    if chunk_tokens <= 0 or chunk_tokens % geometry.block_size:
        raise ValueError(f"a chunk is whole blocks of {geometry.block_size} tokens, not {chunk_tokens}")
    head = _head(fingerprint, geometry, salt, adapter, image_digests)
    parent = None
    for first in range(0, len(token_ids) // TOKEN_BYTES - chunk_tokens + 1, chunk_tokens):
        ids = TokenIds(token_ids[first * TOKEN_BYTES : (first + chunk_tokens) * TOKEN_BYTES])
        parent = _key(head, parent, first, ids)
        yield parent


def _head(fingerprint: bytes, geometry: Geometry, salt: bytes, adapter: str, image_digests: Sequence[bytes]) -> bytes:
    """The fields that all chunks of a prompt have in common."""
    return b"".join(
        [
            _field(b"D", _DOMAIN),
            _field(b"F", _digest(fingerprint, "a fingerprint")),
            *(_number(number) for number in geometry.numbers),
            _field(b"S", geometry.dtype.encode()),
            _field(b"S", geometry.codec.encode()),
            _field(b"B", salt),
            _field(b"S", adapter.encode("utf-8", "surrogatepass")),
            b"L" + len(image_digests).to_bytes(8, "little"),
            *(_field(b"B", digest) for digest in image_digests),
        ]
    )


def _key(head: bytes, parent: ChunkKey | None, first_token: int, token_ids: TokenIds) -> ChunkKey:
    if not token_ids or len(token_ids) % TOKEN_BYTES:
        raise ValueError(f"tokens are at least one id of {TOKEN_BYTES} bytes, not {len(token_ids)} bytes")
    before = b"" if parent is None else _digest(parent, "a parent")
    fields = _field(b"P", before), _number(first_token), _field(b"T", token_ids)
    return ChunkKey(sha256(head + b"".join(fields)).digest())


def _digest(value: bytes, what: str) -> bytes:
    if len(value) != DIGEST_BYTES:
        raise ValueError(f"{what} is {DIGEST_BYTES} bytes, not {len(value)}")
    return value


def _number(value: int) -> bytes:
    return _field(b"I", value.to_bytes(8, "little"))


def _field(tag: bytes, value: bytes) -> bytes:
    return tag + len(value).to_bytes(8, "little") + value
