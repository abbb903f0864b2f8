"""Gateways that hold a tenant's limits together through a real Redis, which comes and goes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import aiohttp
import pytest
from pydantic import SecretStr

from gateway.app import running
from gateway.config import ConfigError, SharedLimits, parse_config
from gateway.limit_records import decode
from gateway.program import Program
from gateway.shared_limits import LimitSharing, SharingCounts
from policies.rate_limit import RateLimiter
from policies.shared_limits import limiter_id
from policies.tenant import Rates
from tests.data_plane_fixtures import RawWorker, Turn, hold
from tests.gateway_fixtures import config_for, eventually
from tests.ports import free_port
from tests.redis_fixtures import RedisServer, needs_redis, redis_server
from tests.reload_fixtures import from_file, lines
from tests.tenant_fixtures import KEYS, SALT_KEY, digest, tenants
from tests.test_tenants import ANSWER, ANSWERS, HEAD
from tests.tls_fixtures import authority, server_pair

__all__ = ["lines"]

pytestmark = needs_redis

BODY = {"model": "m", "messages": [{"role": "user", "content": "Who reads this?"}]}
NAME, PASSWORD = "limits", "a-password-for-tests"
KEY = "prefixgate:limits:1"
PATIENT = "interval: 50ms, timeout: 5s, ttl: 20s"
ROOT = Path(__file__).parent.parent


class Gateway:
    """One of several in this loop, each with all that a process would have of its own."""

    def __init__(self, program: Program, port: int, http: aiohttp.ClientSession) -> None:
        self.program = program
        self.url = f"http://127.0.0.1:{port}"
        self._http = http

    async def ask(self, name: str = "acme") -> tuple[int, Mapping[str, str]]:
        """Status and header fields of one request."""
        return await ask(self._http, self.url, name)

    async def statuses(self, count: int) -> list[int]:
        return [(await self.ask())[0] for _ in range(count)]

    @property
    def limiter(self) -> RateLimiter:
        tenancy = self.program.pipeline.tenancy
        assert tenancy is not None
        return tenancy.tenants["acme"].limiter

    @property
    def counts(self) -> SharingCounts:
        assert self.program.sharing is not None
        return self.program.sharing.counts

    async def exchanged(self) -> None:
        """Until all that has happened was told, and what was told before was heard."""
        before = self.counts.exchanges
        await eventually(lambda: self.counts.exchanges >= before + 2)


async def ask(http: aiohttp.ClientSession, url: str, name: str = "acme") -> tuple[int, Mapping[str, str]]:
    headers = {"authorization": f"Bearer {KEYS[name]}"}
    async with http.post(f"{url}/v1/chat/completions", json=BODY, headers=headers) as answer:
        await answer.read()
        return answer.status, answer.headers


async def exchanged(*gateways: Gateway) -> None:
    """Until each knows what the others let in."""
    for gateway in (*gateways, *gateways):
        await gateway.exchanged()


def shared(url: str, sharing: str = PATIENT) -> str:
    return f", shared_limits: {{redis: '{url}', {sharing}}}"


@contextlib.asynccontextmanager
async def fleet(
    n: int, worker: str, rates: str, url: str, sharing: str = PATIENT, *, away: bool = False
) -> AsyncIterator[list[Gateway]]:
    """Gateways in front of one worker, which have heard of each other, unless Redis is away."""
    extra = tenants(f"acme, rates: {{{rates}}}", more=shared(url, sharing)) + "limits: {drain_timeout: 0}\n"
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        gateways = []
        for _ in range(n):
            config = config_for([worker], extra, workers_extra=[", models: [m]"])
            program, port = await stack.enter_async_context(running(config))
            gateways.append(Gateway(program, port, http))
        if not away:
            await eventually(lambda: all(each.counts.gateways == n for each in gateways))
        yield gateways


def documented_rules() -> list[str]:
    """Of the user that the documents show."""
    text = (ROOT / "docs" / "tenants.md").read_text(encoding="utf-8")
    line = re.search(r"^ACL SETUSER limits on >password (.*)$", text, re.MULTILINE)
    assert line
    return line[1].split()


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """With the user of the documents; whoever shows no password may do nothing but look after the server."""
    operator = ("--user", "default", "on", "nopass", "-@all", "+@admin", "+ping", "+@read", "~*")
    with redis_server("--user", NAME, "on", f">{PASSWORD}", *documented_rules(), *operator) as running:
        yield running


@pytest.fixture
async def worker() -> AsyncIterator[RawWorker]:
    """Answers all alike."""
    async with RawWorker(ANSWERS).running() as running:
        yield running


def url_of(server: RedisServer) -> str:
    return server.url.replace("//", f"//{NAME}:{PASSWORD}@")


def records(server: RedisServer) -> dict[bytes, bytes]:
    flat = server.do("HGETALL", KEY)
    return flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))


def said(lines: Sequence[str], text: str) -> int:
    return sum(text in line for line in lines)


# --- shared


async def test_a_rate_of_requests_is_shared_and_the_documented_rights_are_enough(
    worker: RawWorker, server: RedisServer, lines: list[str]
) -> None:
    async with fleet(2, worker.url, "requests_per_minute: 4", url_of(server)) as (one, other):
        assert await one.statuses(2) == [200, 200]
        await exchanged(one, other)
        status, headers = await other.ask()
        assert (status, headers["x-ratelimit-remaining-requests"]) == (200, "1")
        assert await other.statuses(2) == [200, 429]
        await exchanged(one, other)
        status, headers = await one.ask()
        assert (status, headers["x-ratelimit-remaining-requests"]) == (429, "0")
        assert 1 <= int(headers["retry-after"]) <= 15
        assert len(worker.requests) == 4
        assert server.do("KEYS", "*") == [KEY.encode()]
        assert 0 < server.do("PTTL", KEY) <= 300_000
        written = b"".join(b"".join(pair) for pair in records(server).items())
    assert server.do("ACL", "LOG") == [], "nothing was tried that the user may not do"
    assert said(lines, "limits are shared through Redis") == 2
    assert said(lines, "holds limits alone") == 0
    for secret in ("acme", KEYS["acme"], SALT_KEY, digest("acme").removeprefix("sha256:"), PASSWORD):
        assert secret.encode() not in written
    assert not said(lines, PASSWORD)


async def test_each_of_the_documented_rights_is_needed(
    worker: RawWorker, server: RedisServer, lines: list[str]
) -> None:
    rules = documented_rules()
    for needed in [rule for rule in rules if rule[0] in "+~"]:
        server.do("ACL", "SETUSER", NAME, "reset", "on", f">{PASSWORD}", *(rule for rule in rules if rule != needed))
        async with fleet(1, worker.url, "requests_per_minute: 4", url_of(server), away=True) as (gateway,):
            if needed == "+hdel":
                server.do("ACL", "SETUSER", "default", "+hset")
                await eventually(lambda: gateway.counts.up)
                server.do("HSET", KEY, "somebody", "no record")
            await eventually(lambda: gateway.counts.errors)
            assert not gateway.counts.up
            assert await gateway.statuses(1) == [200]
    assert said(lines, "holds limits alone") == len(rules) - 2, "all but -@all and resetchannels"


async def test_a_rate_of_tokens_is_shared(worker: RawWorker, server: RedisServer) -> None:
    """The worker reports 12 tokens for each request, which come to 3 by the length of its prompt."""
    async with fleet(3, worker.url, "tokens_per_minute: 30", url_of(server)) as (one, other, third):
        assert [await one.statuses(1), await other.statuses(1)] == [[200], [200]]
        await exchanged(one, other, third)
        status, headers = await third.ask()
        assert status == 200
        assert 3 <= int(headers["x-ratelimit-remaining-tokens"]) < 30 - 12 - 3, "it knows of both"
        await exchanged(one, other, third)
        for gateway in (one, other, third):
            status, headers = await gateway.ask()
            assert (status, headers["x-ratelimit-remaining-tokens"]) == (429, "0")


async def test_concurrent_requests_are_shared(server: RedisServer) -> None:
    released = asyncio.Event()

    async def answer(turn: Turn) -> None:
        await released.wait()
        turn.write(HEAD % len(ANSWER) + ANSWER)

    async with (
        RawWorker(answer).running() as worker,
        fleet(2, worker.url, "concurrent: 2", url_of(server)) as (one, other),
    ):
        tasks = [asyncio.create_task(gateway.ask()) for gateway in (one, other)]
        await eventually(lambda: len(worker.requests) == 2)
        await exchanged(one, other)
        assert await one.statuses(1) == [429]
        assert await other.statuses(1) == [429]
        released.set()
        assert [(await task)[0] for task in tasks] == [200, 200]
        await exchanged(one, other)
        assert [one.limiter.elsewhere, other.limiter.elsewhere] == [0, 0]
        assert await one.statuses(2) == [200, 200]


async def test_what_is_much_is_told_before_it_is_time(worker: RawWorker, server: RedisServer) -> None:
    """An exchange every ten seconds would be too late for all of this."""
    sharing = "interval: 10s, timeout: 2s, ttl: 40s"
    async with fleet(2, worker.url, "requests_per_minute: 4", url_of(server), sharing, away=True) as (one, other):
        await eventually(lambda: one.counts.up and other.counts.up)
        assert await one.statuses(3) == [200] * 3
        assert await other.statuses(1) == [200]
        await eventually(lambda: other.counts.gateways == 2)
        await exchanged_at_once(other)
        assert await other.statuses(1) == [429]


async def exchanged_at_once(gateway: Gateway) -> None:
    bucket = gateway.limiter.requests
    assert bucket is not None
    await eventually(lambda: bucket.level(gateway.program.loop.time()) < 1)


async def test_it_ends_whenever_it_is_told_to() -> None:
    """redis-py loses a cancellation now and then."""
    loop = asyncio.get_running_loop()
    with redis_server() as server:
        for number in range(250):
            limiters = {limiter_id("acme", None): RateLimiter(Rates(requests_per_minute=600), loop.time())}
            settings = SharedLimits(redis=SecretStr(server.url), interval=0.05)
            sharing = LimitSharing(settings, lambda known=limiters: known, loop.time)  # type: ignore[misc]  # bound now
            task = loop.create_task(sharing.run())
            await asyncio.sleep(number / 20_000)
            task.cancel()
            ended, _ = await asyncio.wait([task], timeout=20)
            assert ended
            await sharing.close()


async def test_a_gateway_that_begins_later_knows_what_was_used_even_when_all_others_have_gone(
    worker: RawWorker,
    server: RedisServer,
) -> None:
    async with fleet(1, worker.url, "requests_per_minute: 2", url_of(server)) as (one,):
        assert await one.statuses(3) == [200, 200, 429]
    async with fleet(1, worker.url, "requests_per_minute: 2", url_of(server), away=True) as (other,):
        await eventually(lambda: other.counts.up)
        assert await other.statuses(1) == [429]
        assert other.limiter.elsewhere == 0


# --- Redis comes and goes


async def test_while_redis_is_away_limits_are_local_and_afterwards_shared_again(
    worker: RawWorker, server: RedisServer, lines: list[str]
) -> None:
    async with fleet(2, worker.url, "requests_per_minute: 4", url_of(server)) as (one, other):
        assert await one.statuses(1) == [200]
        await exchanged(one, other)
        server.kill()
        await eventually(lambda: not (one.counts.up or other.counts.up))
        assert await one.statuses(4) == [200, 200, 200, 429], "by its own bucket"
        assert await other.statuses(4) == [200, 200, 200, 429]
        errors = one.counts.errors
        await eventually(lambda: one.counts.errors >= errors + 2 and other.counts.errors >= 3)
        assert said(lines, "holds limits alone") == 2, "one line of each"
        server.start()
        await eventually(lambda: one.counts.up and other.counts.up)
        assert said(lines, "limits are shared again through Redis") == 2
        await exchanged(one, other)
        bucket = one.limiter.requests
        assert bucket is not None
        bucket.charge(-100, one.program.loop.time())
        assert await one.statuses(2) == [200, 200]
        left = other.limiter.requests
        assert left is not None
        known = left.level(other.program.loop.time())
        await exchanged(one, other)
        assert left.level(other.program.loop.time()) < known - 1, "what one lets in is charged to the other"
        assert said(lines, "holds limits alone") == 2
        assert not said(lines, PASSWORD)


async def test_a_redis_that_hangs_holds_nobody_up(worker: RawWorker, server: RedisServer, lines: list[str]) -> None:
    sharing = "interval: 50ms, timeout: 1s, ttl: 4s"
    async with fleet(2, worker.url, "requests_per_minute: 1000", url_of(server), sharing) as (one, other):
        server.freeze()
        assert await one.statuses(20) == [200] * 20
        await eventually(lambda: one.counts.errors and other.counts.errors)
        assert await other.statuses(20) == [200] * 20
        server.thaw()
        await eventually(lambda: one.counts.up and other.counts.up)
        await eventually(lambda: one.counts.gateways == other.counts.gateways == 2)


async def test_without_redis_from_the_start_requests_are_served(worker: RawWorker, lines: list[str]) -> None:
    with redis_server() as server:
        server.kill()
        async with fleet(1, worker.url, "requests_per_minute: 2", server.url, away=True) as (gateway,):
            assert await gateway.statuses(3) == [200, 200, 429]
            await eventually(lambda: gateway.counts.errors)
            assert said(lines, f"holds limits alone: Redis at 127.0.0.1:{server.port}: ") == 1
            server.start()
            await eventually(lambda: gateway.counts.up)
            assert said(lines, "limits are shared again") == 1


async def test_a_wrong_password_is_told_once_and_not_shown(
    worker: RawWorker, server: RedisServer, lines: list[str]
) -> None:
    url = server.url.replace("//", f"//{NAME}:swordfish@")
    async with fleet(1, worker.url, "requests_per_minute: 2", url, away=True) as (gateway,):
        await eventually(lambda: gateway.counts.errors >= 2)
        assert await gateway.statuses(1) == [200]
    assert said(lines, "holds limits alone") == 1
    assert not said(lines, "swordfish")


async def test_what_somebody_else_wrote_is_passed_over_and_cleared_away(worker: RawWorker, server: RedisServer) -> None:
    server.do("ACL", "SETUSER", "default", "+hset")
    server.do("HSET", KEY, b"\xff\x00", "no record", "old", b"\x94\x01\xcb" + bytes(8) + b"\xcb" + bytes(8) + b"\x90")
    assert decode(records(server)[b"old"]) is not None
    async with fleet(1, worker.url, "requests_per_minute: 2", url_of(server)) as (gateway,):
        await eventually(lambda: len(records(server)) == 1)
        assert gateway.counts.errors == 0
        assert await gateway.statuses(3) == [200, 200, 429]
    server.do("ACL", "SETUSER", "default", "+set")
    server.do("SET", KEY, "not even a hash")
    async with fleet(1, worker.url, "requests_per_minute: 2", url_of(server), away=True) as (gateway,):
        await eventually(lambda: gateway.counts.errors)
        assert await gateway.statuses(3) == [200, 200, 429]


# --- gateways that go


async def test_a_gateway_that_is_killed_gives_its_slots_back_after_the_ttl(server: RedisServer, tmp_path: Path) -> None:
    released = asyncio.Event()

    async def answer(turn: Turn) -> None:
        await released.wait()
        turn.write(HEAD % len(ANSWER) + ANSWER)

    sharing = "interval: 50ms, timeout: 1s, ttl: 3200ms"
    async with (
        RawWorker(answer).running() as worker,
        aiohttp.ClientSession() as http,
        fleet(1, worker.url, "concurrent: 1", url_of(server), sharing) as (gateway,),
    ):
        port = free_port()
        file = tmp_path / "gateway.yaml"
        section = tenants("acme, rates: {concurrent: 1}", more=shared(url_of(server), sharing))
        file.write_text(
            f"listen: {{port: {port}}}\nadmin: {{port: null}}\n"
            f"workers: [{{url: '{worker.url}', models: [m]}}]\n{section}"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", "serve", "-c", str(file), cwd=ROOT,
            stderr=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            await eventually(lambda: gateway.counts.gateways == 2, timeout=60)
            stuck = asyncio.create_task(ask(http, f"http://127.0.0.1:{port}"))
            await eventually(lambda: gateway.limiter.elsewhere == 1)
            assert await gateway.statuses(1) == [429]
        finally:
            process.kill()
            await process.wait()
        with pytest.raises(aiohttp.ClientError):
            await stuck
        await eventually(lambda: gateway.limiter.elsewhere == 0)
        assert gateway.counts.gateways == 1
        released.set()
        assert await gateway.statuses(1) == [200]


async def test_a_gateway_that_ends_says_so_at_once(server: RedisServer) -> None:
    """Its client has left it, and its ttl is far away."""
    async with RawWorker(hold).running() as worker, fleet(1, worker.url, "concurrent: 5", url_of(server)) as (one,):
        async with fleet(1, worker.url, "concurrent: 5", url_of(server), away=True) as (other,):
            stuck = asyncio.create_task(other.ask())
            await eventually(lambda: one.limiter.elsewhere == 1)
            stuck.cancel()
        await eventually(lambda: one.limiter.elsewhere == 0)
        assert one.counts.gateways == 2, "it was heard of not long ago"


async def test_what_runs_counts_once_under_other_settings(server: RedisServer) -> None:
    async with RawWorker(hold).running() as worker, fleet(1, worker.url, "concurrent: 5", url_of(server)) as (one,):
        stuck = asyncio.create_task(one.ask())
        await eventually(lambda: one.limiter.running == 1)
        await one.exchanged()
        config, before = one.program.config, one.counts
        assert config.tenants.shared_limits is not None
        settings = config.tenants.shared_limits.model_copy(update={"interval": 0.06})
        await one.program.apply(
            config.model_copy(update={"tenants": config.tenants.model_copy(update={"shared_limits": settings})})
        )
        assert one.counts is not before
        await one.exchanged()
        assert (one.limiter.running, one.limiter.elsewhere) == (1, 0)
        stuck.cancel()


# --- settings


async def test_it_is_switched_on_changed_and_off_while_the_gateway_runs(
    worker: RawWorker, server: RedisServer, tmp_path: Path, lines: list[str]
) -> None:
    member = f"{{name: acme, keys: ['{digest('acme')}'], rates: {{requests_per_minute: 100, concurrent: 9}}}}"
    section = f"{{salt_key: '{SALT_KEY}', members: [{member}]%s}}"
    async with from_file(tmp_path, lines, tenants=section % "") as gateway:
        page = f"http://127.0.0.1:{gateway.program.admin_port}/metrics"

        async def metrics() -> str:
            async with gateway.http.get(page) as response:
                return await response.text()

        async with fleet(1, worker.url, "requests_per_minute: 100, concurrent: 9", url_of(server)) as (other,):
            for name in KEYS:
                assert KEYS[name] not in str(gateway.program.config)
            assert "shared_limits" not in await metrics()
            await gateway.change(tenants=section % shared(url_of(server)))
            await eventually(lambda: other.counts.gateways == 2)
            other.limiter.take(0, other.program.loop.time())
            tenancy = gateway.program.pipeline.tenancy
            assert tenancy is not None
            limiter = tenancy.tenants["acme"].limiter
            await eventually(lambda: limiter.elsewhere == 1)
            told = await metrics()
            assert "prefixgate_shared_limits_up 1.0" in told
            assert "prefixgate_shared_limits_gateways 2.0" in told
            _, shown = await gateway.admin("GET", "/admin/config")
            assert shown["tenants"]["shared_limits"]["redis"] == "**********"
            assert shown["tenants"]["shared_limits"]["interval"] == 0.05
            await gateway.change(tenants=section % shared(url_of(server), f"{PATIENT}, prefix: 'prefixgate:limits:b:'"))
            await eventually(lambda: limiter.elsewhere == 0)
            sharing = gateway.program.sharing
            assert sharing is not None
            await eventually(lambda: sharing.counts.up)
            assert sharing.counts.gateways == 1
            assert sorted(server.do("KEYS", "*")) == [KEY.encode(), b"prefixgate:limits:b:1"]
            await gateway.change(tenants=section % shared(url_of(server)))
            await eventually(lambda: limiter.elsewhere == 1)
            await gateway.change(tenants=section % "")
            await eventually(lambda: limiter.elsewhere == 0)
            assert gateway.program.sharing is None
            assert "shared_limits" not in await metrics()
            other.limiter.end(0, other.program.loop.time())
        for text in (told, json.dumps(shown), *lines):
            assert PASSWORD not in text


async def test_over_tls_with_the_servers_certificate_checked(worker: RawWorker, lines: list[str]) -> None:
    pair = server_pair()
    files = ("--tls-cert-file", str(pair.certificate), "--tls-key-file", str(pair.key))
    options = (*files, "--tls-ca-cert-file", str(authority().ca), "--tls-auth-clients", "no")
    with redis_server(*options, tls=True) as server:
        trusted = f"{PATIENT}, tls_ca: '{authority().ca}'"
        async with fleet(2, worker.url, "requests_per_minute: 4", server.url, trusted) as (one, other):
            assert await one.statuses(4) == [200] * 4
            await exchanged(one, other)
            assert await other.statuses(1) == [429]
        async with fleet(1, worker.url, "requests_per_minute: 4", server.url, away=True) as (one,):
            await eventually(lambda: one.counts.errors)
            assert await one.statuses(1) == [200]
    assert said(lines, "holds limits alone") == 1


async def test_over_a_unix_socket(worker: RawWorker) -> None:
    with redis_server() as server:
        async with fleet(2, worker.url, "requests_per_minute: 4", server.unix_url) as (one, other):
            assert await one.statuses(4) == [200] * 4
            await exchanged(one, other)
            assert await other.statuses(1) == [429]


@pytest.mark.parametrize(
    ("sharing", "path", "text"),
    [
        ("redis: 'http://127.0.0.1'", "redis", "begins with redis://"),
        ("redis: 'redis://:canary@127.0.0.1:6379?socket_timeout=9'", "redis", "without options"),
        ("redis: 'redis://:canary@127.0.0.1/one'", "redis", "a Redis database is a number"),
        ("redis: 'redis://:canary@127.0.0.1:port'", "redis", "a port is between"),
        ("redis: 'redis://h', interval: 1s, timeout: 1s", "ttl", "must be at least 6 s"),
        ("redis: 'redis://h', interval: 1ms", "interval", "0.05"),
        ("redis: 'redis://h', prefix: 'a{b}'", "prefix", "without spaces and braces"),
        ("redis: 'redis://h', tls_ca: ca.pem", "tls_ca", "needs a rediss:// URL"),
        ("interval: 1s", "redis", "required"),
        ("redis: 'redis://h', cluster: true", "cluster", "unknown"),
    ],
)
def test_settings_that_are_none_are_told_without_the_password(sharing: str, path: str, text: str) -> None:
    section = tenants("acme", more=f", shared_limits: {{{sharing}}}")
    with pytest.raises(ConfigError) as told:
        parse_config("workers: [{url: 'http://127.0.0.1:1'}]\n" + section)
    (problem,) = told.value.problems
    assert problem.path == f"tenants.shared_limits.{path}"
    assert text in problem.text
    assert "canary" not in str(told.value)


def test_it_needs_tenants() -> None:
    with pytest.raises(ConfigError, match=r"tenants\.members"):
        parse_config("workers: [{url: 'http://127.0.0.1:1'}]\ntenants: {shared_limits: {redis: 'redis://h'}}\n")
