"""Texts → token ids of a BERT, with its special tokens, cut to what the model takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import tokenizers
from tokenizers import pre_tokenizers

from cache.embedding import EmbeddingRefusedError
from cache.minilm_files import TOKENIZER_FILE, BertShape, ModelFolderError

_CHARS_PER_TOKEN: Final = 32
"""No ordinary text has as many; of a long one, only so much is tokenized."""


class WordPieces:
    """A model folder's tokenizer. Safe for several threads; lets the interpreter's lock go meanwhile."""

    def __init__(self, folder: Path, shape: BertShape) -> None:
        """Raises ModelFolderError."""
        path = folder / TOKENIZER_FILE
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise ModelFolderError(f"{folder}: {TOKENIZER_FILE} cannot be read: {reason}") from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception on every fault of the file
            raise ModelFolderError(f"{path}: not a tokenizer that the tokenizers library reads: {error}") from error
        size = self._tokenizer.get_vocab_size()
        if size > shape.vocab_size:
            raise ModelFolderError(
                f"{TOKENIZER_FILE}: has {size} tokens; config.json says vocab_size {shape.vocab_size}"
            )
        self._tokenizer.no_padding()
        # Of a text that is cut, the special tokens at both ends stay.
        self._tokenizer.enable_truncation(shape.max_tokens)
        self._max_tokens = shape.max_tokens
        self._splits_at_spaces = isinstance(self._tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        if not self._tokenizer.encode("").ids:
            raise ModelFolderError(f"{TOKENIZER_FILE}: post_processor adds no special tokens")

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text; none is empty, none longer than the model takes. Raises EmbeddingRefusedError."""
        for text in texts:
            try:
                text.encode()  # the library tells it by a TypeError that says nothing
            except UnicodeEncodeError:
                raise EmbeddingRefusedError("a text with lone surrogates") from None
        usual = [self._beginning(text) for text in texts]
        ids = [each.ids for each in self._tokenizer.encode_batch(usual)]
        short = [at for at, found in enumerate(ids) if usual[at] is not texts[at] and len(found) < self._max_tokens]
        for at, encoding in zip(short, self._tokenizer.encode_batch([texts[at] for at in short]), strict=True):
            ids[at] = encoding.ids
        return ids

    def _beginning(self, text: str) -> str:
        """Whole words that are enough, most likely: no token of theirs depends on what follows a space."""
        most = _CHARS_PER_TOKEN * self._max_tokens
        if len(text) <= most or not self._splits_at_spaces:
            return text
        end = text.rfind(" ", 0, most)
        return text[:end] if end > 0 else text
