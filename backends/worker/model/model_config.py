"""A model's `config.json`: what our decoder needs of it, and a refusal by name of what our decoder cannot compute.

Fields are of three kinds: those that are read; those that change nothing an engine computes and are ignored; and the
rest. Of the rest, a field whose name speaks of the computation must be unset or neutral, or the model is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from backends.worker.model.config_fields import Fields, UnsupportedModelError, check_rest
from backends.worker.model.rope_config import RopeConfig

ACTIVATIONS: Final = ("silu", "swish", "gelu", "gelu_pytorch_tanh", "relu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What sets one architecture apart: its defaults where a field is missing, and the fields it has meaning for."""

    model_type: str
    defaults: Mapping[str, Any]
    qkv_bias: bool = False
    """QKV bias always, no bias on the output; no field says so."""
    qk_norm: bool = False
    attention_bias: bool = False
    """Has the field `attention_bias`: bias on QKV and on the output."""
    mlp_bias: bool = False
    """Has the field `mlp_bias`."""
    window: bool = False
    """Has the field `sliding_window`, for every layer."""
    window_by_layer: bool = False
    """Has `use_sliding_window`, `max_window_layers` and `layer_types`."""


_QWEN: Final = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}

FAMILIES: Final[Mapping[str, Family]] = {
    "LlamaForCausalLM": Family(
        model_type="llama", defaults={"max_position_embeddings": 2048}, attention_bias=True, mlp_bias=True
    ),
    "Qwen2ForCausalLM": Family(
        model_type="qwen2",
        defaults={"max_position_embeddings": 32_768, **_QWEN},
        qkv_bias=True,
        window_by_layer=True,
    ),
    "Qwen3ForCausalLM": Family(
        model_type="qwen3",
        defaults={"max_position_embeddings": 32_768, "head_dim": 128, **_QWEN},
        qk_norm=True,
        attention_bias=True,
        window_by_layer=True,
    ),
    "MistralForCausalLM": Family(
        model_type="mistral",
        defaults={"max_position_embeddings": 131_072, "num_key_value_heads": 8, "sliding_window": 4096},
        window=True,
    ),
}
"""Architectures by name; defaults are those of `transformers`, where they differ between families."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything that the decoder's computation depends on, and nothing else."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    hidden_act: str
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]
    """For each layer, how many tokens back a token sees, itself included; None: all."""
    rope: RopeConfig
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...] = ()
    """Of config.json, then of generation_config.json, each once."""
    dtype: str | None = None
    """The type the weights are said to be stored in, such as "bfloat16"."""
    ignored: tuple[str, ...] = ()
    """Fields we do not know and that sound harmless."""

    @property
    def max_length(self) -> int:
        """The longest sequence, in tokens, that the positions are made for."""
        return self.rope.max_length(self.max_position_embeddings)

    @classmethod
    def read(cls, directory: str | Path) -> ModelConfig:
        """The configuration in a model's directory.

        Raises OSError where there is no config.json, `UnsupportedModelError` where it is no configuration of ours.
        """
        directory = Path(directory)
        generation = directory / "generation_config.json"
        return cls.parse(_json(directory / "config.json"), _json(generation) if generation.exists() else None)

    @classmethod
    def parse(cls, config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> ModelConfig:
        """The same from what is in config.json and generation_config.json. Raises `UnsupportedModelError`."""
        architecture = _architecture(config)
        family = FAMILIES[architecture]
        fields = Fields(config, family.defaults)
        heads = fields.size("num_attention_heads")
        hidden = fields.size("hidden_size")
        layers = fields.size("num_hidden_layers")
        positions = fields.size("max_position_embeddings")
        attention_bias = _flag(fields, "attention_bias", family.attention_bias, or_any=family.qkv_bias)
        parsed = cls(
            architecture=architecture,
            vocab_size=fields.size("vocab_size"),
            hidden_size=hidden,
            intermediate_size=fields.size("intermediate_size"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=fields.size("num_key_value_heads", heads),
            head_dim=_head_dim(fields, hidden, heads),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            hidden_act=fields.one_of("hidden_act", ACTIVATIONS, "silu"),
            tie_word_embeddings=fields.flag("tie_word_embeddings", default=False),
            qkv_bias=family.qkv_bias or attention_bias,
            o_bias=attention_bias and not family.qkv_bias,
            mlp_bias=_flag(fields, "mlp_bias", family.mlp_bias),
            qk_norm=family.qk_norm,
            windows=_windows(fields, family, layers),
            rope=RopeConfig.parse(fields, positions),
            max_position_embeddings=positions,
            eos_token_ids=_eos(config, generation),
            dtype=_dtype(config),
            ignored=check_rest(fields),
        )
        if parsed.num_heads % parsed.num_kv_heads:
            raise UnsupportedModelError("num_key_value_heads", parsed.num_kv_heads, f"a divisor of {heads} heads")
        return parsed


def _json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise UnsupportedModelError(path.name, "not JSON", "a JSON object") from error
    if not isinstance(value, dict):
        raise UnsupportedModelError(path.name, type(value).__name__, "a JSON object")
    return value


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not names:  # configurations written by hand name the model's type alone
        by_type = {family.model_type: name for name, family in FAMILIES.items()}
        if (name := by_type.get(str(config.get("model_type")))) is None:
            raise UnsupportedModelError("model_type", config.get("model_type"), ", ".join(by_type))
        return name
    if not isinstance(names, list) or len(names) != 1 or names[0] not in FAMILIES:
        raise UnsupportedModelError("architectures", names, "one of " + ", ".join(FAMILIES))
    return str(names[0])


def _flag(fields: Fields, name: str, known: bool, *, or_any: bool = False) -> bool:
    """A flag that only some families have: elsewhere it must be false, or (`or_any`) may be anything."""
    value = fields.flag(name, default=False)
    if known or or_any:
        return value
    if value:
        raise UnsupportedModelError(name, value, "false for this architecture")
    return False


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    size = fields.optional_size("head_dim")
    if size is None:
        if hidden % heads:
            raise UnsupportedModelError("hidden_size", hidden, f"a multiple of {heads} heads, or a head_dim")
        size = hidden // heads
    if size % 2:
        raise UnsupportedModelError("head_dim", size, "an even number")
    return size


def _windows(fields: Fields, family: Family, layers: int) -> tuple[int | None, ...]:
    window = fields.optional_size("sliding_window")
    use = fields.flag("use_sliding_window", default=False)
    first = fields.count("max_window_layers", layers)
    types = fields.raw("layer_types")
    if family.window_by_layer:
        window = window if use else None
        default = tuple(window if index >= first else None for index in range(layers))
    elif family.window:
        default = (window,) * layers
    elif window is not None:
        raise UnsupportedModelError("sliding_window", window, "null for this architecture")
    else:
        default = (None,) * layers
    if types is None:
        return default
    windows = _by_type(types, window, layers)
    if not family.window_by_layer and windows != default:
        raise UnsupportedModelError("layer_types", types, "the same attention in every layer for this architecture")
    return windows


def _by_type(types: object, window: int | None, layers: int) -> tuple[int | None, ...]:
    known = {"full_attention": None, "sliding_attention": window}
    if not isinstance(types, list) or len(types) != layers or any(name not in known for name in types):
        raise UnsupportedModelError("layer_types", types, f"{layers} of " + ", ".join(known))
    if window is None and "sliding_attention" in types:
        raise UnsupportedModelError("layer_types", types, "full_attention where no sliding window is in use")
    return tuple(known[name] for name in types)


def _eos(*sources: Mapping[str, Any] | None) -> tuple[int, ...]:
    ids: dict[int, None] = {}
    for source in sources:
        value = (source or {}).get("eos_token_id")
        for token in value if isinstance(value, list) else [value]:
            if token is None or token == -1:  # some exports write -1 for "none"
                continue
            if not isinstance(token, int) or isinstance(token, bool) or token < 0:
                raise UnsupportedModelError("eos_token_id", value, "a token id or a list of them")
            ids[token] = None
    return tuple(ids)


def _dtype(config: Mapping[str, Any]) -> str | None:
    value = config.get("dtype") or config.get("torch_dtype")
    return None if value is None else str(value).removeprefix("torch.")
