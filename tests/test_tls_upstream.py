"""TLS to workers: who is believed, what their ends mean, and what a pool does with its connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.errors import UpstreamFault
from backends.http1 import ResponseHead
from backends.tls import TlsError, TlsFiles, UpstreamTls, UpstreamTlsSpec
from backends.upstream import UpstreamConnection
from backends.upstream_pool import UpstreamPool
from gateway.config import Config
from tests.data_plane_fixtures import (
    BODY,
    Answer,
    RawWorker,
    Turn,
    ask,
    blackhole,
    client_of,
    hold,
    inside,
    plane,
    say_ok,
    says,
)
from tests.gateway_fixtures import eventually
from tests.tls_fixtures import Authority, Pair, authority, server_pair

REQUEST = b"POST / HTTP/1.1\r\nhost: w\r\ncontent-length: 0\r\n\r\n"


def tls_worker(answer: Answer = say_ok, pair: Pair | None = None, *, asks_clients: bool = False) -> RawWorker:
    context = authority().server_context(pair or server_pair(), asks_clients=asks_clients)
    return RawWorker(answer, tls=context)


def trusting(worker: RawWorker, tls: str = "", *, upstream: str = "cooldown: 60s, cooldown_max: 60s") -> Config:
    settings = f", tls: {{ca: {authority().ca}{tls}}}"
    return plane([worker.url], worker=settings, upstream=upstream)


# Through the gateway


async def test_requests_reach_a_worker_over_tls() -> None:
    async with tls_worker().running() as worker, inside(trusting(worker)) as gateway:
        for body in (BODY, BODY + b" " * 3_000_000, BODY):
            async with client_of(gateway) as client:
                client.post(body)
                assert (await client.response()).body == b"ok"
        assert [body for _, body in worker.requests] == [BODY, BODY + b" " * 3_000_000, BODY]
        assert worker.connections == 1


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ("authority", "self-signed certificate in certificate chain"),
        ("expired", "certificate has expired"),
        ("name", "IP address mismatch"),
        ("server_name", "Hostname mismatch"),
    ],
)
async def test_a_certificate_that_is_not_accepted(
    problem: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker counts as refusing: named once, left out for a while, and nothing is sent to it."""
    pair = {
        "expired": authority().issue("out_of_date", begins=-9, ends=-1),
        "name": authority().issue("elsewhere", "10.9.9.9"),
        "authority": Authority(tmp_path, "another authority").issue("stranger"),
    }.get(problem)
    async with tls_worker(pair=pair).running() as worker:
        extra = ", server_name: other.example" if problem == "server_name" else ""
        async with inside(trusting(worker, extra)) as gateway:
            caplog.clear()
            for _ in range(5):
                assert (await ask(gateway)).status == 502
            warnings = [
                record.getMessage()
                for record in caplog.records
                if record.levelno >= logging.WARNING and "is left out" not in record.getMessage()
            ]
            assert len(warnings) == 1
            assert said in warnings[0]
            assert "certificate not accepted" in warnings[0]
            assert gateway.upstreams == gateway.active == 0
        assert worker.requests == []


async def test_another_worker_takes_over_where_a_certificate_is_not_accepted() -> None:
    bad_pair = authority().issue("outdated", begins=-9, ends=-1)
    async with tls_worker(pair=bad_pair).running() as bad, tls_worker().running() as good:
        config = plane(
            [bad.url, good.url], worker=f", tls: {{ca: {authority().ca}}}", extra="routing: {policy: round_robin}"
        )
        async with inside(config) as gateway:
            for _ in range(6):
                assert (await ask(gateway)).body == b"ok"
    assert len(good.requests) == 6


@pytest.mark.parametrize("tls", [", verify: false", ", server_name: worker.example"])
async def test_a_certificate_that_is_not_checked_or_has_another_name(tls: str) -> None:
    pair = authority().issue("by_name", "worker.example")
    async with tls_worker(pair=pair).running() as worker, inside(trusting(worker, tls)) as gateway:
        assert (await ask(gateway)).body == b"ok"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_worker_that_asks_for_a_certificate(version: ssl.TLSVersion) -> None:
    own = authority().issue("gateway")
    worker = tls_worker(asks_clients=True)
    assert worker.tls is not None
    worker.tls.maximum_version = version
    async with worker.running():
        async with inside(trusting(worker, f", certificate: {own.certificate}, key: {own.key}")) as gateway:
            assert (await ask(gateway)).body == b"ok"
        async with inside(trusting(worker)) as gateway:
            assert (await ask(gateway)).status == 502
            assert gateway.active == 0
    assert len(worker.requests) == 1


async def test_tls_to_a_worker_without_and_none_to_one_with_it() -> None:
    async with RawWorker().running() as worker, inside(plane([worker.url])) as plain:
        async with inside(plane([plain.url.replace("http", "https")])) as gateway:
            response = await ask(gateway)
            assert response.status == 502
            assert "connection refused" in str(response.error["message"])
        assert worker.requests == []
    async with (
        tls_worker().running() as encrypted,
        inside(plane([encrypted.url.replace("https", "http")])) as gateway,
    ):
        assert (await ask(gateway)).status == 502


async def test_the_probe_speaks_tls_too() -> None:
    async def models(turn: Turn) -> None:
        turn.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async with tls_worker(models).running() as worker, inside(trusting(worker)) as gateway:
        await ask(gateway)
        assert len(worker.handshakes) >= 2, "the probe's, and the request's"


async def test_a_worker_that_never_shakes_hands() -> None:
    with blackhole() as silent:
        config = plane(
            [silent.url.replace("http", "https")],
            worker=f", tls: {{ca: {authority().ca}}}",
            upstream="connect_timeout: 0.3s, model_refresh: 1h",
        )
        async with inside(config) as gateway:
            silent.open()
            assert (await ask(gateway)).status == 504
            assert gateway.upstreams == 0

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    config = plane(
        [url], worker=f", tls: {{ca: {authority().ca}}}", upstream="connect_timeout: 0.3s, model_refresh: 1h"
    )
    async with inside(config) as gateway:
        assert (await ask(gateway)).status == 504
        assert gateway.upstreams == gateway.active == 0
    server.close()


@pytest.mark.parametrize("leaves", ["mid-stream", "while shaking hands"])
async def test_a_client_that_leaves(leaves: str) -> None:
    shaking = asyncio.Event()
    closed = asyncio.Event()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shaking.set()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        closed.set()
        writer.close()

    async def stream(turn: Turn) -> None:
        turn.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await turn.until_closed()

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    async with tls_worker(stream).running() as worker:
        config = trusting(worker)
        if leaves == "while shaking hands":
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            config = config.model_copy(update={"workers": (config.workers[0].model_copy(update={"url": url}),)})
        async with inside(config) as gateway:
            shaking.clear()
            closed.clear()
            async with client_of(gateway) as client:
                client.post()
                if leaves == "mid-stream":
                    await client.reader.readuntil(b"abc")
                else:
                    await eventually(lambda: gateway.pools[0].connecting == 1 and shaking.is_set())
                client.reset()
                await eventually(lambda: gateway.upstreams == gateway.active == gateway.pools[0].connecting == 0)
            await eventually(lambda: not worker.open)
            if leaves != "mid-stream":
                async with asyncio.timeout(5):
                    await closed.wait()
    server.close()


# What an end means

STREAM = b"HTTP/1.1 200 OK\r\n\r\nabc"


async def cut(turn: Turn) -> None:
    """The end of TCP without that of TLS, as whoever sits on the wire can make it."""
    turn.write(STREAM)
    await turn.writer.drain()
    await asyncio.sleep(0.05)
    turn.writer.transport.abort()


async def test_a_stream_that_is_cut_off_is_not_complete() -> None:
    async with tls_worker(cut).running() as worker, inside(trusting(worker)) as gateway:
        async with client_of(gateway) as client:
            client.post()
            with pytest.raises(ConnectionError):
                await client.response()
        worker.answer = says(STREAM, close=True)
        assert (await ask(gateway)).body == b"abc"


# The pool


class Sink:
    """Takes one answer."""

    unchunk = False

    def __init__(self) -> None:
        self.connection: UpstreamConnection | None = None
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def connected(self, connection: UpstreamConnection) -> None:
        self.connection = connection

    def response_head(self, head: ResponseHead, length: int | None, body: bytes) -> None:
        pass

    def response_data(self, data: bytes) -> None:
        pass

    def response_end(self) -> None:
        self.over.set_result("end")

    def response_fault(self, fault: UpstreamFault, detail: str) -> None:
        self.over.set_result(f"{fault.name}: {detail}")

    async def ended(self) -> str:
        async with asyncio.timeout(5):
            return await self.over


@contextlib.asynccontextmanager
async def pool_of(worker: RawWorker, tls: TlsFiles | None = None, *, max_idle: int = 8) -> AsyncIterator[UpstreamPool]:
    pool = UpstreamPool(
        "127.0.0.1",
        worker.port,
        connect_timeout=2.0,
        keepalive=60.0,
        max_idle=max_idle,
        loop=asyncio.get_running_loop(),
        tls=tls,
    )
    try:
        yield pool
    finally:
        await pool.close()


def counts(pool: UpstreamPool) -> tuple[int, int, int]:
    return pool.connecting, pool.open_connections, pool.idle


@pytest.mark.parametrize("tls", [False, True])
async def test_a_pool_counts_and_can_be_retired(tls: bool) -> None:
    go = asyncio.Event()

    async def answer(turn: Turn) -> None:
        await go.wait()
        await say_ok(turn)

    worker = tls_worker(answer) if tls else RawWorker(answer)
    files = UpstreamTls(UpstreamTlsSpec(ca=authority().ca)) if tls else None
    async with worker.running(), pool_of(worker, files) as pool:
        first, second, third = Sink(), Sink(), Sink()
        pool.send(REQUEST, first)
        pool.send(REQUEST, second)
        assert counts(pool) == (2, 0, 0)
        await eventually(lambda: len(worker.requests) == 2)
        assert counts(pool) == (0, 2, 0)
        go.set()
        assert [await first.ended(), await second.ended()] == ["end", "end"]
        assert counts(pool) == (0, 2, 2)
        go.clear()
        busy, late = Sink(), Sink()
        pool.send(REQUEST, busy)
        pool.send(REQUEST, third, fresh=True)
        await eventually(lambda: len(worker.requests) == 4)
        assert counts(pool) == (0, 3, 1)
        opening = Sink()
        pool.send(REQUEST, opening, fresh=True)
        pool.close_idle()
        await eventually(lambda: counts(pool) == (0, 3, 0))
        pool.send(REQUEST, late)
        assert not late.over.done(), "told in a step of its own"
        assert await late.ended() == "REFUSED: the worker has been removed"
        cancelled = Sink()
        pool.send(REQUEST, cancelled)
        pool.cancel(cancelled)
        go.set()
        assert [await sink.ended() for sink in (busy, third, opening)] == ["end", "end", "end"]
        await eventually(lambda: counts(pool) == (0, 0, 0))
        assert not cancelled.over.done()
    assert len(worker.requests) == 5


async def test_a_closed_pool_opens_nothing() -> None:
    async with tls_worker(hold).running() as worker:
        async with pool_of(worker, UpstreamTls(UpstreamTlsSpec(ca=authority().ca))) as pool:
            sink = Sink()
            pool.send(REQUEST, sink)
            await eventually(lambda: worker.requests)
        late = Sink()
        pool.send(REQUEST, late)
        assert (await late.ended()).startswith("REFUSED")
        await eventually(lambda: not worker.open and counts(pool) == (0, 0, 0))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_later_handshakes_are_short_ones(version: ssl.TLSVersion) -> None:
    worker = tls_worker()
    assert worker.tls is not None
    worker.tls.maximum_version = version
    async with (
        worker.running(),
        pool_of(worker, UpstreamTls(UpstreamTlsSpec(ca=authority().ca)), max_idle=0) as pool,
    ):
        for _ in range(4):
            sink = Sink()
            pool.send(REQUEST, sink)
            assert await sink.ended() == "end"
    assert worker.handshakes == [False, True, True, True]


async def test_changed_files_are_taken_up(tmp_path: Path) -> None:
    """A worker whose authority changes; a file that is spoilt leaves the one before in force."""
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new", "another authority")
    worker = RawWorker(tls=new.server_context(new.issue("worker")))
    tls = UpstreamTls(UpstreamTlsSpec(ca=old.ca))
    async with worker.running(), pool_of(worker, tls) as pool:
        before = Sink()
        pool.send(REQUEST, before)
        assert (await before.ended()).startswith("REFUSED: TLS: certificate not accepted: ")
        old.ca.write_bytes(new.ca.read_bytes())
        assert tls.reload()
        for spoilt in (False, True):
            if spoilt:
                old.ca.write_text("spoilt")
                with pytest.raises(TlsError, match=r"ca\.pem"):
                    tls.reload()
            after = Sink()
            pool.send(REQUEST, after, fresh=True)
            assert await after.ended() == "end"


async def test_an_answer_that_comes_with_the_end() -> None:
    """Everything in one segment: the answer and `close_notify`."""
    async with (
        tls_worker(says(STREAM, close=True)).running() as worker,
        pool_of(worker, UpstreamTls(UpstreamTlsSpec(ca=authority().ca))) as pool,
    ):
        sink = Sink()
        pool.send(REQUEST, sink)
        assert await sink.ended() == "end"
        await eventually(lambda: counts(pool) == (0, 0, 0))
