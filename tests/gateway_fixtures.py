"""A running gateway in front of simulated or scripted workers, for tests over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet
from backends.simulated.model_text import EMBEDDED_TOKENIZER, ModelText
from gateway.app import serving
from gateway.config import Config, parse_config

MODEL = "simulated"
_TEXT: list[ModelText] = []


def model_text() -> ModelText:
    """The embedded tokenizer, loaded once."""
    if not _TEXT:
        _TEXT.append(ModelText.load(MODEL, EMBEDDED_TOKENIZER))
    return _TEXT[0]


def config_for(urls: Sequence[str], extra: str = "", *, workers_extra: Sequence[str] = (), listen: str = "") -> Config:
    """A configuration on a free port; `extra` is YAML at the top level, `workers_extra` one more line per worker,
    `listen` what stands behind its port.
    """
    lines = [f"listen: {{port: 0{listen}}}", "workers:"]
    for i, url in enumerate(urls):
        lines.append(f"  - {{url: '{url}', name: w{i}{workers_extra[i] if workers_extra else ''}}}")
    if "admin:" not in extra:
        lines.append("admin: {port: null}")
    return parse_config("\n".join(lines) + "\n" + extra)


class TellsEvents(Protocol):
    """A worker of ours."""

    @property
    def kv_endpoint(self) -> str | None: ...

    @property
    def replay_endpoint(self) -> str | None: ...


def feed_of(worker: TellsEvents) -> str:
    """Its KV events, for its line in a configuration."""
    return f", kv_events: {{endpoint: '{worker.kv_endpoint}', replay_endpoint: '{worker.replay_endpoint}'}}"


@contextlib.asynccontextmanager
async def gateway(config: Config) -> AsyncIterator[str]:
    """A gateway in this loop; yields its base URL."""
    async with serving(config) as port:
        yield f"http://127.0.0.1:{port}"


@contextlib.asynccontextmanager
async def simulated_gateway(
    n: int = 2,
    *,
    extra: str = "",
    engine: EngineConfig | None = None,
    tokenizer: bool = True,
    faults: bool = False,
) -> AsyncIterator[tuple[str, SimulatedFleet]]:
    """A gateway in front of `n` simulated workers with KV events, a hundred times faster than life."""
    fleet_config = FleetConfig(model=MODEL, engine=engine or EngineConfig(speed=100.0), faults=faults)
    async with SimulatedFleet(n, fleet_config, text=model_text()) as fleet:
        feeds = [feed_of(worker) for worker in fleet.workers]
        models = f"models: [{{name: {MODEL}, tokenizer: embedded}}]\n" if tokenizer else ""
        config = config_for(
            fleet.urls,
            models + "response_headers: {worker: x-worker}\nlimits: {drain_timeout: 0.2}\n" + extra,
            workers_extra=feeds if tokenizer else (),
        )
        async with gateway(config) as url:
            yield url, fleet


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class ScriptedWorker:
    """A worker whose every byte a test decides. `script` runs for each connection."""

    script: Script
    connections: int = 0
    open: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ScriptedWorker]:
        """Listen on a free port."""
        tasks: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            self.connections += 1
            self.open += 1
            try:
                await self.script(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass
            finally:
                self.open -= 1
                self.closed.set()
                writer.close()
                tasks.discard(task)

        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 26)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """One request with a Content-Length, as head and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")),
        0,
    )
    return head, await reader.readexactly(length)


async def exchange(url: str, raw: bytes, *, pieces: int | None = None, timeout: float = 10.0) -> bytes:
    """Send raw bytes to a gateway, in pieces of a size where given, and read until it closes."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        if pieces is None:
            writer.write(raw)
        else:
            for at in range(0, len(raw), pieces):
                writer.write(raw[at : at + pieces])
                await writer.drain()
                await asyncio.sleep(0)
        async with asyncio.timeout(timeout):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def eventually(condition: Callable[[], object], *, timeout: float = 20.0) -> None:
    """Wait until `condition()` is true. Raises TimeoutError after `timeout` seconds of this process's own time.

    Between two looks it sleeps 10 ms. Of a longer pause only what this process computed counts, and 50 ms: a machine
    that had no time for it makes nobody late, and a loop that somebody held up does.
    """
    left, looked, computed = timeout, time.monotonic(), time.process_time()
    while not condition():
        if left <= 0:
            raise TimeoutError(f"not within {timeout} s")
        await asyncio.sleep(0.01)
        now, computed_now = time.monotonic(), time.process_time()
        left -= min(now - looked, computed_now - computed + 0.05)
        looked, computed = now, computed_now
