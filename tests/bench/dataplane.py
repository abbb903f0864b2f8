"""The gateway beside nginx: `python tests/bench/dataplane.py [--quick] [--json FILE] [--only WORD]`.

Each proxy has one core to itself; load (wrk) and workers (nginx, and a small streaming one) have another.
Rounds alternate between the proxies. The CPU time that a proxy takes for a request is the robust figure:
requests a second also tell what else the machine was doing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from backends.simulated.model_text import EMBEDDED_TOKENIZER
from cache.tokenizer import Tokenizer
from tests.bench.processes import (
    Load,
    Server,
    free_port,
    gateway,
    missing_tools,
    nginx,
    server,
    wrk,
    wrk_script,
)
from tests.bench.workload import MODEL, chars_per_token, chat_body, fragments, text_of

BODIES = 64
"""Different prompts of a test whose prompts were seen before."""
EVENTS = 50
"""Of a stream."""
DIRECT, NGINX, PLAIN, COST = "direct", "nginx", "round robin", "cost"

_SEEN = """
local bodies, n = {}, 0
function init(args)
  for line in io.lines(args[1]) do
    n = n + 1
    bodies[n] = wrk.format("POST", nil, {["Content-Type"] = "application/json",
      ["Authorization"] = "Bearer sk-bench", ["x-events"] = args[2], ["x-interval"] = args[3]}, line)
  end
end
local i = 0
function request() i = i % n + 1; return bodies[i] end
"""
_NEW = """
local pieces, n = {}, 0
function init(args)
  for line in io.lines(args[1]) do n = n + 1; pieces[n] = line end
  count, first, last = tonumber(args[2]), args[3], args[4]
  math.randomseed(tonumber(args[5]))
  headers = {["Content-Type"] = "application/json", ["Authorization"] = "Bearer sk-bench"}
end
function request()
  local parts = {first}
  for i = 1, count do
    if i % 14 == 0 then parts[#parts + 1] = '"},{"role":"user","content":"' end
    parts[#parts + 1] = pieces[math.random(n)]
  end
  parts[#parts + 1] = last
  return wrk.format("POST", nil, headers, table.concat(parts))
end
"""
_ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1767225600,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "All is well. " * 20},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 200, "completion_tokens": 60, "total_tokens": 260},
    }
)
_MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "bench"}]})


@dataclass(frozen=True)
class Test:
    """One kind of load."""

    name: str
    proxies: tuple[str, ...]
    """The first one is the reference."""
    chars: int
    """Of a prompt."""
    unit: str = "request"
    new: bool = False
    """Is each prompt another one?"""
    streams: bool = False
    interval_ms: int = 0
    connections: int = 64
    quick: bool = False
    """Is it part of the quick run?"""


@dataclass
class Figures:
    """Of one proxy in one test, a value for each round."""

    per_second: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    core_share: list[float] = field(default_factory=list)
    """CPU seconds per second: near 1 where the proxy was the limit."""
    p50_us: list[float] = field(default_factory=list)
    p99_us: list[float] = field(default_factory=list)
    errors: int = 0
    rss_mb: float = 0.0


def tests(tokenizer: Tokenizer) -> list[Test]:
    """All of them. Prompts in tokens are as long as the embedded tokenizer makes them."""
    every, prefixes = (NGINX, PLAIN, COST), (NGINX, COST)
    chars = {size: int(size * chars_per_token(tokenizer)) for size in (200, 2_000, 8_000)}
    return [
        Test("300 bytes", every, 300, quick=True),
        Test("32 KB", every, 32 << 10, quick=True),
        *[Test(f"{size:,} tokens, seen", prefixes, n, quick=size == 2_000) for size, n in chars.items()],
        *[Test(f"{size:,} tokens, new", prefixes, n, new=True, quick=size == 2_000) for size, n in chars.items()],
        Test("300 bytes, one client", (NGINX, DIRECT, PLAIN, COST), 300, connections=1),
        Test("streams without pause", every, 300, unit="chunk", streams=True, quick=True),
        Test("300 paced streams", every, 300, unit="chunk", streams=True, interval_ms=20, connections=300),
    ]


class Bench:
    """The running processes, and measuring with them."""

    def __init__(self, folder: Path, *, load_core: int, seconds: int, rounds: int) -> None:
        self._folder = folder
        self._load_core = load_core
        self._seconds = seconds
        self._rounds = rounds
        self.stream_port = 0
        self._seed = 0
        self._seen = wrk_script(folder / "seen.lua", _SEEN)
        self._new = wrk_script(folder / "new.lua", _NEW)
        self._fragments = folder / "fragments.txt"
        self._fragments.write_text("\n".join(fragments()) + "\n")

    def run(self, test: Test, proxies: dict[str, Server]) -> dict[str, Figures]:
        """All rounds of one test, the proxies in turn."""
        figures = {name: Figures() for name in test.proxies}
        bodies = self._folder / f"{test.chars}-{test.streams}.jsonl"
        if not test.new:
            sample = random.Random(test.chars)
            lines = [chat_body(text_of(test.chars, sample), streams=test.streams) for _ in range(BODIES)]
            bodies.write_bytes(b"\n".join(lines) + b"\n")
        for name in test.proxies:
            self._load(test, proxies[name], bodies, 1)  # to warm up, and to have the prompts seen
        for _ in range(self._rounds):
            for name in test.proxies:
                self._round(test, proxies[name], bodies, figures[name])
        return figures

    def _round(self, test: Test, proxy: Server, bodies: Path, figures: Figures) -> None:
        sent, before = self._chunks_sent() if test.streams else 0, proxy.cpu_seconds()
        load = self._load(test, proxy, bodies, self._seconds)
        cpu = proxy.cpu_seconds() - before
        count = self._chunks_sent() - sent if test.streams else load.requests
        figures.per_second.append(count / load.seconds)
        figures.cpu_us.append(cpu / max(count, 1) * 1e6)
        figures.core_share.append(cpu / load.seconds)
        figures.p50_us.append(load.p50_us)
        figures.p99_us.append(load.p99_us)
        figures.errors += load.errors
        figures.rss_mb = proxy.resident_mb()

    def _chunks_sent(self) -> int:
        """By the stream worker so far: the streams that wrk leaves unfinished count too."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.stream_port}/v1/models", timeout=5) as answer:
            return int(json.load(answer)["chunks"])

    def _load(self, test: Test, proxy: Server, bodies: Path, seconds: int) -> Load:
        if test.new:
            self._seed += 1
            first, last = chat_body("@").decode().split("@")
            count = max(test.chars // (sum(map(len, fragments())) // len(fragments())), 1)
            arguments: list[str | Path] = [self._fragments, str(count), first, last, str(self._seed)]
            script = self._new
        else:
            arguments = [bodies, *([str(EVENTS), str(test.interval_ms)] if test.streams else [])]
            script = self._seen
        return wrk(proxy.port, script, arguments, connections=test.connections, seconds=seconds, core=self._load_core)


@contextlib.contextmanager
def unary_proxies(folder: Path, cores: tuple[int, int]) -> Iterator[dict[str, Server]]:
    """nginx and two gateways in front of two workers that answer at once."""
    proxy_core, load_core = cores
    ports = [free_port() for _ in range(5)]
    workers = "".join(
        f"server {{ listen 127.0.0.1:{port} backlog=4096; tcp_nodelay on; default_type application/json;\n"
        f"location = /v1/models {{ return 200 '{_MODELS}'; }}\nlocation / {{ return 200 '{_ANSWER}'; }} }}\n"
        for port in ports[:2]
    )
    with contextlib.ExitStack() as stack:
        direct = stack.enter_context(nginx("workers", workers, ports[0], folder, core=load_core))
        yield {
            DIRECT: direct,
            **_proxies(stack, folder, proxy_core, workers=ports[:2], ports=ports[2:], prefix=""),
        }


@contextlib.contextmanager
def stream_proxies(folder: Path, cores: tuple[int, int]) -> Iterator[dict[str, Server]]:
    """The same in front of one worker that streams."""
    proxy_core, load_core = cores
    ports = [free_port() for _ in range(4)]
    command: list[str | Path] = [sys.executable, Path(__file__).with_name("stream_worker.py"), str(ports[0])]
    with contextlib.ExitStack() as stack:
        direct = stack.enter_context(server("stream worker", command, ports[0], folder, core=load_core))
        yield {
            DIRECT: direct,
            **_proxies(stack, folder, proxy_core, workers=ports[:1], ports=ports[1:], prefix="streams "),
        }


def _proxies(
    stack: contextlib.ExitStack,
    folder: Path,
    core: int,
    *,
    workers: Sequence[int],
    ports: Sequence[int],
    prefix: str,
) -> dict[str, Server]:
    upstream = "".join(f"server 127.0.0.1:{port};" for port in workers)
    config = (
        f"upstream workers {{ {upstream}\n"
        "keepalive 2048; keepalive_requests 100000000; keepalive_timeout 600s; }\n"
        f"server {{ listen 127.0.0.1:{ports[0]} backlog=4096; tcp_nodelay on;\n"
        "location / { proxy_pass http://workers; proxy_buffering off; proxy_request_buffering on;\n"
        'proxy_http_version 1.1; proxy_set_header Connection ""; } }'
    )
    urls = ", ".join(f"{{url: 'http://127.0.0.1:{port}', name: w{port}}}" for port in workers)
    common = f"admin: {{port: null}}\nworkers: [{urls}]\nlog: {{level: warning}}\nlimits: {{drain_timeout: 0s}}\n"
    plain = f"listen: {{port: {ports[1]}}}\nrouting: {{policy: round_robin}}\n{common}"
    cost = f"listen: {{port: {ports[2]}}}\nmodels: [{{name: {MODEL}, tokenizer: embedded}}]\n{common}"
    return {
        NGINX: stack.enter_context(nginx(prefix + NGINX, config, ports[0], folder, core=core)),
        PLAIN: stack.enter_context(gateway(prefix + PLAIN, plain, ports[1], folder, core=core)),
        COST: stack.enter_context(gateway(prefix + COST, cost, ports[2], folder, core=core)),
    }


def ratio(mine: Sequence[float], other: Sequence[float]) -> float:
    """Median of the ratios of each pair of rounds."""
    return median([a / b if b else float("nan") for a, b in zip(mine, other, strict=True)])


def show(console: Console, results: dict[str, tuple[Test, dict[str, Figures]]]) -> None:
    """Print the table."""
    table = Table(
        title="The gateway beside nginx: medians; × nginx is the median over pairs of rounds",
        title_justify="left",
    )
    table.add_column("load")
    table.add_column("proxy")
    for column in (
        "per second",
        "× nginx",
        "CPU µs",
        "nginx CPU ÷ its CPU",
        "core",
        "p50 ms",
        "p99 ms",
        "RSS MB",
        "errors",
    ):
        table.add_column(column, justify="right")
    for name, (test, figures) in results.items():
        reference = figures[NGINX]
        for at, (proxy, of) in enumerate(figures.items()):
            bare = proxy in (NGINX, DIRECT)
            table.add_row(
                f"{name} ({test.unit}s)" if at == 0 else "",
                proxy,
                f"{median(of.per_second):,.0f}",
                "" if bare else f"{ratio(of.per_second, reference.per_second):.2f}",
                f"{median(of.cpu_us):,.1f}",
                "" if bare else f"{ratio(reference.cpu_us, of.cpu_us):.2f}",
                f"{median(of.core_share):.0%}",
                f"{median(of.p50_us) / 1e3:,.2f}",
                f"{median(of.p99_us) / 1e3:,.2f}",
                f"{of.rss_mb:,.0f}",
                str(of.errors or ""),
            )
        table.add_section()
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; 0, or 2 where a tool is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="half of the tests and one round: under 40 s, rough figures"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of each proxy in each test")
    parser.add_argument("--seconds", type=int, default=2, help="of a round")
    parser.add_argument("--only", metavar="WORD", help="the tests with this in their name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rounds")
    options = parser.parse_args(arguments)
    console = Console(width=max(Console().width, 150))
    if missing := missing_tools():
        console.print(f"Left out: this needs nginx and wrk. On Debian: apt-get install {' '.join(missing)}")
        return 2
    usable = sorted(os.sched_getaffinity(0))
    cores = (usable[0], usable[-1])
    if cores[0] == cores[1]:
        console.print("There is one core only: proxies and load share it, so look at the CPU time alone.")
    tokenizer = Tokenizer.load(EMBEDDED_TOKENIZER)
    chosen = [
        test
        for test in tests(tokenizer)
        if (options.only or "") in test.name and (test.quick or options.only or not options.quick)
    ]
    results: dict[str, tuple[Test, dict[str, Figures]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds, rounds = (1, 1) if options.quick else (options.seconds, options.rounds)
        bench = Bench(folder, load_core=cores[1], seconds=seconds, rounds=rounds)
        for streams, proxies in ((False, unary_proxies), (True, stream_proxies)):
            group = [test for test in chosen if test.streams == streams]
            if not group:
                continue
            with proxies(folder, cores) as servers:
                bench.stream_port = servers[DIRECT].port
                for test in group:
                    with console.status(test.name):
                        results[test.name] = (test, bench.run(test, servers))
    show(console, results)
    if options.json:
        content = {name: {proxy: asdict(of) for proxy, of in figures.items()} for name, (_, figures) in results.items()}
        options.json.write_text(json.dumps(content, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
