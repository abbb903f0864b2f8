"""500 clients that dawdle beside honest ones: `python -m tests.bench slow_clients [--clients N] [--rounds N]`.

Half of the slow ones send their request a byte a second, and come again when they are refused. The other half ask for a
long answer, read a byte a second of it and tell their kernel to take little more. Honest clients send short requests
at a steady rate, the next one of a connection when its last is answered. Rounds with and without the slow clients take
turns, so that the ratio of the honest p99 does not tell what else the machine was doing. One core for the gateway,
another for all the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import uvloop
from rich.console import Console
from rich.table import Table

from tests.bench.processes import Server, free_port, gateway, on_core, server
from tests.bench.stages import request_of
from tests.bench.workload import MODEL, chat_body

HONEST = 16
PERIOD = 0.08
"""Seconds between two requests of one honest client: all together 200 a second."""
LONG_EVENTS = 4_000
"""Nearly 1 MB of answer: more than the gateway takes for one client."""
LONG_MODEL = "long"
"""What slow readers ask for; a worker of its own serves it, since its bursts are not what is measured."""
SETTLING = 6.0
"""Seconds in which slow clients come, before the honest ones are watched."""
STEP = 1.0
"""Seconds between two bytes of a slow client."""


@dataclass
class Round:
    """What honest clients saw, in milliseconds, and what the gateway held."""

    latencies: list[float] = field(default_factory=list)
    resident_mb: float = 0.0
    slow: int = 0

    def percentile(self, percent: int) -> float:
        return quantiles(self.latencies, n=100)[percent - 1]


class SlowClient:
    """One that sends, or reads, a byte at each step."""

    def __init__(self, port: int, request: bytes, *, reads: bool) -> None:
        self._port, self._request, self._reads = port, request, reads
        self._sock: socket.socket | None = None
        self._sent = 0

    def step(self) -> None:
        """Do one byte's work, on a new connection where the last one was closed."""
        try:
            if self._sock is None:
                self._connect()
            elif self._reads:
                if not self._sock.recv(1):
                    self.close()
            elif self._refused():
                self.close()
            else:
                self._sock.send(self._request[self._sent : self._sent + 1])
                self._sent = min(self._sent + 1, len(self._request) - 1)
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    @property
    def is_open(self) -> bool:
        return self._sock is not None

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _connect(self) -> None:
        sock = self._sock = socket.socket()
        if self._reads:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", self._port))
        sock.setblocking(False)
        self._sent = 0
        if self._reads:
            sock.send(self._request)

    def _refused(self) -> bool:
        assert self._sock is not None, "asked of an open one"
        with contextlib.suppress(BlockingIOError):
            self._sock.recv(1)
            return True
        return False


async def dawdle(clients: list[SlowClient]) -> None:
    """Let every client do its step once in `STEP` seconds, evenly spread."""
    loop, turns = asyncio.get_running_loop(), 50
    begun, turn = loop.time(), 0
    while True:
        for client in clients[turn % turns :: turns]:
            client.step()
        turn += 1
        await asyncio.sleep(max(begun + turn * STEP / turns - loop.time(), 0))


async def honest(port: int, number: int, until: float, found: list[float]) -> None:
    """Ask at a steady rate and note how long each answer took."""
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = request_of(chat_body("All is well. " * 20))
    due = loop.time() + PERIOD * number / HONEST
    while due < until:
        await asyncio.sleep(max(due - loop.time(), 0))
        began = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"an honest client was answered {head[:60]!r}")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(int(length.split(b":")[1]))
        found.append((time.perf_counter() - began) * 1e3)
        due += PERIOD
    writer.close()


async def one_round(server: Server, seconds: float, n_slow: int) -> Round:
    """One measurement, beside `n_slow` slow clients or none."""
    result = Round()
    body = chat_body("All is well. " * 20)
    plain = request_of(body)
    long = request_of(body.replace(MODEL.encode(), LONG_MODEL.encode(), 1))
    long = long.replace(b"\r\n\r\n", b"\r\nx-events: %d\r\n\r\n" % LONG_EVENTS, 1)
    slow = [SlowClient(server.port, long if n % 2 else plain, reads=bool(n % 2)) for n in range(n_slow)]
    dawdling = asyncio.ensure_future(dawdle(slow))
    try:
        await asyncio.sleep(SETTLING if slow else 0.2)
        until = asyncio.get_running_loop().time() + seconds
        await asyncio.gather(*(honest(server.port, n, until, result.latencies) for n in range(HONEST)))
        result.slow = sum(client.is_open for client in slow)
        result.resident_mb = server.resident_mb()
    finally:
        dawdling.cancel()
        for client in slow:
            client.close()
        await asyncio.gather(dawdling, return_exceptions=True)
    await asyncio.sleep(1.0)
    return result


def config(port: int, worker: int, long_worker: int) -> str:
    """Limits are the defaults."""
    return (
        f"listen: {{host: 127.0.0.1, port: {port}}}\nadmin: {{port: null}}\n"
        f"workers:\n- {{url: 'http://127.0.0.1:{worker}', models: [{MODEL}]}}\n"
        f"- {{url: 'http://127.0.0.1:{long_worker}', models: [{LONG_MODEL}]}}\n"
    )


def show(rounds: list[tuple[Round, Round]]) -> float:
    """Print the table; the ratio of p99 over all rounds together, since one round's p99 is a matter of luck."""
    table = Table(title="latency of honest clients, ms", title_justify="left")
    for column in ("round", "p50 alone", "p50 beside", "p99 alone", "p99 beside", "ratio", "RSS alone", "RSS beside"):
        table.add_column(column, justify="right")
    ratios = []
    for number, (alone, beside) in enumerate(rounds, 1):
        ratios.append(beside.percentile(99) / alone.percentile(99))
        table.add_row(
            str(number),
            *(f"{each.percentile(percent):.2f}" for percent in (50, 99) for each in (alone, beside)),
            f"{ratios[-1]:.2f}",
            *(f"{each.resident_mb:.0f} MB" for each in (alone, beside)),
        )
    together = [Round([ms for pair in rounds for ms in pair[half].latencies]) for half in (0, 1)]
    ratio = together[1].percentile(99) / together[0].percentile(99)
    console = Console(width=100)
    console.print(table)
    console.print(
        f"{min(beside.slow for _, beside in rounds)} slow clients or more were connected. "
        f"p99 over all rounds: {together[0].percentile(99):.2f} ms alone, {together[1].percentile(99):.2f} ms beside "
        f"them, {ratio:.2f}×; median ratio of a round {median(ratios):.2f}×"
    )
    return ratio


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each half of a round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures too")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port, ports = free_port(), [free_port(), free_port()]
        script = Path(__file__).with_name("stream_worker.py")
        for name, worker_port in zip(("worker", "long worker"), ports, strict=True):
            command = [sys.executable, str(script), str(worker_port)]
            stack.enter_context(server(name, command, worker_port, folder, core=cores[0]))
        gate = stack.enter_context(gateway("gateway", config(port, *ports), port, folder, core=cores[-1]))
        stack.enter_context(on_core(cores[0]))

        async def measure() -> list[tuple[Round, Round]]:
            await one_round(gate, 1.0, 0)
            return [
                (await one_round(gate, options.seconds, 0), await one_round(gate, options.seconds, options.clients))
                for _ in range(options.rounds)
            ]

        rounds = uvloop.run(measure())
    ratio = show(rounds)
    if options.json:
        figures = [[{"p99": half.percentile(99), "resident_mb": half.resident_mb} for half in pair] for pair in rounds]
        options.json.write_text(json.dumps({"p99_ratio": ratio, "rounds": figures}, indent=1))


if __name__ == "__main__":
    main()
