"""What an answer by meaning costs: `python -m tests.bench semantic_lookup [--entries N] [--folder DIR]`.

First the lookup without the embedding: search, guards and the way to the thread and back, in one partition of N
questions, half of the requests about something that is there; and memory for each question. Large
partitions are scanned, not looked up in a graph: building one takes a millisecond a question (see `similarity`). Then
what embedding does to everybody else: a gateway on one core, and on the other a client whose requests are not looked up
at all, while a second one sends questions of 20 to 30 tokens at a rate; DIR has all-MiniLM-L6-v2, random weights of the
same shape are as fast.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import socket
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import quantiles

import numpy as np
import uvloop
from rich.console import Console
from rich.table import Table

from cache.response_key import response_key
from cache.similarity import Limits, SimilarityIndex
from cache.vector_rows import Floats
from gateway.similar_questions import SimilarQuestions
from tests.bench.processes import Server, free_port, gateway, on_core, server
from tests.embedding_fixtures import BertSize, write_bert

DIM = 384
_FLOOR = 0.8
_RATES = (0, 5, 20)
_THINGS = (
    "password", "invoice", "router", "account", "printer", "calendar", "battery", "passport", "garden", "kitchen",
    "window", "engine",
)  # fmt: skip
_DEEDS = ("reset", "find", "replace", "delete", "rename", "print", "copy", "move", "share", "open", "close", "repair")


def question(number: int) -> str:
    """One of many that guards tell apart."""
    deed, thing = _DEEDS[number % 12], _THINGS[number // 12 % 12]
    return f"How do I {deed} my {thing} number {number} on the second floor of the old house?"


def unit(rows: Floats) -> Floats:
    """Rows of length 1."""
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True), np.float32)


async def lookups(entries: int, n: int) -> dict[str, float]:
    """Milliseconds of a lookup, CPU of the process and by the clock, and bytes of a question."""
    rng = np.random.default_rng(1)
    index = SimilarityIndex(DIM, Limits(entries=entries + 1, bytes=1 << 40), scope_size=8, exact_entries=1 << 40)
    before = resident()
    partition = bytes(32)
    for start in range(0, entries, 1000):
        rows = unit(np.random.default_rng(start).standard_normal((1000, DIM), np.float32))
        for number, row in enumerate(rows, start):
            text = question(number)
            key = response_key(b"", "m", "openai", "chat", {"messages": text})
            index.add(partition, key[8:32] + bytes(8), row, key + text.encode())
    grown = (resident() - before) / entries
    questions = SimilarQuestions(index)
    asked: list[tuple[Floats, str]] = []
    for at in range(n):
        number = int(rng.integers(entries))
        known = unit(np.random.default_rng(number // 1000 * 1000).standard_normal((1000, DIM), np.float32))
        vector = known[number % 1000] if at % 2 else unit(rng.standard_normal((DIM,), np.float32))
        asked.append((vector, question(number) + " "))
    times: list[float] = []
    used = time.process_time()
    for at, (vector, text) in enumerate(asked):
        begun = time.perf_counter()
        found = await questions.search(partition, vector, text, _FLOOR)
        times.append(time.perf_counter() - begun)
        assert bool(found) == bool(at % 2)
    used = time.process_time() - used
    questions.close()
    cuts = quantiles(times, n=100)
    return {
        "cpu_ms": used / n * 1e3,
        "p50_ms": cuts[49] * 1e3,
        "p99_ms": cuts[98] * 1e3,
        "bytes": grown,
        "counted": index.stats().bytes / entries,
    }


def _run(entries: int, n: int) -> dict[str, float]:
    return uvloop.run(lookups(entries, n))


def alone(entries: int, n: int) -> dict[str, float]:
    """The same in a process of its own, whose memory nobody has used before."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_run, entries, n).result()


def resident() -> int:
    """Bytes of memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def chat(text: str, temperature: float) -> bytes:
    """A request as it is sent."""
    messages = [{"role": "user", "content": text}]
    body = json.dumps({"model": "m", "messages": messages, "temperature": temperature, "max_tokens": 1}).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    return head % len(body) + body


def ask(connection: socket.socket, request: bytes) -> float:
    """Seconds until the whole answer is there."""
    begin = time.perf_counter()
    connection.sendall(request)
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65_536)
    head, _, rest = data.partition(b"\r\n\r\n")
    if b" 200 " not in head[:32]:
        raise RuntimeError(f"not answered: {data[:500]!r}")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(rest) < length:
        rest += connection.recv(65_536)
    return time.perf_counter() - begin


def asking(port: int, rate: float, seconds: float, times: list[float]) -> None:
    """Questions, each a new one, evenly over the time."""
    words = random.Random(rate)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        due, end = time.monotonic(), time.monotonic() + seconds
        while due < end:
            time.sleep(max(due - time.monotonic(), 0.0))
            times.append(ask(connection, chat(question(words.randrange(1 << 30)), 0.0)))
            due += 1 / rate


def others(it: Server, rate: float, seconds: float) -> dict[str, float]:
    """Milliseconds of requests that are not looked up, while others are at this rate, and of those."""
    looked: list[float] = []
    second = threading.Thread(target=asking, args=(it.port, rate, seconds, looked)) if rate else None
    if second is not None:
        second.start()
    times = []
    with socket.create_connection(("127.0.0.1", it.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            times.append(ask(connection, chat("Hello.", 1.0)))
            time.sleep(0.002)
    if second is not None:
        second.join()
    cuts = quantiles(times, n=100)
    return {
        "p50_ms": cuts[49] * 1e3,
        "p99_ms": cuts[98] * 1e3,
        "looked_up_p50_ms": quantiles(looked, n=100)[49] * 1e3 if looked else 0.0,
    }


def beside(folder: Path, model: Path | None, seconds: float) -> dict[str, dict[str, float]]:
    """By rate."""
    if model is None:
        model = write_bert(folder / "bert", BertSize(hidden=384, layers=6, heads=12, inner=1536))
    ports = free_port(), free_port()
    config = (
        f"listen: {{port: {ports[1]}}}\nadmin: {{port: null}}\nresponse_cache: {{mode: on}}\n"
        f"semantic_cache: {{mode: on, embedding: {{kind: minilm, folder: '{model}', engine: numpy}}}}\n"
        f"workers: [{{url: 'http://127.0.0.1:{ports[0]}', models: [m]}}]\nlog: {{access: false}}\n"
    )
    engine = [sys.executable, "-m", "gateway", "simulate", f"--port={ports[0]}", "--model=m", "--speed=1000"]
    with (
        server("engine", engine, ports[0], folder, core=1),
        gateway("gateway", config, ports[1], folder, core=0) as it,
        on_core(1),
    ):
        return {f"{rate} questions/s": others(it, rate, seconds) for rate in _RATES}


def main() -> None:
    """Run and print."""
    options = argparse.ArgumentParser(prog="semantic_lookup", description=__doc__)
    options.add_argument("--entries", type=int, nargs="+", default=[10_000, 100_000])
    options.add_argument("--lookups", type=int, default=200)
    options.add_argument("--seconds", type=float, default=6.0, help="for each rate; 0 leaves that out")
    options.add_argument("--folder", type=Path)
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    found = {f"{entries:,}": alone(entries, given.lookups) for entries in given.entries}
    table = Table("questions", "CPU, ms", "p50, ms", "p99, ms", "bytes each", "as counted")
    for row, figures in found.items():
        shown = [f"{figures[name]:,.2f}" for name in ("cpu_ms", "p50_ms", "p99_ms")]
        table.add_row(row, *shown, *(f"{figures[name]:,.0f}" for name in ("bytes", "counted")))
    Console().print(table)
    if not given.seconds:
        return
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "bert").mkdir()
        lag = beside(Path(name), given.folder, given.seconds)
    table = Table("beside", "others p50, ms", "p99, ms", "looked up p50, ms")
    for row, figures in lag.items():
        table.add_row(row, *(f"{value:,.2f}" for value in figures.values()))
    Console().print(table)
    if given.json:
        given.json.write_text(json.dumps({"lookups": found, "others": lag}, indent=1))


if __name__ == "__main__":
    main()
