"""The gateway's real data plane in this process, between transports that send nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from backends.fleet_state import FleetState
from backends.fleet_worker import Worker
from backends.remote_tokenizer import RemoteTokenizer
from backends.upstream import UpstreamConnection
from backends.upstream_pool import UpstreamPool
from backends.upstream_request import NO_ACCESS, WorkerAccess
from cache.prefix_index import PrefixIndex
from cache.prompt_blocks import PromptBlockCache
from cache.tokenizer import Tokenizer
from gateway.client_connection import ClientConnection
from gateway.config import Index, Tokens, Upstream
from gateway.http_server import HttpServer, Limits
from gateway.pipeline import RequestPipeline, Rules, Target
from gateway.placement import Placement
from gateway.prompts import PromptReader, Reader, ReadingLimits
from gateway.reader_table import ReaderTable, make_reader
from gateway.routes import RouteTable
from gateway.token_memory import TokenMemory
from policies.affinity import AffinityMap
from policies.prefill_queue import FleetRate, PrefillQueue
from policies.routing import make_policy
from policies.types import WorkerId
from tests.bench.workload import MODEL

BLOCK_SIZE = 16
P = ParamSpec("P")
T = TypeVar("T")


class NullTransport(asyncio.Transport):
    """Takes what is written and forgets it."""

    def __init__(self, on_write: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._on_write = on_write

    def write(self, data: object) -> None:
        self._on_write()

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


class LaterExecutor(ThreadPoolExecutor):
    """Keeps what is handed to it until `run`: so the loop's part and the thread's can be told apart."""

    def __init__(self) -> None:
        super().__init__(1)
        self._jobs: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.ran = False
        """Had the last `run` anything to do?"""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._jobs.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run(self) -> None:
        """Do what waits, in this thread."""
        jobs, self._jobs = self._jobs, []
        self.ran = bool(jobs)
        for future, job in jobs:
            future.set_result(job())


@dataclass
class RigTarget:
    pool: UpstreamPool
    access: WorkerAccess = NO_ACCESS
    takes_salt: bool = True
    takes_kv_policy: bool = False


class Rig:
    """One client, `n_workers` workers that answer to `MODEL`, all in between. Needs a running loop."""

    def __init__(self, policy: str, tokenizer: Tokenizer | None, *, n_workers: int) -> None:
        loop = asyncio.get_running_loop()
        rate = FleetRate()
        workers = [
            Worker(
                id=WorkerId(f"w{i}"),
                host="127.0.0.1",
                port=9000 + i,
                block_size=BLOCK_SIZE,
                configured_models=(MODEL,),
                prefill=PrefillQueue(rate),
            )
            for i in range(n_workers)
        ]
        tokens, index, upstream = Tokens(), Index(), Upstream()
        self.fleet = FleetState(workers, cooldown=upstream.cooldown, cooldown_max=upstream.cooldown_max)
        self.index = PrefixIndex(max_blocks=index.max_blocks)
        self.executor = LaterExecutor()
        self.policy = make_policy(policy)
        targets: dict[WorkerId, Target] = {}
        self.targets = targets
        for worker in workers:
            self.index.add_worker(worker.id, model=MODEL, block_size=BLOCK_SIZE)
            targets[worker.id] = RigTarget(
                UpstreamPool(worker.host, worker.port, connect_timeout=1.0, keepalive=3600.0, max_idle=8, loop=loop)
            )
        readers: dict[str, Reader] = {}
        limits = ReadingLimits(inline_chars=tokens.inline_chars, taste_chars=tokens.piece_chars)
        if tokenizer is not None:
            cache = PromptBlockCache(tokenizer, max_bytes=tokens.cache_bytes, piece_chars=tokens.piece_chars)
            readers[MODEL] = PromptReader(
                MODEL,
                tokenizer,
                cache,
                index=self.index,
                executor=self.executor,
                limits=limits,
            )
        self.pipeline = RequestPipeline(
            self.fleet,
            targets,
            Placement(
                self.fleet,
                self.index,
                self.policy,
                affinity=AffinityMap(1000, 60.0),
                session_header=None,
                prediction_ttl=index.prediction_ttl,
                unconfirmed_ttl=index.unconfirmed_ttl,
                sample=random.Random(1).random,
            ),
            index=self.index,
            readers=ReaderTable(
                readers,
                lambda name: make_reader(
                    name,
                    remote=RemoteTokenizer(lambda _: ()),
                    memory=TokenMemory(max_bytes=1 << 20),
                    index=self.index,
                    limits=limits,
                    has_events=lambda _: False,
                    clock=loop.time,
                ),
            ),
            routes=RouteTable(),
            loop=loop,
            via=b"prefixgate-bench",
            rules=Rules(max_attempts=upstream.max_attempts, token_wait=tokens.wait),
        )
        self.server = HttpServer(self.pipeline, Limits(), loop, via=b"prefixgate-bench")
        self.fleet.sweep(0.0)  # as the server does it: whoever is well is looked after no more
        self.client = ClientConnection(self.server)
        self.client.connection_made(NullTransport())
        self._asked: UpstreamConnection | None = None
        for target in targets.values():
            self._connect(target.pool)

    def request(self, data: bytes) -> None:
        """The client sends this."""
        self.client.data_received(data)

    def answer(self, data: bytes) -> None:
        """The worker that was asked last sends this."""
        assert self._asked is not None, "the request was refused or still waits for its tokens"
        self._asked.data_received(data)

    def asked(self) -> UpstreamConnection:
        """The connection that the last request went to."""
        assert self._asked is not None, "the request was refused or still waits for its tokens"
        return self._asked

    def close(self) -> None:
        """End what the executor holds; nothing else is open."""
        self.executor.shutdown()

    def _connect(self, pool: UpstreamPool) -> None:
        connection = UpstreamConnection(pool)

        def asked() -> None:
            self._asked = connection

        connection.connection_made(NullTransport(asked))
        pool.put(connection)
