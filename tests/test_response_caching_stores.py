"""Answers that outlive a gateway, or that several share: on disk and in Redis, and what it costs when these fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gateway.thread_line import ThreadLine
from policies.types import Tier
from tests.caching_fixtures import setting
from tests.gateway_fixtures import eventually
from tests.redis_fixtures import RedisServer, needs_redis, redis_server
from tests.tenant_fixtures import KEYS, tenants

SECRET = "encryption_key: 'a secret for tests, long enough for it'"


@pytest.mark.parametrize("more", ["", f", {SECRET}"])
async def test_answers_on_disk_outlive_the_gateway(tmp_path: Path, more: str) -> None:
    cache = f"disk: {{path: '{tmp_path / 'answers'}'}}, lookup_timeout: 5s{more}"
    async with setting(cache) as it:
        assert await it.ask() == ("Answer 1.", "miss")
    async with setting(cache) as it:
        assert await it.ask() == ("Answer 1.", "hit")
        assert await it.stream() == ("Answer 1.", "hit")
        assert await it.ask(seed=1) == ("Answer 1.", "miss")
        assert it.caching.cache.counts()["hit: host"] == 1
        it.check_left()
    kept = b"".join(file.read_bytes() for file in (tmp_path / "answers").rglob("*") if file.is_file())
    assert (b"Answer 1." in kept) is not bool(more)


async def test_what_is_out_of_date_is_removed_though_nobody_asks_for_it(tmp_path: Path) -> None:
    cache = f"ttl: 500ms, disk: {{path: '{tmp_path / 'answers'}'}}, lookup_timeout: 5s"
    async with setting(cache) as it:
        for seed in range(3):
            assert await it.ask(seed=seed) == (f"Answer {seed + 1}.", "miss")
        kept = it.caching.cache
        await eventually(lambda: kept.stores()[Tier.DISK].writes == 3)
        await eventually(lambda: not any(store.entries for store in kept.stores().values()))


class Late(ThreadPoolExecutor):
    """Does nothing until it may."""

    def __init__(self, threads: int | None = None) -> None:
        super().__init__(threads)
        self.may = threading.Event()

    def submit(self, work: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        return super().submit(lambda: self.may.wait(5.0) and work(*args, **more))


async def test_a_store_that_answers_too_late_is_not_heard(tmp_path: Path) -> None:
    """Not even by a request that waits for something else by then."""
    async with setting(f"disk: {{path: '{tmp_path / 'answers'}'}}, lookup_timeout: 20ms") as it:
        it.worker.hold = True
        late = Late()
        it.caching.threads = ThreadLine(late)
        tasks = [asyncio.create_task(it.ask()) for _ in range(3)]
        await eventually(lambda: it.caching.flights.table.waiting == 2)
        late.may.set()
        await asyncio.to_thread(late.shutdown)
        await asyncio.sleep(0.05)
        it.worker.may.release()
        assert {text for text, _ in await asyncio.gather(*tasks)} == {"Answer 1."}
        assert it.worker.calls == 1
        it.check_left()


async def test_long_answers_wait_for_a_thread_in_a_bounded_number(tmp_path: Path) -> None:
    async with setting(f"disk: {{path: '{tmp_path / 'answers'}'}}, lookup_timeout: 1ms") as it:
        it.worker.padding = 40_000
        late = Late(1)
        it.caching.threads = ThreadLine(late)
        for n in range(300):
            await it.ask(seed=n)
        waiting = len(it.caching.flights.table)
        late.may.set()
        assert waiting == 128, "each has its place twice: looked for in vain, and about to be kept"
        await eventually(lambda: not len(it.caching.flights.table))
        assert it.caching.cache.memory_stats().entries == 128
        late.shutdown()
        it.check_left()


@needs_redis
async def test_gateways_share_what_redis_has() -> None:
    with redis_server() as server:
        cache = f"redis: {{url: '{server.unix_url}', timeout: 2s}}, lookup_timeout: 5s"
        async with setting(cache) as one, setting(cache) as other:
            await eventually(lambda: None not in (one.caching.cache.begin(), other.caching.cache.begin()))
            assert await one.ask() == ("Answer 1.", "miss")
            await asyncio.to_thread(one.caching.cache.flush)
            assert await other.ask() == ("Answer 1.", "hit")
            assert other.worker.calls == 0


@needs_redis
async def test_what_another_gateway_has_fetched_anew_is_better_than_what_is_stale_here() -> None:
    with redis_server() as server:
        cache = f"ttl: 1s, stale_if_error: 60s, redis: {{url: '{server.unix_url}', timeout: 2s}}, lookup_timeout: 5s"
        async with setting(cache) as one, setting(cache) as other:
            await eventually(lambda: None not in (one.caching.cache.begin(), other.caching.cache.begin()))
            await one.ask()
            await asyncio.to_thread(one.caching.cache.flush)
            assert await other.ask() == ("Answer 1.", "hit")
            await asyncio.sleep(1.0)
            assert await one.ask() == ("Answer 2.", "miss")
            await asyncio.to_thread(one.caching.cache.flush)
            assert await other.ask() == ("Answer 2.", "hit")
            assert other.worker.calls == 0
            other.check_left()


@needs_redis
async def test_of_a_stale_one_here_and_a_newer_one_elsewhere_the_newer_is_served() -> None:
    with redis_server() as server:
        times = "ttl: 1ms, stale_while_revalidate: 1s, stale_if_error: 60s"
        cache = f"{times}, redis: {{url: '{server.unix_url}', timeout: 2s}}, lookup_timeout: 5s"
        async with setting(cache) as one, setting(cache) as other:
            await eventually(lambda: None not in (one.caching.cache.begin(), other.caching.cache.begin()))
            await other.ask()
            await asyncio.sleep(1.1)
            one.worker.calls = 1
            assert await one.ask(headers={"Cache-Control": "no-cache"}) == ("Answer 2.", "miss")
            await asyncio.to_thread(one.caching.cache.flush)
            other.worker.status = 500  # for who fetches another
            assert await other.ask() == ("Answer 2.", "stale")
            await eventually(lambda: other.worker.calls > 1 and not other.pipeline.live)
            other.check_left()


@needs_redis
@pytest.mark.parametrize("what", ["killed", "frozen", "not allowed", "full"])
async def test_whatever_becomes_of_redis_every_request_is_answered(what: str, caplog: pytest.LogCaptureFixture) -> None:
    with redis_server() as server:
        cache = f"redis: {{url: '{server.unix_url}', timeout: 50ms}}, lookup_timeout: 100ms"
        async with setting(cache) as it:
            await eventually(lambda: it.caching.cache.begin() is not None)
            assert await it.ask() == ("Answer 1.", "miss")
            _spoil(server, what)
            for n in range(30):
                text, _ = await it.ask(seed=n + 1)
                assert text == f"Answer {n + 2}."
            assert await it.ask() == ("Answer 1.", "hit")  # from memory
            it.check_left()
        lines = [record.message for record in caplog.records if "cache" in record.name or "answers" in record.message]
        assert len(lines) <= 4, lines
        if what == "frozen":
            server.thaw()


def _spoil(server: RedisServer, what: str) -> None:
    if what == "killed":
        server.kill()
    elif what == "frozen":
        server.freeze()
    elif what == "not allowed":
        server.do("ACL", "SETUSER", "default", "-@all")
    else:
        server.do("CONFIG", "SET", "maxmemory-policy", "noeviction")
        server.do("CONFIG", "SET", "maxmemory", "1")


async def test_a_tenants_share_is_of_each_store(tmp_path: Path) -> None:
    """One that fills its half of memory has its half of a disk ten times as large all the same."""
    cache = (
        f"memory: 1MiB, tenant_share: 0.5, max_entry: 256KiB, "
        f"disk: {{path: '{tmp_path / 'answers'}', size: 10MiB}}, lookup_timeout: 5s"
    )
    async with setting(cache, tenants("acme", "beta")) as it:
        it.worker.padding = 100_000
        for n in range(20):
            await it.ask(key=KEYS["acme"], seed=n)
        # Long answers are looked at in a thread, when their clients have them already.
        await eventually(lambda: it.caching.cache.stores()[Tier.DISK].entries == 20)
        assert it.caching.cache.memory_stats().bytes <= 512 << 10
        it.worker.padding = 0
        assert (await it.ask(key=KEYS["acme"], seed=0))[1] == "hit"
