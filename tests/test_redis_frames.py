"""A tenant's KV frames are found in a Redis that nobody keeps a list of: a real server, and a real cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from cache.kv_codec import HEADER_BYTES, TENANT
from cache.memory_store import MemoryStore
from cache.redis_frames import RedisFrames
from cache.redis_settings import RedisSettings
from cache.store import ChunkKey, FrameInfo, OwnFrames, StoreError, TenantStore, tenant_digest
from cache.tiered_store import TieredStore
from policies.types import Tier
from policies.write_behind import WriteRules
from tests.redis_fixtures import RedisServer, redis_cluster, redis_server
from tests.store_contract import chunk_key

PATIENT = 10.0


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


def fill(store: RedisFrames | TieredStore, tenant: str, count: int) -> list[ChunkKey]:
    keys = [chunk_key((tenant, number)) for number in range(count)]
    for key in keys:
        header = bytearray(HEADER_BYTES)
        header[TENANT] = tenant_digest(tenant)
        assert store.write(key, [header, bytes(700)], FrameInfo(tenant=tenant, n_tokens=16))
    return keys


def check_whose(servers: Sequence[RedisServer], settings: RedisSettings) -> None:
    for each in servers:
        each.do("FLUSHALL")
    with closing(RedisFrames(settings)) as store:
        assert isinstance(store, TenantStore)
        acme, beta, late = fill(store, "acme", 300), fill(store, "beta", 90), fill(store, "late", 1)
        if len(servers) == 1:
            servers[0].do("SET", f"{settings.prefix}no frame", "x")
        found = store.of_tenants(["acme", "late", "nobody"], PATIENT)
        assert found.complete
        assert sorted(found.keys) == sorted([*acme, *late])
        assert store.of_tenants(["nobody"], PATIENT) == OwnFrames([])
        store.remove(beta[0])
        assert sorted(store.of_tenants(["beta"], PATIENT).keys) == sorted(beta[1:])
        assert store.failures() == {}


def test_whose_frames_are(server: RedisServer) -> None:
    check_whose([server], RedisSettings(url=server.url, timeout=PATIENT))


def test_whose_frames_are_in_a_cluster() -> None:
    with redis_cluster() as nodes:
        check_whose(nodes, RedisSettings(url=nodes[0].url, timeout=PATIENT, cluster=True))


def test_there_is_an_end_to_looking(server: RedisServer) -> None:
    server.do("FLUSHALL")
    with closing(RedisFrames(RedisSettings(url=server.url, timeout=PATIENT))) as store:
        fill(store, "acme", 3)
        assert store.of_tenants(["acme"], 0.0) == OwnFrames([], complete=False)
    with pytest.raises(StoreError):
        store.of_tenants(["acme"], PATIENT)


def test_who_may_not_look_may_still_read_and_write(server: RedisServer) -> None:
    server.do("FLUSHALL")
    rights = ("+getex", "+set", "+pexpire", "+exists", "+unlink")
    server.do("ACL", "SETUSER", "few", "reset", "on", ">password", "~*", *rights)
    settings = RedisSettings(url=server.url.replace("//", "//few:password@"), timeout=PATIENT)
    with closing(RedisFrames(settings)) as store:
        (key,) = fill(store, "acme", 1)
        assert store.of_tenants(["acme"], PATIENT).untold
        assert store.contains([key]) == 1
        tiers = TieredStore([MemoryStore(1 << 20), store])
        assert tiers.forget_tenants(["acme"]) == ({Tier.HOST: 0}, (Tier.REDIS,), True)


def test_a_tenants_frames_go_from_redis_as_from_any_tier(server: RedisServer) -> None:
    server.do("FLUSHALL")
    host = MemoryStore(4 << 20)
    store = TieredStore([host, RedisFrames(RedisSettings(url=server.url, timeout=PATIENT))], rules=WriteRules(uses=1))
    acme, beta = fill(store, "acme", 6), fill(store, "beta", 4)
    assert store.flush(PATIENT)
    for key in acme[:5]:
        host.remove(key)  # evicted: only Redis has it
    assert store.forget_tenants(["acme"], dry_run=True) == ({Tier.HOST: 1, Tier.REDIS: 6}, (), True)
    assert store.forget_tenants(["acme"]) == ({Tier.HOST: 1, Tier.REDIS: 6}, (), True)
    assert store.contains(acme) == 0
    assert store.contains(beta) == 4
    assert server.do("DBSIZE") == 4
    store.close()
