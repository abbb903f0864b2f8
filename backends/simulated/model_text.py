"""What the workers of one fleet share: the tokenizer and the words of the answers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from struct import iter_unpack

from backends.simulated.output_text import AnswerText
from cache.tokenizer import Tokenizer
from policies.types import TokenIds

EMBEDDED_TOKENIZER = Path(__file__).parent / "tokenizer"
_WORDS = EMBEDDED_TOKENIZER / "words.txt"


class ModelText:
    """Text to ids and back, and answers. Immutable; one serves any number of workers in a process."""

    def __init__(self, model: str, tokenizer: Tokenizer) -> None:
        """Raise ValueError when the tokenizer has no single-token words."""
        self.model = model
        self.tokenizer = tokenizer
        words = _WORDS.read_text(encoding="utf-8").split()
        self.answers = AnswerText(words, lambda text: unpack(tokenizer.encode(text, add_special_tokens=False)))

    @classmethod
    def load(cls, model: str, directory: Path = EMBEDDED_TOKENIZER) -> ModelText:
        """Read a tokenizer directory. Raises TokenizerError or ValueError."""
        return cls(model, Tokenizer.load(directory))

    def encode(self, prompt: str | list[int], *, add_special_tokens: bool) -> TokenIds:
        """Token ids of a text, or of ids as they are."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
        return pack(prompt)

    def pieces(self, ids: TokenIds) -> list[str]:
        """Text of each token; only for ASCII text, where no character is split."""
        return [self.tokenizer.decode([each]) for each in unpack(ids)]


def pack(ids: Iterable[int]) -> TokenIds:
    """Ids as little-endian u32."""
    return TokenIds(b"".join(each.to_bytes(4, "little") for each in ids))


def unpack(ids: TokenIds) -> list[int]:
    """The reverse of `pack`."""
    return [each for (each,) in iter_unpack("<I", ids)]
