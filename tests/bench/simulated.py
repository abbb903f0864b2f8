"""What eight simulated engines in one process cost: `python tests/bench/simulated.py`.

The fleet runs in a process pinned to one core, the load generator on another: streams of 30 tokens to
prompts of 1,000 tokens that were never seen before, open loop. Printed: the fleet's CPU seconds per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
import uvloop

sys.path.insert(0, str(Path(__file__).parents[2]))

from backends.simulated.fleet import FleetConfig, SimulatedFleet
from backends.simulated.model_text import EMBEDDED_TOKENIZER

WORDS = (EMBEDDED_TOKENIZER / "words.txt").read_text().split()


def serve(n: int, core: int, pipe: Connection) -> None:
    """Run the fleet until told to stop; answer each message with the CPU seconds used so far."""
    os.sched_setaffinity(0, {core})

    async def run() -> None:
        async with SimulatedFleet(n, FleetConfig()) as fleet:
            loop = asyncio.get_running_loop()
            stop = loop.create_future()

            def told() -> None:
                if pipe.recv() == "stop":
                    loop.remove_reader(pipe.fileno())
                    stop.set_result(None)
                else:
                    pipe.send(time.process_time())

            loop.add_reader(pipe.fileno(), told)
            pipe.send(fleet.urls)
            await stop

    uvloop.run(run())


async def ask(session: aiohttp.ClientSession, url: str, prompt: str, tokens: int) -> tuple[float, float, int]:
    """Seconds to the first token and to the end, and the number of chunks."""
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    started = time.perf_counter()
    first, chunks = 0.0, 0
    async with session.post(f"{url}/v1/completions", json=body) as response:
        async for data in response.content.iter_any():
            first = first or time.perf_counter() - started
            chunks += data.count(b'"text":')
    return first, time.perf_counter() - started, chunks


async def load(urls: list[str], args: argparse.Namespace) -> list[tuple[float, float, int]]:
    """`args.rate` requests a second for `args.seconds`, in turn to each engine."""
    dice = random.Random(7)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        started = time.perf_counter()
        tasks = []
        for index in range(int(args.rate * args.seconds)):
            prompt = " " + " ".join(dice.choices(WORDS, k=args.prompt_tokens))
            await asyncio.sleep(max(0.0, started + index / args.rate - time.perf_counter()))
            tasks.append(asyncio.create_task(ask(session, urls[index % len(urls)], prompt, args.tokens)))
        return await asyncio.gather(*tasks)


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=8)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--prompt-tokens", type=int, default=1_000)
    parser.add_argument("--tokens", type=int, default=30)
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    here, there = multiprocessing.Pipe()
    fleet = multiprocessing.get_context("spawn").Process(target=serve, args=(args.n, cores[0], there))
    fleet.start()
    urls = here.recv()
    here.send("cpu")
    before = here.recv()
    started = time.perf_counter()
    rows = uvloop.run(load(urls, args))
    seconds = time.perf_counter() - started
    here.send("cpu")
    cpu = here.recv() - before
    here.send("stop")
    fleet.join()
    report = {
        "cpu_s_per_s": round(cpu / seconds, 3),
        "cpu_ms_per_request": round(cpu / len(rows) * 1e3, 2),
        "requests_per_s": round(len(rows) / seconds, 1),
        "all_tokens": sum(row[2] for row in rows) == len(rows) * args.tokens,
        "ttft_p50_ms": round(statistics.median(row[0] for row in rows) * 1e3, 1),
        "latency_p50_ms": round(statistics.median(row[1] for row in rows) * 1e3, 1),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
