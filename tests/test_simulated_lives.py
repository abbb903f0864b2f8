"""Simulated workers die, come back, join and leave: connections, ports, events, and nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import zmq
import zmq.asyncio

from backends.simulated.fleet import FleetConfig, SimulatedFleet, SimulatedWorker
from backends.simulated.model_text import pack
from backends.simulated.timing import LinearPrefill
from cache.kv_events import BlockStored, EventBatch, decode_batch
from tests.gateway_fixtures import eventually, model_text
from tests.ports import fleet_ports
from tests.simulated_fixtures import FAST, STORY, one_worker


async def complete(worker: SimulatedWorker, prompt: Any = STORY, **fields: object) -> dict[str, Any]:
    async with (
        aiohttp.ClientSession(base_url=worker.url) as http,
        http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2, **fields}) as response,
    ):
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
        return answer


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


async def batches(worker: SimulatedWorker) -> list[tuple[int, EventBatch]]:
    """All batches that a worker can replay, by their number."""
    assert worker.replay_endpoint is not None
    context = zmq.asyncio.Context()
    found = []
    try:
        with context.socket(zmq.DEALER) as socket:
            socket.set(zmq.LINGER, 0)
            socket.connect(worker.replay_endpoint)
            await socket.send_multipart((b"", (0).to_bytes(8, "big")))
            async with asyncio.timeout(10):
                while (frames := await socket.recv_multipart())[2]:
                    found.append((int.from_bytes(frames[1], "big"), decode_batch(frames[2])))
    finally:
        context.term()
    return found


async def refused(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    writer.close()
    await writer.wait_closed()
    return False


async def test_a_killed_worker_resets_its_connections_and_frees_its_ports() -> None:
    slow = replace(FAST, timing=LinearPrefill(1.0), speed=1.0)
    async with one_worker(engine=slow) as worker:
        idle_reader, idle = await asyncio.open_connection("127.0.0.1", worker.port)
        async with aiohttp.ClientSession(base_url=worker.url) as http:
            asking = [
                asyncio.create_task(_outcome(http, {"prompt": STORY, "stream": streamed})) for streamed in (False, True)
            ]
            await eventually(lambda: worker.engine.stats().running + worker.engine.stats().waiting == 2)
            assert worker.connections == 3
            await worker.kill()
            assert await asyncio.gather(*asking) == ["lost", "lost"]
        with pytest.raises(ConnectionResetError):
            await idle_reader.read()
        idle.transport.abort()
        assert (worker.alive, worker.connections) == (False, 0)
        assert await refused(worker.port)
        assert worker.kv_endpoint is not None
        assert await refused(int(worker.kv_endpoint.rpartition(":")[2]))
        await worker.kill()  # a second time: nothing


async def _outcome(http: aiohttp.ClientSession, body: dict[str, object]) -> str:
    try:
        async with http.post("/v1/completions", json=body) as response:
            await response.read()
            return str(response.status)
    except aiohttp.ClientError:
        return "lost"


async def test_a_restarted_worker_is_a_new_process_on_the_old_ports() -> None:
    async with one_worker() as worker:
        await complete(worker, list(range(40)))
        again = await complete(worker, list(range(40)))
        assert cached(again) == 32
        old = worker.url, worker.kv_endpoint, worker.replay_endpoint
        worker.hang()
        worker.arm("reset")
        ((number, before),) = await batches(worker)
        await worker.kill()
        await worker.restart()
        assert (worker.url, worker.kv_endpoint, worker.replay_endpoint) == old
        assert worker.alive
        assert cached(await complete(worker, list(range(40)))) == 0
        ((again_number, after),) = await batches(worker)
        assert (number, again_number) == (0, 0)
        (was,), (is_now,) = before.events, after.events
        assert isinstance(was, BlockStored)
        assert isinstance(is_now, BlockStored)
        assert was.token_ids == is_now.token_ids == pack(range(32))
        assert was.block_hashes != is_now.block_hashes


async def test_a_worker_that_lives_can_be_restarted_too() -> None:
    async with one_worker() as worker:
        await complete(worker)
        engine = worker.engine
        await worker.restart()
        assert worker.engine is not engine
        assert cached(await complete(worker)) == 0


async def test_a_subscriber_hears_of_the_new_life() -> None:
    async with one_worker() as worker:
        assert worker.kv_endpoint is not None
        context = zmq.asyncio.Context()
        try:
            with context.socket(zmq.SUB) as socket:
                socket.set(zmq.LINGER, 0)
                socket.set(zmq.RECONNECT_IVL, 10)
                socket.set(zmq.SUBSCRIBE, b"")
                socket.connect(worker.kv_endpoint)
                for first in (0, 10_000):  # what is left of the old life is told apart by its tokens
                    blocks: list[bytes] = []
                    heard, sequence = b"", b""
                    async with asyncio.timeout(10):
                        while heard not in blocks:  # a subscription takes effect some time after it was made
                            start = first + 16 * len(blocks)
                            blocks.append(pack(range(start, start + 16)))
                            await complete(worker, list(range(start, start + 17)))
                            if await socket.poll(timeout=10):
                                _, sequence, payload = await socket.recv_multipart()
                                (event,) = decode_batch(payload).events
                                assert isinstance(event, BlockStored)
                                heard = event.token_ids
                    assert int.from_bytes(sequence, "big") == blocks.index(heard)
                    await worker.restart()
        finally:
            context.term()


async def test_workers_join_and_leave() -> None:
    async with SimulatedFleet(1, FleetConfig(engine=FAST, **fleet_ports()), text=model_text()) as fleet:
        first = fleet.workers[0]
        second = await fleet.add()
        assert [worker.name for worker in fleet.workers] == ["sim-0", "sim-1"]
        assert (await complete(first))["choices"] == (await complete(second))["choices"]
        await fleet.remove(first)
        assert fleet.workers == [second]
        assert await refused(first.port)
        third = await fleet.add()
        assert third.name == "sim-2"  # no name means two workers
        await third.kill()
        with pytest.raises(ValueError, match="not in list"):
            await fleet.remove(first)
    assert await refused(second.port)


async def test_a_port_that_was_taken_meanwhile_leaves_the_worker_dead() -> None:
    async with one_worker() as worker:
        await worker.kill()
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", worker.port)
        with pytest.raises(OSError, match="address"):
            await worker.restart()
        assert not worker.alive
        server.close()
        await server.wait_closed()
        await worker.restart()
        assert cached(await complete(worker)) == 0


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def killed_and_restarted(fleet: SimulatedFleet) -> None:
    worker = fleet.workers[0]
    body = {"prompt": STORY, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    async with aiohttp.ClientSession(base_url=worker.url) as http:
        asking = [asyncio.create_task(_outcome(http, body)) for _ in range(4)]
        await eventually(lambda: worker.engine.stats().running > 0)
        await worker.kill()
        assert set(await asyncio.gather(*asking)) == {"lost"}
    await worker.restart()


async def added_and_removed(fleet: SimulatedFleet) -> None:
    worker = await fleet.add()
    await complete(worker)
    worker.hang(60.0)
    async with aiohttp.ClientSession(base_url=worker.url) as http:
        background = {"input": STORY, "background": True}
        async with http.post("/v1/responses", json=background) as response:
            assert (await response.json())["status"] == "in_progress"
    await fleet.remove(worker)


@pytest.mark.parametrize("change", [killed_and_restarted, added_and_removed])
async def test_nothing_is_left_behind(change: Callable[[SimulatedFleet], Awaitable[None]]) -> None:
    async with SimulatedFleet(1, FleetConfig(engine=FAST, faults=True, **fleet_ports(8)), text=model_text()) as fleet:
        await change(fleet)  # what is made once for good is made now
        await eventually(lambda: fleet.workers[0].connections == 0)
        tasks, files = len(asyncio.all_tasks()), open_files()
        for _ in range(5):
            await change(fleet)
        await eventually(lambda: (len(asyncio.all_tasks()), open_files()) == (tasks, files))
    (this,) = asyncio.all_tasks()
    assert this is asyncio.current_task()
