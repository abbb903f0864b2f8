"""What workers' stores keep of a tenant is removed, by whoever knows its salt."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from backends.worker.engine.engine import Engine
from backends.worker.kv.chunks import tenant_of
from backends.worker.messages import ForgetKv, KvForgotten
from backends.worker.model.sampler import Sampler
from backends.worker.worker import Worker
from cache.disk_store import DiskStore
from cache.memory_store import MemoryStore
from cache.redis_frames import RedisFrames
from cache.redis_settings import RedisSettings
from cache.store import BlockStore, ChunkKey, FrameInfo, OwnFrames, StoreError, TenantStore
from cache.tenant_salt import tenant_salt
from cache.tier_writer import Frame
from cache.tiered_store import TieredStore
from gateway.app import running
from gateway.config import parse_config
from policies.types import Tier
from policies.write_behind import WriteRules
from tests import worker_model_fixtures as models
from tests.forget_fixtures import TOKEN
from tests.gateway_fixtures import eventually
from tests.redis_fixtures import redis_server
from tests.store_contract import chunk_key, frame_of, read
from tests.tenant_fixtures import KEYS, SALT_KEY, tenants
from tests.test_worker_tiers import ask, directory, engine, flush, run
from tests.tiered_fixtures import Watched
from tests.worker_fixtures import MODEL, real_options
from tests.worker_tiny_model import tiny_model

__all__ = ["directory"]

KEY = SALT_KEY.encode()
STORY = "Rivers carry water, sand and stories from the mountains to the sea. " * 12


def fill(store: MemoryStore | DiskStore | TieredStore, tenant: str, count: int) -> list[ChunkKey]:
    keys = [chunk_key((tenant, number)) for number in range(count)]
    for key in keys:
        assert store.write(key, [frame_of(key, 5_000)], FrameInfo(tenant=tenant, n_tokens=16))
    return keys


def owned(store: TenantStore, tenant: str) -> list[ChunkKey]:
    frames = store.of_tenants([tenant], 10.0)
    assert frames.complete
    return list(frames.keys)


# --- stores ---------------------------------------------------------------------------------------------------------


def test_stores_tell_whose_frames_are(tmp_path: Path) -> None:
    host, disk = MemoryStore(4 << 20), DiskStore(tmp_path / "kv", capacity=4 << 20)
    acme: list[ChunkKey] = []
    for store in (host, disk):
        acme, beta = fill(store, "acme", 5), fill(store, "beta", 3)
        assert sorted(owned(store, "acme")) == sorted(acme)
        assert sorted(owned(store, "beta")) == sorted(beta)
        assert owned(store, "") == []
        store.remove(acme[0])
        assert sorted(owned(store, "acme")) == sorted(acme[1:])
        store.close()
        with pytest.raises(StoreError):
            owned(store, "acme")
    again = DiskStore(tmp_path / "kv", capacity=4 << 20)
    assert sorted(owned(again, "acme")) == sorted(acme[1:])
    again.close()


def tiered(folder: Path, third: Watched | None = None) -> TieredStore:
    stores: list[BlockStore] = [MemoryStore(4 << 20), DiskStore(folder / "kv", capacity=4 << 20)]
    return TieredStore([*stores, *([third] if third else [])], rules=WriteRules(uses=1))


def test_all_tiers_forget_a_tenant(tmp_path: Path) -> None:
    far = Watched(MemoryStore(4 << 20), Tier.REDIS)
    store = tiered(tmp_path, far)
    acme, beta = fill(store, "acme", 6), fill(store, "beta", 4)
    assert store.flush(10)
    counted = store.forget_tenants(["acme"], dry_run=True)
    assert counted == ({Tier.HOST: 6, Tier.DISK: 6}, (Tier.REDIS,), True)
    assert read(store, acme[0], 5_000) is not None
    assert store.forget_tenants(["acme"]) == counted
    assert [read(store, key, 5_000) for key in acme] == [None] * 6
    assert far.store.contains([acme[0]]) == 0, "what another tier knows by name goes there too"
    assert None not in [read(store, key, 5_000) for key in beta]
    assert store.forget_tenants(["acme"]).found == {Tier.HOST: 0, Tier.DISK: 0}
    assert store.forget_tenants(["beta"], seconds=-1).complete is False
    store.close()
    with pytest.raises(StoreError):
        store.forget_tenants(["acme"])


def test_what_waits_to_be_written_behind_is_not_written(tmp_path: Path) -> None:
    store = TieredStore([MemoryStore(4 << 20), DiskStore(tmp_path / "kv", capacity=4 << 20)], rules=WriteRules(uses=9))
    acme = fill(store, "acme", 3)
    assert store.forget_tenants(["acme"]).found == {Tier.HOST: 3, Tier.DISK: 0}
    assert store.flush(10)
    assert store.contains(acme) == 0
    assert store.stats_of(Tier.DISK).entries == 0
    store.close()


def test_what_is_on_its_way_to_a_slower_tier_does_not_arrive(tmp_path: Path) -> None:
    disk, far = DiskStore(tmp_path / "kv", capacity=4 << 20), Watched(MemoryStore(4 << 20), Tier.REDIS)
    store = TieredStore([MemoryStore(4 << 20), disk, far], rules=WriteRules(uses=1))
    far.go_on.clear()
    (key,) = fill(disk, "acme", 1)
    store._behind(key, Frame(5_000, FrameInfo(tenant="acme", n_tokens=16)), but=Tier.HOST)
    assert far.held.wait(20)
    disk.remove(key)  # as if it had been evicted, while it is copied
    threading.Timer(0.05, far.go_on.set).start()
    assert store.forget_tenants(["acme"]).complete
    assert store.flush(10)
    assert far.store.contains([key]) == 0
    store.close()


class Failing(MemoryStore):
    """Cannot be asked."""

    def of_tenants(self, tenants: Collection[str], seconds: float) -> OwnFrames:
        raise StoreError(f"{tenants} cannot be looked for in {seconds} s")


def test_a_tier_that_fails_is_told(tmp_path: Path) -> None:
    store = TieredStore([Failing(1 << 20), DiskStore(tmp_path / "kv", capacity=4 << 20)], rules=WriteRules(uses=1))
    fill(store, "acme", 2)
    assert store.flush(10)
    assert store.forget_tenants(["acme"]) == ({Tier.HOST: 0, Tier.DISK: 2}, (), False)
    store.close()


# --- the engine -----------------------------------------------------------------------------------------------------


def forget(it: Engine, *salts: str, dry_run: bool = False) -> KvForgotten:
    it.forget_kv(ForgetKv(id="f", salts=salts, dry_run=dry_run))
    end = time.monotonic() + 20
    while not (told := it.take_forgotten()):
        assert time.monotonic() < end
        time.sleep(0.001)
    (forgotten,) = told
    return forgotten


def test_a_sequence_under_way_keeps_nothing_under_a_forgotten_salt(directory: Path) -> None:
    store = MemoryStore(8 << 20)
    it = engine(directory, store)
    prompt = list(range(5, 65))
    run(it, [ask(0, prompt, salt="acme"), ask(1, prompt, salt="beta")])
    flush(it)
    n_kept = len(owned(store, tenant_of("beta")))
    assert n_kept > 0
    assert forget(it, "acme", "none", dry_run=True) == KvForgotten(id="f", found={"host": n_kept})
    for number, salt in ((2, "acme"), (3, "late"), (4, "beta")):
        assert it.submit(ask(number, [*prompt, number], salt=salt), time.monotonic()) is None
    assert forget(it, "acme", "late").found == {"host": n_kept}
    run(it, [])  # to their ends
    flush(it)
    assert owned(store, tenant_of("acme")) == owned(store, tenant_of("late")) == []
    assert len(owned(store, tenant_of("beta"))) >= n_kept
    it.close()


def test_what_only_redis_has_of_a_salt_is_forgotten(directory: Path) -> None:
    with redis_server() as server:
        it = engine(directory, RedisFrames(RedisSettings(url=server.url, timeout=10.0)))
        prompt = list(range(5, 65))
        run(it, [ask(0, prompt, salt="acme"), ask(1, prompt, salt="beta")])
        flush(it)
        n_all = server.do("DBSIZE")
        assert n_all > 0
        assert forget(it, "acme", "none", dry_run=True) == KvForgotten(id="f", found={"redis": n_all // 2})
        assert forget(it, "acme").found == {"redis": n_all // 2}
        assert server.do("DBSIZE") == n_all // 2
        it.close()


def test_what_redis_does_not_let_go_is_not_told_as_gone(directory: Path) -> None:
    with redis_server() as server:
        server.do("ACL", "SETUSER", "keeper", "on", ">pw", "~*", "+@all", "-unlink")
        url = server.url.replace("//", "//keeper:pw@")
        it = engine(directory, RedisFrames(RedisSettings(url=url, timeout=10.0)))
        run(it, [ask(0, list(range(5, 65)), salt="acme")])
        flush(it)
        n_kept = server.do("DBSIZE")
        assert n_kept > 0
        assert forget(it, "acme") == KvForgotten(id="f", found={"redis": n_kept}, complete=False)
        assert server.do("DBSIZE") == n_kept
        it.close()


def test_an_engine_without_stores_has_nothing_to_forget(directory: Path) -> None:
    it = engine(directory, MemoryStore(1 << 20))
    bare = Engine(it.scheduler, it.runner, Sampler(models.VOCAB))
    assert forget(bare, "acme") == KvForgotten(id="f", found={})
    assert bare.take_forgotten() == []
    it.close()


# --- a worker behind a gateway --------------------------------------------------------------------------------------


class Whole:
    """A gateway with tenants before one worker of our own."""

    def __init__(self, worker: Worker, url: str, admin: str, http: aiohttp.ClientSession) -> None:
        self.worker = worker
        self._url = url
        self._admin = admin
        self._http = http

    async def ask(self, tenant: str, text: str = STORY) -> int:
        """Tokens of the prompt that the worker had."""
        body = {"model": MODEL, "prompt": text, "max_tokens": 2}
        headers = {"Authorization": f"Bearer {KEYS[tenant]}"}
        async with self._http.post(f"{self._url}/v1/completions", json=body, headers=headers) as response:
            answer = await response.json()
            assert response.status == 200, answer
        return int((answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    async def forget(self, tenant: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with self._http.delete(f"{self._admin}/admin/tenants/{tenant}/cache", headers=headers) as response:
            said: dict[str, Any] = await response.json()
            return said

    async def frames(self, salt: str) -> dict[str, int]:
        status, said = await self.tell(salts=[salt], dry_run=True)
        assert status == 200
        found: dict[str, int] = said["found"]
        return found

    async def tell(self, key: str = "the-workers-own", **fields: Any) -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {key}"}
        async with self._http.post(f"{self.worker.url}/v1/kv/forget", json=fields, headers=headers) as response:
            return response.status, await response.json()


@asynccontextmanager
async def whole(folder: Path) -> AsyncIterator[Whole]:
    kv = {"kv_host": 16 << 20, "kv_disk": str(folder / "kv"), "kv_disk_bytes": 64 << 20, "kv_uses": 1}
    who = tenants("acme", "beta", more=f", state_dir: '{folder / 'state'}'")
    async with (
        Worker(real_options(tiny_model(folder / "model"), kv, api_key="the-workers-own")) as worker,
        aiohttp.ClientSession() as http,
    ):
        config = parse_config(
            f"listen: {{port: 0}}\nadmin: {{port: 0, token: {TOKEN}}}\nlimits: {{drain_timeout: 0.2}}\n"
            f"workers: [{{name: w0, url: '{worker.url}', api_key: the-workers-own}}]\n{who}"
        )
        async with running(config) as (program, port):
            yield Whole(worker, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{program.admin_port}", http)


async def test_a_worker_forgets_one_tenant(tmp_path: Path) -> None:
    async with whole(tmp_path) as it:
        acme, beta = (tenant_salt(KEY, name) for name in ("acme", "beta"))
        for name in ("acme", "beta"):
            assert await it.ask(name) == 0
        for name in ("acme", "beta"):
            assert await it.ask(name) > 100
        await eventually(lambda: it.worker.engine.stats.kept_tokens > 0)

        async def lies(salt: str) -> dict[str, int]:
            """When all is written, on disk too."""
            async with asyncio.timeout(20):
                found = await it.frames(salt)
                while not 0 < found["host"] == found["disk"]:
                    found = await it.frames(salt)
                return found

        kept = await lies(acme)
        assert await lies(beta) == kept
        said = await it.forget("acme")
        assert said["kv"]["workers"] == {"w0": {"result": "purged", "frames": kept, "left": []}}
        assert (said["complete"], said["answers"]) == (True, {})
        assert await it.frames(acme) == {"host": 0, "disk": 0}
        assert await it.frames(beta) == kept
        assert await it.ask("acme") == 0, "not from the pool either"
        assert await it.ask("beta") > 100
        assert (await it.frames(tenant_salt(KEY, "acme", epoch=1)))["host"] >= 0
        assert (await it.tell("another key", salts=[acme]))[0] == 401
        assert (await it.tell())[0] == 400
        wrong: list[Any] = [[], [""], [1], ["x"] * 65, "x"]
        for salts in wrong:
            assert (await it.tell(salts=salts))[0] == 400
