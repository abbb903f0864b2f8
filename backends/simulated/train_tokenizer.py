"""Make the simulated engine's tokenizer: `python -m backends.simulated.train_tokenizer CORPUS`.

CORPUS is `en_100_tree.jsonl` of LAION-AI/Open-Assistant (Apache-2.0): a hundred branching English
conversations. The result is a byte-level BPE tokenizer of 8,192 entries with Qwen2's pre-tokenizer and ChatML
markers, and it is the same bytes on every run. `--common-with` writes `words.txt` too: words which are one
token here and in every tokenizer named, so that a prompt made of them has as many tokens as words wherever it
is sent.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VOCAB_SIZE = 8_192
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WORDS = 2_048
DESTINATION = Path(__file__).parent / "tokenizer"

# Qwen2's pre-tokenizer, as its public tokenizer.json states it.
PRE_TOKENIZER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def read_texts(corpus: Path) -> Iterator[str]:
    """Every message of the conversation trees, in the file's order."""

    def walk(message: dict[str, object]) -> Iterator[str]:
        text, replies = message["text"], message["replies"]
        assert isinstance(text, str)
        assert isinstance(replies, list)
        yield text
        for reply in replies:
            yield from walk(reply)

    with corpus.open(encoding="utf-8") as lines:
        for line in lines:
            yield from walk(json.loads(line)["prompt"])


def train(texts: list[str]) -> Tokenizer:
    """Byte-level BPE with the markers of ChatML; every byte is in the vocabulary, so no text is unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENIZER), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS),
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # Added after training so that they take the last ids, as in the public ChatML models.
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def one_token_test(path: Path) -> Callable[[str], bool]:
    """Is a text one token for this tokenizer, a `*.tiktoken` file of ranks or a `tokenizer.json`?"""
    if path.suffix == ".tiktoken":
        ranks = {base64.b64decode(line.split()[0]) for line in path.read_bytes().splitlines() if line}
        return lambda text: text.encode() in ranks
    other = Tokenizer.from_file(str(path))
    return lambda text: len(other.encode(text, add_special_tokens=False).ids) == 1


def common_words(texts: list[str], tests: list[Callable[[str], bool]]) -> list[str]:
    """The most frequent lower-case words which every test calls one token when a space stands before them."""
    counts = Counter(word for text in texts for word in re.findall(r"(?<![\w'])[a-z]{3,10}(?![\w'])", text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return [word for word in ranked if all(test(" " + word) for test in tests)][:WORDS]


def main() -> None:
    """Write tokenizer.json (and words.txt) beside this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--common-with", type=Path, nargs="*", default=[])
    parser.add_argument("--destination", type=Path, default=DESTINATION)
    arguments = parser.parse_args()
    texts = list(read_texts(arguments.corpus))
    tokenizer = train(texts)
    target: Path = arguments.destination / "tokenizer.json"
    # Without indentation: 40% fewer bytes in the package.
    target.write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")
    print(f"{target}: {tokenizer.get_vocab_size()} entries, {target.stat().st_size} bytes")
    if arguments.common_with:
        words = common_words(texts, [one_token_test(path) for path in (target, *arguments.common_with)])
        (arguments.destination / "words.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
        print(f"words.txt: {len(words)} words")


if __name__ == "__main__":
    main()
