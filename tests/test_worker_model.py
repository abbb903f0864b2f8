"""Our decoder computes what `transformers` computes: every family, every variant, whole or in pieces."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.worker.model.attention import products, sdpa
from backends.worker.model.runner import Chunk
from tests.worker_model_fixtures import (
    LLAMA3,
    VARIANTS,
    YARN,
    Text,
    Variant,
    make,
    rope,
    run_randomly,
    runner,
    saved,
    texts,
    tokens,
    truth,
)

LENGTH = 90
"""Longer than every window and than the original positions of the stretched models."""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@dataclass(frozen=True)
class Made:
    """A model that `transformers` has made, and where it is saved."""

    model: Any
    directory: Path


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda variant: variant.name)
def each(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    model = make(request.param)
    return Made(model, saved(model, tmp_path_factory.mktemp("model")))


def test_logits_of_whole_prompts_are_those_of_transformers(each: Made) -> None:
    model, ours = each.model, runner(each.directory)
    for length in (1, 2, 16, 17, LENGTH):
        [text] = texts([length], random.Random(length))
        got = ours.execute([text.chunk(length)])
        torch.testing.assert_close(got[0], truth(model, text.token_ids)[-1], rtol=1e-4, atol=1e-4)


def test_chunks_and_mixed_batches_change_nothing(each: Made) -> None:
    model = each.model
    for seed, kernel in enumerate((products, products, sdpa)):
        ours = runner(each.directory, kernel=kernel)
        chosen = random.Random(seed)
        made = texts([LENGTH, 40, 23, 1, 64], chosen, seed=seed)
        run_randomly(ours, made, chosen)
        for text in made:
            wanted = truth(model, text.token_ids)
            assert len(text.logits) > len(text.token_ids) // 33
            for position, logits in text.logits.items():
                torch.testing.assert_close(logits, wanted[position], rtol=1e-4, atol=1e-4)


def test_bfloat16_is_as_close_to_float32_as_that_of_transformers(each: Made) -> None:
    model, ours = each.model, runner(each.directory, dtype=torch.bfloat16)
    [text] = texts([LENGTH], random.Random(0))
    exact = truth(model, text.token_ids)
    theirs = truth(copy.deepcopy(model).to(torch.bfloat16), text.token_ids).float()
    for position in range(LENGTH):
        text.logits[position] = ours.execute([text.chunk(1)])[0]
        text.done += 1
    got = torch.stack([text.logits[position] for position in range(LENGTH)])
    assert (got - exact).norm() < 1.5 * (theirs - exact).norm()


def test_float64_tells_pieces_from_the_whole_by_twelve_digits_at_most(tmp_path: Path) -> None:
    model = make(Variant("llama"))
    ours = runner(saved(model, tmp_path), dtype=torch.float64)
    made = texts([LENGTH, 30], random.Random(0))
    run_randomly(ours, made, random.Random(1))
    for text in made:
        for position, logits in text.logits.items():
            whole = ours.execute([Chunk(text.token_ids[: position + 1], 0, text.block_table, samples=True)])[0]
            assert logits.dtype == torch.float64
            torch.testing.assert_close(logits, whole, rtol=1e-12, atol=1e-12)


def test_dynamic_positions_beyond_the_original_length_are_those_of_a_text_that_grows(tmp_path: Path) -> None:
    """A forward pass over the whole text would turn all keys by the last one's base, which no cache could keep."""
    model = make(Variant("dynamic", settings=rope("dynamic", factor=3.0)), positions=32)
    ours = runner(saved(model, tmp_path))
    assert ours.decoder.config.max_length == 96
    token_ids, wanted, cache = tokens(LENGTH), [], None
    with torch.no_grad():
        for start, count in [(0, 20), *((position, 1) for position in range(20, LENGTH))]:
            out = model(torch.tensor([token_ids[start : start + count]]), past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            wanted += list(out.logits[0])
    for seed in range(3):
        made = [Text(token_ids, text.block_table) for text in texts([LENGTH], random.Random(seed))]
        run_randomly(ours, made, random.Random(seed))
        for position, logits in made[0].logits.items():
            torch.testing.assert_close(logits, wanted[position], rtol=1e-4, atol=1e-4)


OLD_SPELLINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"rope_theta": 500.0}, {"rope_type": "default", "rope_theta": 500.0}),
    (
        {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 3.0}},
        {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0},
    ),
    (
        {"rope_scaling": {"rope_type": "dynamic", "factor": 3.0}},
        {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 10_000.0},
    ),
    (
        {"rope_theta": 5_000.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_type": "llama3", **LLAMA3, "rope_theta": 5_000.0},
    ),
    (
        {"rope_theta": 5_000.0, "rope_scaling": {"type": "yarn", "rope_type": "yarn", **YARN}},
        {"rope_type": "yarn", **YARN, "rope_theta": 5_000.0},
    ),
]


@pytest.mark.parametrize(("old", "new"), OLD_SPELLINGS, ids=lambda value: str(value)[:40])
def test_the_older_spelling_of_rope_means_the_same(old: dict[str, Any], new: dict[str, Any], tmp_path: Path) -> None:
    model = make(Variant("new", settings={"rope_parameters": dict(new)}))
    directory = saved(model, tmp_path)
    config = json.loads((directory / "config.json").read_bytes())
    del config["rope_parameters"]
    (directory / "config.json").write_text(json.dumps(config | old))
    ours = runner(directory)
    token_ids = tokens(LENGTH)
    got = ours.execute([Chunk(token_ids, 0, range(6), samples=True)])
    torch.testing.assert_close(got[0], truth(model, token_ids)[-1], rtol=1e-4, atol=1e-4)
    # The library reads both spellings too.
    theirs = type(model).from_pretrained(directory)
    torch.testing.assert_close(truth(theirs, token_ids), truth(model, token_ids))


def test_sequences_of_one_step_may_share_blocks_that_one_of_them_fills(tmp_path: Path) -> None:
    model = make(Variant("llama"))
    ours = runner(saved(model, tmp_path))
    first = tokens(40)
    second = [*first[:32], *tokens(9, seed=5)]
    chunks = [
        Chunk(second[32:], 32, [7, 3, 12], samples=True),  # reads blocks 7 and 3 ...
        Chunk(first, 0, [7, 3, 11], samples=True),  # ... that the other writes in the same step
    ]
    got = ours.execute(chunks)
    torch.testing.assert_close(got[0], truth(model, second)[-1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got[1], truth(model, first)[-1], rtol=1e-4, atol=1e-4)


def test_only_rows_that_sample_have_logits_in_the_order_asked_for(tmp_path: Path) -> None:
    model = make(Variant("qwen3", "qwen3"))
    ours = runner(saved(model, tmp_path))
    a, b, c = texts([20, 1, 30], random.Random(3))
    chunks = [a.chunk(20), b.chunk(1), c.chunk(30)]
    silent = Chunk(chunks[2].token_ids, 0, chunks[2].block_table, samples=False)
    got = ours.execute([chunks[0], silent, chunks[1]])
    assert got.shape == (2, ours.decoder.config.vocab_size)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got[0], truth(model, a.token_ids)[-1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got[1], truth(model, b.token_ids)[-1], rtol=1e-4, atol=1e-4)
    assert ours.execute([silent]).shape == (0, ours.decoder.config.vocab_size)


def test_blocks_of_nobody_need_hold_no_numbers(tmp_path: Path) -> None:
    model = make(Variant("qwen3", "qwen3"))
    ours = runner(saved(model, tmp_path))
    made = texts([20, 1, 30, 33], random.Random(4))
    own = {block for text in made for block in text.block_table}
    ours.pool.data[[block for block in range(ours.pool.n_blocks) if block not in own]] = float("nan")
    run_randomly(ours, made, random.Random(5))
    for text in made:
        position = len(text.token_ids) - 1
        torch.testing.assert_close(text.logits[position], truth(model, text.token_ids)[-1], rtol=1e-4, atol=1e-4)
