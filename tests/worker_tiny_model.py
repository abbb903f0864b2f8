"""A model for tests of the whole worker, made when it is needed."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from backends.simulated.model_text import EMBEDDED_TOKENIZER


def tiny_model(directory: Path) -> Path:
    """A random model for the embedded tokenizer's ids, whose answers are noise and the same every time."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=8192,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=2048,
            initializer_range=0.3,
            eos_token_id=2,
            tie_word_embeddings=True,
        )
    )
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # has no types
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EMBEDDED_TOKENIZER / name, directory)
    return directory
