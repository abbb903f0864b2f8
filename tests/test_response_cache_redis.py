"""The response cache with Redis behind it: shared by gateways, and whatever happens to Redis is a miss."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from cache.redis_settings import RedisSettings
from cache.response_cache import ResponseCache
from cache.response_entry import EntryKeys
from cache.response_key import ResponseKey, scope_tag, store_key
from cache.response_stores import REDIS_PREFIX, ResponseStores, open_response_cache
from policies.response_freshness import Freshness
from policies.types import Tier
from tests.faulty_proxy import FaultyProxy, cut_at, faulty_proxy, untouched
from tests.gateway_fixtures import eventually
from tests.redis_fixtures import RedisServer, needs_redis, redis_server
from tests.response_fixtures import RULES, A, B, answer, key_of

pytestmark = needs_redis

PATIENT = 20.0


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    with redis_server("--maxmemory-policy", "noeviction") as running:
        yield running


Opened = Callable[..., ResponseCache]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens a cache on a server, as a gateway of its own."""
    caches: list[ResponseCache] = []

    def open_one(url: str, keys: EntryKeys | None = None, timeout: float = PATIENT, **others: Any) -> ResponseCache:
        settings = RedisSettings(url=url, prefix=REDIS_PREFIX, timeout=timeout, connect_timeout=timeout, max_rest=0.05)
        stores = ResponseStores(
            memory_bytes=1 << 20,
            redis=replace(settings, ttl=RULES.useful, **others.pop("redis", {})),
            refresh_s=0.02,
            **others,
        )
        caches.append(open_response_cache(stores, keys))
        return caches[-1]

    yield open_one
    for cache in caches:
        cache.close()


async def ready(*caches: ResponseCache) -> None:
    """Until all know what was forgotten."""
    await eventually(lambda: None not in {cache.begin() for cache in caches})


def keep(cache: ResponseCache, key: ResponseKey, **others: Any) -> None:
    assert cache.keep(key, answer(cache.begin(), **others)) is True
    assert cache.flush(PATIENT) is True


def shared(cache: ResponseCache, key: ResponseKey) -> bool:
    """Is it in Redis?"""
    hit = cache.lookup_slower(key, RULES)
    return hit is not None


async def test_what_one_gateway_keeps_another_finds(server: RedisServer, opened: Opened) -> None:
    server.do("FLUSHALL")
    one, other = opened(server.url), opened(server.url)
    await ready(one, other)
    keep(one, key_of(1), body=b"shared")
    assert other.lookup(key_of(1), RULES) is None
    hit = other.lookup_slower(key_of(1), RULES)
    assert hit is not None
    assert (hit.entry.body, hit.freshness, hit.tier) == (b"shared", Freshness.FRESH, Tier.REDIS)
    near = other.lookup(key_of(1), RULES)
    assert near is not None
    assert near.tier is Tier.HOST
    assert not shared(other, key_of(2))
    keep(other, key_of(1), body=b"newer")
    found = one.lookup_slower(key_of(1), RULES)
    assert found is not None
    assert found.entry.body == b"newer"


async def test_names_and_expiry(server: RedisServer, opened: Opened) -> None:
    server.do("FLUSHALL")
    cache = opened(server.url)
    await ready(cache)
    keep(cache, key_of(1))
    assert shared(cache, key_of(1))
    names = {name.decode() for name in server.do("KEYS", "*")}
    entry = REDIS_PREFIX + store_key(key_of(1)).hex()
    assert names == {entry, REDIS_PREFIX + "forgotten"}
    assert entry.startswith(REDIS_PREFIX + scope_tag(A).hex())
    assert 0 < server.do("PTTL", entry) <= RULES.useful * 1000
    server.do("PEXPIRE", entry, 50_000)
    assert shared(cache, key_of(1))
    assert server.do("PTTL", entry) <= 50_000, "a hit does not make it last longer"
    assert server.do("PTTL", REDIS_PREFIX + "forgotten") == -1


async def test_what_one_gateway_forgets_is_forgotten_by_all(server: RedisServer, opened: Opened) -> None:
    server.do("FLUSHALL")
    one, other = opened(server.url), opened(server.url)
    await ready(one, other)
    begun = other.begin()
    for number in range(20):
        keep(one, key_of(number))
        keep(one, key_of(number, B))
        assert shared(other, key_of(number))
    assert one.forget(A, dry_run=True).entries[Tier.REDIS] == 20
    report = one.forget(A)
    assert (report.entries, report.noted, report.complete) == ({Tier.HOST: 20, Tier.REDIS: 20}, True, True)
    assert server.do("KEYS", f"{REDIS_PREFIX}{scope_tag(A).hex()}*") == []
    await eventually(lambda: other.lookup(key_of(1), RULES) is None)
    assert other.keep(key_of(1), answer(begun)) is False, "a write that was under way there"
    assert not shared(one, key_of(1))
    assert shared(other, key_of(1, B))
    keep(one, key_of(1))
    assert shared(other, key_of(1))


async def test_what_is_written_by_one_that_does_not_know_yet_is_not_read(server: RedisServer, opened: Opened) -> None:
    server.do("FLUSHALL")
    one, late = opened(server.url), opened(server.url)
    await ready(one, late)
    late._epochs.close()  # it looks no more
    one.forget(A)
    keep(late, key_of(1))
    assert server.do("EXISTS", REDIS_PREFIX + store_key(key_of(1)).hex()) == 1
    assert not shared(one, key_of(1))
    assert server.do("EXISTS", REDIS_PREFIX + store_key(key_of(1)).hex()) == 0, "removed when it was met"


async def test_a_model_and_what_is_old_is_forgotten(server: RedisServer, opened: Opened) -> None:
    server.do("FLUSHALL")
    cache = opened(server.url, EntryKeys(b"k" * 32))
    await ready(cache)
    keep(cache, key_of(1))
    keep(cache, key_of(1, A, "qwen"), model="qwen")
    keep(cache, key_of(2, A, "qwen"), model="qwen", stored_at=1.0)
    assert cache.forget(A, older_than=1000).entries[Tier.REDIS] == 1
    assert cache.forget(model="qwen").entries[Tier.REDIS] == 1
    assert shared(cache, key_of(1))
    assert cache.forget(B).entries[Tier.REDIS] == 0


async def test_what_is_in_redis_is_encrypted(server: RedisServer, opened: Opened) -> None:
    server.do("FLUSHALL")
    cache, other = (opened(server.url, EntryKeys(key * 32)) for key in (b"k", b"l"))
    await ready(cache, other)
    keep(cache, key_of(1), body=b"secret words")
    assert b"secret" not in server.do("GET", REDIS_PREFIX + store_key(key_of(1)).hex())
    assert shared(cache, key_of(1))
    assert not shared(other, key_of(1))


async def test_a_redis_that_has_lost_its_data_forgets_all(server: RedisServer, opened: Opened) -> None:
    server.do("FLUSHALL")
    cache = opened(server.url)
    await ready(cache)
    keep(cache, key_of(1))
    assert cache.lookup(key_of(1), RULES) is not None
    server.do("FLUSHALL")
    await eventually(lambda: cache.lookup(key_of(1), RULES) is None)
    await eventually(lambda: cache.begin() is not None)
    keep(cache, key_of(1))
    assert shared(cache, key_of(1))


# --- what happens to Redis ------------------------------------------------------------------------------------------


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records]


async def is_missed_and_comes_back(
    cache: ResponseCache, caplog: pytest.LogCaptureFixture, mend: Callable[[], object]
) -> None:
    """Redis fails by now: everything is answered, and there is one line for each change."""
    for number in range(30):
        assert not shared(cache, key_of(100 + number))
        cache.keep(key_of(200 + number), answer(cache.begin() or cache_stamp(cache)))
    await eventually(lambda: lines(caplog) == ["WARNING"])
    mend()
    await eventually(lambda: lines(caplog) == ["WARNING", "INFO"])

    def comes_back() -> bool:
        stamp = cache.begin()
        if stamp is None:
            return False
        cache.keep(key_of(1), answer(stamp))
        cache.flush(PATIENT)
        return shared(cache, key_of(1))

    await eventually(comes_back)
    assert lines(caplog) == ["WARNING", "INFO"]


def cache_stamp(cache: ResponseCache) -> Any:
    table = cache._epochs._table
    assert table is not None
    return table.stamp()


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO", "cache")
    return caplog


async def test_redis_is_stopped(own_server: RedisServer, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    cache = opened(own_server.url, timeout=2.0)
    await ready(cache)
    keep(cache, key_of(1))
    own_server.kill()
    assert cache.lookup(key_of(1), RULES) is not None, "what is known is trusted for a while"
    await is_missed_and_comes_back(cache, caplog, own_server.start)


async def test_redis_hangs(own_server: RedisServer, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    cache = opened(own_server.url, timeout=0.5)
    await ready(cache)
    own_server.freeze()
    await is_missed_and_comes_back(cache, caplog, own_server.thaw)


async def test_connections_are_cut(server: RedisServer, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    server.do("FLUSHALL")
    with faulty_proxy(server.port) as proxy:
        cache = opened(f"redis://127.0.0.1:{proxy.port}", timeout=2.0)
        await ready(cache)
        proxy.replies = cut_at(3)

        def mend(proxy: FaultyProxy = proxy) -> None:
            proxy.replies = untouched

        # Connections that stand go on, past the place where new ones are cut.
        server.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await is_missed_and_comes_back(cache, caplog, mend)


async def test_redis_is_full(own_server: RedisServer, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    cache = opened(own_server.url)
    await ready(cache)
    keep(cache, key_of(1))
    own_server.do("CONFIG", "SET", "maxmemory", "1")
    for number in range(10):
        keep(cache, key_of(10 + number))
    assert shared(cache, key_of(1)), "it is read all the same"
    assert not shared(cache, key_of(12))
    assert lines(caplog) == ["WARNING"]
    report = cache.forget(A)
    assert report.noted is False, "there is no room for it"
    assert not shared(cache, key_of(1))
    own_server.do("CONFIG", "SET", "maxmemory", "0")

    def takes() -> bool:
        stamp = cache.begin()
        return (
            stamp is not None and cache.keep(key_of(5), answer(stamp)) and cache.flush(1) and shared(cache, key_of(5))
        )

    await eventually(takes)
    assert lines(caplog) == ["WARNING", "INFO"]


def documented_rights() -> list[str]:
    found = re.search(r"ACL SETUSER (.*?)\n\s*\n?\s*\"\"\"", inspect.getsource(ResponseStores), re.DOTALL)
    assert found is not None
    return found[1].replace("\\", " ").split()


async def test_the_documented_rights_are_enough_and_all_needed(
    server: RedisServer, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    server.do("FLUSHALL")
    words = documented_rights()
    name, password = words[0], next(word[1:] for word in words if word.startswith(">"))
    server.do("ACL", "SETUSER", *words)
    cache = opened(server.url, redis={"username": name, "password": password})
    await ready(cache)
    keep(cache, key_of(1))
    keep(cache, key_of(1))
    assert shared(cache, key_of(1))
    assert cache.forget(A).entries[Tier.REDIS] == 1
    assert cache.counts().get("failed: redis", 0) == 0
    for right in [word for word in words if word.startswith("+")]:
        server.do("ACL", "SETUSER", name, "-" + right[1:])
        before = cache.counts().get("failed: redis", 0)
        for _ in range(2):
            if (stamp := cache.begin()) is not None:
                cache.keep(key_of(1), answer(stamp))
                cache.flush(PATIENT)
            shared(cache, key_of(1))
            cache.forget(A)
        assert cache.counts().get("failed: redis", 0) > before, f"{right} is not needed"
        server.do("ACL", "SETUSER", name, right)
        await eventually(lambda: cache.begin() is not None and cache.forget(A).noted and cache.forget(A).complete)


async def test_a_user_without_rights(own_server: RedisServer, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    own_server.do("ACL", "SETUSER", "poor", "on", ">pw", "~*", "-@all")
    cache = opened(own_server.url, redis={"username": "poor", "password": "pw"})
    await eventually(lambda: lines(caplog) == ["WARNING"])
    assert cache.begin() is None
    assert cache.lookup(key_of(1), RULES) is None
    assert not shared(cache, key_of(1))
    report = cache.forget(A)
    assert (report.noted, report.complete) == (False, False)
    own_server.do("ACL", "SETUSER", "poor", "+@all")
    await ready(cache)
    assert lines(caplog) == ["WARNING", "INFO"]
