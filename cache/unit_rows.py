"""Vectors of length 1: their dot product is their cosine."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_LEAST_LENGTH: Final = 1e-9


def unit_rows(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each row of [n, dim] divided by its length, in place. Raises ValueError where one is not finite, or has none."""
    # In double precision: squares of large numbers, finite themselves, must not overflow.
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    if not np.isfinite(lengths).all() or (lengths < _LEAST_LENGTH).any():
        raise ValueError("a vector is not finite, or has no length")
    np.divide(rows, lengths[:, None], out=rows, casting="same_kind")
    return rows
