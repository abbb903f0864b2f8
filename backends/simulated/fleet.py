"""Several simulated workers in the running loop, each on ports of its own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

from backends.simulated.driver import EngineDriver
from backends.simulated.engine import EngineConfig, SimulatedEngine
from backends.simulated.model_text import EMBEDDED_TOKENIZER, ModelText
from backends.simulated.publisher import KvEventPublisher
from backends.simulated.server import SimulatedServer
from cache.kv_events import Encoding

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """What the workers of a fleet have in common. Port 0 takes free ones; otherwise the rest follow on."""

    model: str = "simulated"
    tokenizer: Path = EMBEDDED_TOKENIZER
    engine: EngineConfig = field(default_factory=EngineConfig)
    host: str = "127.0.0.1"
    port: int = 0
    name_prefix: str = "sim-"
    kv_events: bool = True
    kv_port: int = 0
    """Events of worker i on `kv_port + 2 i`, replay on the port after it."""
    kv_topic: str = ""
    kv_encoding: Encoding = Encoding.ARRAY
    faults: bool = False


class SimulatedWorker:
    """One running worker. Made by `SimulatedFleet`."""

    def __init__(self, name: str, text: ModelText, config: FleetConfig, index: int) -> None:
        """Bind the event sockets. Raises zmq.ZMQError when a port is taken."""
        self.name = name
        self.engine = SimulatedEngine(config.engine)
        self.publisher = _publisher(config, index) if config.kv_events else None
        self.driver = EngineDriver(self.engine, None if self.publisher is None else self.publisher.publish)
        server = SimulatedServer(name, text, self.driver, faults=config.faults)
        self._runner = web.AppRunner(server.app(), handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        self._host = config.host
        self._port = config.port + index if config.port else 0
        self._site: web.TCPSite | None = None

    @property
    def url(self) -> str:
        """Base URL, without a path."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def port(self) -> int:
        """The HTTP port."""
        return self._port

    @property
    def kv_endpoint(self) -> str | None:
        """Where its KV events come from; None without events."""
        return None if self.publisher is None else self.publisher.endpoint

    @property
    def replay_endpoint(self) -> str | None:
        """Where missed KV events can be asked for; None without events."""
        return None if self.publisher is None else self.publisher.replay_endpoint

    async def listen(self) -> None:
        """Accept connections, on the same port after `refuse`. Raises OSError when the port is taken."""
        if self._runner.server is None:
            await self._runner.setup()
        self._site = web.TCPSite(self._runner, self._host, self._port, backlog=1024)
        await self._site.start()
        self._port = self._runner.addresses[0][1]

    async def refuse(self) -> None:
        """Refuse new connections; those open go on."""
        if self._site is not None:
            await self._site.stop()
            self._site = None

    async def close(self) -> None:
        """Cancel everything, close every socket."""
        self.driver.close()
        await self._runner.cleanup()
        if self.publisher is not None:
            await self.publisher.close()


class SimulatedFleet:
    """`async with SimulatedFleet(2, FleetConfig(...)) as fleet: fleet.workers[0].url`."""

    def __init__(self, n: int = 1, config: FleetConfig | None = None, *, text: ModelText | None = None) -> None:
        """`text` saves loading the tokenizer where a caller has it. Raises TokenizerError or ValueError."""
        self.config = config or FleetConfig()
        self.text = text or ModelText.load(self.config.model, self.config.tokenizer)
        self._n = n
        self.workers: Sequence[SimulatedWorker] = ()

    @property
    def urls(self) -> list[str]:
        """Every worker's base URL."""
        return [worker.url for worker in self.workers]

    async def __aenter__(self) -> Self:
        """Start every worker, or none: raises OSError or zmq.ZMQError when a port is taken."""
        workers: list[SimulatedWorker] = []
        self.workers = workers
        try:
            for index in range(self._n):
                workers.append(SimulatedWorker(f"{self.config.name_prefix}{index}", self.text, self.config, index))
                await workers[-1].listen()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop every worker."""
        await self.close()

    async def close(self) -> None:
        """Stop every worker; a second call does nothing."""
        workers, self.workers = self.workers, ()
        for worker in workers:
            await worker.close()


def _publisher(config: FleetConfig, index: int) -> KvEventPublisher:
    def endpoint(offset: int) -> str:
        port = config.kv_port + 2 * index + offset if config.kv_port else "*"
        return f"tcp://{config.host}:{port}"

    return KvEventPublisher(
        block_size=config.engine.block_size,
        endpoint=endpoint(0),
        replay_endpoint=endpoint(1),
        topic=config.kv_topic,
        encoding=config.kv_encoding,
    )
