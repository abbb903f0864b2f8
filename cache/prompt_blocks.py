"""A bounded cache from prompt text to its block hashes: what was seen before is never tokenized again.

A text is cut into pieces (`text_pieces`); a piece is known by a chained 128-bit hash of everything before it and of
itself, and remembers the block hashes which it completes and the tokens left over. A whole text is known by one hash
more, so a prompt seen before costs one pass of xxh3 over it. Keys begin with the `ChainKey`, so prompts under different
salts, models or adapters share nothing.

Two 128-bit hashes that collide would give a prompt another's block hashes: it would be sent to the wrong worker, and no
data would leave its owner. Only `start`, `finish` and `hash_ids` touch the cache, on one thread.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from sys import getsizeof
from typing import TYPE_CHECKING

from xxhash import xxh3_128_digest

from cache.block_hash import TOKEN_BYTES, ChainKey, encode_key, extend_chain, root_hash
from cache.text_pieces import PieceCutter
from policies.types import BlockHash, TokenIds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cache.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PromptBlocks:
    """The leading full blocks of a prompt."""

    hashes: Sequence[BlockHash]
    """One for each full block, in order. Never changed once handed out."""
    n_tokens: int
    """Tokens known, those of the last, partial block included."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one piece adds to the chain, given all pieces before it."""

    hashes: array[int]
    """Hashes of the blocks completed in this piece: unsigned 64-bit, 8 bytes each."""
    tip: BlockHash
    """Hash of the last full block so far, or the root."""
    remainder: TokenIds
    """Tokens behind the last full block: fewer than a block."""
    n_tokens: int
    """Tokens of this and all pieces before."""


@dataclass(frozen=True, slots=True)
class PromptScan:
    """How much of one prompt is known. A value: it stays valid whatever the cache drops."""

    known: PromptBlocks
    """The leading part whose tokens are known."""
    complete: bool
    """Is the whole prompt known?"""
    tail_chars: int
    """Characters whose tokens are not known."""
    text: str
    key: ChainKey
    add_special_tokens: bool
    _whole_key: bytes
    _node_key: bytes
    _tip: BlockHash
    _remainder: TokenIds


@dataclass(frozen=True, slots=True)
class EncodedTail:
    """Tokens of (a leading part of) a scan's unknown tail, ready to be stored."""

    pieces: tuple[tuple[bytes, _Piece], ...]
    """Keys and contents, in the text's order."""
    chars: int
    """Characters tokenized."""
    complete: bool
    """Does it reach the end of the text?"""
