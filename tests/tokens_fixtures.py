"""Tokenizers and real text for the tests of tokens and blocks; import the fixtures by name."""

from __future__ import annotations

import functools
import json
import lzma
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from cache.tokenizer import Tokenizer

ROOT = Path(__file__).parent.parent
DATA = Path(__file__).parent / "data"
EMBEDDED = ROOT / "backends" / "simulated" / "tokenizer"
TEMPLATES = DATA / "templates"


@functools.cache
def dialogues() -> list[dict[str, Any]]:
    """Chat request bodies: real tool-calling dialogues of tau-bench with their policy prompt and tools."""
    packed = (DATA / "conversations" / "tau_bench_airline.json.xz").read_bytes()
    bodies: list[dict[str, Any]] = json.loads(lzma.decompress(packed))
    return bodies


@functools.cache
def real_text() -> str:
    """About 100,000 characters of dialogue: prose, JSON, names, numbers."""
    return "\n".join(str(m.get("content")) for body in dialogues() for m in body["messages"])


@pytest.fixture(scope="session")
def embedded() -> Tokenizer:
    """The simulated engine's tokenizer, on fastokens."""
    return Tokenizer.load(EMBEDDED)


@pytest.fixture(scope="session")
def deepseek_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with DeepSeek-V3's tokenizer.json and nothing else."""
    directory = tmp_path_factory.mktemp("deepseek")
    packed = DATA / "tokenizers" / "deepseek_tokenizer.json.xz"
    (directory / "tokenizer.json").write_bytes(lzma.decompress(packed.read_bytes()))
    return directory


@pytest.fixture(scope="session")
def deepseek(deepseek_directory: Path) -> Tokenizer:
    """A real tokenizer with a vocabulary of 128k and 1,283 added tokens."""
    return Tokenizer.load(deepseek_directory)


def metaspace_tokenizer() -> tokenizers.Tokenizer:
    """A small Llama-2-like tokenizer: no pre-tokenizer, spaces as ▁, a BOS, tokens of two words."""
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=2_000,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
        max_token_length=16,
    )
    # Words in twos, so that the vocabulary has tokens which reach over a space.
    words = real_text()[:60_000].split()
    tokenizer.train_from_iterator([" ".join(pair) for pair in pairwise(words)], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def bert_tokenizer() -> tokenizers.Tokenizer:
    """A small BERT-like tokenizer: lower case, WordPiece, [CLS] and [SEP] around a text."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=2_000, special_tokens=["[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False
    )
    tokenizer.train_from_iterator([real_text()[:60_000]], trainer)
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ids
    )
    return tokenizer


def _saved(tokenizer: tokenizers.Tokenizer, directory: Path) -> Tokenizer:
    tokenizer.save(str(directory / "tokenizer.json"))
    return Tokenizer.load(directory)


@pytest.fixture(scope="session")
def metaspace(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """See `metaspace_tokenizer`."""
    return _saved(metaspace_tokenizer(), tmp_path_factory.mktemp("metaspace"))


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """See `bert_tokenizer`."""
    return _saved(bert_tokenizer(), tmp_path_factory.mktemp("bert"))


def byte_level_tokenizer(pre_tokenizer: pre_tokenizers.PreTokenizer) -> tokenizers.Tokenizer:
    """A small byte-level BPE behind the given rule of splitting."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=2_000,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([real_text()[:60_000]], trainer)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """GPT-2's rule of splitting, with a space added in front of a text as RoBERTa's does."""
    rule = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return _saved(byte_level_tokenizer(rule), tmp_path_factory.mktemp("gpt2"))


O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The rule of tiktoken's `o200k_base`, which several models share."""


@pytest.fixture(scope="session")
def o200k(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A byte-level BPE behind `O200K`."""
    rule = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(O200K), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return _saved(byte_level_tokenizer(rule), tmp_path_factory.mktemp("o200k"))
