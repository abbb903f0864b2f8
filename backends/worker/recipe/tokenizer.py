"""The tokenizer: byte-level BPE of 4,096 entries with ChatML markers, and the chat template that goes with it.

`python -m backends.worker.recipe.tokenizer` writes its files; the same bytes on every run.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from backends.worker.recipe.corpus import conversation
from backends.worker.recipe.talk import Talk

VOCAB_SIZE = 4096
END_OF_TEXT, TURN_START, TURN_END = SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SHIPPED = Path(__file__).parent.parent / "small_model"

PRE_TOKENIZER = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Words with the blank before them, single digits, runs of signs, blanks."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% set role = 'system' if message['role'] == 'developer' else message['role'] %}"
    "{% set role = role if role in ['system', 'assistant'] else 'user' %}"
    "{{ '<|im_start|>' + role + '\n' + (message['content'] or '') + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML. Whoever is neither system nor assistant is the user: the model knows no other role."""


def train_tokenizer(texts: list[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Byte-level BPE; every byte is in the vocabulary, so no text is unknown. Special tokens have the first ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENIZER), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return tokenizer


def texts_of(talk: Talk) -> list[str]:
    """All texts of a conversation."""
    return [talk.system or "", *(text for turn in talk.turns for text in (turn.user, turn.assistant))]


def pieces(talk: Talk) -> list[tuple[str, bool]]:
    """A conversation as the chat template writes it, in pieces; with each, whether the assistant writes it."""
    parts: list[tuple[str, bool]] = []
    if talk.system is not None:
        parts.append((f"{TURN_START}system\n{talk.system}{TURN_END}\n", False))
    for turn in talk.turns:
        parts += [
            (f"{TURN_START}user\n{turn.user}{TURN_END}\n{TURN_START}assistant\n", False),
            (f"{turn.assistant}{TURN_END}", True),
            ("\n", False),
        ]
    return parts


def write(tokenizer: Tokenizer, folder: Path) -> None:
    """`tokenizer.json` and `tokenizer_config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 8192,
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Train on 12,000 conversations and write the files."""
    texts = [text for seed in range(12_000) for text in texts_of(conversation(seed, characters=900))]
    tokenizer = train_tokenizer(texts)
    write(tokenizer, SHIPPED)
    count = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts))
    characters = sum(map(len, texts))
    print(f"{tokenizer.get_vocab_size()} entries, {characters / count:.2f} characters per token")


if __name__ == "__main__":
    main()
