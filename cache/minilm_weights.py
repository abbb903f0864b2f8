"""A BERT encoder's weights, read from safetensors into the matrices that the forward passes multiply with.

Matrices lie as [in, out]: the faster way round for products with few rows. Queries, keys and values are one matrix, and
queries have their scale inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from cache.minilm_files import WEIGHTS_FILE, BertShape, ModelFolderError

Floats = NDArray[np.float32]
_Read = Callable[..., Floats]
"""A tensor's name and the shape it must have → its numbers."""

_TYPES: Final = (np.dtype(np.float32), np.dtype(np.float16))


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A LayerNorm."""

    gain: Floats
    bias: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One encoder layer. `h` is hidden, `i` inner size."""

    qkv: Floats
    """[h, 3h]; the queries' part is divided by √head_dim."""
    qkv_bias: Floats
    out: Floats
    """[h, h]"""
    out_bias: Floats
    attention_norm: Norm
    up: Floats
    """[h, i]"""
    up_bias: Floats
    down: Floats
    """[i, h]"""
    down_bias: Floats
    norm: Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class BertWeights:
    """All that mean pooling needs; a checkpoint's pooler is not read."""

    shape: BertShape
    words: Floats
    """[vocab, h]"""
    positions: Floats
    """[positions, h], with the first token type's embedding added: there is one sentence."""
    norm: Norm
    layers: tuple[Layer, ...]

    @classmethod
    def load(cls, folder: Path, shape: BertShape) -> BertWeights:
        """Raises ModelFolderError where a tensor is missing, has another shape or a type that is not read."""
        path = folder / WEIGHTS_FILE
        try:
            with safe_open(path, framework="numpy") as file:
                return cls._read(_reader(file), shape)
        except (SafetensorError, OSError) as error:
            raise ModelFolderError(f"{path}: cannot be read: {error}") from error

    @classmethod
    def _read(cls, read: _Read, shape: BertShape) -> BertWeights:
        hidden = shape.hidden_size
        types = read("embeddings.token_type_embeddings.weight", shape.token_types, hidden)
        return cls(
            shape=shape,
            words=read("embeddings.word_embeddings.weight", shape.vocab_size, hidden),
            positions=read("embeddings.position_embeddings.weight", shape.positions, hidden) + types[0],
            norm=_norm(read, "embeddings.LayerNorm", hidden),
            layers=tuple(_layer(read, f"encoder.layer.{at}", shape) for at in range(shape.num_layers)),
        )


def _layer(read: _Read, name: str, shape: BertShape) -> Layer:
    hidden, inner = shape.hidden_size, shape.inner_size
    scale = np.float32(shape.head_dim**-0.5)
    names = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
    matrices = [read(f"{each}.weight", hidden, hidden) for each in names]
    biases = [read(f"{each}.bias", hidden) for each in names]
    matrices[0], biases[0] = matrices[0] * scale, biases[0] * scale
    return Layer(
        qkv=np.ascontiguousarray(np.concatenate(matrices).T),
        qkv_bias=np.concatenate(biases),
        out=_turned(read(f"{name}.attention.output.dense.weight", hidden, hidden)),
        out_bias=read(f"{name}.attention.output.dense.bias", hidden),
        attention_norm=_norm(read, f"{name}.attention.output.LayerNorm", hidden),
        up=_turned(read(f"{name}.intermediate.dense.weight", inner, hidden)),
        up_bias=read(f"{name}.intermediate.dense.bias", inner),
        down=_turned(read(f"{name}.output.dense.weight", hidden, inner)),
        down_bias=read(f"{name}.output.dense.bias", hidden),
        norm=_norm(read, f"{name}.output.LayerNorm", hidden),
    )


def _norm(read: _Read, name: str, hidden: int) -> Norm:
    return Norm(gain=read(f"{name}.weight", hidden), bias=read(f"{name}.bias", hidden))


def _turned(matrix: Floats) -> Floats:
    return np.ascontiguousarray(matrix.T)


def _reader(file: Any) -> _Read:
    """`file` is what `safe_open` gives, which has no types."""
    known = frozenset(file.keys())

    def read(name: str, *shape: int) -> Floats:
        if name not in known:
            raise ModelFolderError(f"{WEIGHTS_FILE}: {name} is missing")
        tensor: NDArray[Any] = file.get_tensor(name)
        if tensor.shape != shape:
            raise ModelFolderError(f"{WEIGHTS_FILE}: {name} is {list(tensor.shape)}; config.json says {list(shape)}")
        if tensor.dtype not in _TYPES:
            raise ModelFolderError(f"{WEIGHTS_FILE}: {name} is {tensor.dtype}; float32 and float16 are read")
        return np.ascontiguousarray(tensor, dtype=np.float32)

    return read
