"""What turns texts into vectors for the semantic cache: one interface, and errors that say whose fault it was.

Needs nothing that is not installed everywhere: numpy comes with whatever implements it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Engine = Literal["auto", "numpy", "torch"]
"""What computes a local model; `auto` is torch where it is installed, else numpy."""


class EmbeddingError(Exception):
    """No vectors could be had. The message holds no text of a prompt and no secret."""


class EmbeddingRefusedError(EmbeddingError):
    """These texts were refused, which tells nothing of others: no reason to leave the embedder alone."""


class Embedder(Protocol):
    """Blocking; safe for several threads."""

    @property
    def name(self) -> str:
        """Tells apart whatever gives other vectors: vectors of two names are never compared. No secret is in it."""
        ...

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[n, dim] in the order of `texts`, each row of length 1, finite; a text's row does not depend on the others
        but for rounding. Rows are the caller's to keep. Raises EmbeddingError.
        """
        ...

    def close(self) -> None:
        """Let go of connections and memory; nothing is asked afterwards. May be called twice."""
        ...
