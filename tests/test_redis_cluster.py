"""A Redis Cluster whose slots move and whose nodes fail, with real nodes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
from redis.crc import key_slot

from cache.redis_control import SlotRange
from cache.redis_replies import command
from cache.redis_settings import Address, RedisSettings
from cache.redis_slots import SlotTable
from cache.redis_store import RedisStore
from cache.store import ChunkKey, StoreError
from tests.ports import free_port
from tests.redis_fixtures import RedisServer, needs_redis, redis_cluster, redis_server, wait_for
from tests.store_contract import ALONE, chunk_key, frame_of, in_threads, is_whole, read

pytestmark = needs_redis


@pytest.fixture
def nodes() -> Iterator[list[RedisServer]]:
    with redis_cluster() as running:
        yield running


@pytest.fixture
def store(nodes: list[RedisServer]) -> Iterator[RedisStore]:
    settings = RedisSettings(url=nodes[0].url, cluster=True, timeout=20.0, max_rest=0.2)
    ready = RedisStore(settings)
    yield ready
    ready.close()


def slot_of(key: ChunkKey) -> int:
    return key_slot(b"prefixgate:kv:" + key.hex().encode())


def owner(nodes: list[RedisServer], key: ChunkKey) -> int:
    bounds = [16384 * i // len(nodes) for i in range(len(nodes) + 1)]
    return next(i for i, (low, high) in enumerate(pairwise(bounds)) if low <= slot_of(key) < high)


def keys_of(nodes: list[RedisServer], node: int, n: int) -> list[ChunkKey]:
    found = (chunk_key(number) for number in range(10_000))
    return [key for key in found if owner(nodes, key) == node][:n]


def fill(store: RedisStore, keys: list[ChunkKey], size: int = 10_000) -> None:
    for key in keys:
        assert store.write(key, [frame_of(key, size)], ALONE) is True


def begin_migration(source: RedisServer, target: RedisServer, slot: int) -> None:
    source_id, target_id = (node.do("CLUSTER", "MYID") for node in (source, target))
    target.do("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    source.do("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)


def migrate(source: RedisServer, target: RedisServer, key: ChunkKey) -> None:
    source.do("MIGRATE", "127.0.0.1", target.port, f"prefixgate:kv:{key.hex()}", 0, 5000)


def end_migration(nodes: list[RedisServer], target: RedisServer, slot: int) -> None:
    target_id = target.do("CLUSTER", "MYID")
    for node in (target, *nodes):
        node.do("CLUSTER", "SETSLOT", slot, "NODE", target_id)


def test_keys_are_where_the_cluster_wants_them(nodes: list[RedisServer], store: RedisStore) -> None:
    keys = [chunk_key(n) for n in range(300)]
    fill(store, keys, 100)
    for i, node in enumerate(nodes):
        assert node.do("DBSIZE") == sum(owner(nodes, key) == i for key in keys) > 50
    assert store.contains(keys) == 300
    for missing in (280, 131, 128, 60, 1):
        store.remove(keys[missing])
        assert store.contains(keys) == missing
    assert store.stats().entries == 295
    assert store.failures() == {}


def test_a_slot_that_moves_is_followed_at_every_step(nodes: list[RedisServer], store: RedisStore) -> None:
    source, target = nodes[0], nodes[1]
    key = keys_of(nodes, 0, 1)[0]
    slot, frame = slot_of(key), frame_of(key, 10_000)
    fill(store, [key])
    begin_migration(source, target, slot)
    assert read(store, key, 10_000) == frame, "it is still there"
    migrate(source, target, key)
    assert (source.do("DBSIZE"), target.do("DBSIZE")) == (0, 1)
    for _ in range(2):
        assert read(store, key, 10_000) == frame, "ASK"
        assert store.contains([key]) == 1
        assert store.write(key, [b"other"], ALONE) is False
    assert store.remove(key) is True
    assert store.write(key, [frame], ALONE) is True, "new keys go to the target already"
    assert (source.do("DBSIZE"), target.do("DBSIZE")) == (0, 1)
    end_migration(nodes, target, slot)
    for _ in range(2):
        assert read(store, key, 10_000) == frame, "MOVED"
    assert store._nodes._slots is not None
    assert store._nodes._slots.owner(b"prefixgate:kv:" + key.hex().encode()) == Address("127.0.0.1", target.port)
    assert store.failures() == {}


def test_moved_slots_in_a_list_of_keys(nodes: list[RedisServer], store: RedisStore) -> None:
    keys = [chunk_key(n) for n in range(40)]
    fill(store, keys, 100)
    for key in keys_of(nodes, 0, 5):
        begin_migration(nodes[0], nodes[2], slot_of(key))
        migrate(nodes[0], nodes[2], key)
    assert store.contains(keys) == 40, "ASK"
    for key in keys_of(nodes, 0, 5):
        end_migration(nodes, nodes[2], slot_of(key))
    assert store.contains(keys) == 40, "MOVED"
    assert store.failures() == {}


def test_many_threads_while_slots_move(nodes: list[RedisServer], store: RedisStore) -> None:
    keys = keys_of(nodes, 0, 12)
    fill(store, keys)

    def use(number: int) -> None:
        if number == 0:
            for i, key in enumerate(keys):
                target = nodes[1 + i % 2]
                begin_migration(nodes[0], target, slot_of(key))
                migrate(nodes[0], target, key)
                end_migration(nodes, target, slot_of(key))
            return
        choose = random.Random(number)
        for _ in range(300):
            key = choose.choice(keys)
            content = read(store, key, 10_000)
            # Between source and target a key may be nowhere for a moment.
            assert content is None or is_whole(key, content)

    in_threads(use)
    for key in keys:
        assert read(store, key, 10_000) == frame_of(key, 10_000)


def test_a_node_that_dies_takes_its_own_slots_alone(nodes: list[RedisServer], store: RedisStore) -> None:
    keys = [keys_of(nodes, i, 3) for i in range(3)]
    fill(store, [key for of_node in keys for key in of_node])
    nodes[0].kill()
    with pytest.raises(StoreError):
        read(store, keys[0][0], 10_000)
    for key in keys[1] + keys[2]:
        assert read(store, key, 10_000) == frame_of(key, 10_000)
    nodes[0].start()
    wait_for(lambda: misses(store, keys[0][0]), "the node is back, and empty")
    for key in keys[1] + keys[2]:
        assert read(store, key, 10_000) == frame_of(key, 10_000)


def misses(store: RedisStore, key: ChunkKey) -> bool:
    try:
        return read(store, key, 10_000) is None
    except StoreError:
        return False


def test_a_node_that_is_away_at_first_is_not_needed(nodes: list[RedisServer]) -> None:
    away = f"redis://127.0.0.1:{free_port()}"
    others = tuple(f"127.0.0.1:{node.port}" for node in nodes[1:])
    store = RedisStore(RedisSettings(url=away, cluster=True, more_nodes=others, timeout=20.0))
    fill(store, keys_of(nodes, 0, 2))
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.contains([chunk_key(1)])


def test_no_node_of_a_cluster_at_all() -> None:
    store = RedisStore(RedisSettings(url=f"redis://127.0.0.1:{free_port()}", cluster=True, timeout=20.0))
    with pytest.raises(StoreError, match="no connection"):
        store.contains([chunk_key(1)])
    with pytest.raises(StoreError, match="left alone"):
        store.contains([chunk_key(1)])
    assert store.stats().errors == 2
    store.close()


def test_a_node_of_a_cluster_without_being_told_so(nodes: list[RedisServer]) -> None:
    store = RedisStore(RedisSettings(url=nodes[0].url, timeout=20.0))
    with pytest.raises(StoreError, match="set cluster"):
        read(store, keys_of(nodes, 1, 1)[0], 100)
    assert store.failures() == {"redirected": 1}
    store.close()


def test_a_single_server_that_is_taken_for_a_cluster() -> None:
    with redis_server() as server:
        store = RedisStore(RedisSettings(url=server.url, cluster=True, timeout=20.0))
        with pytest.raises(StoreError, match="answered with an error"):
            read(store, chunk_key(1), 100)
        store.close()


def test_few_rights_in_a_cluster(nodes: list[RedisServer]) -> None:
    rights = ["~prefixgate:kv:*", "-@all", "+getex", "+set", "+pexpire", "+exists", "+unlink"]
    rights += ["+asking", "+cluster|slots"]
    for node in nodes:
        node.do("ACL", "SETUSER", "kv", "on", ">password", "resetchannels", *rights)
    store = RedisStore(RedisSettings(url=nodes[0].url.replace("//", "//kv:password@"), cluster=True, timeout=20.0))
    keys = [keys_of(nodes, i, 1)[0] for i in range(3)]
    fill(store, keys)
    begin_migration(nodes[0], nodes[1], slot_of(keys[0]))
    migrate(nodes[0], nodes[1], keys[0])
    assert store.contains(keys) == 3
    assert read(store, keys[0], 10_000) is not None
    assert store.failures() == {}
    assert all(node.do("ACL", "LOG") == [] for node in nodes)
    store.close()


def test_the_table_of_slots() -> None:
    a, b, c = (Address(name, 1) for name in "abc")
    table = SlotTable()
    key = b"123456789"
    assert key_slot(key) == 12739, "the cluster specification's example: 0x31C3"
    assert (table.owner(key), table.addresses()) == (None, set())
    table.replace([SlotRange(0, 12738, a), SlotRange(12739, 12739, b), SlotRange(12740, 99_999, a)])
    assert (table.owner(key), table.addresses()) == (b, {a, b})
    table.moved(12739, c)
    assert (table.owner(key), table.addresses()) == (c, {a, c})
    table.replace([SlotRange(0, 100, a)])
    assert table.owner(key) is None


def test_commands_are_written_as_the_protocol_says() -> None:
    assert command(b"GET", b"k", b"") == b"*3\r\n$3\r\nGET\r\n$1\r\nk\r\n$0\r\n\r\n"
