"""A small BERT with random weights, written as a folder of sentence-transformers has it; where the real one may be."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from gateway.minilm_download import minilm_folder

_TEXT = (
    "the quick brown fox jumps over lazy dog and then it sleeps in warm sun all day long while we count how many words "
    "there are this small text of ours not never no yes one two three weather is lovely today so sunny outside he "
    "drove to stadium what capital france germany paris berlin cafe naive 1 2 3 4 5 . , ? ! ' - "
    "##s ##ed ##ing ##er ##ly ##n ##t"
)
LETTERS = [chr(97 + at) for at in range(26)]
VOCABULARY = list(dict.fromkeys(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), *_TEXT.split()]
))  # fmt: skip


@dataclass(frozen=True)
class BertSize:
    """Of the random one."""

    hidden: int = 48
    layers: int = 2
    heads: int = 4
    inner: int = 96
    positions: int = 300


def real_minilm() -> Path | None:
    """The folder with the real weights, if this machine has it."""
    folder = Path(os.environ.get("PREFIXGATE_MINILM", "") or minilm_folder(os.environ))
    return folder if (folder / "model.safetensors").is_file() else None


def bert_config(size: BertSize) -> dict[str, object]:
    """config.json as the real one has it."""
    return {
        "architectures": ["BertModel"], "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "hidden_size": size.hidden, "initializer_range": 0.02,
        "intermediate_size": size.inner, "layer_norm_eps": 1e-12, "max_position_embeddings": size.positions,
        "model_type": "bert", "num_attention_heads": size.heads, "num_hidden_layers": size.layers, "pad_token_id": 0,
        "position_embedding_type": "absolute", "type_vocab_size": 2, "vocab_size": len(VOCABULARY),
    }  # fmt: skip


def bert_tensors(size: BertSize, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Random weights under the real names, large enough that attention and GELU are not nearly linear."""
    rng = np.random.default_rng(seed)
    hidden, inner = size.hidden, size.inner

    def random(*shape: int) -> NDArray[np.float32]:
        return rng.normal(0.0, 0.2, shape).astype(np.float32)

    def norm(name: str) -> dict[str, NDArray[np.float32]]:
        return {f"{name}.weight": 1 + random(hidden), f"{name}.bias": random(hidden)}

    def dense(name: str, rows: int, columns: int) -> dict[str, NDArray[np.float32]]:
        return {f"{name}.weight": random(rows, columns) * (48 / columns) ** 0.5 * 2, f"{name}.bias": random(rows)}

    tensors = {
        "embeddings.word_embeddings.weight": random(len(VOCABULARY), hidden),
        "embeddings.position_embeddings.weight": random(size.positions, hidden),
        "embeddings.token_type_embeddings.weight": random(2, hidden),
        **norm("embeddings.LayerNorm"),
        **dense("pooler.dense", hidden, hidden),
    }
    for at in range(size.layers):
        name = f"encoder.layer.{at}"
        for part in ("query", "key", "value"):
            tensors |= dense(f"{name}.attention.self.{part}", hidden, hidden)
        tensors |= dense(f"{name}.attention.output.dense", hidden, hidden)
        tensors |= norm(f"{name}.attention.output.LayerNorm")
        tensors |= dense(f"{name}.intermediate.dense", inner, hidden)
        tensors |= dense(f"{name}.output.dense", hidden, inner)
        tensors |= norm(f"{name}.output.LayerNorm")
    return tensors


def bert_tokenizer() -> Tokenizer:
    """WordPiece over a small vocabulary, cut and padded as the real file says it."""
    ids = {piece: at for at, piece in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [(name, ids[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.enable_truncation(128)
    tokenizer.enable_padding(length=128, pad_id=0, pad_token="[PAD]")
    return tokenizer


def write_bert(
    folder: Path,
    size: BertSize | None = None,
    *,
    config: Mapping[str, object] | None = None,
    files: Mapping[str, object] | None = None,
    tensors: Mapping[str, NDArray[np.generic] | None] | None = None,
) -> Path:
    """A folder with a model; `config`, `files` (JSON by name) and `tensors` add or change something, or with None take
    it away.
    """
    size = size or BertSize()
    folder.mkdir(parents=True, exist_ok=True)
    fields = {**bert_config(size), **(config or {})}
    written: dict[str, object] = {
        "config.json": {name: value for name, value in fields.items() if value is not None},
        "sentence_bert_config.json": {"max_seq_length": 256, "do_lower_case": False},
        "modules.json": [{"idx": at, "type": f"sentence_transformers.models.{kind}"} for at, kind in
                         enumerate(("Transformer", "Pooling", "Normalize"))],
        "1_Pooling/config.json": {"word_embedding_dimension": size.hidden, "pooling_mode_cls_token": False,
                                  "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False,
                                  "pooling_mode_mean_sqrt_len_tokens": False},
        **(files or {}),
    }  # fmt: skip
    for name, content in written.items():
        if content is not None:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(json.dumps(content))
    all_tensors = {**bert_tensors(size), **(tensors or {})}
    save_file({name: value for name, value in all_tensors.items() if value is not None}, folder / "model.safetensors")
    bert_tokenizer().save(str(folder / "tokenizer.json"))
    return folder
