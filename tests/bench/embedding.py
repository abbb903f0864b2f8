"""What embedding costs, and what it does to everybody else: `python -m tests.bench.embedding [FOLDER] [--seconds S]`.

FOLDER has all-MiniLM-L6-v2 (by default where `prefixgate fetch minilm` puts it); without one, random weights of the
same shape are as fast. First milliseconds of CPU per text, computed by one thread. Then the lag of an event loop, which
wakes each millisecond: how much later than it should, while nothing is embedded, while the batcher's thread does so all
the time, at usual priority and with less, and while another process does. The program keeps to one core, unless --cores
says otherwise: with a second one for the thread alone there is little to see.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import uvloop

from cache.embedding import Engine
from cache.minilm import MiniLM
from gateway.embedding_batcher import EmbeddingBatcher
from gateway.minilm_download import minilm_folder
from tests.embedding_fixtures import BertSize, write_bert

LENGTHS = (8, 32, 128)
BATCHES = (1, 8)
ENGINES: tuple[Engine, ...] = ("numpy", "torch")
_TEXT = (
    "the quick brown fox jumps over the lazy dog and then it sleeps in the warm sun all day long while we count how "
    "many words there are in this small text of ours"
)
NICENESSES = (0, 5, 10)
_TICK_S = 0.001


def text_of(model: MiniLM, tokens: int, rng: random.Random) -> str:
    """A text of so many tokens, with the special ones."""
    words = rng.choices(_TEXT.split(), k=tokens)
    while len(model._tokens.encode([" ".join(words)])[0]) > tokens:
        words.pop()
    return " ".join(words)


def cpu_ms(run: Callable[[], object], seconds: float) -> float:
    """Median milliseconds of CPU of a call."""
    run()
    times: list[float] = []
    end = time.monotonic() + seconds
    while len(times) < 5 or time.monotonic() < end:
        begun = time.process_time()
        run()
        times.append(time.process_time() - begun)
    return statistics.median(times) * 1e3


def show_costs(models: dict[Engine, MiniLM], seconds: float) -> None:
    """The first table."""
    rng = random.Random(1)
    print("ms of CPU per text" + "".join(f"{f'{engine}, {n} at once':>20}" for engine in models for n in BATCHES))
    for length in LENGTHS:
        row = f"{length:>4} tokens       "
        for model in models.values():
            texts = [text_of(model, length, rng) for _ in range(max(BATCHES))]
            for n in BATCHES:
                some = texts[:n]
                row += f"{cpu_ms(lambda model=model, some=some: model.embed(some), seconds) / n:>20.2f}"  # type: ignore[misc]  # bound here
        print(row)


async def lags(seconds: float) -> Sequence[float]:
    """How late the loop woke each time, in milliseconds, from the least to the most."""
    loop = asyncio.get_running_loop()
    late: list[float] = []
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        woken = loop.create_future()
        loop.call_later(_TICK_S, woken.set_result, None)
        await woken
        late.append(max(0.0, time.perf_counter() - begun - _TICK_S) * 1e3)
    return sorted(late)


@contextlib.asynccontextmanager
async def in_a_thread(model: MiniLM, text: str, niceness: int) -> AsyncIterator[Callable[[], int]]:
    """The batcher embeds all the time; yields how many texts so far."""
    batcher = EmbeddingBatcher(model, remembered=0, niceness=niceness, gather_s=0.0)

    async def go_on(number: int) -> None:
        while True:
            await batcher.embed(f"{text} {number}", 60.0)

    asking = [asyncio.create_task(go_on(number)) for number in range(2)]
    try:
        yield lambda: batcher.stats().texts
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        batcher.close()


def _embed_forever(folder: Path, engine: Engine, text: str, ready: object) -> None:
    model = MiniLM.load(folder, engine)
    model.embed([text])
    ready.set()  # type: ignore[attr-defined]  # an event of multiprocessing, whose type has no name
    while True:
        model.embed([text])


@contextlib.asynccontextmanager
async def in_a_process(folder: Path, engine: Engine, text: str) -> AsyncIterator[Callable[[], int]]:
    """Another process embeds all the time, on the same core."""
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    process = spawn.Process(target=_embed_forever, args=(folder, engine, text, ready), daemon=True)
    process.start()
    try:
        await asyncio.to_thread(ready.wait, 60)
        yield lambda: 0
    finally:
        process.kill()
        process.join(10)


@contextlib.asynccontextmanager
async def nothing() -> AsyncIterator[Callable[[], int]]:
    """As it is by itself."""
    yield lambda: 0


Case = Callable[[], contextlib.AbstractAsyncContextManager[Callable[[], int]]]


async def show_lags(folder: Path, models: dict[Engine, MiniLM], seconds: float, rounds: int) -> None:
    """The second table. Cases take turns, so that other work on the machine is shared among them."""
    text = text_of(next(iter(models.values())), 30, random.Random(2))
    cases: dict[str, Case] = {"nothing embeds": nothing}
    for engine, model in models.items():
        for niceness in NICENESSES:
            cases[f"{engine}, thread, niceness {niceness}"] = functools.partial(in_a_thread, model, text, niceness)
        cases[f"{engine}, another process"] = functools.partial(in_a_process, folder, engine, text)
    rows: dict[str, list[tuple[float, ...]]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            async with case() as texts:
                await asyncio.sleep(0.2)
                before = texts()
                late = await lags(seconds)
                done = (texts() - before) / seconds
            rows[name].append((late[len(late) // 2], late[int(len(late) * 0.99)], late[-1], done))
    print(f"\n{f'lag of the event loop, ms ({rounds} rounds)':<36}{'p50':>8}{'p99':>8}{'worst':>8}{'texts/s':>10}")
    for name, each in rows.items():
        p50, p99, worst, done = (statistics.median(numbers) for numbers in zip(*each, strict=True))
        print(f"{name:<36}{p50:>8.2f}{p99:>8.2f}{worst:>8.2f}" + (f"{done:>10.1f}" if done else ""))


def main(words: Sequence[str] | None = None) -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(prog="embedding", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=minilm_folder(os.environ))
    parser.add_argument("--seconds", type=float, default=1.0, help="for each lag and round; each cost takes half")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as room:
        folder: Path = given.folder
        if not (folder / "model.safetensors").exists():
            folder = write_bert(Path(room), BertSize(hidden=384, layers=6, heads=12, inner=1536))
            print("random weights")
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-given.cores :])
        models = {engine: MiniLM.load(folder, engine) for engine in given.engines}
        show_costs(models, given.seconds / 2)
        uvloop.run(show_lags(folder, models, given.seconds, given.rounds))


if __name__ == "__main__":
    main()
