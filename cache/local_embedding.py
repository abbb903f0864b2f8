"""Models that are computed here, without what they need being installed everywhere."""

from __future__ import annotations

from pathlib import Path

from cache.embedding import Embedder, EmbeddingError, Engine


def load_minilm(folder: Path, engine: Engine = "auto") -> Embedder:
    """all-MiniLM-L6-v2 (or another BERT of its kind) from `folder`; takes a moment, so not in an event loop.

    Raises:
        EmbeddingError: The folder holds no such model, or a package is missing.
    """
    try:
        from cache.minilm import MiniLM  # noqa: PLC0415 - needs numpy, which not everybody installs
    except ImportError as error:
        raise EmbeddingError(f"{error.name} is missing: install prefixgate[semantic]") from error
    return MiniLM.load(folder, engine)
