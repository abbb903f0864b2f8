"""Draws one token from the candidates of a row: the order, the filters' cuts and the random number. Pure, numpy.

Filters keep a head of the row in one fixed order (likeliest first, equal ones by id), so a token is a function of
the weights, the seed and the index alone: no batch, schedule or history takes part.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

Floats = npt.NDArray[np.floating[Any]]
Ids = npt.NDArray[np.int64]


def uniform(seed: int, index: int) -> float:
    """The number in [0, 1) that decides token `index` under `seed`: the top 53 bits of XXH3-64 over both."""
    packed = struct.pack("<QQ", seed & 0xFFFF_FFFF_FFFF_FFFF, index)
    return (xxhash.xxh3_64_intdigest(packed) >> 11) * 2.0**-53


def ranked(scores: Floats, ids: Ids) -> Ids:
    """Where each of `scores` (no NaN) stands, largest first, equal ones by id; `ids` ascend."""
    if scores.dtype != np.float32:
        return np.argsort(-scores, kind="stable").astype(np.int64, copy=False)
    # One integer key for both, since integers sort many times faster: the bits of a float ascend as it does once
    # those of negative ones are turned. Adding zero makes one zero of two.
    bits = (scores + np.float32(0)).view(np.int32)
    bits ^= (bits >> 31) & 0x7FFF_FFFF
    keys = np.invert(bits, out=bits).astype(np.int64)
    keys <<= 32
    keys |= np.arange(len(ids), dtype=np.int64)
    keys.sort()
    keys &= 0xFFFF_FFFF
    return keys


def draw(weights: Floats, *, total: float | None, top_k: int, top_p: float, sample: float) -> int:
    """The place in `weights`, which descend and are above 0, that `sample` in [0, 1) falls on.

    `total` is the mass of all tokens, where `weights` are not all of them (they must then reach `top_p` of it, or
    `sample` of it where `top_p` is 1); None: they are all. `top_k` 0 keeps every token.
    """
    head = weights[:top_k] if top_k else weights
    mass = np.cumsum(head, dtype=np.float64)
    whole = float(mass[-1]) if total is None else total
    if top_p < 1:
        # As many as it takes to reach top_p, the one that reaches it included.
        mass = mass[: int(np.searchsorted(mass, top_p * whole, side="left")) + 1]
        whole = float(mass[-1])
    return min(int(np.searchsorted(mass, sample * whole, side="right")), len(mass) - 1)
