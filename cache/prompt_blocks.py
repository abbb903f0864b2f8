"""A bounded cache from prompt text to its block hashes: what was seen before is never tokenized again.

A text is cut into pieces (`text_pieces`). A piece is known by a chained 128-bit hash of the `ChainKey`, of
everything before it and of itself; it remembers the hashes of the blocks which it completes and the tokens
left over. A whole text is known by one hash more, so a prompt seen before costs one pass of xxh3 over it.
Prompts under different salts, models or adapters share nothing.

Should two 128-bit hashes collide, a prompt gets another's block hashes: it is sent to the wrong worker, and
no data leaves its owner.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from itertools import pairwise
from struct import Struct
from sys import getsizeof
from typing import TYPE_CHECKING, NamedTuple, NewType, cast

from xxhash import xxh3_128_digest

from cache.block_hash import TOKEN_BYTES, ChainKey, encode_key, extend_chain, root_hash
from cache.text_pieces import PieceCutter
from policies.types import BlockHash, TokenIds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cache.tokenizer import Tokenizer

LONGEST_PIECE = 4
"""In `piece_chars`: nearly all text has a place to cut by then."""
_LONG_PIECES = 128
"""In `piece_chars`: the sum of the longer pieces that one lookup walks over, at some 10 ns a character."""

_PieceKey = NewType("_PieceKey", bytes)
"""128-bit chained hash of a piece and all before it, or of a whole text."""

_Entry = NewType("_Entry", bytes)
"""What is known of a piece, packed: a third of the memory of an object with fields."""

_Ascii = NewType("_Ascii", bytes)


class PromptBlocks(NamedTuple):
    """The leading full blocks of a prompt."""

    hashes: Sequence[BlockHash]
    """One for each full block, in order. Never changed once handed out."""
    n_tokens: int
    """Tokens known, those of the last, partial block included."""


class _Position(NamedTuple):
    """A place in a prompt up to which its tokens are known."""

    offset: int
    """Characters of the text before it."""
    key: _PieceKey
    """Of the last piece before it, or of the `ChainKey`."""
    tip: BlockHash
    """Hash of the last full block, or the root."""
    remainder: TokenIds
    """Tokens behind the last full block."""


class PromptScan(NamedTuple):
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
    whole_key: _PieceKey
    position: _Position


class EncodedTail(NamedTuple):
    """Tokens of a scan's unknown tail, or of its leading part, as the cache stores them."""

    pieces: tuple[tuple[_PieceKey, _Entry], ...]
    """Key and contents of each piece that ends in a cut, in the text's order."""
    hashes: array[int]
    """Hashes of the blocks that the tail completes."""
    n_tokens: int
    """Tokens of the prompt up to `position`."""
    position: _Position
    complete: bool
    """Does it reach the end of the text?"""


class PromptBlockCache:
    """See the module. `encode` may be called from any thread; all else on one thread, that of the loop."""

    def __init__(self, tokenizer: Tokenizer, *, max_bytes: int, piece_chars: int = 2048) -> None:
        """`max_bytes` bounds the cache's own memory, the table and the allocator's rounding included."""
        self._tokenizer = tokenizer
        self._cutter = PieceCutter(tokenizer, piece_chars=piece_chars)
        self.longest_piece = LONGEST_PIECE * piece_chars
        """Characters; a piece longer than this is tokenized only by an `encode` without `max_chars`."""
        # An OrderedDict, for a plain dict finds its oldest entry by walking over all that were dropped before
        # it.
        self._entries: OrderedDict[_PieceKey, _Entry] = OrderedDict()
        self._entry_bytes = 0
        self._origins: dict[tuple[ChainKey, bool], tuple[_PieceKey, BlockHash]] = {}
        self.max_bytes = max_bytes
        self.hits = 0
        """Prompts that were wholly known."""
        self.misses = 0
        """Prompts with an unknown tail."""
        self.reused_chars = 0
        """Characters whose tokens were known."""
        self.new_chars = 0
        """Characters whose tokens were not known."""

    @property
    def bytes(self) -> int:
        """Memory held: entries as the allocator rounds them, and the table."""
        return self._entry_bytes + getsizeof(self._entries)

    def __len__(self) -> int:
        """Entries: pieces and whole prompts."""
        return len(self._entries)

    def start(self, key: ChainKey, text: str, *, add_special_tokens: bool) -> PromptScan:
        """Look up what is known of a prompt, without tokenizing: O(len(text)) hashing.

        Raises UnicodeEncodeError, a ValueError, when the text has a lone surrogate.
        """
        ascii_data = _Ascii(text.encode("ascii")) if text.isascii() else None
        # UTF-16 takes a third of the time of UTF-8 when there is one character beyond ASCII; the digest is
        # ours alone.
        data = text.encode("utf-16-le") if ascii_data is None else ascii_data
        origin, root = self._origin(key, add_special_tokens=add_special_tokens)
        whole_key = _PieceKey(xxh3_128_digest(b"".join((origin, _WIDE if ascii_data is None else _WHOLE, data))))
        whole = self._entries.get(whole_key)
        if whole is not None:
            self._entries.move_to_end(whole_key)
            self.hits += 1
            self.reused_chars += len(text)
            hashes, n_tokens, tip, remainder = _unpack(whole)
            position = _Position(len(text), whole_key, tip, remainder)
        else:
            prefix = self._cutter.prefix if add_special_tokens else TokenIds(b"")
            hashes, n_tokens, position = self._walk(ascii_data, text, _Position(0, origin, root, prefix))
            self.misses += 1
            self.reused_chars += position.offset
            self.new_chars += len(text) - position.offset
        return PromptScan(
            known=_blocks(hashes, n_tokens),
            complete=whole is not None,
            tail_chars=len(text) - position.offset,
            text=text,
            key=key,
            add_special_tokens=add_special_tokens,
            whole_key=whole_key,
            position=position,
        )

    def _origin(self, key: ChainKey, *, add_special_tokens: bool) -> tuple[_PieceKey, BlockHash]:
        """Where the pieces and the blocks of all prompts under `key` start; the last ones used are remembered."""
        found = self._origins.get((key, add_special_tokens))
        if found is None:
            if len(self._origins) >= _MAX_ORIGINS:
                self._origins.clear()
            digest = xxh3_128_digest(encode_key(key) + (b"\1" if add_special_tokens else b"\0"))
            found = self._origins[key, add_special_tokens] = (_PieceKey(digest), root_hash(key))
        return found

    def _walk(self, ascii_data: _Ascii | None, text: str, position: _Position) -> tuple[array[int], int, _Position]:
        """Follow the known pieces from the start of the text: their hashes, tokens and end."""
        entries, next_cut, length = self._entries, self._cutter.next_cut, len(text)
        offset, key = position.offset, position.key
        last = None
        walked, chunks = [], []
        room = _LONG_PIECES * self._cutter.piece_chars
        while (cut := next_cut(text, offset)) < length:
            # Long pieces are those whose end took a search; their number is bounded, as the time here is the loop's.
            if cut - offset > self.longest_piece:
                room -= cut - offset
                if room < 0:
                    break
            # In ASCII text, characters and bytes have the same places.
            piece = text[offset:cut].encode() if ascii_data is None else ascii_data[offset:cut]
            piece_key = _PieceKey(xxh3_128_digest(key + _PIECE + piece))
            entry = entries.get(piece_key)
            if entry is None:
                break
            offset, key, last = cut, piece_key, entry
            walked.append(piece_key)
            chunks.append(_packed_hashes(entry))
        if last is None:
            return array("Q"), len(position.remainder) // TOKEN_BYTES, position
        # The first piece last: a piece whose forerunner is dropped first could no longer be reached.
        for piece_key in reversed(walked):
            entries.move_to_end(piece_key)
        _, n_tokens, tip, remainder = _unpack(last)
        hashes = array("Q")
        hashes.frombytes(b"".join(chunks))
        return hashes, n_tokens, _Position(offset, key, tip, remainder)

    def encode(self, scan: PromptScan, *, max_chars: int | None = None) -> EncodedTail:
        """Tokenize the unknown tail, or with `max_chars` its leading pieces that fit, and at least one.

        But with `max_chars`, where the first piece is longer than that and longer than `longest_piece`, nothing is
        tokenized: the result has the scan's own `position`, and `complete` is False. Such text (hexadecimal, one
        letter a million times) is for a call without `max_chars`, in a thread.

        Thread-safe, changes nothing. Long text takes long: about 0.3 ms (fastokens) or 10 ms (tokenizers) for
        32,000 characters; see `Tokenizer` for the GIL.
        """
        text, (offset, key, tip, remainder) = scan.text, scan.position
        limit = len(text) if max_chars is None else offset + max_chars
        bounds = [offset]
        longest = limit if max_chars is None else max(limit, offset + self.longest_piece)
        for cut in self._cutter.cuts(text, offset):
            if cut > (limit if len(bounds) > 1 else longest):
                break
            bounds.append(cut)
        texts = [text[start:end] for start, end in pairwise(bounds)]
        if not self._cutter.separable and scan.add_special_tokens:
            parts = [self._tokenizer.encode(text, add_special_tokens=True)]
        else:
            parts = self._tokenizer.encode_many(texts)
        complete = bounds[-1] == len(text)
        if not complete and not texts:
            return EncodedTail((), array("Q"), scan.known.n_tokens, scan.position, complete=False)
        if complete and scan.add_special_tokens:
            parts = [*parts[:-1], TokenIds((parts[-1] if parts else b"") + self._cutter.suffix)]
        block_size, n_tokens = scan.key.block_size, scan.known.n_tokens
        hashes, pieces = array("Q"), []
        for i, part in enumerate(parts):
            ids = TokenIds(remainder + part)
            chain = extend_chain(tip, ids, block_size)
            tip = chain[-1] if chain else tip
            remainder = TokenIds(ids[len(chain) * block_size * TOKEN_BYTES :])
            n_tokens += len(part) // TOKEN_BYTES
            more = array("Q", chain)
            hashes += more
            # What ends with the text ends in no cut: it is a part of the whole prompt's entry only.
            if i < len(texts) - complete:
                key = _PieceKey(xxh3_128_digest(key + _PIECE + texts[i].encode()))
                pieces.append((key, _pack(more, n_tokens, tip, remainder)))
        return EncodedTail(tuple(pieces), hashes, n_tokens, _Position(bounds[-1], key, tip, remainder), complete)

    def finish(self, scan: PromptScan, tail: EncodedTail) -> PromptScan:
        """Store what `encode` made of `scan`; returns the scan that knows it, complete if the tail was."""
        for key, entry in reversed(tail.pieces):
            self._store(key, entry)
        hashes = array("Q", scan.known.hashes)
        hashes += tail.hashes
        position = tail.position
        if tail.complete:
            self._store(scan.whole_key, _pack(hashes, tail.n_tokens, position.tip, position.remainder))
        self._evict()
        return scan._replace(
            known=_blocks(hashes, tail.n_tokens),
            complete=tail.complete,
            tail_chars=len(scan.text) - position.offset,
            position=position,
        )

    @staticmethod
    def hash_ids(key: ChainKey, ids: TokenIds) -> PromptBlocks:
        """Blocks of a prompt that comes as token ids; nothing is cached, hashing is all there is to do."""
        return PromptBlocks(extend_chain(root_hash(key), ids, key.block_size), len(ids) // TOKEN_BYTES)

    def _store(self, key: _PieceKey, entry: _Entry) -> None:
        # Another prompt may have stored it meanwhile; the contents are the same.
        if key not in self._entries:
            self._entries[key] = entry
            self._entry_bytes += _allocated(key, entry)
        self._entries.move_to_end(key)

    def _evict(self) -> None:
        while self._entries and self.bytes > self.max_bytes:
            key, entry = self._entries.popitem(last=False)
            self._entry_bytes -= _allocated(key, entry)


_MAX_ORIGINS = 1024
_PIECE = b"piece"
_WHOLE = b"whole"
_WIDE = b"whole, UTF-16"

_HEADER = Struct("<QII")
"""Of an entry: tip, tokens up to its end, count of hashes; the hashes (native u64) and remainder follow."""


def _pack(hashes: array[int], n_tokens: int, tip: BlockHash, remainder: TokenIds) -> _Entry:
    return _Entry(b"".join((_HEADER.pack(tip, n_tokens, len(hashes)), hashes.tobytes(), remainder)))


def _packed_hashes(entry: _Entry) -> bytes:
    return entry[_HEADER.size : _HEADER.size + 8 * _HEADER.unpack_from(entry)[2]]


def _unpack(entry: _Entry) -> tuple[array[int], int, BlockHash, TokenIds]:
    tip, n_tokens, _ = _HEADER.unpack_from(entry)
    packed = _packed_hashes(entry)
    hashes = array("Q")
    hashes.frombytes(packed)
    return hashes, n_tokens, BlockHash(tip), TokenIds(entry[_HEADER.size + len(packed) :])


def _blocks(hashes: array[int], n_tokens: int) -> PromptBlocks:
    # An array keeps 8 bytes a block, where a list of the same integers keeps 40.
    return PromptBlocks(cast("Sequence[BlockHash]", hashes), n_tokens)


def _allocated(key: _PieceKey, entry: _Entry) -> int:
    """Bytes that the allocator gives for the two objects: it rounds up to 16."""
    return (getsizeof(key) + 15 & ~15) + (getsizeof(entry) + 15 & ~15)
