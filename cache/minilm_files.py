"""The folder of a sentence-transformers model: is it a BERT with mean pooling, and of what size?

A field that would make the vectors other ones is refused by its name, never passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cache.embedding import EmbeddingError

CONFIG_FILE: Final = "config.json"
WEIGHTS_FILE: Final = "model.safetensors"
TOKENIZER_FILE: Final = "tokenizer.json"
_MODULES_FILE: Final = "modules.json"
_POOLING_FILE: Final = "1_Pooling/config.json"
_LENGTH_FILE: Final = "sentence_bert_config.json"

MAX_TOKENS: Final = 256
"""What all-MiniLM-L6-v2 was made for; what is longer is cut there."""
_MODULES: Final = ["Transformer", "Pooling", "Normalize"]
_MOST_JSON_BYTES: Final = 1 << 20


class ModelFolderError(EmbeddingError):
    """The folder holds no model that can be used here; the message names file and field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BertShape:
    """What config.json says of a BERT encoder."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    inner_size: int
    positions: int
    token_types: int
    norm_eps: float
    max_tokens: int
    """Tokens of a text that count, with the special ones."""

    @property
    def head_dim(self) -> int:
        """Numbers of one head's query, key or value."""
        return self.hidden_size // self.num_heads


def read_shape(folder: Path) -> BertShape:
    """Raises ModelFolderError where it is no BERT encoder with GELU, absolute positions and mean pooling."""
    config = _read(folder, CONFIG_FILE)
    _must_be(config, "model_type", "bert")
    _must_be(config, "hidden_act", "gelu")
    _must_be(config, "position_embedding_type", "absolute", if_absent="absolute")
    _must_be(config, "is_decoder", False, if_absent=False)
    positions = _count(config, "max_position_embeddings")
    shape = BertShape(
        vocab_size=_count(config, "vocab_size"),
        hidden_size=_count(config, "hidden_size"),
        num_layers=_count(config, "num_hidden_layers"),
        num_heads=_count(config, "num_attention_heads"),
        inner_size=_count(config, "intermediate_size"),
        positions=positions,
        token_types=_count(config, "type_vocab_size"),
        norm_eps=_eps(config),
        max_tokens=min(positions, _max_tokens(folder)),
    )
    if shape.hidden_size % shape.num_heads:
        raise _refused(CONFIG_FILE, "num_attention_heads", f"{shape.num_heads} does not divide hidden_size")
    _check_pooling(folder)
    _check_modules(folder)
    return shape


def _check_pooling(folder: Path) -> None:
    """A folder of the bare encoder has no such file."""
    pooling = _read(folder, _POOLING_FILE, optional=True)
    for field, value in (pooling or {}).items():
        if field.startswith("pooling_mode_") and value is not (field == "pooling_mode_mean_tokens"):
            raise _refused(_POOLING_FILE, field, f"is {value!r}; only the mean over all tokens is computed here")


def _check_modules(folder: Path) -> None:
    path = folder / _MODULES_FILE
    if not path.exists():
        return
    modules = _json(path, _MODULES_FILE)
    kinds = [str(each.get("type")).rpartition(".")[2] for each in modules] if isinstance(modules, list) else None
    if kinds != _MODULES:
        raise _refused(_MODULES_FILE, "type", f"is {kinds}; only {_MODULES} is computed here")


def _max_tokens(folder: Path) -> int:
    length = _read(folder, _LENGTH_FILE, optional=True)
    if length is None or length.get("max_seq_length") is None:
        return MAX_TOKENS
    return _count(length, "max_seq_length", file=_LENGTH_FILE, least=3)


def _read(folder: Path, name: str, *, optional: bool = False) -> Mapping[str, object] | None:
    path = folder / name
    if optional and not path.exists():
        return None
    content = _json(path, name)
    if not isinstance(content, dict):
        raise ModelFolderError(f"{path}: no JSON object")
    return content


def _json(path: Path, name: str) -> object:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_JSON_BYTES)
        # One that was cut is no JSON.
        value: object = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ModelFolderError(f"{path.parent}: {name} cannot be read: {reason}") from error
    return value


def _must_be(config: Mapping[str, object] | None, field: str, wanted: object, *, if_absent: object = None) -> None:
    value = (config or {}).get(field, if_absent)
    if value != wanted:
        raise _refused(CONFIG_FILE, field, f"is {value!r}; only {wanted!r} is computed here")


def _count(config: Mapping[str, object] | None, field: str, *, file: str = CONFIG_FILE, least: int = 1) -> int:
    value = (config or {}).get(field)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 24:
        raise _refused(file, field, f"is {value!r}, no whole number of {least} or more")
    return value


def _eps(config: Mapping[str, object] | None) -> float:
    value = (config or {}).get("layer_norm_eps", 1e-12)
    if not isinstance(value, float) or not 0 <= value < 1:
        raise _refused(CONFIG_FILE, "layer_norm_eps", f"is {value!r}, no number from 0 to 1")
    return value


def _refused(file: str, field: str, reason: str) -> ModelFolderError:
    return ModelFolderError(f"{file}: {field} {reason}")
