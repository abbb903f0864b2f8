"""Where products of rows do not depend on their number, nothing that is computed together changes a single bit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from backends.worker.messages import SamplingParams, Submit
from backends.worker.model import numerics
from backends.worker.model.attention import QUERIES
from backends.worker.model.numerics import DeviceChoice, DtypeChoice, NumericsError
from backends.worker.model.runner import Chunk
from tests import test_worker_engine as worker
from tests.worker_core_fixtures import token_ids
from tests.worker_model_fixtures import CPU, SLIDING, Variant, decoder, make, run_randomly, runner, saved, texts, tokens

SHAPES = ((192, 64), (64, 128), (192, 64), (64, 96), (160, 64))
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8, "head_dim": 16}
MODELS = (
    Variant("llama", settings=SIZES),
    Variant("qwen3", "qwen3", {**SIZES, **SLIDING}),
    Variant("mistral, sliding", "mistral", {**SIZES, "sliding_window": 24}),
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("variant", MODELS, ids=lambda variant: variant.name)
def test_bfloat16_is_the_same_bit_for_bit_whatever_the_chunks_and_batches(variant: Variant, tmp_path: Path) -> None:
    if not numerics.rows_are_independent(torch.bfloat16, CPU, SHAPES):
        pytest.skip("this CPU's bfloat16 products round a row differently with the number of rows")
    ours = runner(saved(make(variant, positions=512), tmp_path), dtype=torch.bfloat16, n_blocks=64)
    lengths = [3 * QUERIES + 40, 120, 77, 5]
    alone = texts(lengths, random.Random(0))
    for text in alone:
        for _ in range(len(text.token_ids)):
            text.logits[text.done] = ours.execute([text.chunk(1)])[0]
            text.done += 1
    for seed in range(1, 5):
        chosen = random.Random(seed)
        mixed = texts(lengths, chosen)
        run_randomly(ours, mixed, chosen)
        for text, single in zip(mixed, alone, strict=True):
            assert text.token_ids == single.token_ids
            assert all(torch.equal(logits, single.logits[position]) for position, logits in text.logits.items())


@pytest.mark.parametrize("threads", [1, 2])
def test_greedy_text_in_bfloat16_is_the_same_under_every_schedule(threads: int, tmp_path: Path) -> None:
    if not numerics.rows_are_independent(torch.bfloat16, CPU, SHAPES):
        pytest.skip("this CPU's bfloat16 products round a row differently with the number of rows")
    torch.set_num_threads(threads)
    model = decoder(saved(make(MODELS[0], positions=128), tmp_path), dtype=torch.bfloat16)
    made = [
        Submit(id=str(at), token_ids=token_ids(ids), params=SamplingParams(max_tokens=16, temperature=0.0))
        for at, ids in enumerate(worker.prompts(random.Random(1), 8))
    ]
    plain = {"enable_prefix_caching": False, "enable_chunked_prefill": False, "max_num_seqs": 1}
    alone = worker.run(worker.engine(model, dtype=torch.bfloat16, **plain), made)
    preempted = found = 0
    for seed in range(20 if threads == 1 else 2):
        chance = random.Random(seed)
        budget, blocks = chance.choice((8, 24, 96)), chance.choice((14, 16, 40))
        it = worker.engine(model, dtype=torch.bfloat16, n_blocks=blocks, max_num_batched_tokens=budget)
        told = worker.run(it, chance.sample(made, len(made)), chance)
        assert {each: worker.ids_of(outs) for each, outs in told.items()} == {
            each: worker.ids_of(outs) for each, outs in alone.items()
        }
        preempted += it.scheduler.stats().preemptions
        found += it.scheduler.stats().cached_tokens
    assert preempted
    assert found


def test_what_follows_a_sequence_in_its_last_block_is_not_seen(tmp_path: Path) -> None:
    ours = runner(saved(make(MODELS[0]), tmp_path))
    chunk = Chunk(tokens(21), 0, [4, 9], samples=True)
    before = ours.execute([chunk])
    ours.pool.data[9, :, :, 5:] = 1e4
    ours.pool.data[0] = -1e4
    assert torch.equal(ours.execute([chunk]), before)


def test_sequences_of_very_different_lengths_decode_in_one_step(tmp_path: Path) -> None:
    ours = runner(saved(make(MODELS[0], positions=2048), tmp_path), n_blocks=140)
    lengths = [1, 600, 16, 17, 900, 300, 2]
    made = texts(lengths, random.Random(0), n_blocks=140)
    for text in made:
        if text.token_ids[:-1]:
            ours.execute([text.chunk(len(text.token_ids) - 1)])
        text.done = len(text.token_ids) - 1
    together = ours.execute([text.chunk(1) for text in made])
    for row, text in enumerate(made):
        torch.testing.assert_close(together[row], ours.execute([text.chunk(1)])[0], rtol=1e-4, atol=1e-4)


def test_devices_and_types_are_chosen_or_refused() -> None:
    assert numerics.choose_device(DeviceChoice.CPU) == CPU
    for choice, dtype in (
        (DtypeChoice.FLOAT32, torch.float32),
        (DtypeChoice.BFLOAT16, torch.bfloat16),
        (DtypeChoice.FLOAT16, torch.float16),
        (DtypeChoice.FLOAT64, torch.float64),
    ):
        assert numerics.choose_dtype(choice, CPU) == dtype
    threads = torch.get_num_threads()
    (chosen,) = {numerics.choose_dtype(DtypeChoice.AUTO, CPU) for _ in range(5)}
    assert chosen in {torch.float32, torch.bfloat16}
    assert torch.get_num_threads() == threads
    assert numerics.set_threads(1) == 1
    assert numerics.set_threads(None) == 1
    if torch.cuda.is_available():
        assert numerics.choose_device(DeviceChoice.AUTO).type == "cuda"
    else:
        assert numerics.choose_device(DeviceChoice.AUTO) == CPU
        with pytest.raises(NumericsError, match="torch finds no CUDA device"):
            numerics.choose_device(DeviceChoice.CUDA)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_computes_what_the_cpu_computes(tmp_path: Path) -> None:
    directory = saved(make(MODELS[1]), tmp_path)
    cpu, cuda = runner(directory), runner(directory, device=torch.device("cuda"))
    for seed in range(3):
        there, here = texts([90, 40, 5], random.Random(seed)), texts([90, 40, 5], random.Random(seed))
        run_randomly(cuda, there, random.Random(seed))
        run_randomly(cpu, here, random.Random(seed))
        for a, b in zip(there, here, strict=True):
            for position, logits in a.logits.items():
                torch.testing.assert_close(logits.cpu(), b.logits[position], rtol=1e-3, atol=1e-3)
