from __future__ import annotations
from collections.abc import Iterator
import pytest
from cache.redis_settings import RedisSettings
from cache.redis_store import RedisStore
from cache.store import BlockStore
from tests.redis_fixtures import RedisServer, needs_redis, redis_server
from tests.store_contract import NewStore, StoreContract

@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


class TestContract(StoreContract):
    bounded = False
    examples = 10
    rounds = 100

    @pytest.fixture
    def new_store(self, server: RedisServer) -> NewStore:
        def new(capacity: int, tenant_bytes: int | None = None) -> BlockStore:
            server.do("FLUSHALL")
            return RedisStore(RedisSettings(url=server.url, timeout=20.0))
        return new
