"""One worker in the running loop: its HTTP server and KV events here, its engine in a child process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

from backends.address import place
from backends.aiohttp_memory import forget_handlers
from backends.kv_publisher import KvEventPublisher
from backends.worker.engine_client import EngineClient
from backends.worker.messages import Ready, StepDone
from backends.worker.model_source import model_directory
from backends.worker.options import WorkerOptions
from backends.worker.server.server import WorkerServer
from backends.worker.server.serving import Serving
from cache.kv_events import EventBatch
from cache.tokenizer import Tokenizer

_BACKLOG = 1024


class Worker:
    """`async with Worker(options) as worker: worker.url, worker.kv_endpoint, worker.replay_endpoint`."""

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        self.name = options.name
        self.engine = EngineClient(
            options.engine,
            command=options.engine_command,
            hung_after=options.hung_after,
            most_open=options.max_open_sequences,
            on_step=self._publish,
        )
        self.tokenizer_directory = options.tokenizer or Path(options.engine.model)
        """Known once it has started, where the model is an id."""
        self._stack = contextlib.AsyncExitStack()
        self._publisher: KvEventPublisher | None = None
        self._ready: Ready | None = None
        self._port = 0

    @property
    def model(self) -> str:
        """As clients name it."""
        return self.options.engine.name

    @property
    def url(self) -> str:
        """Base URL, without a path."""
        return f"http://{place(self.options.host, self._port)}"

    @property
    def port(self) -> int:
        """The HTTP port."""
        return self._port

    @property
    def kv_endpoint(self) -> str | None:
        """Where its KV events come from; None without events."""
        return None if self._publisher is None else self._publisher.endpoint

    @property
    def replay_endpoint(self) -> str | None:
        """Where missed KV events can be asked for; None without events."""
        return None if self._publisher is None else self._publisher.replay_endpoint

    @property
    def ready(self) -> Ready:
        """What the engine told of itself when it was ready."""
        assert self._ready is not None, "the worker has started"
        return self._ready

    async def __aenter__(self) -> Self:
        """Take the ports, start the engine, and listen when it is ready.

        Raises OSError or zmq.ZMQError when a port is taken, ModelSourceError, TokenizerError, and EngineError
        when the engine does not start. The port refuses connections until the engine is ready.
        """
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop listening, let requests finish for `drain_within`, then stop the engine."""
        await self._stack.aclose()

    async def failed(self) -> str:
        """Wait until the engine has ended or failed; the reason. The server goes on, and answers 503."""
        await self.engine.failed.wait()
        return self.engine.problem or ""

    async def _start(self) -> None:
        options, stack = self.options, self._stack
        listening = _bound_socket(options.host, options.port)
        stack.callback(listening.close)
        self._port = listening.getsockname()[1]
        if options.kv_events:
            self._publisher = _publisher(options)
            stack.push_async_callback(self._publisher.close)
        stack.push_async_callback(self.engine.close, options.stop_within)
        tokenizer = await asyncio.to_thread(self._load_tokenizer)
        self._ready = await self.engine.start(options.ready_within)
        serving = Serving(options, self.engine, self._ready, tokenizer)
        stack.callback(serving.close)
        runner = web.AppRunner(
            WorkerServer(serving).app(),
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=options.drain_within,
        )
        stack.callback(forget_handlers)
        stack.push_async_callback(runner.cleanup)
        await runner.setup()
        await web.SockSite(runner, listening, backlog=_BACKLOG).start()

    def _load_tokenizer(self) -> Tokenizer:
        if self.options.tokenizer is None:
            # Fetches the weights too where the model is an id: the engine then finds them, and is not slow to start.
            engine = self.options.engine
            self.tokenizer_directory = model_directory(engine.model, weights=engine.load_format != "dummy")
        return Tokenizer.load(self.tokenizer_directory, chat_template=self.options.chat_template)

    def _publish(self, step: StepDone) -> None:
        if self._publisher is not None and step.events:
            self._publisher.publish(EventBatch(time.time(), step.events, dp_rank=0))


def _bound_socket(host: str, port: int) -> socket.socket:
    """A socket that has the port, and refuses connections until it listens. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"{error.strerror} (addr='{host}:{port}')") from None  # as ZMQ says it
    return bound


def _publisher(options: WorkerOptions) -> KvEventPublisher:
    def endpoint(port: int) -> str:
        return f"tcp://{options.host}:{port or '*'}"

    replay = options.kv_replay_port
    if replay is None:
        replay = options.kv_port and options.kv_port + 1
    return KvEventPublisher(
        endpoint=endpoint(options.kv_port),
        replay_endpoint=endpoint(replay),
        topic=options.kv_topic,
        encoding=options.kv_encoding,
    )
