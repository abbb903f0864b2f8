"""Workers are killed, stalled, restarted, added and removed under load: what clients were told, and what is left over.

`python -m tests.bench chaos [--events 1000]`. Gateway, eight simulated workers with KV events and the clients share
one loop, so that whatever leaks can be counted: tasks, open files, objects.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
import uvloop
import zmq

from backends.fleet import Member
from backends.fleet_worker import Worker
from backends.kv_subscriber import KvSubscriber
from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet, SimulatedWorker
from backends.simulated.model_text import EMBEDDED_TOKENIZER, ModelText
from backends.upstream import UpstreamConnection
from gateway.app import running
from gateway.config import parse_config
from gateway.exchange import Exchange
from gateway.program import Program
from policies.types import WorkerId
from tests.bench.chaos_clients import MODEL, Clients, Told
from tests.ports import fleet_ports

N_WORKERS: Final = 8
_LEAST_WELL: Final = 4
"""Workers that are never touched at a time: what is told of is failures, not a fleet that is gone."""
_MOST: Final = 10
_TOKEN: Final = "chaos"
_COUNTED: Final = (Exchange, Member, Worker, UpstreamConnection, KvSubscriber)
_CONFIG: Final = """
listen: {port: 0}
models: [{name: simulated, tokenizer: embedded}]
admin: {port: 0, token: chaos}
upstream: {cooldown: 0.2s, cooldown_max: 1s, max_attempts: 16}
health: {probe: {interval: 0.5s, metrics_interval: 0.5s}}
limits: {drain_timeout: 5s}
log: {level: error}
workers:
"""


@dataclass
class Report:
    """What came of it."""

    events: Counter[str] = field(default_factory=Counter)
    told: Told = field(default_factory=Told)
    seconds: float = 0.0
    rss_mb: list[float] = field(default_factory=list)
    """Resident memory, four times on the way and at the end."""
    left_over: list[str] = field(default_factory=list)
    """What is still there and ought not to be."""


class Chaos:
    """Does to a fleet what may happen to one."""

    def __init__(self, program: Program, fleet: SimulatedFleet, *, seed: int, pause: float) -> None:
        """An event about every `pause` seconds."""
        self.events: Counter[str] = Counter()
        self._program = program
        self._fleet = fleet
        self._dice = random.Random(seed)
        self._pause = pause
        self._busy: set[SimulatedWorker] = set()
        """Something is happening to them."""
        self._http = aiohttp.ClientSession(
            f"http://127.0.0.1:{program.admin_port}", headers={"authorization": f"Bearer {_TOKEN}"}
        )
        self._under_way: set[asyncio.Task[None]] = set()
        self.faults: list[str] = []
        """What this here could not do."""

    async def run(self, n: int) -> AsyncIterator[int]:
        """`n` events; yields their number now and then. At the end eight workers are well."""
        told = 0
        while (done := self.events.total()) < n:
            if done * 4 // n > told:
                told += 1
                yield done
            await asyncio.sleep(self._pause * 2 * self._dice.random())
            self._begin()
        await self._finish()
        yield self.events.total()

    def _begin(self) -> None:
        well = [worker for worker in self._fleet.workers if worker not in self._busy]
        if len(well) <= _LEAST_WELL:
            if len(self._fleet.workers) < _MOST:
                self._start(self._add())
            return
        worker = self._dice.choice(well)
        steps = [self._kill, self._restart, self._stall, self._stall_and_kill]
        if len(self._fleet.workers) > N_WORKERS - 2:
            steps.append(self._remove)
        if len(self._fleet.workers) < _MOST and self._dice.random() < 0.25:
            self._start(self._add())
            return
        self._busy.add(worker)
        self._start(self._dice.choice(steps)(worker))

    def _start(self, steps: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(steps)
        self._under_way.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.faults.append(repr(error))

    async def _kill(self, worker: SimulatedWorker) -> None:
        """It is away for a while."""
        self.events["kill"] += 1
        await worker.kill()
        await asyncio.sleep(0.5 * self._dice.random())
        await self._back(worker)

    async def _restart(self, worker: SimulatedWorker) -> None:
        """It is back at once, another one than before."""
        self.events["restart"] += 1
        await self._back(worker, count=False)

    async def _back(self, worker: SimulatedWorker, *, count: bool = True) -> None:
        self.events["restart"] += count
        for _ in range(40):
            try:
                await worker.restart()
            except (OSError, zmq.ZMQError):  # some other connection was given the port meanwhile
                await asyncio.sleep(0.05)
            else:
                self._busy.discard(worker)
                return
        await self._remove(worker)

    async def _stall(self, worker: SimulatedWorker) -> None:
        self.events["stall"] += 1
        worker.hang()
        await asyncio.sleep(self._dice.random())
        worker.resume()
        self._busy.discard(worker)

    async def _stall_and_kill(self, worker: SimulatedWorker) -> None:
        self.events["stall"] += 1
        worker.hang()
        await asyncio.sleep(0.3 * self._dice.random())
        await self._kill(worker)

    async def _add(self) -> None:
        self.events["add"] += 1
        worker = await self._fleet.add()
        events = {"endpoint": worker.kv_endpoint, "replay_endpoint": worker.replay_endpoint}
        entry = {"name": worker.name, "url": worker.url, "kv_events": events}
        async with self._http.post("/admin/workers", json=entry) as response:
            assert response.status == 201, await response.text()

    async def _remove(self, worker: SimulatedWorker) -> None:
        self.events["remove"] += 1
        grace = self._dice.choice(("0s", "0.2s", "10s"))
        async with self._http.delete(f"/admin/workers/{worker.name}", params={"grace": grace}) as response:
            assert response.status == 200, await response.text()
        self._busy.discard(worker)
        await self._fleet.remove(worker)

    async def _finish(self) -> None:
        async with asyncio.timeout(30):
            while self._under_way:
                await asyncio.wait(list(self._under_way))
            while len(self._fleet.workers) < N_WORKERS:
                await self._add()
            while len(self._fleet.workers) > N_WORKERS:
                await self._remove(self._fleet.workers[-1])
        await self._http.close()


async def settled(program: Program) -> list[str]:
    """Wait until nothing is under way; what still is, in words."""
    state, fleet = program.state, program.fleet

    def unsettled() -> list[str]:
        pools = [(member.spec.id, member.pool) for member in fleet.members.values()]
        return [
            *[f"live exchange: {exchange.record}" for exchange in program.pipeline.live],
            *[f"worker {worker.id} has {worker.active} requests" for worker in state.workers if worker.active],
            *[f"worker {worker} is being connected to" for worker, pool in pools if pool.connecting],
            *[f"worker {worker} has connections in use" for worker, pool in pools if pool.open_connections > pool.idle],
            *[f"worker {worker.id} has no model" for worker in state.workers if not worker.models],
            *[f"worker {worker.id} is out" for worker in state.workers if worker.unhealthy],
            *[f"client connection of {peer}" for peer in program.server.connections],
            *([f"{len(fleet.leaving)} workers leave"] if fleet.leaving else []),
            *([f"{len(program.state.workers)} workers"] if len(state.workers) != len(fleet.members) else []),
        ]

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20):
            while unsettled():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.05)
    return unsettled()


def integrity(program: Program) -> list[str]:
    """What does not agree with itself."""
    wrong: list[str] = []
    for check in (program.state.check_integrity, program.index.check_integrity):
        try:
            check()
        except (AssertionError, RuntimeError) as error:
            wrong.append(repr(error))
    held = sum(program.index.block_count(worker) for worker in program.fleet.members)
    if len(program.index) != held:
        wrong.append(f"the index says {len(program.index)} entries, its workers hold {held}")
    return wrong


def overclaims(program: Program, fleet: SimulatedFleet) -> list[str]:
    """Workers that are thought to hold more blocks than they do."""
    wrong = []
    for worker in fleet.workers:
        held, thought = worker.engine.pool.cached, program.index.block_count(WorkerId(worker.name))
        if thought > held:
            wrong.append(f"{worker.name} holds {held} blocks and is thought to hold {thought}")
    return wrong


def census() -> dict[str, int]:
    """What can leak, counted."""
    gc.unfreeze()
    gc.collect()
    kinds = Counter(type(each) for each in gc.get_objects())
    return {kind.__name__: kinds[kind] for kind in _COUNTED} | {
        "tasks": len(asyncio.all_tasks()),
        "open files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
    }


def rss_mb() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


async def chaos(
    text: ModelText, *, events: int, clients: int = 24, pause: float = 0.1, seed: int = 1, prompts: int = 40
) -> Report:
    """Let it happen; the same `seed` throws the same dice."""
    report = Report()
    await _round(text, Report(), events=0, clients=1, pause=pause, seed=seed, prompts=2)  # what is made once, is made
    before = census()
    await _round(text, report, events=events, clients=clients, pause=pause, seed=seed, prompts=prompts)
    await asyncio.sleep(0.2)
    after = census()
    report.left_over += [
        f"{after[name]} {name} instead of {count}" for name, count in before.items() if after[name] > count
    ]
    return report


async def _round(
    text: ModelText, report: Report, *, events: int, clients: int, pause: float, seed: int, prompts: int
) -> None:
    config = FleetConfig(model=MODEL, engine=EngineConfig(blocks=4096), **fleet_ports(60))
    async with SimulatedFleet(N_WORKERS, config, text=text) as fleet:
        lines = [
            f"  - {{name: {worker.name}, url: '{worker.url}', kv_events: "
            f"{{endpoint: '{worker.kv_endpoint}', replay_endpoint: '{worker.replay_endpoint}'}}}}\n"
            for worker in fleet.workers
        ]
        async with running(parse_config(_CONFIG + "".join(lines))) as (program, port):
            started = time.perf_counter()
            many = Clients(f"http://127.0.0.1:{port}", _prompts(prompts, seed), seed=seed)
            report.told = many.told
            await many.learn(fleet.urls[0])
            asking = asyncio.create_task(many.run(clients))
            event_maker = Chaos(program, fleet, seed=seed, pause=pause)
            report.events = event_maker.events
            async for _ in event_maker.run(events):
                report.rss_mb.append(rss_mb())
            await asyncio.sleep(0.3)
            many.asking = False
            await asking
            report.seconds = round(time.perf_counter() - started, 1)
            report.left_over += await settled(program)
            report.left_over += integrity(program)
            report.left_over += event_maker.faults
            if events:
                await asyncio.sleep(program.config.index.prediction_ttl + 0.5)
                report.left_over += overclaims(program, fleet)
                for kind, count in census().items():
                    expected = {"Member": N_WORKERS, "Worker": N_WORKERS, "Exchange": 0}.get(kind)
                    if expected is not None and count > expected:
                        report.left_over.append(f"while it runs: {count} {kind} instead of {expected}")


def _prompts(n: int, seed: int) -> list[str]:
    words = (EMBEDDED_TOKENIZER / "words.txt").read_text().split()
    dice = random.Random(seed)
    stems = [" ".join(dice.choices(words, k=400)) for _ in range(max(1, n // 5))]
    return [f"{stems[at % len(stems)]} {' '.join(dice.choices(words, k=60))}" for at in range(n)]


def main() -> int:
    """Run it and print one JSON object; 1 where something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--pause", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # a worker that is killed has its say
    text = ModelText.load(MODEL, EMBEDDED_TOKENIZER)
    report = uvloop.run(chaos(text, events=args.events, clients=args.clients, pause=args.pause, seed=args.seed))
    told = report.told
    print(
        json.dumps(
            {
                "events": dict(report.events),
                "requests": told.total,
                "outcomes": dict(told.outcomes),
                "wrong": len(told.wrong),
                "of these": told.wrong[:10],
                "left over": report.left_over,
                "resident MB": report.rss_mb,
                "seconds": report.seconds,
            },
            indent=2,
        )
    )
    return 1 if told.wrong or report.left_over else 0


if __name__ == "__main__":
    sys.exit(main())
