"""What tokens and blocks cost, in microseconds: `python -m tests.bench.tokens [TOKENIZER_DIRECTORY]`.

Medians. Prompts are real dialogues (tau-bench) cut to 200, 2,000 and 8,000 tokens. "cold" is text never seen
by the library: each run encodes other words.
"""

from __future__ import annotations

import random
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.prompt_blocks import PromptBlockCache
from cache.tokenizer import Tokenizer
from tests.tokens_fixtures import EMBEDDED, dialogues

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = ChainKey("model")


def microseconds(run: Callable[[], object], *, rounds: int = 200) -> float:
    """Median time of one call."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def prompt(tokenizer: Tokenizer, n_tokens: int) -> str:
    """A chat prompt of about `n_tokens`: turns of dialogue with their markers."""
    text = "".join(
        f"<|im_start|>{m['role']}\n{m.get('content')}<|im_end|>\n" for body in dialogues() for m in body["messages"]
    )
    low, high = 0, len(text)
    while low < high:
        middle = (low + high) // 2
        enough = len(tokenizer.encode(text[:middle], add_special_tokens=False)) // 4 >= n_tokens
        low, high = (low, middle) if enough else (middle + 1, high)
    return text[:low]


def unseen(text: str, number: int) -> str:
    """The same length in other words: letters moved by a few places."""
    shift = 1 + number % 25
    letters = [chr(97 + (i + shift) % 26) for i in range(26)]
    return text.translate(dict(zip(range(97, 123), letters, strict=True)))


def main() -> None:  # noqa: C901  # one row after the other
    """Print the table."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else EMBEDDED
    fast = Tokenizer.load(directory)
    slow = Tokenizer.load(directory, backends=("tokenizers",))
    print(f"{directory}: {fast.backend} ({fast.backend_reason})")
    sizes = [(n, prompt(fast, n)) for n in (200, 2_000, 8_000)]
    print(f"{'tokens (chars)':<42}" + "".join(f"{f'{n} ({len(text)})':>16}" for n, text in sizes))

    def row(name: str, measure: Callable[[str], float]) -> None:
        print(f"{name:<42}" + "".join(f"{measure(text):>16.1f}" for _, text in sizes))

    def cache_with(text: str) -> PromptBlockCache:
        cache = PromptBlockCache(fast, max_bytes=64 << 20)
        scan = cache.start(KEY, text, add_special_tokens=False)
        cache.finish(scan, cache.encode(scan))
        return cache

    def render(text: str) -> float:
        turns = [text[start : start + 600] for start in range(0, len(text), 600)]
        body = {"messages": [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]}
        return microseconds(lambda: fast.render_chat(body)) if fast.chat_template else float("nan")

    def seen(text: str) -> float:
        cache = cache_with(text)
        return microseconds(lambda: cache.start(KEY, text, add_special_tokens=False))

    def seen_prefix(text: str) -> float:
        cache, longer = cache_with(text), text + "<|im_start|>user\nAnd what about this?<|im_end|>\n"
        return microseconds(lambda: cache.start(KEY, longer, add_special_tokens=False))

    def tail(text: str) -> float:
        cache, longer = cache_with(text), text + "<|im_start|>user\nAnd what about this?<|im_end|>\n"
        scan = cache.start(KEY, longer, add_special_tokens=False)
        return microseconds(lambda: cache.encode(scan))

    def new(text: str) -> float:
        cache = PromptBlockCache(fast, max_bytes=64 << 20)
        return microseconds(lambda: cache.start(KEY, text, add_special_tokens=False))

    def cold(tokenizer: Tokenizer) -> Callable[[str], float]:
        def measure(text: str) -> float:
            texts = iter([unseen(text, number) for number in range(12)])
            return microseconds(lambda: tokenizer.encode(next(texts), add_special_tokens=False), rounds=12)

        return measure

    def warm(text: str) -> float:
        return microseconds(lambda: fast.encode(text, add_special_tokens=False))

    def chain(text: str) -> float:
        ids = fast.encode(text, add_special_tokens=False)
        root = root_hash(KEY)
        return microseconds(lambda: extend_chain(root, ids, 16))

    row("template, a message for 600 chars", render)
    row("start, all seen", seen)
    row("start, seen prefix + new message", seen_prefix)
    row("  and encode of its tail", tail)
    row("start, never seen", new)
    row(f"encode, {fast.backend}, warm", warm)
    row(f"encode, {fast.backend}, cold", cold(fast))
    row("encode, tokenizers, cold", cold(slow))
    row("chain of hashes", chain)

    before = resident_mb()
    rng = random.Random(1)
    for _ in range(200):
        words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(4, 12))) for _ in range(6_000)]
        fast.encode(" ".join(words), add_special_tokens=False)
    print(f"memory grown by 11 MB of random words in {fast.backend}: {resident_mb() - before:.0f} MB")


def resident_mb() -> float:
    """Resident memory of this process (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main()
