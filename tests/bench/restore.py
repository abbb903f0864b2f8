"""Restored or computed: `python -m tests.bench restore [--shape tiny] [--tokens 2000 8000 16000]`.

Seconds to the first token of a prompt whose KV is in the pool, in host memory, on disk and in a Redis server of this
machine, beside those to compute it; random weights of Qwen3-0.6B's shape in bfloat16, on this machine's CPU. What the
price decides is told too: where it is cheaper to compute, less is found. `cold`: the page cache was told to forget the
files. `throttled`: replies come at `--throttled` MB/s, which nobody tells the worker; `1st` is the first request that
meets it, `2nd` knows.

The engine computes each prompt once; what is restored is read `--rounds` times, medians. The first token must be that
of the computed prompt.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from transformers import Qwen3Config

from backends.worker.engine.engine import Engine
from backends.worker.engine.loading import load_engine
from backends.worker.messages import SamplingParams, Submit
from policies.types import TokenIds
from tests.bench.disk_store import forget
from tests.bench.throttle import throttled
from tests.bench.worker import SHAPES, options, prompts
from tests.redis_fixtures import redis_server

BLOCK: Final = 16
PATIENCE: Final = 60.0
"""Seconds: that a prompt waits no longer than it would take to compute is for the price to say."""


class First(NamedTuple):
    """The first token of an answer: seconds to it, prompt tokens that were found, and which one it is."""

    seconds: float
    found: int
    token: int


def first_token(engine: Engine, ids: Sequence[int], *, keep: bool = True) -> First:
    """Ask for one token, alone. Without `keep` the sequence is cancelled then, and not kept in stores."""
    params = SamplingParams(max_tokens=1 if keep else 2, temperature=0.0, ignore_eos=True)
    start = time.perf_counter()
    request = Submit(id="0", token_ids=TokenIds(array("I", ids).tobytes()), params=params)
    refused = engine.submit(request, time.monotonic())
    assert refused is None, refused
    while engine.has_work:
        engine.settle(time.monotonic())
        if not engine.can_step:
            time.sleep(0.0005)
            continue
        done, _ = engine.step()
        if done.outputs:
            seconds, out = time.perf_counter() - start, done.outputs[0]
            engine.cancel(request.id)
            return First(seconds, out.cached_tokens, out.token_ids[0])
    raise AssertionError("no token came")


def kept(engine: Engine) -> None:
    """Wait until everything is written."""
    while engine.tiers is not None and not engine.tiers.idle:
        engine.settle(time.monotonic())
        time.sleep(0.001)


def restored(engine: Engine, ids: Sequence[int], before: Callable[[], object] = lambda: None) -> First:
    """The same with nothing in the pool, after `before`, and nothing new in stores."""
    kept(engine)
    engine.clear()
    before()
    return first_token(engine, ids, keep=False)


def close(engine: Engine) -> None:
    """Say what went wrong with its stores, if anything did."""
    counts = {} if engine.tiers is None else dict(engine.tiers.counts)
    if wrong := [f"{what} {count}" for what, count in counts.items() if what not in {"kept_tokens", "restored_tokens"}]:
        print(f"  not restored: {', '.join(wrong)}", flush=True)
    engine.close()


def same(computed: First, other: First, where: str) -> First:
    """The other one, if its token is the same; ends the program if not."""
    if computed.token != other.token:
        raise SystemExit(f"another first token {where}: {other} after {computed}")
    return other


@contextmanager
def model(name: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A directory with the configuration of dummy weights, and their shape; positions for the longest prompt."""
    shape = {**SHAPES[name], "max_position_embeddings": 40_960}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        config = Qwen3Config(**shape, dtype="bfloat16", eos_token_id=2)
        config.architectures = ["Qwen3ForCausalLM"]
        config.save_pretrained(folder)
        yield Path(folder), shape


def kv_bytes(shape: dict[str, Any], n_tokens: int) -> int:
    """Of so many tokens in bfloat16."""
    return 2 * int(shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"]) * 2 * n_tokens


def room(shape: dict[str, Any], n_tokens: int) -> int:
    """Bytes of a store that loses nothing of so many tokens, whatever it spends on headers and pages."""
    return int(1.3 * kv_bytes(shape, n_tokens)) + (64 << 20)


def engine_of(folder: Path, longest: int, **fields: Any) -> Engine:
    """With a pool for two prompts of the longest kind: of one, half can be on its way to a store at a time."""
    length = longest + 4 * BLOCK
    settings = {"kv_blocks": 2 * length // BLOCK, "max_model_len": length, "kv_patience": PATIENCE, **fields}
    return load_engine(options(folder, **settings))[0]


def warm(engine: Engine, vocabulary: int) -> None:
    """What is done but once is done; and the speed of computing has been seen."""
    for seed in (98, 99):
        first_token(engine, prompts(1, 400, vocabulary, seed)[0])
    kept(engine)


def measure(engine: Engine, ids: Sequence[int], places: dict[str, Callable[[], object]], rounds: int) -> None:
    """Print a line for each place; what is to be done before it is read is the place's."""
    computed = first_token(engine, ids)
    for place, before in places.items():
        if place == "pool":
            kept(engine)
            found = [same(computed, first_token(engine, ids), place) for _ in range(rounds)]
        else:
            n_rounds = 1 if before is once else rounds
            found = [same(computed, restored(engine, ids, before), place) for _ in range(n_rounds)]
        seconds = statistics.median(first.seconds for first in found)
        tokens = statistics.median_low(first.found for first in found)
        print(
            f"{place:<24}{len(ids):>7}{computed.seconds:>11.3f}{seconds:>11.3f}{tokens:>9}"
            f"{seconds / computed.seconds - 1:>+9.1%}",
            flush=True,
        )
    kept(engine)
    engine.clear()


def nothing() -> None:
    """Nothing is done before."""


def once() -> None:
    """Nothing either; it may take as long as to compute, and what is learnt changes the next."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2000, 8000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--throttled", type=float, default=50.0, metavar="MB/S", help="of the Redis that is slow")
    parser.add_argument("--tiers", nargs="+", choices=["host", "disk", "redis", "throttled"], default=None)
    arguments = parser.parse_args()
    with model(arguments.shape) as (folder, shape), ExitStack() as running:
        size = room(shape, sum(arguments.tokens) + 800)
        slow = f"Redis at {arguments.throttled:g} MB/s"

        def redis_url(rate: float | None) -> str:
            server = running.enter_context(redis_server("--maxmemory", str(2 * size)))
            return server.unix_url if rate is None else running.enter_context(throttled(server.port, rate * 1e6))

        disk = folder / "kv"
        places: dict[str, tuple[Callable[[], dict[str, Any]], dict[str, Callable[[], object]]]] = {
            "host": (lambda: {"kv_host": size}, {"pool": nothing, "host memory": nothing}),
            "disk": (
                lambda: {"kv_disk": str(disk), "kv_disk_bytes": 2 * size},
                {"disk, page cache": nothing, "disk, cold": lambda: forget(disk)},
            ),
            "redis": (lambda: {"kv_redis": redis_url(None)}, {"Redis, Unix socket": nothing}),
            "throttled": (
                lambda: {"kv_redis": redis_url(arguments.throttled)},
                {f"{slow}, 1st": once, f"{slow}, 2nd": once},
            ),
        }
        print(f"{arguments.shape}, {torch.get_num_threads()} threads; seconds to the first token")
        print(f"{'from':<24}{'tokens':>7}{'computed':>11}{'restored':>11}{'found':>9}{'':>9}")
        for name, (fields, rows) in places.items():
            if arguments.tiers and name not in arguments.tiers:
                continue
            # The slow one is met for the first time by each prompt.
            for counts in [[count] for count in arguments.tokens] if name == "throttled" else [arguments.tokens]:
                engine = engine_of(folder, max(counts), **fields())
                warm(engine, shape["vocab_size"])
                for count in counts:
                    measure(engine, prompts(1, count, shape["vocab_size"], count)[0], rows, arguments.rounds)
                close(engine)
                del engine


if __name__ == "__main__":
    main()
