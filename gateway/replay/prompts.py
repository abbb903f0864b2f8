"""Prompts from block ids: the same words for the same trace, whatever the process or the target.

A block is ``block_tokens`` words from a fixed list; every word with its leading space is one token in the
common byte-level BPE tokenizers, so a prompt has as many tokens as words. A block begins with its id, mixed
and then written in words: two ids never share more than a few leading words. The rest is a window of one long
fixed run of random words.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.replay.arrival import Arrival

_MASK: Final = (1 << 64) - 1
_TAPE_WORDS: Final = 1 << 16
_ID_BITS: Final = 64
_CACHE_BYTES: Final = 32 << 20
_WORD_BYTES: Final = 8  # a generous mean, space included: it only sizes the cache


def default_words() -> list[str]:
    """The word list of the package."""
    return resources.files("gateway.replay").joinpath("words.txt").read_text(encoding="ascii").split()


class PromptMaker:
    """Makes prompts of blocks of ``block_tokens`` words; block texts are kept in an LRU of about 32 MB."""

    def __init__(self, block_tokens: int, words: Sequence[str] | None = None) -> None:
        self._block_tokens = block_tokens
        self._words = tuple(words or default_words())
        self._digits = -(-_ID_BITS // (len(self._words).bit_length() - 1))  # words that write a 64-bit id
        self._tape, self._offsets = _tape(self._words, _TAPE_WORDS + block_tokens)
        size = max(64, _CACHE_BYTES // (block_tokens * _WORD_BYTES))
        self.block_text = lru_cache(maxsize=size)(self._block_text)

    def prompt(self, arrival: Arrival) -> str:
        """Text of ``arrival.input_tokens`` words, its last block cut to what is left of the input."""
        ids = arrival.block_ids
        last = arrival.input_tokens - (len(ids) - 1) * self._block_tokens
        parts = [self.block_text(block_id) for block_id in ids[:-1]]
        parts.append(self._block_text(ids[-1], last) if last < self._block_tokens else self.block_text(ids[-1]))
        return "".join(parts)[1:]  # templates that trim the content shall change nothing

    def _block_text(self, block_id: int, words: int | None = None) -> str:
        """The first ``words`` words of a block (all by default), each with a leading space."""
        count = self._block_tokens if words is None else words
        mixed = splitmix64(block_id & _MASK)
        rest, base = mixed, len(self._words)
        head = []
        for _ in range(min(self._digits, count)):
            rest, digit = divmod(rest, base)
            head.append(self._words[digit])
        start = splitmix64(mixed) % _TAPE_WORDS
        stop = start + count - len(head)
        return " " + " ".join(head) + self._tape[self._offsets[start] : self._offsets[stop]]


def splitmix64(value: int) -> int:
    """A bijection of 64-bit integers that mixes well (Steele, Lea, Flood, OOPSLA 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@lru_cache(maxsize=4)
def _tape(words: tuple[str, ...], length: int) -> tuple[str, list[int]]:
    """``length`` random words in one text, each with a leading space, and where each of them begins."""
    drawn = [words[splitmix64(number) % len(words)] for number in range(length)]
    return " " + " ".join(drawn), [0, *accumulate(len(word) + 1 for word in drawn)]
