"""The worker's decoder beside `transformers`: `python -m tests.bench.worker_model`.

Dummy weights in the shape of Qwen3-0.6B (or of `--layers` fewer layers), the same type for both. Both take turns, so
that other work on the machine strikes both alike: quote the ratios. CPU seconds hold on a busy machine too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, DynamicCache, Qwen3Config

from backends.worker.model.decoder import Decoder
from backends.worker.model.kv_pool import KvPool
from backends.worker.model.model_config import ModelConfig
from backends.worker.model.numerics import DeviceChoice, DtypeChoice, choose_device, choose_dtype, rows_are_independent
from backends.worker.model.runner import Chunk, ModelRunner
from backends.worker.model.weights import Weights

_SHAPE: Final[dict[str, Any]] = {
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40_960,
}
_BLOCK_SIZE: Final = 16


class Ours:
    """Our runner, every sequence with blocks of its own."""

    def __init__(self, config: ModelConfig, weights: Weights, sequences: int, tokens: int) -> None:
        self._blocks = -(-(tokens + 64) // _BLOCK_SIZE)
        pool = KvPool(
            config,
            n_blocks=self._blocks * sequences,
            block_size=_BLOCK_SIZE,
            dtype=weights.embed.dtype,
            device=weights.embed.device,
        )
        self._runner = ModelRunner(Decoder(config, weights), pool)

    def step(self, sequences: int, start: int, count: int) -> None:
        tables = [range(index * self._blocks, (index + 1) * self._blocks) for index in range(sequences)]
        self._runner.execute([Chunk([7] * count, start, table, samples=True) for table in tables])


class Theirs:
    """The library's forward pass; one batch of equally long sequences, which is its best case."""

    def __init__(self, config: Qwen3Config, dtype: torch.dtype, device: torch.device) -> None:
        library: Any = AutoModelForCausalLM
        self._model = library.from_config(config, dtype=dtype).to(device).eval()

    @torch.inference_mode()
    def prefill(self, sequences: int, count: int) -> DynamicCache:
        token_ids = torch.full((sequences, count), 7, device=self._model.device)
        cache: DynamicCache = self._model(token_ids, use_cache=True, logits_to_keep=1).past_key_values
        return cache

    @torch.inference_mode()
    def decode(self, cache: DynamicCache, sequences: int) -> None:
        self._model(torch.full((sequences, 1), 7, device=self._model.device), past_key_values=cache, use_cache=True)


def _seconds(compute: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    compute()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def _compare(name: str, tokens: int, ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> None:
    ours()
    theirs()
    pairs = [(_seconds(ours), _seconds(theirs)) for _ in range(rounds)]
    best = [min(pair[side][0] for pair in pairs) for side in (0, 1)]
    cpu = [min(pair[side][1] for pair in pairs) for side in (0, 1)]
    ratio = statistics.median(pair[1][0] / pair[0][0] for pair in pairs)
    print(
        f"{name:<32}{tokens / best[0]:>10,.1f}{tokens / best[1]:>14,.1f}{ratio:>10.2f}"
        f"{cpu[0]:>10.3f}{cpu[1]:>10.3f}{cpu[1] / cpu[0]:>10.2f}",
        flush=True,
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", type=DeviceChoice, default=DeviceChoice.AUTO)
    parser.add_argument("--dtype", type=DtypeChoice, default=DtypeChoice.AUTO)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--layers", type=int, default=_SHAPE["num_hidden_layers"])
    parser.add_argument("--prompt", type=int, default=2000)
    parser.add_argument("--context", type=int, default=500)
    parser.add_argument("--sequences", type=int, nargs="*", default=[1, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    device = choose_device(options.device)
    dtype = choose_dtype(options.dtype, device)
    theirs_config = Qwen3Config(**{**_SHAPE, "num_hidden_layers": options.layers})
    config = ModelConfig.parse(theirs_config.to_dict() | {"architectures": ["Qwen3ForCausalLM"]})
    weights = Weights.dummy(config, dtype=dtype, device=device)
    theirs = Theirs(theirs_config, dtype, device)
    most = max(options.sequences, default=1)
    ours = Ours(config, weights, most, max(options.context + options.rounds, options.prompt))
    print(
        f"{device.type}, {dtype}, {torch.get_num_threads()} threads, {config.num_layers} layers, weights"
        f" {weights.bytes / 1e9:.2f} GB, rows independent: {rows_are_independent(dtype, device)}"
    )
    print(
        f"{'':<32}{'ours tok/s':>10}{'transformers':>14}{'ratio':>10}{'CPU s':>10}{'theirs':>10}{'ratio':>10}",
    )
    _compare(
        f"prefill, {options.prompt} tokens",
        options.prompt,
        lambda: ours.step(1, 0, options.prompt),
        lambda: theirs.prefill(1, options.prompt),
        options.rounds,
    )
    for sequences in options.sequences:
        ours.step(sequences, 0, options.context)
        cache = theirs.prefill(sequences, options.context)
        _compare(
            f"decode, {sequences} × {options.context} tokens",
            sequences,
            partial(ours.step, sequences, options.context, 1),
            partial(theirs.decode, cache, sequences),
            options.rounds * 3,
        )


if __name__ == "__main__":
    main()
