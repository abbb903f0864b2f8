"""KV that outlives its worker: computed by one process, restored by another, from Redis and from disk."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from array import array
from pathlib import Path
from secrets import token_hex
from typing import Any

import aiohttp
import pytest

from backends.engine_metrics import read_load
from backends.kv_subscriber import KvSubscriber
from backends.worker.engine_client import EngineError
from backends.worker.worker import Worker
from cache.block_hash import ChainKey, extend_chain, root_hash
from cache.prefix_index import PrefixIndex
from policies.types import Tier, TokenIds, WorkerId
from tests.gateway_fixtures import config_for, eventually, gateway
from tests.redis_fixtures import needs_redis, redis_server
from tests.tenant_fixtures import KEYS, tenants
from tests.worker_fixtures import real_options
from tests.worker_tiny_model import tiny_model

STORY = "Rivers carry water, sand and stories from the mountains to the sea. " * 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


async def ask(worker: Worker, content: str = STORY, **fields: Any) -> tuple[str, int]:
    """Text, and cached tokens."""
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 12, "temperature": 0, **fields}
    async with aiohttp.ClientSession() as http, http.post(f"{worker.url}/v1/chat/completions", json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


async def kept(worker: Worker) -> None:
    """Wait until something was written to every store."""
    async with asyncio.timeout(20):
        while not worker.engine.stats.kept_tokens:  # noqa: ASYNC110 - told twice a second
            await asyncio.sleep(0.05)


async def page(worker: Worker) -> str:
    async with aiohttp.ClientSession() as http, http.get(f"{worker.url}/metrics") as response:
        body = await response.read()
        assert read_load(body).tells
        return body.decode()


async def first_life(model: Path, engine: dict[str, Any]) -> str:
    """Compute, keep, and die by SIGKILL."""
    async with Worker(real_options(model, engine)) as worker:
        text, cached = await ask(worker)
        assert cached == 0
        await kept(worker)
        assert worker.engine.pid is not None
        os.kill(worker.engine.pid, signal.SIGKILL)
        await worker.failed()
    return text


@needs_redis
async def test_another_worker_restores_from_redis_what_a_killed_one_computed(model: Path) -> None:
    with redis_server("--maxmemory", "64mb") as server:
        engine = {"kv_redis": server.url}
        text = await first_life(model, engine)
        async with Worker(real_options(model, engine)) as other:
            again, cached = await ask(other)
            assert again == text
            assert cached > 200
            assert f'external_prefix_cache_hits_total{{engine="0",model_name="tiny"}} {float(cached)}' in await page(
                other
            )
            assert (await ask(other, cache_salt="another tenant"))[1] == 0


@needs_redis
async def test_a_redis_that_dies_costs_no_request(model: Path) -> None:
    with redis_server("--maxmemory", "64mb") as server:
        async with Worker(real_options(model, {"kv_redis": server.url})) as worker:
            text, _ = await ask(worker)
            await kept(worker)
            server.kill()
            async with aiohttp.ClientSession() as http, http.post(f"{worker.url}/reset_prefix_cache") as response:
                assert response.status == 200
            assert await ask(worker) == (text, 0)


async def test_a_restarted_worker_restores_from_disk(model: Path, tmp_path: Path) -> None:
    engine = {"kv_disk": str(tmp_path / "kv"), "kv_disk_bytes": 64 << 20}
    text = await first_life(model, engine)
    async with Worker(real_options(model, engine)) as other:
        again, cached = await ask(other)
        assert again == text
        assert cached > 200


async def test_host_memory_gives_back_what_the_pool_has_lost(model: Path) -> None:
    async with Worker(real_options(model, {"kv_host": 16 << 20, "kv_blocks": 32})) as worker:
        text, _ = await ask(worker)
        await kept(worker)
        for number in range(3):  # each fills the pool
            await ask(worker, f"{number} {STORY}")
        again, cached = await ask(worker)
        assert again == text
        assert cached > 200


async def test_what_a_gateway_says_of_its_tenants_holds(model: Path) -> None:
    members = ("acme, cache: {kv: {host: 0}}", "beta, cache: {kv: {ttl: 1ms}}", "crew")
    async with Worker(real_options(model, {"kv_host": 16 << 20, "kv_blocks": 400})) as worker:
        config = config_for([worker.url], tenants(*members))

        async with gateway(config) as url, aiohttp.ClientSession() as http:

            async def cached(tenant: str, **fields: Any) -> int:
                body = {"model": "tiny", "messages": [{"role": "user", "content": STORY}], "max_tokens": 2, **fields}
                headers = {"authorization": f"Bearer {KEYS[tenant]}"}
                async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
                    answer = await response.json()
                    assert response.status == 200, answer
                    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

            assert await cached("acme") == 0
            assert await cached("acme") > 200, "its time in the pool is nobody's but the pool's"
            assert await cached("crew") == 0
            await kept(worker)  # one after the other: what acme's requests were to keep was refused before
            assert worker.engine.stats.kept_tokens < 2 * await cached("crew")
            assert [await cached("beta") for _ in range(3)] == [0, 0, 0]
            assert await cached("crew") > 200
        headers = {"x-prefixgate-kv": "ttl=soon"}
        async with aiohttp.ClientSession(headers=headers) as http:
            body = {"messages": [{"role": "user", "content": STORY}], "max_tokens": 2}
            for _ in range(2):
                async with http.post(f"{worker.url}/v1/chat/completions", json=body) as response:
                    answer = await response.json()
                    assert response.status == 200
                    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        await eventually(lambda: any(tier.tier == "host" for tier in worker.engine.stats.tiers))
        assert 'prefixgate:kv_tier_expired_total{tier="host",store=""}' in await page(worker)


@needs_redis
@pytest.mark.parametrize("says", [{"prompt_cache_retention": "24h"}, {}])
async def test_what_somebody_comes_back_for_is_in_redis_before_the_worker_dies(
    model: Path, says: dict[str, Any]
) -> None:
    """And what is in host memory alone goes there before the worker ends."""
    with redis_server("--maxmemory", "64mb") as server:
        engine = {"kv_redis": server.url, "kv_host": 16 << 20}
        async with Worker(real_options(model, engine)) as worker:
            text, _ = await ask(worker, **says)
            await kept(worker)
            if says:
                await eventually(lambda: worker.engine.stats.kv_counts.get("written behind", 0) * 64 > 200)
                assert worker.engine.pid is not None
                os.kill(worker.engine.pid, signal.SIGKILL)
                await worker.failed()
        async with Worker(real_options(model, {**engine, "kv_patience": 20.0})) as other:
            again, cached = await ask(other)
            assert again == text
            assert cached > 200
            text = await page(other)
            assert 'prefixgate:kv_tier_seconds_per_token{tier="host",store=""}' in text
            assert re.search(r'kv_tier_round_trip_seconds\{tier="redis",store="[0-9a-f]{16}"\} 0\.\d', text)


async def test_encrypted_kv_is_restored_with_its_key_alone(model: Path, tmp_path: Path) -> None:
    keys = [tmp_path / "a.key", tmp_path / "b.key"]
    for path in keys:
        path.touch(mode=0o600)
        path.write_text(token_hex(32))
    engine = {"kv_disk": str(tmp_path / "kv"), "kv_disk_bytes": 64 << 20, "kv_key_file": str(keys[0])}
    text = await first_life(model, engine)
    changes: list[tuple[dict[str, Any], bool]] = [
        ({"kv_key_file": str(keys[1])}, False),
        ({"kv_key_file": None}, False),
        ({}, True),
    ]
    for change, finds in changes:
        async with Worker(real_options(model, {**engine, **change})) as other:
            again, cached = await ask(other)
            assert again == text
            assert (cached > 200) is finds


async def test_a_gateway_s_index_knows_what_host_memory_has(model: Path) -> None:
    async with Worker(real_options(model, {"kv_host": 16 << 20, "kv_blocks": 32})) as worker:
        index, name = PrefixIndex(max_blocks=10_000), WorkerId("w")
        index.add_worker(name, model="tiny", block_size=16, salts_told=True)
        assert worker.kv_endpoint is not None
        subscriber = KvSubscriber(name, index, endpoint=worker.kv_endpoint, replay_endpoint=worker.replay_endpoint)
        running = asyncio.create_task(subscriber.run())
        try:
            await ask(worker)
            async with aiohttp.ClientSession() as http:
                chat = {"messages": [{"role": "user", "content": STORY}]}
                async with http.post(f"{worker.url}/tokenize", json=chat) as response:
                    ids = TokenIds(array("I", (await response.json())["tokens"]).tobytes())
            hashes = extend_chain(root_hash(ChainKey("tiny", 16)), ids, 16)
            await eventually(lambda: index.is_tiered)
            for number in range(3):  # each fills the pool
                await ask(worker, f"{number} {STORY}")
            await eventually(lambda: set(index.match_tiers(hashes).get(name, {})) == {Tier.HOST})
            assert (await ask(worker))[1] > 200
            await eventually(lambda: Tier.DEVICE in index.match_tiers(hashes).get(name, {}))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"kv_redis": "http://127.0.0.1"}, "kv_redis: .*redis"),
        ({"kv_host": 1}, "kv_host: capacity must be at least"),
        ({"kv_host": 1 << 20, "kv_eviction": "magic"}, "kv_eviction: .*lru"),
        ({"kv_host": 1 << 20, "dtype": "float64"}, "float64"),
        ({"kv_host": 1 << 20, "enable_prefix_caching": False}, "prefix caching"),
        ({"kv_disk": "/proc/kv"}, "kv_disk: .*/proc/kv"),
        ({"kv_host": 1 << 20, "kv_key_file": "/nowhere/kv.key"}, "kv_key_file: .*/nowhere/kv.key"),
        ({"kv_host": 1 << 20, "kv_tenant_share": 2.0}, "kv_tenant_share"),
        ({"kv_redis": "redis://127.0.0.1/1", "kv_redis_cluster": True}, "kv_redis: .*cluster"),
    ],
)
async def test_options_that_cannot_be_are_refused_with_the_reason(
    model: Path, engine: dict[str, Any], words: str
) -> None:
    with pytest.raises(EngineError, match=words):
        async with Worker(real_options(model, engine)):
            pass
