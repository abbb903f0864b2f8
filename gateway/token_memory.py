"""Remembers the token ids that workers told for prompts, and what follows from them for prompts that begin alike. Pure.

A prompt seen before is known as a whole. Of a new one the longest beginning that is known of another is looked up, at
marks: where a message begins, for there a conversation goes on, and every `MARK_BYTES` of text. How many tokens lie
before a mark is learnt exactly from two prompts that part behind it; before that it is estimated from below. An
estimate that is wrong costs a prefill, never an answer.
"""

from __future__ import annotations

from collections import OrderedDict
from sys import getsizeof
from typing import Final, NamedTuple

from xxhash import xxh3_64, xxh3_128, xxh3_128_digest

from cache.block_hash import TOKEN_BYTES
from cache.text_blocks import TOKEN_TEXT_BYTES, TextBytes
from policies.types import TokenIds

MARK_BYTES: Final = 512
_CAUTION: Final = 0.25
"""How much less than proportional an estimate is in the middle of a text, as a share of its nearer half."""
_MESSAGE: Final = b"\xff"
"""What a message begins with in the canonical form; no text holds it."""
_END_TOKENS: Final = 8
"""Tokens at the end of a prompt that a longer one need not share: the generation prompt, a word that goes on."""
_NEWEST: Final = 0.1
_RECORD_BYTES: Final = 320
_MARK_COST: Final = 320
"""What an entry of either table costs, with the objects it holds."""


class Known(NamedTuple):
    """The leading token ids of a prompt."""

    ids: TokenIds
    text_bytes: int
    """Of the text that they cover, about."""
    complete: bool


class _Mark(NamedTuple):
    """A place in a text."""

    at: int
    """Bytes before it."""
    hash: int
    """Of all of them."""


class _Record:
    """One prompt whose ids are known."""

    __slots__ = ("ids", "marks")

    def __init__(self, ids: TokenIds, marks: list[_Mark]) -> None:
        self.ids = ids
        self.marks = marks

    @property
    def bytes(self) -> int:
        return getsizeof(self.ids) + _RECORD_BYTES + len(self.marks) * _MARK_COST


class TokenMemory:
    """See the module. Bounded in bytes, the least recently used prompts are dropped first."""

    def __init__(self, *, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.tokens_per_byte = 1 / TOKEN_TEXT_BYTES
        """Of the texts remembered last, on average."""
        self._records: OrderedDict[bytes, _Record] = OrderedDict()
        self._marks: dict[int, tuple[_Record, bytes, int]] = {}
        """By the hash of all text before a mark: the record that has its tokens, its key, and how many."""

    def __len__(self) -> int:
        """Prompts remembered."""
        return len(self._records)

    def find(self, text: TextBytes, *, special: bool, salt: str = "") -> Known:
        """What is known of a prompt. `special` says that the engine adds special tokens to it. What is known under
        another cache salt is not: how long a prompt takes would tell who else has sent it.
        """
        key = _whole(text, special=special, salt=salt)
        whole = self._records.get(key)
        if whole is not None:
            self._records.move_to_end(key)
            return Known(whole.ids, len(text), complete=True)
        for mark in reversed(_marks(text, special=special, salt=salt)):
            entry = self._marks.get(mark.hash)
            if entry is not None:
                record, owner, n_tokens = entry
                self._records.move_to_end(owner)
                return Known(TokenIds(record.ids[: n_tokens * TOKEN_BYTES]), mark.at, complete=False)
        return Known(TokenIds(b""), 0, complete=False)

    def remember(self, text: TextBytes, ids: TokenIds, *, special: bool, salt: str = "") -> None:
        """Keep the ids of a whole prompt, unless they alone are beyond the bound."""
        if text:
            self.tokens_per_byte += _NEWEST * (len(ids) / TOKEN_BYTES / len(text) - self.tokens_per_byte)
        key = _whole(text, special=special, salt=salt)
        if key in self._records:
            self._forget(key)
        marks = _marks(text, special=special, salt=salt)
        record = _Record(ids, marks)
        if record.bytes > self.max_bytes:
            return
        self._records[key] = record
        self.bytes += record.bytes
        shared, common = self._shared(marks, ids)
        n_tokens = len(ids) // TOKEN_BYTES
        for mark in marks:
            before = self._marks.get(mark.hash)
            n_before = _estimate(n_tokens, mark.at, len(text)) if before is None else before[2]
            if mark.at == shared:
                n_before = common
            else:
                n_before = max(n_before, common) if mark.at > shared else min(n_before, common)
            self._marks[mark.hash] = (record, key, n_before)
        while self.bytes > self.max_bytes:
            self._forget(next(iter(self._records)))

    def _shared(self, marks: list[_Mark], ids: TokenIds) -> tuple[int, int]:
        """Where the last mark is that another prompt has too, and how many leading tokens the two share."""
        for mark in reversed(marks):
            entry = self._marks.get(mark.hash)
            if entry is not None:
                return mark.at, common_tokens(entry[0].ids, ids)
        return 0, 0

    def _forget(self, key: bytes) -> None:
        record = self._records.pop(key)
        self.bytes -= record.bytes
        for mark in record.marks:
            entry = self._marks.get(mark.hash)
            if entry is not None and entry[0] is record:
                del self._marks[mark.hash]


def common_tokens(a: TokenIds, b: TokenIds) -> int:
    """How many leading ids are equal."""
    low, high = 0, min(len(a), len(b)) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if a[low * TOKEN_BYTES : middle * TOKEN_BYTES] == b[low * TOKEN_BYTES : middle * TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low


def _estimate(n_tokens: int, before: int, length: int) -> int:
    """Tokens that surely lie before a place in a text, most likely."""
    nearer = min(before, length - before)
    return max(int(n_tokens * (before - _CAUTION * nearer) / length) - _END_TOKENS, 0)


def _whole(text: TextBytes, *, special: bool, salt: str) -> bytes:
    if not salt:
        return xxh3_128_digest(text, seed=int(special))
    state = xxh3_128(_scope(salt), seed=int(special))
    state.update(text)
    return state.digest()


def _scope(salt: str) -> bytes:
    """What no text begins with, and no two salts have in common."""
    data = salt.encode("utf-8", "surrogatepass")
    return b"\xff\xff" + len(data).to_bytes(8, "little") + data


def _marks(text: TextBytes, *, special: bool, salt: str) -> list[_Mark]:
    """The marks of a text, its end among them. The tokens of a text are the same under every adapter."""
    places = {len(text), *range(MARK_BYTES, len(text), MARK_BYTES)}
    at = text.find(_MESSAGE, 1)
    while at >= 0:
        places.add(at)
        at = text.find(_MESSAGE, at + 1)
    state = xxh3_64(_scope(salt) if salt else b"", seed=int(special))
    marks: list[_Mark] = []
    start = 0
    for end in sorted(places):
        state.update(text[start:end])
        marks.append(_Mark(end, state.intdigest()))
        start = end
    return marks
