"""Restored or computed: `python -m tests.bench restore [--shape tiny] [--tokens 2000 8000]`.

Seconds to the first token of a prompt whose KV is nowhere, in the pool, in host memory, on disk, and in a Redis server
of this machine; random weights of Qwen3-0.6B's shape in bfloat16, on this machine's CPU. What the price decides is told
too: where it is cheaper to compute, less is restored.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config

from backends.worker.engine.engine import Engine
from backends.worker.engine.loading import load_engine
from backends.worker.messages import SamplingParams, Submit
from policies.types import TokenIds
from tests.bench.worker import SHAPES, options, prompts
from tests.redis_fixtures import redis_server


def first_token(engine: Engine, ids: Sequence[int], number: int) -> tuple[float, int]:
    """Seconds to it, and prompt tokens that were found."""
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    start = time.perf_counter()
    engine.submit(
        Submit(id=str(number), token_ids=TokenIds(array("I", ids).tobytes()), params=params), time.monotonic()
    )
    while engine.has_work:
        engine.settle(time.monotonic())
        if not engine.can_step:
            time.sleep(0.0005)
            continue
        done, _ = engine.step()
        if done.outputs:
            return time.perf_counter() - start, done.outputs[0].cached_tokens
    raise AssertionError("no token came")


def kept(engine: Engine) -> None:
    """Wait until everything is written."""
    while engine.tiers is not None and not engine.tiers.idle:
        engine.settle(time.monotonic())
        time.sleep(0.001)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=list(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2000, 8000])
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    with tempfile.TemporaryDirectory() as folder, redis_server("--maxmemory", "6gb") as redis:
        config = Qwen3Config(**shape, dtype="bfloat16", eos_token_id=2)
        config.architectures = ["Qwen3ForCausalLM"]
        config.save_pretrained(folder)
        tiers: dict[str, dict[str, Any]] = {
            "host": {"kv_host": 3 << 30},
            "disk": {"kv_disk": f"{folder}/kv", "kv_disk_bytes": 6 << 30},
            "redis": {"kv_redis": redis.unix_url},
        }
        longest = max(arguments.tokens) + 64
        print(f"{arguments.shape}, {torch.get_num_threads()} threads; seconds to the first token (tokens found)")
        for name, fields in tiers.items():
            engine, _ = load_engine(options(Path(folder), kv_blocks=2 * longest // 16, max_model_len=longest, **fields))
            first_token(engine, prompts(1, 200, shape["vocab_size"], 99)[0], 0)
            for count in arguments.tokens:
                ids = prompts(1, count, shape["vocab_size"], count)[0]
                computed, _ = first_token(engine, ids, 1)
                kept(engine)
                device, in_pool = first_token(engine, ids, 2)
                engine.clear()
                restored, found = first_token(engine, ids, 3)
                kept(engine)
                engine.clear()
                print(
                    f"{name:<6} {count:>6} tokens: computed {computed:.3f}, from the pool {device:.3f} ({in_pool}),"
                    f" restored {restored:.3f} ({found}), {restored / computed - 1:+.1%}",
                    flush=True,
                )
            engine.close()
            del engine


if __name__ == "__main__":
    main()
