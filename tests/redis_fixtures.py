"""Real Redis servers for tests: on free ports, with nothing on disk but their Unix socket, gone with the block."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.ports import free_port

needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is missing: sudo apt-get install redis-server"
)


def wait_for(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    """Until it holds; an error of Redis means not yet."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(redis.RedisError, OSError):
            if condition():
                return
        time.sleep(0.01)
    raise AssertionError(f"waited in vain: {what}")


class RedisServer:
    """One redis-server; `options` are its command line's, such as "--maxmemory", "20mb"."""

    def __init__(self, folder: Path, *options: str, tls: bool = False, password: str | None = None) -> None:
        self.folder = folder
        self._options = options
        self._tls = tls
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"{'rediss' if self._tls else 'redis'}://127.0.0.1:{self.port}"

    @property
    def unix_url(self) -> str:
        return f"unix://{self._unix}"

    @property
    def _unix(self) -> Path:
        return self.folder / "s"

    def start(self, *options: str, answers: bool = True) -> None:
        """On the port that it had before, if any; another one might have taken a port that seems free. Without
        `answers` it need not be ready yet.
        """
        for _ in range(20):
            port = self.port or free_port()
            if self._starts(port, options, answers=answers):
                self.port = port
                return
        raise AssertionError("redis-server does not start: " + (self.folder / "log").read_text())

    def _starts(self, port: int, options: Sequence[str], *, answers: bool) -> bool:
        ports = ["--port", "0", "--tls-port", str(port)] if self._tls else ["--port", str(port)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["redis-server", *ports, "--bind", "127.0.0.1", "--unixsocket", str(self._unix), "--save", "",
                 "--dir", str(self.folder), "--appendonly", "no", *self._options, *options],
                stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + 20
        while self._process.poll() is None and time.monotonic() < deadline:
            # By its own socket: the port may be somebody else's.
            with contextlib.suppress(redis.ConnectionError), self.client() as client:
                with contextlib.suppress(redis.ResponseError):
                    client.ping()
                return True
            if not answers:
                return True
            time.sleep(0.02)
        self.kill()
        return False

    @contextlib.contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """As its operator, with all rights."""
        once = Retry(NoBackoff(), 0)
        path = str(self._unix)
        with redis.Redis(unix_socket_path=path, password=self._password, protocol=2, retry=once) as client:
            yield client

    def do(self, *words: Any) -> Any:
        """One command as its operator."""
        with self.client() as client:
            return client.execute_command(*words)  # type: ignore[no-untyped-call]  # redis-py gives it no types

    def freeze(self) -> None:
        """Its kernel goes on accepting connections; it does not go on at all."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def redis_server(*options: str, tls: bool = False, password: str | None = None) -> Iterator[RedisServer]:
    """A server that runs. Its folder is short of name: a Unix socket's path has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        server = RedisServer(Path(folder), *options, tls=tls, password=password)
        try:
            server.start()
            yield server
        finally:
            server.kill()


@contextlib.contextmanager
def redis_cluster(n: int = 3) -> Iterator[list[RedisServer]]:
    """Nodes that share all slots evenly, and agree on it."""
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no")
    with contextlib.ExitStack() as running:
        nodes = [running.enter_context(redis_server(*options)) for _ in range(n)]
        bounds = [16384 * i // n for i in range(n + 1)]
        for i, node in enumerate(nodes):
            node.do("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            node.do("CLUSTER", "ADDSLOTSRANGE", bounds[i], bounds[i + 1] - 1)
            node.do("CLUSTER", "MEET", "127.0.0.1", nodes[0].port)
        wait_for(lambda: all(_agrees(node, nodes) for node in nodes), "the cluster is whole")
        yield nodes


def _agrees(node: RedisServer, nodes: Sequence[RedisServer]) -> bool:
    info = node.do("CLUSTER", "INFO")
    known = node.do("CLUSTER", "NODES").decode().splitlines()
    return b"cluster_state:ok" in info and b"cluster_slots_ok:16384" in info and len(known) == len(nodes)
