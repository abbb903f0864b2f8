"""What an OpenAI-compatible `/v1/embeddings` endpoint is asked and answers. Pure.

Vectors come as lists of numbers or, in a third of the bytes, as base64 of little-endian float32: whichever was asked
for, either is read.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Final

import numpy as np
import orjson
from numpy.typing import NDArray

from cache.embedding import EmbeddingError, EmbeddingRefusedError
from cache.unit_rows import unit_rows

_BYTES_PER_NUMBER: Final = 32
"""As text; a double with all its digits takes 25."""
_BYTES_BESIDE: Final = 65_536


def request_body(model: str, texts: Sequence[str], *, dimensions: int | None, base64_: bool) -> bytes:
    """`dimensions` is sent where the model can shorten its vectors. Raises EmbeddingRefusedError."""
    fields: dict[str, object] = {"model": model, "input": list(texts)}
    fields["encoding_format"] = "base64" if base64_ else "float"
    if dimensions is not None:
        fields["dimensions"] = dimensions
    try:
        return orjson.dumps(fields)
    except TypeError:
        raise EmbeddingRefusedError("a text with lone surrogates") from None


def most_bytes(n: int, dim: int) -> int:
    """No honest answer with `n` vectors is longer."""
    return _BYTES_BESIDE + n * (1024 + dim * _BYTES_PER_NUMBER)


def read_answer(body: bytes, *, n: int, dim: int) -> NDArray[np.float32]:
    """[n, dim], rows of length 1, in the order of the texts. Raises EmbeddingError; nothing is guessed."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise EmbeddingError("the answer is not JSON") from error
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list) or len(data) != n:
        raise EmbeddingError(f"the answer's data are not {n} vectors")
    rows = np.empty((n, dim), np.float32)
    seen = set[int]()
    for entry in data:
        at = entry.get("index") if isinstance(entry, dict) else None
        if not isinstance(at, int) or isinstance(at, bool) or not 0 <= at < n or at in seen:
            raise EmbeddingError(f"the answer's indices are not those of {n} texts")
        seen.add(at)
        rows[at] = _vector(entry.get("embedding"), dim)
    try:
        return unit_rows(rows)
    except ValueError as error:
        raise EmbeddingError(f"the answer is no use: {error}") from error


def _vector(value: object, dim: int) -> NDArray[np.float32]:
    if isinstance(value, str):
        if len(value) != (4 * dim + 2) // 3 * 4:
            raise EmbeddingError(f"a vector is not {dim} numbers in base64")
        try:
            return np.frombuffer(base64.b64decode(value, validate=True), "<f4")
        except (binascii.Error, ValueError) as error:
            raise EmbeddingError("a vector is not base64") from error
    if not isinstance(value, list) or len(value) != dim:
        raise EmbeddingError(f"a vector is not {dim} numbers")
    if not all(type(number) is float or type(number) is int for number in value):
        raise EmbeddingError("a vector is not numbers alone")
    with np.errstate(over="ignore"):  # what is too large is found as not finite
        return np.array(value, np.float64).astype(np.float32)
