"""Tiny random models of every family, made by `transformers`, which is the truth here."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from transformers.utils import logging

from backends.worker.model.attention import Kernel
from backends.worker.model.decoder import Decoder
from backends.worker.model.kv_pool import KvPool
from backends.worker.model.model_config import ModelConfig
from backends.worker.model.runner import Chunk, ModelRunner
from backends.worker.model.weights import Weights

CPU: Final = torch.device("cpu")
VOCAB: Final = 160
BLOCK_SIZE: Final = 16
CONFIGS: Final[dict[str, Any]] = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
}


@dataclass(frozen=True)
class Variant:
    """One model to compare: a family, and what is special about this one."""

    name: str
    family: str = "llama"
    settings: dict[str, Any] = field(default_factory=dict)


def rope(rope_type: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 10_000.0, **parameters}}


LLAMA3: Final = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN: Final = {"factor": 4.0, "original_max_position_embeddings": 32}
SLIDING: Final = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
LAYER_TYPES: Final = ["sliding_attention", "full_attention", "sliding_attention"]

VARIANTS: Final = (
    Variant("llama"),
    Variant("llama, all heads their own", settings={"num_key_value_heads": 4}),
    Variant("llama, one KV head", settings={"num_key_value_heads": 1}),
    Variant("llama, head_dim", settings={"head_dim": 32}),
    Variant("llama, tied", settings={"tie_word_embeddings": True}),
    Variant("llama, biases", settings={"attention_bias": True, "mlp_bias": True}),
    Variant("llama, gelu", settings={"hidden_act": "gelu"}),
    Variant("llama, tanh gelu", settings={"hidden_act": "gelu_pytorch_tanh"}),
    Variant("llama, relu", settings={"hidden_act": "relu"}),
    Variant("llama, theta", settings={"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    Variant("llama, linear", settings=rope("linear", factor=3.0)),
    Variant("llama, dynamic", settings=rope("dynamic", factor=3.0)),
    Variant("llama, llama3", settings=rope("llama3", **LLAMA3)),
    Variant("llama, yarn", settings=rope("yarn", **YARN)),
    Variant("llama, yarn's attention factor", settings=rope("yarn", **YARN, attention_factor=0.7)),
    Variant("llama, yarn's betas", settings=rope("yarn", **YARN, beta_fast=8.0, beta_slow=0.5)),
    Variant("llama, yarn's mscales", settings=rope("yarn", **YARN, mscale=0.7, mscale_all_dim=1.3)),
    Variant("llama, yarn not truncated", settings=rope("yarn", **YARN, truncate=False)),
    Variant("qwen2", "qwen2"),
    Variant("qwen2, tied", "qwen2", {"tie_word_embeddings": True}),
    Variant("qwen2, sliding", "qwen2", SLIDING),
    Variant("qwen2, sliding by type", "qwen2", {**SLIDING, "layer_types": LAYER_TYPES}),
    Variant("qwen2, yarn", "qwen2", rope("yarn", **YARN)),
    Variant("qwen3", "qwen3"),
    Variant("qwen3, tied, head_dim", "qwen3", {"tie_word_embeddings": True, "head_dim": 24}),
    Variant("qwen3, biases", "qwen3", {"attention_bias": True}),
    Variant("qwen3, sliding", "qwen3", SLIDING),
    Variant("qwen3, sliding by type", "qwen3", {**SLIDING, "layer_types": LAYER_TYPES}),
    Variant("qwen3, llama3", "qwen3", rope("llama3", **LLAMA3)),
    Variant("mistral", "mistral", {"sliding_window": None}),
    Variant("mistral, sliding", "mistral", {"sliding_window": 24}),
    Variant("mistral, short window", "mistral", {"sliding_window": 5}),
    Variant("mistral, head_dim", "mistral", {"sliding_window": None, "head_dim": 8}),
)


def make(variant: Variant, *, seed: int = 0, positions: int = 128) -> Any:
    """A random model whose logits stand well apart, biases and norms included."""
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": positions,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **({"head_dim": 16} if variant.family == "qwen3" else {}),
        **variant.settings,
    }
    torch.manual_seed(seed)
    library: Any = AutoModelForCausalLM
    model = library.from_config(CONFIGS[variant.family](**settings)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0.0, 0.3)
    return model


def saved(model: Any, directory: Path, **options: Any) -> Path:
    quiet: Any = logging
    quiet.disable_progress_bar()
    model.save_pretrained(directory, **options)
    return directory


def decoder(
    directory: Path, *, dtype: torch.dtype = torch.float32, kernel: Kernel | None = None, device: torch.device = CPU
) -> Decoder:
    config = ModelConfig.read(directory)
    return Decoder(config, Weights.load(directory, config, dtype=dtype, device=device), kernel)


def runner(
    directory: Path,
    *,
    dtype: torch.dtype = torch.float32,
    n_blocks: int = 64,
    block_size: int = BLOCK_SIZE,
    kernel: Kernel | None = None,
    device: torch.device = CPU,
) -> ModelRunner:
    loaded = decoder(directory, dtype=dtype, kernel=kernel, device=device)
    pool = KvPool(loaded.config, n_blocks=n_blocks, block_size=block_size, dtype=dtype, device=device)
    return ModelRunner(loaded, pool)


def tokens(count: int, seed: int = 0) -> list[int]:
    chosen = random.Random(seed)
    return [chosen.randrange(VOCAB) for _ in range(count)]


@torch.no_grad()
def truth(model: Any, token_ids: Sequence[int]) -> torch.Tensor:
    """Logits [tokens, vocab] of one forward pass over everything."""
    logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits


@dataclass
class Text:
    """A sequence that goes through the runner piece by piece."""

    token_ids: list[int]
    block_table: list[int]
    done: int = 0
    logits: dict[int, torch.Tensor] = field(default_factory=dict)
    """After the token at this position."""

    def chunk(self, count: int) -> Chunk:
        piece = self.token_ids[self.done : self.done + count]
        return Chunk(piece, self.done, self.block_table[: -(-(self.done + len(piece)) // BLOCK_SIZE)], samples=True)


def texts(lengths: Sequence[int], chosen: random.Random, *, n_blocks: int = 64, seed: int = 0) -> list[Text]:
    """Sequences with block tables in no order."""
    free = list(range(n_blocks))
    chosen.shuffle(free)
    made = []
    for index, length in enumerate(lengths):
        count = -(-length // BLOCK_SIZE)
        made.append(Text(tokens(length, seed + index), free[:count]))
        del free[:count]
    return made


def run_randomly(model: ModelRunner, made: Sequence[Text], chosen: random.Random) -> None:
    """Steps of random chunks of random sequences until all are done; about half of the chunks are single tokens."""
    while open_ := [text for text in made if text.done < len(text.token_ids)]:
        picked = chosen.sample(open_, chosen.randint(1, len(open_)))
        chunks = [text.chunk(chosen.choice((1, 1, 1, 2, 7, 20, 33))) for text in picked]
        logits = model.execute(chunks)
        for row, (text, chunk) in enumerate(zip(picked, chunks, strict=True)):
            text.done += len(chunk.token_ids)
            text.logits[text.done - 1] = logits[row]
