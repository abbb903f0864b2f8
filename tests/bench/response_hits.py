"""What an answer from the cache costs: `python -m tests.bench response_hits [--requests N] [--json FILE]`.

A gateway process on one core, a client on the other that sends one request after the other on one connection: a chat of
4 KB whose answer of 500 characters is known, in one piece and as a stream. CPU of the gateway and time to the first
byte of a hit, beside a request that goes on to a simulated worker that is very fast.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles

from rich.console import Console
from rich.table import Table

from tests.bench.processes import Server, free_port, gateway, on_core, server

_WORDS = "the quick brown fox jumps over the lazy dog and runs away from it "


def chat(*, stream: bool, temperature: float) -> bytes:
    """A request of about 4 KB."""
    messages = [{"role": "system", "content": _WORDS * 50}, {"role": "user", "content": _WORDS * 10}]
    return json.dumps(
        {"model": "m", "messages": messages, "temperature": temperature, "max_tokens": 100, "stream": stream}
    ).encode()


def measure(it: Server, body: bytes, n: int) -> dict[str, float]:
    """Microseconds: CPU of the gateway a request, and to the first byte of an answer; the beginning is not counted."""
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    with socket.create_connection(("127.0.0.1", it.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(200):
            _ask(connection, request)
        before = it.cpu_seconds()
        first = [_ask(connection, request) for _ in range(n)]
        cpu = it.cpu_seconds() - before
    cuts = quantiles(first, n=100)
    return {"cpu_us": cpu / n * 1e6, "p50_us": cuts[49] * 1e6, "p99_us": cuts[98] * 1e6}


def _ask(connection: socket.socket, request: bytes) -> float:
    """Seconds to the first byte; reads all of the answer."""
    begin = time.perf_counter()
    connection.sendall(request)
    data = connection.recv(65_536)
    first = time.perf_counter() - begin
    head, _, rest = data.partition(b"\r\n\r\n")
    if b" 200 " not in head[:32]:
        raise RuntimeError(f"not answered: {data[:500]!r}")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    while len(rest) < int(length) if length else not rest.endswith(b"0\r\n\r\n"):
        rest += connection.recv(65_536)
    return first


def main() -> None:
    """Run and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=5_000)
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, ports = Path(name), (free_port(), free_port())
        config = (
            f"listen: {{port: {ports[1]}}}\nadmin: {{port: null}}\nresponse_cache: {{mode: on}}\n"
            f"workers: [{{url: 'http://127.0.0.1:{ports[0]}', models: [m]}}]\nlog: {{access: false}}\n"
        )
        engine = [sys.executable, "-m", "gateway", "simulate", f"--port={ports[0]}", "--model=m", "--speed=1000"]
        with (
            server("engine", engine, ports[0], folder, core=1),
            gateway("gateway", config, ports[1], folder, core=0) as it,
            on_core(1),
        ):
            for form in ("one piece", "stream"):
                for what, temperature in (("hit", 0.0), ("to a worker", 1.0)):
                    n = given.requests if what == "hit" else given.requests // 10
                    body = chat(stream=form == "stream", temperature=temperature)
                    results[f"{what}, {form}"] = measure(it, body, n)
    table = Table("", "CPU of the gateway, µs", "first byte p50, µs", "p99, µs")
    for row, figures in results.items():
        table.add_row(row, *(f"{value:,.0f}" for value in figures.values()))
    Console().print(table)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
