"""Several simulated workers in the running loop, each on ports of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import TracebackType
from typing import Self
from uuid import uuid4

from backends.simulated.kv_tiers import BlockTier, TierConfig
from backends.simulated.model_text import ModelText
from backends.simulated.worker import FleetConfig, SimulatedWorker
from policies.types import Tier

__all__ = ["FleetConfig", "SimulatedFleet", "SimulatedWorker", "TierConfig"]


class SimulatedFleet:
    """`async with SimulatedFleet(2, FleetConfig(...)) as fleet: fleet.workers[0].url`."""

    def __init__(self, n: int = 1, config: FleetConfig | None = None, *, text: ModelText | None = None) -> None:
        """`text` saves loading the tokenizer where a caller has it. Raises TokenizerError or ValueError."""
        self.config = config or FleetConfig()
        self.text = text or ModelText.load(self.config.model, self.config.tokenizer)
        store = self.config.store
        self.store = None if store is None else BlockTier(Tier.REDIS, store, f"simulated-{uuid4().hex}")
        """What all workers share, where the configuration has it."""
        self._n = n
        self._next = 0
        self._workers: list[SimulatedWorker] = []

    @property
    def workers(self) -> Sequence[SimulatedWorker]:
        """Those that were added and not removed, in order; killed ones are among them."""
        return self._workers

    @property
    def urls(self) -> list[str]:
        """Every worker's base URL."""
        return [worker.url for worker in self._workers]

    async def __aenter__(self) -> Self:
        """Start every worker, or none: raises OSError or zmq.ZMQError when a port is taken."""
        try:
            for _ in range(self._n):
                await self.add()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop every worker."""
        await self.close()

    async def add(self) -> SimulatedWorker:
        """One more worker, running; no number is given twice. Raises OSError or zmq.ZMQError if a port is taken."""
        index = self._next
        self._next += 1
        worker = SimulatedWorker(f"{self.config.name_prefix}{index}", self.text, self.config, index, self.store)
        try:
            await worker.listen()
        except BaseException:
            await worker.close()
            raise
        self._workers.append(worker)
        return worker

    async def remove(self, worker: SimulatedWorker) -> None:
        """Stop a worker for good. Raises ValueError for one that is not of this fleet."""
        self._workers.remove(worker)
        await worker.close()

    async def close(self) -> None:
        """Stop every worker, even when this is cancelled meanwhile; a second call does nothing."""
        workers, self._workers = self._workers, []
        async with contextlib.AsyncExitStack() as stack:
            for worker in reversed(workers):
                stack.push_async_callback(worker.close)
