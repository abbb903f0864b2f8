"""Processes of a benchmark on cores of their own, and what they used."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_NEEDED = {"nginx": "nginx-light", "wrk": "wrk"}


def missing_tools() -> list[str]:
    """Debian packages to install before this can run."""
    return [package for tool, package in _NEEDED.items() if shutil.which(tool) is None]


def free_port() -> int:
    """A TCP port that nobody listens on at this moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass
class Server:
    """A process of ours that listens on `port`."""

    name: str
    process: subprocess.Popen[bytes]
    port: int

    def cpu_seconds(self) -> float:
        """User and system time of all its threads, to 10 ms."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        fields = stat.rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND

    def resident_mb(self) -> float:
        """Resident memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1e6


@contextlib.contextmanager
def on_core(core: int) -> Iterator[None]:
    """What is started meanwhile runs on this core, as does the caller."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def server(name: str, command: Sequence[str | Path], port: int, folder: Path, *, core: int) -> Iterator[Server]:
    """Run a server until the block ends; it is ready when it lists its models.

    Raises RuntimeError with its last words.
    """
    log = folder / f"{name.replace(' ', '-')}.log"
    with log.open("wb") as output, on_core(core):
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_until_ready(process, port, f"{name} did not start", log)
        yield Server(name, process, port)
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def nginx(name: str, config: str, port: int, folder: Path, *, core: int) -> contextlib.AbstractContextManager[Server]:
    """nginx in one process; `config` is the inside of its `http` block."""
    home = folder / name.replace(" ", "-")
    home.mkdir()
    paths = "".join(f"{kind}_temp_path {kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (home / "nginx.conf").write_text(
        "daemon off; master_process off; pid nginx.pid; error_log nginx.err warn;\n"
        "worker_rlimit_nofile 20000; events { worker_connections 8192; }\n"
        f"http {{ access_log off; {paths}\n"
        "client_max_body_size 64m; client_body_buffer_size 256k;\n"
        "keepalive_requests 100000000; keepalive_timeout 600s;\n"
        f"{config}\n}}\n"
    )
    command: list[str | Path] = ["nginx", "-p", f"{home}/", "-e", "nginx.err", "-c", "nginx.conf"]
    return server(name, command, port, folder, core=core)


def gateway(name: str, config: str, port: int, folder: Path, *, core: int) -> contextlib.AbstractContextManager[Server]:
    """`prefixgate serve` with this YAML."""
    path = folder / f"{name.replace(' ', '-')}.yaml"
    path.write_text(config)
    return server(name, [sys.executable, "-m", "gateway", "serve", "-c", path], port, folder, core=core)


@dataclass(frozen=True)
class Load:
    """What one run of wrk saw."""

    requests: int
    seconds: float
    errors: int
    p50_us: int
    p99_us: int


_WRK_DONE = """
function done(summary, latency)
  local e = summary.errors
  io.write(string.format('{"requests":%d,"seconds":%f,"errors":%d,"p50_us":%d,"p99_us":%d}\\n',
    summary.requests, summary.duration / 1e6, e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50), latency:percentile(99)))
end
"""


def wrk(port: int, script: Path, arguments: Sequence[str | Path], *, connections: int, seconds: int, core: int) -> Load:
    """Load from one thread. Raises RuntimeError."""
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    command: list[str | Path] = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "20s"]
    command += ["-s", script, url]
    with on_core(core):
        run = subprocess.run([*command, "--", *arguments], capture_output=True, text=True, check=False)
    last = run.stdout.strip().rpartition("\n")[2]
    if run.returncode or not last.startswith("{"):
        raise RuntimeError(f"wrk failed: {run.stdout[-500:]} {run.stderr[-500:]}")
    return Load(**json.loads(last))


def wrk_script(path: Path, requests: str) -> Path:
    """Write a Lua script: `requests` defines `init` and `request`, the report is added."""
    path.write_text(requests + _WRK_DONE)
    return path


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, fault: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if _lists_models(port):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{fault}: {log.read_text(errors='replace')[-2000:]}")


def _lists_models(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=1) as answer:
            return bool(json.load(answer).get("data"))
    except (OSError, ValueError):
        return False
