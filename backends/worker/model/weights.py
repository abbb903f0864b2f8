"""A model's weights: read from safetensors files straight into the tensors that the decoder computes with.

Projections that read the same input are kept as one matrix (Q, K and V; gate and up): each tensor of a checkpoint has
its place, a view of one of ours, and is copied there one at a time. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from backends.worker.model.model_config import ModelConfig

_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_DUMMY_STD: Final = 0.02


class WeightsError(ValueError):
    """A checkpoint that does not fit its configuration. Names the tensors."""


@dataclass(slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer. Matrices are [out, in], as `linear` takes them."""

    input_norm: Tensor
    qkv: Tensor
    """[(heads + 2 × kv_heads) × head_dim, hidden]: all queries, then all keys, then all values."""
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    post_norm: Tensor
    gate_up: Tensor
    """[2 × intermediate, hidden]: gate, then up."""
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(slots=True, kw_only=True)
class Weights:
    """All parameters of one model."""

    embed: Tensor
    """[vocab, hidden]"""
    layers: list[LayerWeights]
    norm: Tensor
    lm_head: Tensor
    """[vocab, hidden]; `embed` itself where the two are tied."""

    @property
    def bytes(self) -> int:
        """Bytes of all parameters, tied ones once."""
        tensors = [self.embed, self.norm]
        tensors += [] if self.lm_head is self.embed else [self.lm_head]
        for layer in self.layers:
            tensors += [value for name in LayerWeights.__slots__ if (value := getattr(layer, name)) is not None]
        return sum(tensor.nbytes for tensor in tensors)

    @classmethod
    def load(cls, directory: str | Path, config: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> Weights:
        """From the safetensors files of a model's directory.

        Needs the memory of the weights and of one tensor. Raises `WeightsError` where a tensor is missing, is not known
        or has another shape than the configuration says, and where a file is missing or damaged.
        """
        weights = cls.empty(config, dtype=dtype, device=device)
        places = _places(weights, config)
        missing = set(places)
        for path in _files(Path(directory)):
            for name, tensor in _tensors(path):
                if _redundant(name, config):
                    continue
                if (place := places.get(name)) is None:
                    raise WeightsError(f"{path.name} has {name}, which a {config.architecture} has no place for")
                if tensor.shape != place.shape:
                    raise WeightsError(f"{name} has shape {list(tensor.shape)}; config.json says {list(place.shape)}")
                place.copy_(tensor)
                missing.discard(name)
        if missing:
            raise WeightsError(f"{len(missing)} tensors are missing, such as {', '.join(sorted(missing)[:3])}")
        return weights

    @classmethod
    def dummy(cls, config: ModelConfig, *, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Weights:
        """Random weights of the real shape, the same for a seed, a type and a kind of device: for measuring."""
        weights = cls.empty(config, dtype=dtype, device=device)
        generator = torch.Generator(device).manual_seed(seed)
        for name, place in sorted(_places(weights, config).items()):
            if name.endswith("norm.weight"):
                place.fill_(1.0)
            else:
                place.normal_(0.0, _DUMMY_STD, generator=generator)
        return weights

    @classmethod
    def empty(cls, config: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> Weights:
        """Memory for all parameters, not set to anything."""

        def tensor(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        def bias(size: int, wanted: bool) -> Tensor | None:
            return tensor(size) if wanted else None

        hidden, inner = config.hidden_size, config.intermediate_size
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

        def layer() -> LayerWeights:
            return LayerWeights(
                input_norm=tensor(hidden),
                qkv=tensor(queries + 2 * keys, hidden),
                qkv_bias=bias(queries + 2 * keys, config.qkv_bias),
                q_norm=bias(config.head_dim, config.qk_norm),
                k_norm=bias(config.head_dim, config.qk_norm),
                o=tensor(hidden, queries),
                o_bias=bias(hidden, config.o_bias),
                post_norm=tensor(hidden),
                gate_up=tensor(2 * inner, hidden),
                gate_up_bias=bias(2 * inner, config.mlp_bias),
                down=tensor(hidden, inner),
                down_bias=bias(hidden, config.mlp_bias),
            )

        embed = tensor(config.vocab_size, hidden)
        return cls(
            embed=embed,
            layers=[layer() for _ in range(config.num_layers)],
            norm=tensor(hidden),
            lm_head=embed if config.tie_word_embeddings else tensor(config.vocab_size, hidden),
        )


def _places(weights: Weights, config: ModelConfig) -> dict[str, Tensor]:
    """For each tensor of a checkpoint, by its name, the view of our parameters that it belongs into."""
    places: dict[str, Tensor | None] = {
        "model.embed_tokens.weight": weights.embed,
        "model.norm.weight": weights.norm,
        "lm_head.weight": None if config.tie_word_embeddings else weights.lm_head,
    }
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}."
        places |= {prefix + name: place for name, place in _layer_places(layer, config)}
    return {name: place for name, place in places.items() if place is not None}


def _layer_places(layer: LayerWeights, config: ModelConfig) -> Iterator[tuple[str, Tensor | None]]:
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield "input_layernorm.weight", layer.input_norm
    yield "post_attention_layernorm.weight", layer.post_norm
    yield "self_attn.q_norm.weight", layer.q_norm
    yield "self_attn.k_norm.weight", layer.k_norm
    yield "self_attn.o_proj.weight", layer.o
    yield "self_attn.o_proj.bias", layer.o_bias
    yield "mlp.down_proj.weight", layer.down
    yield "mlp.down_proj.bias", layer.down_bias
    for kind, qkv, gate_up in (("weight", layer.qkv, layer.gate_up), ("bias", layer.qkv_bias, layer.gate_up_bias)):
        if qkv is not None:
            parts = torch.split(qkv, [queries, keys, keys])
            yield from ((f"self_attn.{part}_proj.{kind}", place) for part, place in zip("qkv", parts, strict=True))
        if gate_up is not None:
            gate, up = gate_up.chunk(2)
            yield f"mlp.gate_proj.{kind}", gate
            yield f"mlp.up_proj.{kind}", up


def _redundant(name: str, config: ModelConfig) -> bool:
    """Tensors that some checkpoints hold though they follow from others."""
    return name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and config.tie_word_embeddings)


def _files(directory: Path) -> list[Path]:
    """The files of a checkpoint, each once, in order."""
    index = directory / _INDEX
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise WeightsError(f"{_INDEX} is no index of safetensors files") from error
        if outside := [name for name in names if Path(name).name != name]:
            raise WeightsError(f"{_INDEX} names a file outside its directory: {outside[0]}")
        files = [directory / name for name in names]
    else:
        files = [directory / _SINGLE]
    for path in files:
        if not path.is_file():
            raise WeightsError(f"{path.name} is missing; a model's directory has {_SINGLE} or {_INDEX} and its files")
    return files


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of one file, one tensor in memory at a time."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping: it has no __iter__
                yield name, file.get_tensor(name)
    except SafetensorError as error:
        raise WeightsError(f"{path.name} cannot be read: {error}") from error
