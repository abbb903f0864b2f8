"""all-MiniLM-L6-v2, and other BERTs of its kind, from a local folder: tokens, forward pass, mean over tokens, length 1.

Reimers and Gurevych 2019 (Sentence-BERT); the model's card tells the steps. Computed by torch where it is installed,
else by numpy; both give the same vectors but for rounding.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from cache.embedding import EmbeddingError, Engine
from cache.minilm_files import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE, ModelFolderError, read_shape
from cache.minilm_numpy import NumpyBert
from cache.minilm_tokens import WordPieces
from cache.minilm_weights import BertWeights, Floats
from cache.one_core import keep_to_one_core
from cache.unit_rows import unit_rows

_TOKENS_AT_ONCE: Final = 512
"""In one forward pass: products are no faster with more rows, and memory grows with them."""


class _Bert(Protocol):
    def pooled(self, sequences: Sequence[Sequence[int]]) -> Floats: ...


class MiniLM:
    """An `Embedder`. Texts beyond the model's length (256 tokens) are cut there."""

    def __init__(self, name: str, tokens: WordPieces, bert: _Bert, dim: int) -> None:
        self._name = name
        self._tokens = tokens
        self._bert = bert
        self._dim = dim

    @classmethod
    def load(cls, folder: Path, engine: Engine = "auto") -> MiniLM:
        """Raises EmbeddingError where the folder holds no such model, or the engine is not installed."""
        shape = read_shape(folder)
        tokens = WordPieces(folder, shape)
        weights = BertWeights.load(folder, shape)
        return cls(f"minilm:{_digest(folder)}:{shape.max_tokens}", tokens, _bert(weights, engine), shape.hidden_size)

    @property
    def name(self) -> str:
        """Of the model's files, not of what computes it."""
        return self._name

    @property
    def dim(self) -> int:
        """See `Embedder`."""
        return self._dim

    def embed(self, texts: Sequence[str]) -> Floats:
        """See `Embedder`."""
        rows = np.empty((len(texts), self._dim), np.float32)
        sequences = self._tokens.encode(texts)
        for some in _batches(sequences):
            rows[some] = self._bert.pooled([sequences[at] for at in some])
        try:
            return unit_rows(rows)
        except ValueError as error:
            raise EmbeddingError(f"the model's weights are not sound: {error}") from error

    def close(self) -> None:
        """Nothing is open."""


def _batches(sequences: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Places of sequences in batches, from short to long."""
    batch: list[int] = []
    tokens = 0
    for at in sorted(range(len(sequences)), key=lambda each: len(sequences[each])):
        if batch and tokens + len(sequences[at]) > _TOKENS_AT_ONCE:
            yield batch
            batch, tokens = [], 0
        batch.append(at)
        tokens += len(sequences[at])
    if batch:
        yield batch


def _bert(weights: BertWeights, engine: Engine) -> _Bert:
    if engine == "torch" or (engine == "auto" and importlib.util.find_spec("torch")):
        try:
            from cache.minilm_torch import TorchBert  # noqa: PLC0415 - takes seconds, and is not installed everywhere
        except ImportError as error:
            raise EmbeddingError("torch is missing: install prefixgate[worker], or compute with numpy") from error
        return TorchBert(weights)
    keep_to_one_core()
    return NumpyBert(weights)


def _digest(folder: Path) -> str:
    """Of everything that has a say in the vectors."""
    whole = hashlib.sha256()
    for name in (CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE):
        try:
            with (folder / name).open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise ModelFolderError(f"{folder}: {name} cannot be read: {error.strerror}") from error
    return whole.hexdigest()[:32]
