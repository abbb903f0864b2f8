"""KV events of a simulated worker over real ZMQ sockets: what is told is what is cached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest
import zmq
import zmq.asyncio

from backends.kv_subscriber import KvSubscriber
from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet, SimulatedWorker
from backends.simulated.model_text import ModelText, pack
from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Encoding, EventBatch, decode_batch
from cache.prefix_index import PrefixIndex
from policies.types import BlockHash, WorkerId

ENGINE = EngineConfig(blocks=40, block_size=16, max_model_len=640, speed=500.0)


@pytest.fixture(scope="module")
def text() -> ModelText:
    return ModelText.load("simulated")


@pytest.fixture(params=list(Encoding))
async def worker(text: ModelText, request: pytest.FixtureRequest) -> AsyncIterator[SimulatedWorker]:
    config = FleetConfig(engine=ENGINE, kv_encoding=request.param, kv_topic="kv")
    async with SimulatedFleet(1, config, text=text) as fleet:
        yield fleet.workers[0]


@pytest.fixture
async def http(worker: SimulatedWorker) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(base_url=worker.url) as session:
        yield session


async def complete(http: aiohttp.ClientSession, ids: range, **fields: object) -> None:
    body = {"prompt": list(ids), "max_tokens": 1, **fields}
    async with http.post("/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()


async def replay(worker: SimulatedWorker, start: int) -> list[tuple[int, EventBatch]]:
    """Ask for the batches from `start` on, as vLLM's subscribers do."""
    assert worker.replay_endpoint is not None
    context = zmq.asyncio.Context()
    try:
        with context.socket(zmq.DEALER) as socket:
            socket.set(zmq.LINGER, 0)
            socket.connect(worker.replay_endpoint)
            await socket.send_multipart((b"", start.to_bytes(8, "big")))
            batches: list[tuple[int, EventBatch]] = []
            async with asyncio.timeout(10):
                while True:
                    _, sequence, payload = await socket.recv_multipart()
                    if not payload:
                        assert sequence == b"\xff" * 8
                        return batches
                    batches.append((int.from_bytes(sequence, "big"), decode_batch(payload)))
    finally:
        context.term()


async def test_live_events_reach_a_subscriber(worker: SimulatedWorker, http: aiohttp.ClientSession) -> None:
    assert worker.kv_endpoint is not None
    context = zmq.asyncio.Context()
    try:
        with context.socket(zmq.SUB) as socket:
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.SUBSCRIBE, b"kv")
            socket.connect(worker.kv_endpoint)
            received = asyncio.ensure_future(socket.recv_multipart())
            start = 0
            async with asyncio.timeout(10):
                while not received.done():  # a subscription takes effect some time after it was made
                    await complete(http, range(start, start + 40))
                    start += 40
            topic, sequence, payload = await received
            (event,) = decode_batch(payload).events
            assert isinstance(event, BlockStored)
            first = int.from_bytes(sequence, "big") * 40
            assert (topic, event.parent, event.block_size, event.medium) == (b"kv", None, 16, "GPU")
            assert event.token_ids == pack(range(first, first + 32))
    finally:
        context.term()


async def test_replay_tells_all_from_the_number_asked_for(worker: SimulatedWorker, http: aiohttp.ClientSession) -> None:
    await complete(http, range(33))
    await complete(http, range(65), cache_salt="pepper")
    await complete(http, range(1000, 1600))  # evicts most of it
    batches = await replay(worker, 0)
    assert [number for number, _ in batches] == [0, 1, 2]
    (first,), (salted,), (removed, last) = (batch.events for _, batch in batches)
    assert isinstance(first, BlockStored)
    assert isinstance(salted, BlockStored)
    assert isinstance(removed, BlockRemoved)
    assert isinstance(last, BlockStored)
    assert (first.salt, salted.salt, last.salt) == (None, "pepper", None)
    # 3 + 5 blocks were in use before, 38 are needed now: the six freed first, of which two were never full.
    assert removed.block_hashes == first.block_hashes[::-1] + salted.block_hashes[:1:-1]
    assert [number for number, _ in await replay(worker, 2)] == [2]
    assert await replay(worker, 3) == []
    async with http.post("/reset_prefix_cache") as response:
        assert response.status == 200
    ((_, cleared),) = await replay(worker, 3)
    assert cleared.events == (AllBlocksCleared(),)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the index has no event to wait for
            await asyncio.sleep(0.01)


async def test_the_gateway_s_index_becomes_equal_to_the_cache(
    worker: SimulatedWorker, http: aiohttp.ClientSession
) -> None:
    assert worker.kv_endpoint is not None
    name = WorkerId(worker.name)
    index = PrefixIndex(max_blocks=10_000)
    index.add_worker(name, model="simulated", block_size=16)
    subscriber = KvSubscriber(
        name, index, endpoint=worker.kv_endpoint, replay_endpoint=worker.replay_endpoint, topic="kv"
    )

    def chain(ids: range, salt: str = "") -> list[BlockHash]:
        return extend_chain(root_hash(ChainKey("simulated", 16, salt=salt)), pack(ids), 16)

    running = asyncio.create_task(subscriber.run())
    try:
        await complete(http, range(100), max_tokens=40, ignore_eos=True)
        await complete(http, range(100), cache_salt="pepper")
        for start in range(1000, 1400, 100):  # in all more than the forty blocks
            await complete(http, range(start, start + 100))
            cached = worker.engine.pool.cached
            await until(lambda cached=cached: len(index) == cached)  # type: ignore[misc]  # zmq is typed loosely here
        assert index.match(chain(range(1300, 1400))) == {name: 6}
        assert index.match(chain(range(100))) != {name: 6}
        index.check_integrity()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
