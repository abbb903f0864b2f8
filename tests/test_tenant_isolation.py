"""A tenant's prompts are its own: one salt in the gateway's chain, in what workers get and in what they announce."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
import zmq
import zmq.asyncio

from backends.simulated.engine import EngineConfig
from backends.simulated.fleet import FleetConfig, SimulatedFleet
from backends.simulated.model_text import EMBEDDED_TOKENIZER
from backends.worker.worker import Worker
from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.kv_events import BlockStored, decode_batch
from cache.tenant_salt import group_salt, tenant_salt
from cache.tokenizer import Tokenizer
from gateway.app import running
from gateway.config import parse_config
from gateway.program import Program
from gateway.token_memory import TokenMemory
from policies.types import BlockHash, TokenIds, WorkerId
from tests.gateway_fixtures import MODEL, eventually, model_text
from tests.tenant_fixtures import KEYS, SALT_KEY, tenants
from tests.worker_fixtures import MODEL as TINY
from tests.worker_fixtures import real_options
from tests.worker_tiny_model import tiny_model

WORDS = (EMBEDDED_TOKENIZER / "words.txt").read_text().split()
W0 = WorkerId("w0")
KEY = SALT_KEY.encode()


def prompt(seed: int, n: int = 100) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=n))


class Events:
    """What a worker announces, as anybody may hear it."""

    def __init__(self, endpoint: str | None) -> None:
        assert endpoint is not None
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.set(zmq.LINGER, 0)
        self._socket.subscribe(b"")
        self._socket.connect(endpoint)
        self.salts: list[str | None] = []
        """Of the beginnings of prompts."""

    async def read(self) -> None:
        """What has come by now."""
        while await self._socket.poll(0):
            *_, payload = await self._socket.recv_multipart()
            for event in decode_batch(payload).events:
                if isinstance(event, BlockStored) and event.parent is None:
                    self.salts.append(event.salt)

    def close(self) -> None:
        self._socket.close()
        self._context.term()


class Behind:
    """A gateway with tenants in front of one worker that announces what it stores."""

    def __init__(self, program: Program, url: str, http: aiohttp.ClientSession, model: str, events: Events) -> None:
        self.program = program
        self.model = model
        self.events = events
        self._url = url
        self._http = http

    async def ask(self, tenant: str, text: str, **fields: Any) -> int:
        """How many tokens of the prompt the worker had already."""
        body = {"model": self.model, "prompt": text, "max_tokens": 2, **fields}
        headers = {"Authorization": f"Bearer {KEYS[tenant]}"}
        async with self._http.post(f"{self._url}/v1/completions", json=body, headers=headers) as response:
            answer = await response.json()
            assert response.status == 200, answer
        details = answer["usage"].get("prompt_tokens_details") or {}
        return int(details.get("cached_tokens") or 0)

    def held(self, ids: TokenIds, salt: str) -> int:
        """Blocks of a prompt of which the index knows that the worker holds them under a salt."""
        size = self.program.state.worker(W0).block_size
        chain: list[BlockHash] = extend_chain(root_hash(ChainKey(self.model, size, salt=salt)), ids, size)
        return self.program.index.match(chain).get(W0, 0)


@contextlib.asynccontextmanager
async def behind(url: str, endpoint: str | None, model: str, tokenizer: str, section: str) -> AsyncIterator[Behind]:
    config = parse_config(
        f"listen: {{port: 0}}\nadmin: {{port: null}}\nlimits: {{drain_timeout: 0.2}}\n"
        # Predictions are over at once: what the index knows it was told by events.
        "index: {prediction_ttl: 10ms, unconfirmed_ttl: 10ms}\n"
        f"models: [{{name: {model}, tokenizer: '{tokenizer}'}}]\n"
        f"workers: [{{name: w0, url: '{url}', kv_events: {{endpoint: '{endpoint}'}}}}]\n{section}"
    )
    events = Events(endpoint)
    try:
        async with running(config) as (program, port), aiohttp.ClientSession() as http:
            await eventually(lambda: [stats for _, stats in program.fleet.feeds()])
            yield Behind(program, f"http://127.0.0.1:{port}", http, model, events)
    finally:
        events.close()


@contextlib.asynccontextmanager
async def simulated(section: str) -> AsyncIterator[tuple[Behind, SimulatedFleet]]:
    config = FleetConfig(model=MODEL, engine=EngineConfig(speed=200.0), record=50)
    async with SimulatedFleet(1, config, text=model_text()) as fleet:
        worker = fleet.workers[0]
        async with behind(worker.url, worker.kv_endpoint, MODEL, "embedded", section) as gateway:
            yield gateway, fleet


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@contextlib.asynccontextmanager
async def torch_worker(model: Path, section: str) -> AsyncIterator[Behind]:
    async with (
        Worker(real_options(model)) as worker,
        behind(worker.url, worker.kv_endpoint, TINY, str(model), section) as gateway,
    ):
        yield gateway


async def check_parity(gateway: Behind, ids: TokenIds, text: str) -> None:
    """One prompt of two tenants, and what everybody says of it."""
    size = gateway.program.state.worker(W0).block_size
    full = len(ids) // 4 // size
    acme, beta = tenant_salt(KEY, "acme"), tenant_salt(KEY, "beta")
    assert await gateway.ask("acme", text) == 0
    await eventually(lambda: gateway.held(ids, acme) >= full)
    assert gateway.held(ids, beta) == gateway.held(ids, "") == 0
    assert await gateway.ask("acme", text) >= (full - 1) * size, "the same tenant finds it"
    assert await gateway.ask("beta", text) == 0, "another one does not"
    await eventually(lambda: gateway.held(ids, beta) >= full)
    assert await gateway.ask("beta", text) >= (full - 1) * size
    # Whatever a client calls its salt, it stays within its tenant.
    for own in (acme, "acme"):
        assert await gateway.ask("beta", text, cache_salt=own) == 0
    narrow = tenant_salt(KEY, "beta", acme)
    await eventually(lambda: gateway.held(ids, narrow) >= full)
    assert await gateway.ask("beta", text, cache_salt=acme) >= (full - 1) * size
    await gateway.events.read()
    assert set(gateway.events.salts) == {acme, beta, narrow, tenant_salt(KEY, "beta", "acme")}


async def test_gateway_worker_and_events_have_the_same_salt() -> None:
    async with simulated(tenants("acme", "beta")) as (gateway, fleet):
        text = prompt(1)
        ids = Tokenizer.load(EMBEDDED_TOKENIZER).encode(text, add_special_tokens=True)
        await check_parity(gateway, ids, text)
        received = [orjson.loads(request.body) for request in fleet.workers[0].received if request.body]
        salts = [body["cache_salt"] for body in received]
        assert set(salts) == set(gateway.events.salts)


async def test_the_torch_worker_too(tiny: Path) -> None:
    async with torch_worker(tiny, tenants("acme", "beta")) as gateway:
        text = prompt(2)
        await check_parity(gateway, Tokenizer.load(tiny).encode(text, add_special_tokens=True), text)


async def test_tenants_of_a_group_share_unless_a_request_brings_a_salt_of_its_own() -> None:
    shared = "cache: {group: common}"
    async with simulated(tenants(f"acme, {shared}", f"beta, {shared}", "crew")) as (gateway, _):
        text = prompt(3)
        ids = Tokenizer.load(EMBEDDED_TOKENIZER).encode(text, add_special_tokens=True)
        assert await gateway.ask("acme", text) == 0
        await eventually(lambda: gateway.held(ids, group_salt(KEY, "common")))
        assert await gateway.ask("beta", text) > 0
        assert await gateway.ask("crew", text) == 0, "who is not in the group shares nothing"
        assert await gateway.ask("acme", text, cache_salt="mine") == 0
        assert await gateway.ask("beta", text, cache_salt="mine") == 0
        assert await gateway.ask("beta", text, cache_salt="mine") > 0


async def test_a_worker_that_takes_no_salt_gets_the_body_as_it_came() -> None:
    config = FleetConfig(model=MODEL, engine=EngineConfig(speed=200.0), record=5)
    async with SimulatedFleet(1, config, text=model_text()) as fleet, aiohttp.ClientSession() as http:
        settings = parse_config(
            "listen: {port: 0}\nadmin: {port: null}\n"
            f"workers: [{{name: w0, url: '{fleet.urls[0]}', cache_salt: false}}]\n{tenants('acme')}"
        )
        async with running(settings) as (_, port):
            body = b'{"prompt": "one two",   "max_tokens": 1}'
            headers = {"Authorization": f"Bearer {KEYS['acme']}"}
            async with http.post(f"http://127.0.0.1:{port}/v1/completions", data=body, headers=headers) as response:
                assert response.status == 200
        assert [request.body for request in fleet.workers[0].received if request.body] == [body]


async def test_sessions_of_one_name_are_different_ones_for_different_tenants() -> None:
    config = FleetConfig(model=MODEL, engine=EngineConfig(speed=200.0))
    async with SimulatedFleet(3, config, text=model_text()) as fleet, aiohttp.ClientSession() as http:
        workers = ", ".join(f"{{name: w{at}, url: '{url}'}}" for at, url in enumerate(fleet.urls))
        settings = parse_config(
            "listen: {port: 0}\nadmin: {port: null}\nresponse_headers: {worker: x-worker}\n"
            "routing: {policy: round_robin, sessions: {header: x-session}}\n"
            f"workers: [{workers}]\n{tenants('acme', 'beta')}"
        )
        async with running(settings) as (_, port):
            homes: list[set[str]] = []
            for name in ("acme", "beta"):
                headers = {"Authorization": f"Bearer {KEYS[name]}", "x-session": "one"}
                home: set[str] = set()
                for _ in range(3):
                    async with http.post(
                        f"http://127.0.0.1:{port}/v1/completions",
                        json={"prompt": "one two", "max_tokens": 1},
                        headers=headers,
                    ) as response:
                        assert response.status == 200
                        home.add(response.headers["x-worker"])
                homes.append(home)
        assert [len(home) for home in homes] == [1, 1]
        assert homes[0] != homes[1], "in turn, and so each at the worker that was next when it came first"


def test_ids_that_a_worker_told_for_one_tenant_are_not_known_for_another() -> None:
    memory = TokenMemory(max_bytes=1 << 20)
    text = prompt(4, 600).encode()
    ids = TokenIds(bytes(4 * 600))
    memory.remember(text, ids, special=False, salt="a")  # type: ignore[arg-type]  # plain bytes
    for salt in ("b", ""):
        for each in (text, text + b" more"):
            known = memory.find(each, special=False, salt=salt)  # type: ignore[arg-type]  # plain bytes
            assert (known.ids, known.text_bytes) == (b"", 0)
    assert memory.find(text, special=False, salt="a").complete  # type: ignore[arg-type]  # plain bytes
    assert memory.find(text + b" more", special=False, salt="a").ids  # type: ignore[arg-type]  # plain bytes
