"""Redis as a store: the contract over every kind of connection, rights, bounds, and what it says when it will not."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from cache.redis_rest import Rest
from cache.redis_settings import Address, RedisSettings
from cache.redis_store import RedisStore
from cache.store import BlockStore, ChunkKey, StoreError
from policies.types import Tier
from tests.entry_store_contract import EntryStoreContract, NewEntries
from tests.ports import free_port
from tests.redis_fixtures import RedisServer, needs_redis, redis_cluster, redis_server, wait_for
from tests.store_contract import ALONE, NewStore, StoreContract, chunk_key, frame_of, in_threads, read
from tests.tls_fixtures import Authority, Pair, authority, server_pair

pytestmark = needs_redis

PATIENT = 20.0
"""Seconds: nothing here is about time unless it says so."""


@contextlib.contextmanager
def opened(settings: RedisSettings) -> Iterator[RedisStore]:
    store = RedisStore(settings)
    try:
        yield store
    finally:
        store.close()


def write(store: BlockStore, name: object, size: int = 1_000) -> ChunkKey:
    key = chunk_key(name)
    assert store.write(key, [frame_of(key, size)], ALONE) is True
    return key


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RedisServer]]:
    with redis_cluster() as nodes:
        yield nodes


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    server.do("FLUSHALL")
    with opened(RedisSettings(url=server.url, timeout=PATIENT)) as ready:
        yield ready


# --- the contract ----------------------------------------------------------------------------------------------


def new_stores(servers: Sequence[RedisServer], settings: RedisSettings) -> NewStore:
    def new(capacity: int, tenant_bytes: int | None = None) -> BlockStore:
        for each in servers:
            each.do("FLUSHALL")
        return RedisStore(replace(settings, timeout=PATIENT))

    return new


class RedisContract(StoreContract):
    bounded = False
    examples = 10
    rounds = 100


class TestOverTcp(RedisContract):
    @pytest.fixture
    def new_store(self, server: RedisServer) -> NewStore:
        return new_stores([server], RedisSettings(url=server.url))


class TestOverAUnixSocketWithoutExpiry(RedisContract):
    @pytest.fixture
    def new_store(self, server: RedisServer) -> NewStore:
        return new_stores([server], RedisSettings(url=server.unix_url + "?db=3", ttl=None))


class TestOverTlsWithFewRights(RedisContract):
    @pytest.fixture
    def new_store(self, tls_server: RedisServer) -> NewStore:
        allow(tls_server, *acl_of("ACL SETUSER"))
        return new_stores([tls_server], replace(tls_settings(tls_server), username="kv", password="password"))


class TestInACluster(RedisContract):
    @pytest.fixture
    def new_store(self, cluster: list[RedisServer]) -> NewStore:
        return new_stores(cluster, RedisSettings(url=cluster[0].url, cluster=True))


del RedisContract  # it is no test by itself


# --- what is in Redis ------------------------------------------------------------------------------------------


class TestEntries(EntryStoreContract):
    @pytest.fixture(params=["one", "cluster"])
    def new_entries(self, request: pytest.FixtureRequest) -> NewEntries:
        alone = request.param == "one"
        servers = [request.getfixturevalue("server")] if alone else request.getfixturevalue("cluster")

        def new(capacity: int) -> RedisStore:
            for each in servers:
                each.do("FLUSHALL")
            # A prefix that means something else to SCAN, unless it is made to mean itself.
            return RedisStore(
                RedisSettings(url=servers[0].url, cluster=not alone, timeout=PATIENT, prefix="a[*]?\\:", renew=False)
            )

        return new


def test_keys_and_expiry(server: RedisServer) -> None:
    server.do("FLUSHALL")
    with opened(RedisSettings(url=server.url, prefix="kv:", ttl=1000.0, timeout=PATIENT)) as store:
        key = write(store, "a", 500)
        name = f"kv:{key.hex()}"
        assert store.tier is Tier.REDIS
        assert server.do("KEYS", "*") == [name.encode()]
        assert server.do("GET", name) == frame_of(key, 500)
        for use in ("read", "write"):
            server.do("PEXPIRE", name, 900_000)
            if use == "read":
                assert read(store, key, 500) is not None
            else:
                assert store.write(key, [b"other"], ALONE) is False
            assert 900_000 < server.do("PTTL", name) <= 1_000_000, "a use puts it off"
        server.do("PEXPIRE", name, 900_000)
        assert store.contains([key]) == 1
        assert server.do("PTTL", name) <= 900_000, "to be asked for is no use"


def test_a_frame_expires(server: RedisServer) -> None:
    with opened(RedisSettings(url=server.url, ttl=0.05, timeout=PATIENT)) as store:
        key = write(store, "expires")
        wait_for(lambda: store.contains([key]) == 0, "it is gone")
        assert read(store, key, 1_000) is None
        write(store, "expires")


def test_two_prefixes_are_two_stores(server: RedisServer) -> None:
    with (
        opened(RedisSettings(url=server.url, prefix="one:", timeout=PATIENT)) as one,
        opened(RedisSettings(url=server.url, prefix="two:", timeout=PATIENT)) as two,
    ):
        key = write(one, "prefix")
        assert (one.contains([key]), two.contains([key])) == (1, 0)
        assert two.remove(key) is False
        assert read(one, key, 1_000) == frame_of(key, 1_000)


def test_a_frame_above_the_bound_is_refused(server: RedisServer) -> None:
    with opened(RedisSettings(url=server.url, max_frame_bytes=1_000, timeout=PATIENT)) as store:
        key = chunk_key("large")
        assert store.write(key, [bytes(600), bytes(401)], ALONE) is False
        assert store.contains([key]) == 0
        server.do("SET", f"prefixgate:kv:{key.hex()}", bytes(1_001))
        assert read(store, key, 1_001) is None
        assert store.failures() == {}


def test_long_lists_of_keys(store: RedisStore) -> None:
    keys = [write(store, ("long", n), 10) for n in range(300)]
    assert store.contains(keys) == 300
    for missing in (299, 256, 128, 127, 0):
        store.remove(keys[missing])
        assert store.contains(keys) == missing


def test_no_more_connections_than_the_pool_has(server: RedisServer) -> None:
    with opened(RedisSettings(url=server.url, pool_size=3, timeout=PATIENT)) as store:
        key = write(store, "pool", 1 << 20)
        most = 0

        def use(number: int) -> None:
            nonlocal most
            for _ in range(20):
                assert read(store, key, 1 << 20) is not None
                if number == 0:
                    most = max(most, len(server.do("CLIENT LIST")) - 1)

        in_threads(use, 10)
        assert 0 < most <= 3
        assert store.failures() == {}


def test_who_finds_no_connection_in_time_says_so(server: RedisServer) -> None:
    with opened(RedisSettings(url=server.url, pool_size=1, timeout=1.0)) as store:
        key = write(store, "crowded")
        node = store._nodes._node(store._settings.address)
        conn, _ = node._take(time.monotonic() + 5)
        with pytest.raises(StoreError, match="all connections"):
            read(store, key, 1_000)
        assert store.failures() == {"crowded": 1}
        node._give_back(conn)
        assert read(store, key, 1_000) is not None, "it does not rest: nothing was wrong with the server"


# --- bounds ----------------------------------------------------------------------------------------------------


def test_redis_evicts_what_was_used_longest_ago() -> None:
    with (
        redis_server("--maxmemory", "24mb", "--maxmemory-policy", "allkeys-lru") as server,
        opened(RedisSettings(url=server.url, timeout=PATIENT)) as store,
    ):
        before = store.stats()
        assert (before.capacity, before.evictions) == (24 << 20, 0)
        keys = [write(store, ("evict", n), 1 << 20) for n in range(60)]
        after = store.stats()
        kept = sum(store.contains([key]) for key in keys)
        assert 0 < after.entries == kept < 60
        assert after.evictions == 60 - kept
        assert after.bytes >= kept << 20
        assert read(store, keys[-1], 1 << 20) is not None


def test_a_full_redis_that_may_not_evict_refuses_writes_alone() -> None:
    with (
        redis_server("--maxmemory", "24mb", "--maxmemory-policy", "noeviction") as server,
        opened(RedisSettings(url=server.url, timeout=PATIENT, max_rest=0.2)) as store,
    ):
        keys: list[ChunkKey] = []

        def fill() -> None:
            while len(keys) < 60:
                keys.append(write(store, ("oom", len(keys)), 1 << 20))

        with pytest.raises(StoreError, match="maxmemory-policy"):
            fill()
        assert 0 < len(keys) < 30
        assert read(store, keys[0], 1 << 20) is not None
        assert store.contains(keys) == len(keys)
        assert store.failures() == {"oom": 1}
        server.do("CONFIG", "SET", "maxmemory", "100mb")
        more = chunk_key("more")
        wait_for(lambda: written(store, more), "it takes writes again")


def written(store: BlockStore, key: ChunkKey) -> bool:
    with contextlib.suppress(StoreError):
        return store.write(key, [bytes(100)], ALONE)
    return False


# --- rights ----------------------------------------------------------------------------------------------------


def acl_of(begin: str) -> list[str]:
    """The user that the documentation of the settings shows."""
    line = re.search(rf"^ +{begin} kv (.*)$", RedisSettings.__doc__ or "", re.MULTILINE)
    assert line
    return [*line[1].split(), "+info", "+dbsize"]


def allow(server: RedisServer, *rules: str) -> None:
    server.do("ACL", "SETUSER", "kv", "reset", "on", *(rule for rule in rules if rule != "on"))
    server.do("ACL", "LOG", "RESET")


def use_all(store: RedisStore, name: object) -> None:
    key = write(store, name)
    assert store.contains([key]) == 1
    assert read(store, key, 1_000) is not None
    assert store.remove(key) is True


def test_the_documented_rights_are_enough_and_all_needed(server: RedisServer) -> None:
    rules = acl_of("ACL SETUSER")
    settings = RedisSettings(url=server.url.replace("//", "//kv:password@"), timeout=PATIENT, max_rest=0.01)
    allow(server, *rules)
    with opened(settings) as store:
        use_all(store, "rights")
        assert store.stats().bytes > 0
        assert store.failures() == {}
        assert server.do("ACL", "LOG") == [], "nothing was tried that it may not do: CLIENT SETINFO neither"
    for needed in ("+getex", "+set", "+pexpire", "+exists", "+unlink", "~prefixgate:kv:*"):
        allow(server, *(rule for rule in rules if rule != needed))
        with opened(settings) as store:
            with pytest.raises(StoreError, match="may not use this command or key"):
                use_all(store, needed)
            assert store.failures() == {"noperm": 1}
            store.close()
        server.do("FLUSHALL")
    allow(server, *(rule for rule in rules if rule not in {"+info", "+dbsize"}))
    with opened(settings) as store:
        use_all(store, "no info")
        assert (store.stats().entries, store.stats().bytes, store.stats().errors) == (0, 0, 0)


def test_a_wrong_password_a_missing_one_and_an_unwanted_one(server: RedisServer) -> None:
    allow(server, *acl_of("ACL SETUSER"))
    for settings in (
        RedisSettings(url=server.url, username="kv", password="swordfish"),
        RedisSettings(url=server.url.replace("//", "//kv:swordfish@")),
        RedisSettings(url=server.url, username="nobody", password="swordfish"),
    ):
        assert "swordfish" not in repr(settings)
        with opened(settings) as store:
            with pytest.raises(StoreError, match="does not accept this user and password") as caught:
                store.contains([chunk_key(1)])
            assert "swordfish" not in str(caught.value)
            assert store.failures() == {"wrongpass": 1}
    with redis_server("--requirepass", "password", password="password") as closed:
        with opened(RedisSettings(url=closed.url)) as store:
            with pytest.raises(StoreError, match="asks for a password"):
                store.contains([chunk_key(1)])
            assert store.failures() == {"noauth": 1}
        with opened(RedisSettings(url=closed.url, password="password", timeout=PATIENT)) as store:
            use_all(store, "password")
            assert store.stats().bytes > 0


# --- TLS -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls_server() -> Iterator[RedisServer]:
    pair = server_pair()
    with redis_server(
        "--tls-cert-file", str(pair.certificate), "--tls-key-file", str(pair.key),
        "--tls-ca-cert-file", str(authority().ca), "--tls-auth-clients", "yes", tls=True,
    ) as running:  # fmt: skip
        yield running


@functools.cache
def _worker_pair() -> Pair:
    return authority().issue("worker")


def tls_settings(server: RedisServer) -> RedisSettings:
    mine = _worker_pair()
    return RedisSettings(
        url=server.url, tls_ca=authority().ca, tls_certificate=mine.certificate, tls_key=mine.key, timeout=PATIENT,
        connect_timeout=PATIENT,
    )  # fmt: skip


def test_tls_in_all_ways_to_refuse(tls_server: RedisServer, tmp_path: Path) -> None:
    good = tls_settings(tls_server)
    stranger = Authority(tmp_path / "stranger", "stranger")
    with opened(replace(good, tls_ca=stranger.ca)) as store:
        with pytest.raises(StoreError, match="is not accepted"):
            store.contains([chunk_key(1)])
        assert store.failures() == {"connect": 1}
    by_name = replace(good, url=tls_server.url.replace("127.0.0.1", "localhost"))
    with opened(by_name) as store, pytest.raises(StoreError, match="is not accepted"):
        store.contains([chunk_key(1)])
    with opened(replace(by_name, tls_check_host=False)) as store:
        use_all(store, "another host")
        wait_for(lambda: store.stats().bytes > 0, "the server to tell its size")
    with opened(replace(good, tls_ca=None, tls_verify=False)) as store:
        use_all(store, "unverified")
    with opened(replace(good, tls_certificate=None, tls_key=None)) as store, pytest.raises(StoreError):
        store.contains([chunk_key(1)])
    with opened(replace(good, url=tls_server.url.replace("rediss", "redis"))) as store, pytest.raises(StoreError):
        store.contains([chunk_key(1)])
    with pytest.raises(StoreError, match="TLS files"):
        RedisStore(replace(good, tls_ca=tmp_path / "missing.pem"))


def test_tls_to_a_server_without(server: RedisServer) -> None:
    settings = RedisSettings(url=server.url.replace("redis", "rediss"), tls_verify=False, timeout=2.0)
    with opened(settings) as store, pytest.raises(StoreError):
        store.contains([chunk_key(1)])


# --- what a server says when it will not -----------------------------------------------------------------------


@pytest.mark.parametrize(("stale", "reason"), [("yes", "readonly"), ("no", "masterdown")])
def test_a_replica_without_a_master(stale: str, reason: str) -> None:
    options = ("--replicaof", f"127.0.0.1 {free_port()}", "--replica-serve-stale-data", stale)
    with redis_server(*options) as server, opened(RedisSettings(url=server.url, timeout=PATIENT)) as store:
        with pytest.raises(StoreError, match="this Redis is a replica"):
            # Redis looks at the one before the other.
            _ = read(store, chunk_key(1), 100) if stale == "yes" else store.contains([chunk_key(1)])
        assert store.failures() == {reason: 1}
        server.do("REPLICAOF", "NO", "ONE")
        wait_for(lambda: written(store, chunk_key(1)), "it is tried again, and takes writes")


def test_a_server_that_is_busy_with_a_script() -> None:
    with redis_server("--busy-reply-threshold", "1") as server:

        def loop() -> None:
            with contextlib.suppress(redis.RedisError):
                server.do("EVAL", "while true do end", 0)

        with opened(RedisSettings(url=server.url, timeout=PATIENT)) as store:
            key = write(store, "busy")
            script = threading.Thread(target=loop, daemon=True)
            script.start()
            wait_for(lambda: fails(lambda: store.contains([key])), "it is busy")
            assert "busy" in store.failures()
            server.do("SCRIPT", "KILL")
            script.join(10)
            wait_for(lambda: not fails(lambda: store.contains([key])), "it is well again")


def test_a_server_that_loads_its_data() -> None:
    with redis_server() as server, opened(RedisSettings(url=server.url, timeout=PATIENT)) as store:
        with server.client() as client:
            client.mset({f"k{n}": bytes(2_000) for n in range(500)})
        server.do("SAVE")
        server.kill()
        server.start("--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024", answers=False)
        wait_for(lambda: fails(lambda: store.contains([chunk_key(1)])) and "loading" in store.failures(), "it loads")
        wait_for(lambda: not fails(lambda: store.contains([chunk_key(1)])), "it has loaded")
        assert set(store.failures()) <= {"loading", "resting", "connect"}


def fails(call: Callable[[], object]) -> bool:
    try:
        call()
    except StoreError:
        return True
    return False


def test_a_value_of_another_type_is_an_error_of_this_call_alone(store: RedisStore, server: RedisServer) -> None:
    key = chunk_key("list")
    server.do("RPUSH", f"prefixgate:kv:{key.hex()}", "x")
    with pytest.raises(StoreError, match="answered with an error"):
        read(store, key, 100)
    assert store.contains([key]) == 1
    assert store.failures() == {"other": 1}


# --- settings --------------------------------------------------------------------------------------------------


def test_what_urls_say() -> None:
    plain = RedisSettings()
    assert (plain.address, plain.db, plain.tls, plain.credentials) == (Address("127.0.0.1", 6379), 0, False, ())
    full = RedisSettings(url="rediss://me:p%40ss@[::1]:7000/5")
    assert (full.address, full.db, full.tls, full.credentials) == (Address("::1", 7000), 5, True, ("me", "p@ss"))
    assert str(full.address) == "[::1]:7000"
    assert RedisSettings(url="redis://:alone@h").credentials == ("alone",)
    assert RedisSettings(url="redis://a:b@h", username="c", password="d").credentials == ("c", "d")
    unix = RedisSettings(url="unix:///run/redis.sock?db=2")
    assert (unix.address, unix.db, str(unix.address)) == (Address("/run/redis.sock", 0), 2, "/run/redis.sock")
    cluster = RedisSettings(url="redis://a", cluster=True, more_nodes=("b:7001", "[::2]:1", "c"))
    assert cluster.nodes == (Address("a", 6379), Address("b", 7001), Address("::2", 1), Address("c", 6379))


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "http://h"}, {"url": "redis:///0"}, {"url": "redis://h:0"}, {"url": "redis://h:99999"},
        {"url": "redis://h/x"}, {"url": "unix://host/path"}, {"timeout": 0}, {"connect_timeout": -1}, {"ttl": 0},
        {"max_frame_bytes": 0}, {"max_frame_bytes": 1 << 30}, {"pool_size": 0}, {"prefix": "{a}"},
        {"more_nodes": ("a:1",)}, {"cluster": True, "more_nodes": ("a:b",)}, {"cluster": True, "more_nodes": ("x@a",)},
        {"cluster": True, "url": "redis://h/1"}, {"cluster": True, "url": "unix:///s"}, {"username": "me"},
        {"tls_key": Path("k")},
    ],
)  # fmt: skip
def test_settings_that_mean_nothing(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        RedisSettings(**wrong)  # type: ignore[arg-type]  # that is the point


def test_nobody_is_asked_before_the_first_call() -> None:
    with opened(RedisSettings(url=f"redis://127.0.0.1:{free_port()}", timeout=PATIENT)) as store:
        assert store.failures() == {}
        with pytest.raises(StoreError, match="no connection to Redis at 127"):
            store.contains([chunk_key(1)])
        with pytest.raises(StoreError, match="left alone"):
            store.contains([chunk_key(1)])
        assert store.failures() == {"connect": 1, "resting": 1}
        assert store.stats().errors == 3, "to be asked for its size is no exception"


@pytest.mark.parametrize("url", [f"redis://{'a' * 70}.example", "redis://localhost:1", "unix:///nobody/here"])
def test_places_where_nobody_is(url: str) -> None:
    with opened(RedisSettings(url=url, timeout=PATIENT, connect_timeout=PATIENT)) as store:
        with pytest.raises(StoreError, match="no connection to Redis at"):
            store.contains([chunk_key(1)])
        assert store.failures() == {"connect": 1}
        assert store.stats().errors == 2


def test_rests_grow_and_one_call_tries() -> None:
    rest = Rest(1.0)
    assert rest.admits(0.0, 1.0)
    lengths: list[float] = []
    now = 0.0
    for _ in range(8):
        rest.failed(now, now)
        began = now
        while not rest.admits(now, 1.0):
            now += 0.001
        lengths.append(round(now - began, 2))
        assert not rest.admits(now + 0.5, 1.0), "one at a time"
        now += 0.1
    assert lengths == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert all(a <= b for a, b in pairwise(lengths))
    rest.succeeded()
    assert rest.admits(now, 1.0)
    assert rest.admits(now, 1.0)
    rest.failed(10.0, 9.0)
    rest.failed(10.1, 9.5)
    assert rest.admits(10.06, 1.0), "those that failed together count once"
