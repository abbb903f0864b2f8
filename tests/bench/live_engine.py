"""One simulated engine in a process of its own, on ports of its own.

`python -m tests.bench.live_engine CONFIG` prints its entry for a gateway's configuration as one line of JSON, and on
SIGTERM how late its loop was; CONFIG is what `written` made.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field

import uvloop

from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet
from backends.simulated.timing import PublishedTiming
from gateway.cli.fleet_config import worker_entry
from gateway.replay.stats import percentile

_LOOK_S = 0.02


@dataclass
class Lag:
    """How late a loop is, seconds, as looked at fifty times a second."""

    seen: list[float] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look until left."""
        task = asyncio.create_task(self._look())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _look(self) -> None:
        while True:
            due = time.perf_counter() + _LOOK_S
            await asyncio.sleep(_LOOK_S)
            self.seen.append(max(time.perf_counter() - due, 0.0))

    def p99(self) -> float:
        """The 99th percentile; 0 of nothing."""
        return percentile(sorted(self.seen), 0.99) if self.seen else 0.0


def written(name: str, model: str, config: EngineConfig) -> str:
    """As text. Raises TypeError for one with slower tiers or another timing than the published one."""
    if config.host is not None or not isinstance(config.timing, PublishedTiming):
        raise TypeError("only the device cache and the published timing are written")
    return json.dumps({"name": name, "model": model, "engine": asdict(config)})


def _read(text: str) -> FleetConfig:
    said = json.loads(text)
    engine = EngineConfig(**said["engine"] | {"timing": PublishedTiming(**said["engine"]["timing"])})
    return FleetConfig(model=said["model"], name_prefix=said["name"], engine=engine)


async def _serve(config: FleetConfig) -> None:
    stop, lag = asyncio.Event(), Lag()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with SimulatedFleet(1, config) as fleet:
        (worker,) = fleet.workers
        entry = worker_entry(
            config.name_prefix,
            worker.url,
            [config.model],
            block_size=config.engine.block_size,
            kv_blocks=config.engine.blocks,
            max_model_len=config.engine.context_tokens,
            kv_endpoint=worker.kv_endpoint,
            replay_endpoint=worker.replay_endpoint,
        )
        print(json.dumps(entry), flush=True)
        async with lag.watched():
            await stop.wait()
        stats = worker.engine.stats()
    print(json.dumps({"lag_p99": lag.p99(), "left": stats.running + stats.waiting}), flush=True)


if __name__ == "__main__":
    uvloop.run(_serve(_read(sys.argv[1])))
