"""Prompts are fixed for ever: same words for the same ids, in every process, and of the right length."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.replay.arrival import Arrival
from gateway.replay.prompts import PromptMaker, default_words, splitmix64
from gateway.replay.traces import read_trace

TRACES = Path(__file__).parent / "data" / "traces"

DIGESTS = {
    "mooncake_conversation_2000.jsonl.xz": "c0b94901249e04dcc8d2bb2c2eb03fcb44a139d026e256551906aefea931507b",
    "agent_sessions_5.compact.jsonl": "729aad3d821e7613f19d5513e64d7b54c97bd312c79d45f4214258490afe5a3b",
}


def digest_of_first_20(trace: Path) -> str:
    arrivals = read_trace(trace, 20)
    maker = PromptMaker(arrivals[0].block_tokens)
    digest = hashlib.sha256()
    for arrival in arrivals:
        digest.update(maker.prompt(arrival).encode() + b"\n")
    return digest.hexdigest()


@pytest.mark.parametrize("name", DIGESTS)
def test_golden_digest(name: str) -> None:
    assert digest_of_first_20(TRACES / name) == DIGESTS[name]


def test_the_same_in_a_process_with_another_hash_seed() -> None:
    code = (
        "from gateway.replay.prompts import PromptMaker; from gateway.replay.arrival import Arrival;"
        "print(PromptMaker(64).prompt(Arrival(0, 200, 1, (5, 6, -7, 1 << 60), 64)))"
    )
    root = Path(__file__).parent.parent
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert texts == {PromptMaker(64).prompt(Arrival(0, 200, 1, (5, 6, -7, 1 << 60), 64)) + "\n"}


@pytest.mark.parametrize("tokens", [1, 5, 6, 7, 63, 64, 65, 128, 191])
def test_a_prompt_has_as_many_words_as_input_tokens(tokens: int) -> None:
    ids = tuple(range(-(-tokens // 64)))
    text = PromptMaker(64).prompt(Arrival(0, tokens, 1, ids, 64))
    assert len(text.split(" ")) == tokens
    assert text == text.strip()


def test_prompts_share_words_exactly_as_far_as_blocks() -> None:
    maker = PromptMaker(64)
    first = maker.prompt(Arrival(0, 192, 1, (1, 2, 3), 64)).split(" ")
    second = maker.prompt(Arrival(0, 192, 1, (1, 2, 4), 64)).split(" ")
    same = next(n for n, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
    assert 128 <= same < 128 + 6


def test_blocks_of_many_ids_differ_within_their_first_words() -> None:
    maker = PromptMaker(16)
    heads = {tuple(maker.block_text(block_id).split()[:6]) for block_id in range(-500, 20_000)}
    assert len(heads) == 20_500
    first_words = {head[0] for head in heads}
    assert len(first_words) > 2_000


def test_a_block_has_the_same_text_wherever_it_stands() -> None:
    maker = PromptMaker(64)
    assert maker.prompt(Arrival(0, 128, 1, (8, 9), 64)) == (maker.block_text(8) + maker.block_text(9))[1:]


def test_a_partial_block_is_the_beginning_of_the_block() -> None:
    maker = PromptMaker(64)
    whole, part = (maker.prompt(Arrival(0, tokens, 1, (7,), 64)) for tokens in (64, 40))
    assert whole.split(" ")[:40] == part.split(" ")


def test_block_texts_are_kept_within_bounds() -> None:
    maker = PromptMaker(8192)
    for block_id in range(2_000):
        maker.block_text(block_id)
    info = maker.block_text.cache_info()
    assert info.maxsize == info.currsize == 512


def test_the_word_list() -> None:
    words = default_words()
    assert len(words) == len(set(words)) == 2048
    assert all(word.isascii() and word.isalpha() for word in words)


def test_splitmix64_reference_values() -> None:
    # the generator seeded with 1234567, as in the reference implementation of xoshiro's authors
    step = 0x9E3779B97F4A7C15
    assert [splitmix64((1234567 + n * step) % 2**64) for n in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]
