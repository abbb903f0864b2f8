"""What the engine answers: readable nonsense, one word a token, decided by the prompt alone. Pure.

One long text is made once per tokenizer; an answer is a stretch of it that begins at a sentence, chosen by a
hash of the prompt's token ids. So the same prompt gets the same answer from every worker, whatever its cache
holds, and a token costs a lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from struct import pack

from xxhash import xxh3_64_intdigest

from policies.types import TokenIds

_RING_SENTENCES = 2_000
_SENTENCE_WORDS = (4, 14)
_NATURAL_TOKENS = (24, 120)


@dataclass(frozen=True, slots=True)
class Answer:
    """Token texts (`"".join(pieces)` is the answer) and their ids; `stopped` when it ended of itself."""

    pieces: Sequence[str]
    ids: TokenIds
    stopped: bool
    stop_reason: str | None = None

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(self.pieces)


class AnswerText:
    """Answers in the words of one tokenizer. Immutable after construction."""

    def __init__(self, words: Sequence[str], encode: Callable[[str], Sequence[int]]) -> None:
        """`words` are lower case, without spaces; those which are not one token are left out.

        Raises ValueError when fewer than two remain.
        """

        def single(text: str) -> int | None:
            ids = encode(text)
            return ids[0] if len(ids) == 1 else None

        inner = [(f" {word}", token) for word in words if (token := single(f" {word}")) is not None]
        if len(inner) < 2:
            message = "fewer than two of the words are single tokens of this tokenizer"
            raise ValueError(message)
        capitals = [(text, token) for word in words if (token := single(text := f" {word.title()}")) is not None]
        openers = [(text, token) for word in words if (token := single(text := word.title())) is not None]
        stop = single(".")
        self._openers = openers or capitals or inner
        self._ring: list[tuple[str, int]] = []
        self._starts: list[int] = []
        random = Random(1)  # noqa: S311 - the text is a constant
        for _ in range(_RING_SENTENCES):
            self._starts.append(len(self._ring))
            self._ring.append(random.choice(capitals or inner))
            self._ring += random.choices(inner, k=random.randint(*_SENTENCE_WORDS))
            if stop is not None:
                self._ring.append((".", stop))

    def answer(self, prompt: TokenIds, *, choice: int, least: int, most: int, stops: Sequence[str] = ()) -> Answer:
        """The answer to a prompt: as many tokens as it has by nature, but from `least` to `most`.

        `choice` numbers the alternatives of one request. The answer ends before the first of `stops`.
        """
        seed = xxh3_64_intdigest(prompt, seed=choice)
        natural = _NATURAL_TOKENS[0] + seed % (_NATURAL_TOKENS[1] - _NATURAL_TOKENS[0])
        length = min(most, max(natural, least))
        tokens = self._tokens(seed, length)
        pieces = [text for text, _ in tokens]
        ended = length < most or length == natural
        stop_reason = None
        if stops:
            pieces, stop_reason = _cut_at_stop(pieces, stops)
        ids = TokenIds(pack(f"<{len(pieces)}I", *(token for _, token in tokens[: len(pieces)])))
        return Answer(pieces, ids, ended or stop_reason is not None, stop_reason)

    def _tokens(self, seed: int, length: int) -> list[tuple[str, int]]:
        ring = self._ring
        start = self._starts[(seed >> 16) % len(self._starts)] + 1
        opener = self._openers[(seed >> 32) % len(self._openers)]
        tokens = [opener, *ring[start : start + length - 1]]
        while len(tokens) < length:
            tokens += ring[: length - len(tokens)]
        return tokens


def _cut_at_stop(pieces: list[str], stops: Sequence[str]) -> tuple[list[str], str | None]:
    """Pieces up to the one in which a stop string is completed, the text before it, and the string."""
    text = "".join(pieces)
    found = [(text.index(stop) + len(stop), stop) for stop in stops if stop and stop in text]
    if not found:
        return pieces, None
    end, stop = min(found)
    kept: list[str] = []
    position = 0
    for piece in pieces:
        before = end - len(stop)
        kept.append(piece[: max(0, before - position)])
        position += len(piece)
        if position >= end:
            break
    return kept, stop
