"""The torch worker's engine beside `transformers`: `python -m tests.bench worker [--shape tiny]`.

Random weights of Qwen3-0.6B's shape in bfloat16, on this machine's CPU. Eight requests come at once: to our engine, to
`transformers.generate` one after the other, and to its own continuous batching. Rounds alternate, so that a busy
machine is busy for all; medians, and ratios of the same round. Then the memory: a process with a bound, under the
largest load that its options allow, and its peak of resident memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from logging import CRITICAL, getLogger
from pathlib import Path
from typing import Any, Final

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from backends.worker.engine.engine import Engine
from backends.worker.engine.loading import load_engine
from backends.worker.engine.sequence import Sequence as Sequence_
from backends.worker.messages import SamplingParams, Submit
from backends.worker.options import EngineOptions
from policies.types import TokenIds

SHAPES: Final[dict[str, dict[str, Any]]] = {
    "qwen3-0.6b": {
        "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40_960,
        "tie_word_embeddings": True,
    },
    "tiny": {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
}  # fmt: skip
REQUESTS: Final = 8
PROMPT: Final = 500
OUTPUT: Final = 32
PREFILL: Final = 2000
REQUESTS_OF: Final = ((100, 64), (500, 32))
"""Prompt and output tokens: a chat's question, and a document's."""
PARTS: Final = ("decode", "prefill", "requests", "memory")
MEMORY: Final = {"qwen3-0.6b": 4 << 30, "tiny": 1 << 30}


def prompts(count: int, length: int, vocabulary: int, seed: int) -> list[list[int]]:
    """Random prompts that share nothing."""
    chance = random.Random(seed)
    return [[chance.randrange(10, vocabulary) for _ in range(length)] for _ in range(count)]


def run(engine: Engine, asked: Sequence[Sequence[int]], output: int, params: SamplingParams | None = None) -> float:
    """Seconds from the first of these requests to the end of the last; greedy where nothing else is said."""
    start = time.perf_counter()
    params = params or SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
    for number, ids in enumerate(asked):
        refused = engine.submit(Submit(id=str(number), token_ids=TokenIds(array("I", ids).tobytes()), params=params))
        assert refused is None, refused
    tokens = 0
    while engine.has_work:
        done, _ = engine.step()
        tokens += sum(len(out.token_ids) for out in done.outputs)
    assert tokens == output * len(asked)
    return time.perf_counter() - start


def decode_rate(engine: Engine, vocabulary: int, sequences: int, seed: int) -> float:
    """Tokens a second of so many decoding sequences, their prefill not counted."""
    params = SamplingParams(max_tokens=OUTPUT + 2, temperature=0.0, ignore_eos=True)
    for number, ids in enumerate(prompts(sequences, PROMPT, vocabulary, seed)):
        engine.submit(Submit(id=str(number), token_ids=TokenIds(array("I", ids).tobytes()), params=params))
    told = 0
    while told < sequences:  # until each has its first token
        told += len(engine.step()[0].outputs)
    start, tokens = time.perf_counter(), 0
    while engine.has_work:
        tokens += len(engine.step()[0].outputs)
    return tokens / (time.perf_counter() - start)


def one_by_one(model: Any, asked: Sequence[Sequence[int]], output: int) -> float:
    """The same with `generate`."""
    config = GenerationConfig(max_new_tokens=output, min_new_tokens=output, do_sample=False, pad_token_id=0)  # type: ignore[no-untyped-call]  # has no types
    start = time.perf_counter()
    for ids in asked:
        out = model.generate(torch.tensor([ids]), generation_config=config)
        assert out.shape[1] == len(ids) + output
    return time.perf_counter() - start


def batched(model: Any, asked: Sequence[Sequence[int]], output: int) -> float:
    """The same with continuous batching as `transformers` has it; NaN where that does not run on this device."""
    config = GenerationConfig(max_new_tokens=output, do_sample=False, eos_token_id=-1, pad_token_id=0)  # type: ignore[no-untyped-call]  # has no types
    start = time.perf_counter()
    try:
        answers = model.generate_batch(
            [list(ids) for ids in asked],
            generation_config=config,
            continuous_batching_config=ContinuousBatchingConfig(use_cuda_graph=False),
        )
    except Exception as error:  # noqa: BLE001 - what it raises where it does not run is not documented
        print(f"transformers' continuous batching does not run here: {type(error).__name__}: {error}", file=sys.stderr)
        return float("nan")
    seconds = time.perf_counter() - start
    made = [len(answer.generated_tokens) for answer in answers.values()]
    return seconds if made == [output] * len(asked) else float("nan")


def options(directory: Path, **fields: Any) -> EngineOptions:
    return EngineOptions(
        model=str(directory), load_format="dummy", dtype="bfloat16", device="cpu", served_model_name="bench",
        **{"max_model_len": 4096, **fields},
    )  # fmt: skip


def fill(engine: Engine, vocabulary: int) -> None:
    """Every block of the pool is touched, and can be found by its hash."""
    blocks = engine.scheduler.blocks
    engine.runner.pool.data.fill_(0)
    each, params = min(60, blocks.n_blocks), SamplingParams(max_tokens=1)
    for seed in range(blocks.n_blocks // each):
        ids = prompts(1, each * blocks.block_size, vocabulary, seed)[0]
        sequence = Sequence_(Submit(id="", token_ids=TokenIds(array("I", ids).tobytes()), params=params))
        assert blocks.allocate(sequence, sequence.n_tokens)
        blocks.register(sequence, sequence.n_tokens)
        blocks.commit()
        blocks.take_events()
        blocks.free(sequence)


def peak(directory: str, memory: int, vocabulary: int, answer: Any) -> None:
    """In a process of its own, with a full pool: as many long requests as fit at once; peak of memory, in bytes."""
    engine, ready = load_engine(options(Path(directory), memory=memory, max_num_batched_tokens=1024, max_num_seqs=32))
    fill(engine, vocabulary)
    rows = min(32, ready.blocks * ready.block_size // 1024)
    sampled = SamplingParams(max_tokens=4, top_p=0.9, logprobs=5, presence_penalty=0.5, ignore_eos=True)
    run(engine, prompts(rows, 1000, vocabulary, 5), 4, sampled)
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    answer.send((int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024, ready.blocks, rows))


def measured(name: str, ours: Sequence[float], theirs: Sequence[float], unit: str = "s") -> None:
    ratio = statistics.median(other / own for own, other in zip(ours, theirs, strict=True))
    print(
        f"{name:<58}{statistics.median(ours):>9.2f} {unit}{statistics.median(theirs):>9.2f} {unit}{ratio:>8.2f} ×",
        flush=True,
    )


@torch.no_grad()
def prefill(model: Any, ids: Sequence[int]) -> float:
    start = time.perf_counter()
    model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=list(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    getLogger("ContinuousBatchingLogger").setLevel(CRITICAL)  # it misses psutil, again and again
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # has no types
    shape = SHAPES[arguments.shape]
    vocabulary = shape["vocab_size"]
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        config = Qwen3Config(**shape, dtype="bfloat16", eos_token_id=2)
        config.architectures = ["Qwen3ForCausalLM"]
        config.save_pretrained(directory)
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config).bfloat16().eval()  # type: ignore[no-untyped-call]  # has no types
        engine, ready = load_engine(options(directory, kv_blocks=1024, enable_prefix_caching=False))
        print(
            f"{arguments.shape}, {ready.dtype}, {torch.get_num_threads()} threads, medians of {arguments.rounds} rounds"
        )
        print(f"{'':<58}{'worker':>11}{'transformers':>11}")

        def rounds(ours: Callable[[], float], theirs: Callable[[], float]) -> tuple[list[float], list[float]]:
            pairs = [(ours(), theirs()) for _ in range(arguments.rounds)]
            return [own for own, _ in pairs], [other for _, other in pairs]

        for sequences in (1, 4, 8) if "decode" in arguments.parts else ():
            rates = [decode_rate(engine, vocabulary, sequences, seed) for seed in range(arguments.rounds)]
            print(f"decode, {sequences} sequences: {statistics.median(rates):.1f} tokens/s", flush=True)
        if "prefill" in arguments.parts:
            text = prompts(1, PREFILL, vocabulary, 1)
            run(engine, text, 1), prefill(model, text[0])  # the first is slower for both
            measured(
                f"prefill of {PREFILL} tokens",
                *rounds(lambda: run(engine, text, 1), lambda: prefill(model, text[0])),
            )
        for length, output in REQUESTS_OF if "requests" in arguments.parts else ():
            asked = prompts(REQUESTS, length, vocabulary, 2)
            title = f"{REQUESTS} requests of {length} + {output} tokens, theirs"
            ours = partial(run, engine, asked, output)
            run(engine, asked[:1], 2), one_by_one(model, asked[:1], 2)
            measured(f"{title} one by one", *rounds(ours, partial(one_by_one, model, asked, output)))
            measured(f"{title} batched", *rounds(ours, partial(batched, model, asked, output)))
        if "memory" not in arguments.parts:
            return
        engine.scheduler.check_integrity()
        bound = MEMORY[arguments.shape]
        mine, child = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(target=peak, args=(folder, bound, vocabulary, child))
        process.start()
        used, blocks, rows = mine.recv()
        process.join()
        print(
            f"peak memory: {used / 2**20:.0f} MiB under a bound of {bound / 2**20:.0f} MiB ({used / bound:.2f}), with"
            f" {blocks} KV blocks and {rows} requests of 1,000 tokens"
        )


if __name__ == "__main__":
    main()
