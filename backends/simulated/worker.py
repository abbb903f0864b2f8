"""One simulated worker in the running loop: engine, events and HTTP, killed and restarted at will."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from backends.address import place
from backends.aiohttp_memory import forget_handlers
from backends.kv_publisher import KvEventPublisher
from backends.simulated.driver import EngineDriver
from backends.simulated.engine import EngineConfig, SimulatedEngine
from backends.simulated.fault_injection import reset_connection
from backends.simulated.kv_tiers import BlockTier, TierConfig
from backends.simulated.model_text import EMBEDDED_TOKENIZER, ModelText
from backends.simulated.prometheus_text import Flavour
from backends.simulated.server import ReceivedRequest, SimulatedServer
from backends.simulated.serving import Serving
from backends.simulated.told_events import Teller
from cache.kv_events import Encoding


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
    adapters: tuple[str, ...] = ()
    """Names of LoRA adapters that are served beside the base model."""
    api_key: str | None = field(default=None, repr=False)
    """The bearer token that every route under `/v1` wants."""
    flavour: Flavour = Flavour.VLLM
    store: TierConfig | None = None
    """A Redis that all workers of the fleet share, behind their device caches; it outlives each of them. For a host
    tier of each see `EngineConfig`."""
    record: int = 0
    """How many of the last requests each worker keeps in `received`; 0 keeps none."""


class SimulatedWorker:
    """One running worker. Made by `SimulatedFleet`.

    `engine`, `driver` and `publisher` are those of its present life: a restart replaces them.
    """

    def __init__(
        self, name: str, text: ModelText, config: FleetConfig, index: int, store: BlockTier | None = None
    ) -> None:
        """Bind the event sockets. `store` is the fleet's. Raises zmq.ZMQError when a port is taken."""
        self.name = name
        self._store = store
        self.received: deque[ReceivedRequest] = deque(maxlen=config.record)
        """The last requests, oldest first, where `FleetConfig.record` asks for them; over all its lives."""
        self._text = text
        self._config = config
        self._port = config.port + index if config.port else 0
        self._endpoints = _endpoints(config, index)
        self._site: web.TCPSite | None = None
        self._alive = False
        self._begin()

    def _begin(self) -> None:
        """A new life: an empty cache, sequence numbers from 0."""
        config = self._config
        self.engine = SimulatedEngine(config.engine, self._store)
        self.publisher = self._publisher() if config.kv_events else None
        tell = None
        if self.publisher is not None:
            tell = Teller(self.publisher.publish, block_size=config.engine.block_size).tell
        self.driver = EngineDriver(self.engine, tell)
        serving = Serving(self.name, self._text, self.driver, faults=config.faults, adapters=config.adapters)
        self._faults = serving.faults
        server = SimulatedServer(
            serving,
            api_key=config.api_key,
            flavour=config.flavour,
            received=self.received if config.record else None,
        )
        self._runner = web.AppRunner(server.app(), handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        self._alive = True

    @property
    def url(self) -> str:
        """Base URL, without a path."""
        return f"http://{place(self._config.host, self._port)}"

    @property
    def port(self) -> int:
        """The HTTP port."""
        return self._port

    @property
    def kv_endpoint(self) -> str | None:
        """Where its KV events come from; None without events. The same after a restart."""
        return self._endpoints[0] if self._config.kv_events else None

    @property
    def replay_endpoint(self) -> str | None:
        """Where missed KV events can be asked for; None without events. The same after a restart."""
        return self._endpoints[1] if self._config.kv_events else None

    @property
    def alive(self) -> bool:
        """Whether it is neither killed nor closed."""
        return self._alive

    @property
    def connections(self) -> int:
        """Open HTTP connections."""
        return len(self._handlers())

    async def listen(self) -> None:
        """Accept connections, on the same port after `refuse`. Raises OSError when the port is taken."""
        if self._runner.server is None:
            await self._runner.setup()
        self._site = web.TCPSite(self._runner, self._config.host, self._port, backlog=1024)
        await self._site.start()
        self._port = self._runner.addresses[0][1]

    async def refuse(self) -> None:
        """Refuse new connections; those open go on."""
        if self._site is not None:
            await self._site.stop()
            self._site = None

    def arm(self, fault: str, times: int = 1) -> None:
        """As `POST /simulate/fault`: the next generations fail so; an empty text disarms.

        Raises RuntimeError where the fleet has no `faults`, ValueError for a fault that nobody knows.
        """
        if self._faults is None:
            message = "this fleet was made without faults"
            raise RuntimeError(message)
        self._faults.arm(fault, times)

    def hang(self, seconds: float | None = None) -> None:
        """Make no more progress with tokens, for so long or until `resume`; `/health` and `/metrics` still answer."""
        self.driver.hang(seconds)

    def resume(self) -> None:
        """Go on where it hung."""
        self.driver.resume()

    async def kill(self) -> None:
        """Die as a process that is killed: every connection is reset, every port closed, the cache lost."""
        if self._alive:
            await self.refuse()
            for handler in self._handlers():
                if handler.transport is not None:
                    reset_connection(handler.transport)
            await self.close()

    async def restart(self) -> None:
        """Come back on the same ports with an empty cache and sequence numbers from 0; first die if alive.

        Raises OSError or zmq.ZMQError when somebody took a port meanwhile; it stays dead then.
        """
        await self.kill()
        self._begin()
        try:
            await self.listen()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Cancel everything, close every socket, even when this is cancelled meanwhile; a second call does nothing."""
        if not self._alive:
            return
        self._alive = False
        self._site = None
        self.driver.close()
        self.engine.tiers.close()
        async with contextlib.AsyncExitStack() as stack:
            if self.publisher is not None:
                stack.push_async_callback(self.publisher.close)
            stack.callback(forget_handlers)
            await self._runner.cleanup()

    def _handlers(self) -> list[RequestHandler]:
        server = self._runner.server
        return [] if server is None else list(server.connections)

    def _publisher(self) -> KvEventPublisher:
        config = self._config
        publisher = KvEventPublisher(
            endpoint=self._endpoints[0],
            replay_endpoint=self._endpoints[1],
            topic=config.kv_topic,
            encoding=config.kv_encoding,
        )
        self._endpoints = publisher.endpoint, publisher.replay_endpoint
        return publisher


def _endpoints(config: FleetConfig, index: int) -> tuple[str, str]:
    def endpoint(offset: int) -> str:
        port = config.kv_port + 2 * index + offset if config.kv_port else "*"
        return f"tcp://{config.host}:{port}"

    return endpoint(0), endpoint(1)
