"""Token ids from a worker's own `/tokenize`, remembered: for models whose tokenizer is known to their workers alone.

Asking a worker takes a round trip, so an answer is kept under a digest of the whole prompt (its canonical text, see
`text_blocks`) and a retry or a second worker needs none. Nothing is known of how a prompt that goes on would be
tokenized: a longer one is asked for again, and until its answer comes, text mode speaks for it.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from sys import byteorder, getsizeof
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from xxhash import xxh3_128_digest

from policies.types import TokenIds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cache.text_blocks import TextBytes

_TABLE_BYTES: Final = 128
"""What an OrderedDict takes for an entry, its share of the free slots included."""


class RemoteTokenizeError(Exception):
    """A worker's answer that holds no token ids."""


class Tokenizes(Protocol):
    """Somebody who tokenizes as the engine does, over the network perhaps. Both raise `RemoteTokenizeError` where no
    ids can be had, and wait no longer than the implementation's deadline.
    """

    async def tokenize_chat(self, fields: Mapping[str, object]) -> TokenIds:
        """Ids of the chat in a request's body, rendered with the generation prompt."""

    async def tokenize_text(self, text: str, *, add_special_tokens: bool) -> TokenIds:
        """Ids of a completion's prompt."""


class _Answer(msgspec.Struct):
    tokens: list[int]


_decoder = msgspec.json.Decoder(_Answer)


def read_tokens(body: bytes, *, max_tokens: int) -> TokenIds:
    """The ids in the answer of vLLM's or SGLang's `/tokenize`: `{"tokens": [...], "count": ...}`.

    Raises RemoteTokenizeError when there are none, more than `max_tokens`, or one is beyond 32 bits.
    """
    if len(body) > 32 * max_tokens + 4096:
        message = f"an answer of {len(body)} bytes to /tokenize; the prompt may have {max_tokens} tokens"
        raise RemoteTokenizeError(message)
    try:
        ids = array("I", _decoder.decode(body).tokens)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        message = "not an answer to /tokenize"
        raise RemoteTokenizeError(message) from error
    if len(ids) > max_tokens:
        message = f"{len(ids)} tokens from /tokenize; the prompt may have {max_tokens}"
        raise RemoteTokenizeError(message)
    if byteorder == "big":
        ids.byteswap()
    return TokenIds(ids.tobytes())


class RemoteTokens:
    """The answers of all workers of one tokenizer, the least recently used dropped first. One thread, that of the loop.

    Ids are kept, not block hashes: adapters, salts and block sizes differ by request and worker, and hashing 8,000
    ids takes 40 microseconds.
    """

    def __init__(self, *, max_bytes: int) -> None:
        """`max_bytes` bounds its memory, the table included."""
        self.max_bytes = max_bytes
        self.bytes = 0
        """Memory held."""
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[bytes, TokenIds] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, text: TextBytes, *, add_special_tokens: bool = False) -> TokenIds | None:
        """The ids of a prompt that was asked for before."""
        key = _key(text, add_special_tokens=add_special_tokens)
        ids = self._entries.get(key)
        if ids is None:
            self.misses += 1
            return None
        self._entries.move_to_end(key)
        self.hits += 1
        return ids

    def remember(self, text: TextBytes, ids: TokenIds, *, add_special_tokens: bool = False) -> None:
        """Keep an answer, unless it alone is beyond the bound."""
        key = _key(text, add_special_tokens=add_special_tokens)
        if _size(key, ids) > self.max_bytes:
            return
        old = self._entries.pop(key, None)
        if old is not None:
            self.bytes -= _size(key, old)
        self._entries[key] = ids
        self.bytes += _size(key, ids)
        while self.bytes > self.max_bytes:
            key, dropped = self._entries.popitem(last=False)
            self.bytes -= _size(key, dropped)


def _key(text: TextBytes, *, add_special_tokens: bool) -> bytes:
    return xxh3_128_digest(text, seed=int(add_special_tokens))


def _size(key: bytes, ids: TokenIds) -> int:
    """Bytes that the allocator gives for the two objects, rounded up to 16, and the table's."""
    return (getsizeof(key) + 15 & ~15) + (getsizeof(ids) + 15 & ~15) + _TABLE_BYTES
