"""TLS for clients, over real sockets: who is let in, what an end means, and certificates that change."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.tls import TlsError
from gateway.config.schema import ListenTls
from gateway.tls import ServerTls
from tests.data_plane_fixtures import BODY, Inside, RawWorker, Turn, ask, client_of, inside, plane, post
from tests.gateway_fixtures import eventually, exchange
from tests.ports import free_port
from tests.tls_fixtures import Authority, Pair, authority, listen_tls, server_pair


@pytest.fixture
async def worker() -> AsyncIterator[RawWorker]:
    async with RawWorker().running() as worker:
        yield worker


@contextlib.asynccontextmanager
async def serving(worker: RawWorker, listen: str = "", *, extra: str = "", limits: str = "") -> AsyncIterator[Inside]:
    config = plane([worker.url], listen=listen or listen_tls(), extra=extra, limits=limits)
    async with inside(config) as gateway:
        yield gateway


async def refused(gateway: Inside, context: ssl.SSLContext) -> None:
    """No answer to a client with this context, and no hang."""

    async def try_it() -> None:
        async with client_of(gateway, tls=context) as client:
            client.post()
            await client.response()

    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        await try_it()
    await eventually(lambda: not gateway.server._handshakes and not gateway.server.connections)


def old(context: ssl.SSLContext, version: ssl.TLSVersion) -> ssl.SSLContext:
    context.maximum_version = version
    return context


# Handshakes


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_both_versions_are_served(worker: RawWorker, version: ssl.TLSVersion) -> None:
    context = old(authority().client_context(), version)
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with serving(worker) as gateway, client_of(gateway, tls=context) as client:
        tls = client.writer.get_extra_info("ssl_object")
        assert tls.version() == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[version.name]
        assert tls.selected_alpn_protocol() == "http/1.1"
        for _ in range(3):
            client.post()
            assert (await client.response()).body == b"ok"
        assert gateway.server.failed_handshakes == 0


async def test_who_does_not_trust_the_certificate_leaves(worker: RawWorker, tmp_path: Path) -> None:
    async with serving(worker) as gateway:
        await refused(gateway, Authority(tmp_path).client_context())
        assert gateway.server.failed_handshakes == 1
        assert (await ask(gateway)).body == b"ok"


async def test_clients_that_must_show_a_certificate(worker: RawWorker, tmp_path: Path) -> None:
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others", "another authority")
    async with serving(worker, listen_tls(client_ca=ours.ca)) as gateway:
        trusting = authority().client_context
        async with client_of(gateway, tls=trusting(ours.issue("friend"))) as client:
            client.post()
            assert (await client.response()).body == b"ok"
        for context in (
            trusting(),
            trusting(ours.issue("expired", begins=-9, ends=-1)),
            trusting(ours.issue("early", begins=2)),
            trusting(others.issue("stranger")),
        ):
            await refused(gateway, context)
            await refused(gateway, old(context, ssl.TLSVersion.TLSv1_2))
        assert gateway.server.failed_handshakes == 8
    assert len(worker.requests) == 1


async def test_plain_http_on_the_port_for_tls(worker: RawWorker) -> None:
    async with serving(worker) as gateway:
        url = gateway.url.replace("https", "http")
        for pieces in (None, 1):
            said = await exchange(url, post(), pieces=pieces)
            assert not said.startswith(b"HTTP/1.1 200")
        await eventually(lambda: not gateway.server._handshakes)
        assert gateway.server.failed_handshakes == 2
    assert worker.requests == []


async def test_tls_on_the_port_for_plain_http(worker: RawWorker) -> None:
    async with inside(plane([worker.url])) as gateway:
        with pytest.raises(ssl.SSLError):
            async with client_of(gateway, tls=authority().client_context()):
                pass
        hello = ssl.MemoryBIO()
        shy = authority().client_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            shy.do_handshake()
        said = await exchange(gateway.url, hello.read())
        assert said.startswith(b"HTTP/1.1 400 ")
        assert b"not TLS" in said
    assert worker.requests == []


async def test_handshakes_have_a_deadline(worker: RawWorker) -> None:
    async with serving(worker, limits="head_timeout: 0.3s") as gateway:
        url = gateway.url.replace("https", "http")
        assert await exchange(url, b"") == b""
        assert await exchange(url, b"\x16\x03\x01") == b""
        assert gateway.server.failed_handshakes == 2
        assert not gateway.server._handshakes


async def test_handshakes_that_are_never_made_are_bounded_and_end_with_the_server(worker: RawWorker) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with serving(worker, limits="max_connections: 3") as gateway:
            port = int(gateway.url.rpartition(":")[2])
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            for _, writer in silent:
                stack.callback(writer.close)
            await eventually(lambda: len(gateway.server._handshakes) == 3)
            assert await exchange(gateway.url.replace("https", "http"), b"") == b""
            assert len(gateway.server._handshakes) == 3
        assert [await reader.read() for reader, _ in silent] == [b"", b"", b""]


class ByHand:
    """A client that decides when each byte of a record is sent."""

    def __init__(self, context: ssl.SSLContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="127.0.0.1")
        self.reader, self.writer = reader, writer

    async def send(self, *, at_a_time: int = 1) -> None:
        data = self.outgoing.read()
        for at in range(0, len(data), at_a_time):
            self.writer.write(data[at : at + at_a_time])
            await asyncio.sleep(0)

    async def shake(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.send()
                self.incoming.write(await self.reader.read(1))
            else:
                await self.send()
                return

    async def read(self) -> bytes:
        """Up to one record; b"" for the proper end. Raises ConnectionResetError where TCP ends without one."""
        async with asyncio.timeout(10):
            while True:
                try:
                    return self.tls.read(1 << 16)
                except ssl.SSLZeroReturnError:
                    return b""
                except ssl.SSLWantReadError:
                    data = await self.reader.read(1 << 16)
                    if not data:
                        raise ConnectionResetError from None
                    self.incoming.write(data)

    async def rest(self) -> bytes:
        said = b""
        while piece := await self.read():
            said += piece
        return said


@contextlib.asynccontextmanager
async def by_hand(gateway: Inside, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> AsyncIterator[ByHand]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
    try:
        client = ByHand(old(authority().client_context(), version), reader, writer)
        await client.shake()
        yield client
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_one_byte_at_a_time(worker: RawWorker, version: ssl.TLSVersion) -> None:
    """Each byte of the handshake and of the records in a segment of its own, and many requests in one."""
    async with serving(worker) as gateway, by_hand(gateway, version) as client:
        client.tls.write(post())
        await client.send()
        assert (await client.read()).endswith(b"\r\n\r\nok")
        for _ in range(5):
            client.tls.write(post())
        client.tls.write(post(BODY, b"Connection: close"))
        await client.send(at_a_time=1 << 20)
        assert (await client.rest()).count(b"HTTP/1.1 200 ") == 6
    assert len(worker.requests) == 7


async def test_bytes_that_are_no_record(worker: RawWorker) -> None:
    async with serving(worker) as gateway, by_hand(gateway) as client:
        client.tls.write(post())
        data = bytearray(client.outgoing.read())
        data[-1] ^= 1
        client.writer.write(data)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await client.rest()
        await eventually(lambda: not gateway.server.connections)
    assert worker.requests == []


async def test_a_key_update_in_between(worker: RawWorker) -> None:
    """A long body in many records, of sizes that meet no boundary of anything."""
    body = BODY + b" " * 300_000
    rng = random.Random(3)
    async with serving(worker) as gateway, by_hand(gateway) as client:
        raw, at = post(body), 0
        while at < len(raw):
            size = rng.randrange(1, 20_000)
            client.tls.write(raw[at : at + size])
            await client.send(at_a_time=rng.randrange(1, 30_000))
            at += size
        assert (await client.read()).endswith(b"ok")
    assert worker.requests[0][1] == body


# Ends


async def cut_length(turn: Turn) -> None:
    turn.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc")
    await turn.close()


async def cut_chunks(turn: Turn) -> None:
    turn.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
    await turn.close()


async def cut_stream(turn: Turn) -> None:
    turn.write(b"HTTP/1.1 200 OK\r\n\r\nabc")
    await turn.writer.drain()
    await asyncio.sleep(0.05)
    turn.reset()


@pytest.mark.parametrize("answer", [cut_length, cut_chunks])
async def test_a_truncated_answer_with_a_framing_lacks_its_end(worker: RawWorker, answer: object) -> None:
    worker.answer = answer  # type: ignore[assignment]  # one of the two above
    async with serving(worker) as gateway, client_of(gateway) as client:
        client.post()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.response()


async def test_a_truncated_answer_without_a_framing_has_no_proper_end(worker: RawWorker) -> None:
    worker.answer = cut_stream
    async with serving(worker) as gateway, by_hand(gateway) as client:
        client.tls.write(post())
        await client.send()
        with pytest.raises(ConnectionError):
            await client.rest()

    async def whole(turn: Turn) -> None:
        turn.write(b"HTTP/1.1 200 OK\r\n\r\nabc")
        await turn.close()

    worker.answer = whole
    async with serving(worker) as gateway, by_hand(gateway) as client:
        client.tls.write(post())
        await client.send()
        assert (await client.rest()).endswith(b"abc")


async def test_a_refusal_ends_properly_while_the_client_is_still_sending(worker: RawWorker) -> None:
    async with serving(worker, limits="body_bytes: 32KiB") as gateway, by_hand(gateway) as client:
        client.tls.write(post(b"x" * 40_000)[:10_000])
        await client.send(at_a_time=1 << 20)
        said = asyncio.ensure_future(client.rest())
        for _ in range(50):
            client.tls.write(b"x" * 16_000)
            await client.send(at_a_time=1 << 20)
        assert (await said).startswith(b"HTTP/1.1 413 ")


async def test_a_client_that_says_goodbye_within_tls_is_gone(worker: RawWorker) -> None:
    """`close_notify`, and TCP stays open."""

    async def stream(turn: Turn) -> None:
        turn.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await turn.until_closed()

    worker.answer = stream
    async with serving(worker) as gateway, by_hand(gateway) as client:
        client.tls.write(post())
        await client.send()
        while b"abc" not in await client.read():
            pass
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.unwrap()
        await client.send()
        await eventually(lambda: not worker.open and not gateway.server.connections)
        assert gateway.active == 0


async def test_many_kinds_of_answers_come_whole(worker: RawWorker) -> None:
    """Larger than a record, than a read and than the limit of what is held, to clients that read in bursts."""
    blocks = [random.Random(n).randbytes(n) for n in (1, 16_383, 16_384, 16_385, 100_000, 3_000_000)]

    async def answer(turn: Turn) -> None:
        block = blocks[int(turn.body[len(BODY) :].count(b" "))]
        turn.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(block), block))

    worker.answer = answer
    async with (
        serving(worker, limits="buffer_bytes: 16KiB") as gateway,
        client_of(gateway, rcvbuf=8_192) as client,
    ):
        for n in range(len(blocks)):
            client.post(BODY + b" " * n)
        for block in blocks:
            got = (await client.response()).body
            assert hashlib.sha256(got).digest() == hashlib.sha256(block).digest()


# Certificates that change


def settings(pair: Pair, client_ca: Path | None = None) -> ListenTls:
    return ListenTls(certificate=pair.certificate, key=pair.key, client_ca=client_ca)


def shown_by(gateway: Inside) -> bytes:
    """The certificate that a new connection is shown."""
    with (
        socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2])), 5) as sock,
        authority().client_context().wrap_socket(sock, server_hostname="127.0.0.1") as tls,
    ):
        shown = tls.getpeercert(binary_form=True)
    assert shown is not None
    return shown


def first_of(pair: Pair) -> bytes:
    pem = pair.certificate.read_text().partition("-----END")[0] + "-----END CERTIFICATE-----\n"
    return ssl.PEM_cert_to_DER_cert(pem)


async def test_a_changed_certificate_is_taken_up_and_no_connection_dropped(
    worker: RawWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    pair, renewed = authority().issue("renewable"), authority().issue("renewed")
    before, after = first_of(pair), first_of(renewed)
    async with (
        serving(worker, listen_tls(pair), extra="reload: {watch: 50ms}") as gateway,
        client_of(gateway) as client,
    ):
        client.post()
        await client.response()
        assert await asyncio.to_thread(shown_by, gateway) == before
        # First the certificate alone, as a writer that is half done leaves them
        key = pair.key.read_bytes()
        pair.certificate.write_bytes(renewed.certificate.read_bytes())
        await eventually(lambda: "cannot be used" in caplog.text)
        await asyncio.sleep(0.6)
        assert caplog.text.count("cannot be used") == 1, "said once"
        assert key.decode() not in caplog.text
        assert await asyncio.to_thread(shown_by, gateway) == before
        renewed.copy_to(pair)
        await eventually(lambda: "in force for new connections" in caplog.text)
        assert await asyncio.to_thread(shown_by, gateway) == after
        client.post()
        assert (await client.response()).body == b"ok", "on the connection that was open all the time"


def test_a_reload_is_all_or_nothing(tmp_path: Path) -> None:
    ours = Authority(tmp_path)
    pair, other = ours.issue("one"), ours.issue("two")
    tls = ServerTls(settings(pair, ours.ca))
    first = tls.context
    assert not tls.reload(), "nothing has changed"
    for spoil in (
        lambda: pair.key.write_bytes(other.key.read_bytes()),
        lambda: pair.key.write_text("nonsense"),
        pair.key.unlink,
        lambda: pair.certificate.write_text(""),
    ):
        spoil()
        with pytest.raises(TlsError, match=r"one\.(key|pem)"):
            tls.reload()
        assert not tls.reload(), "told once"
        assert tls.context is first
    other.copy_to(pair)
    assert tls.reload()
    assert tls.context is not first
    second = tls.context
    ours.ca.write_text("no authority")
    with pytest.raises(TlsError):
        tls.reload()
    assert tls.context is second


def test_files_that_make_no_context_at_the_start(tmp_path: Path) -> None:
    pair = server_pair()
    missing = tmp_path / "missing.pem"
    with pytest.raises(TlsError, match=r"missing\.pem: No such file"):
        ServerTls(ListenTls(certificate=missing, key=pair.key))
    with pytest.raises(TlsError, match="key values mismatch"):
        ServerTls(ListenTls(certificate=pair.certificate, key=authority().issue("unrelated").key))


# Through a chain


async def test_a_loop_through_two_gateways_with_tls_is_refused() -> None:
    """Each is the other's worker; the request goes round once."""
    port = free_port()
    trust = f", tls: {{ca: {authority().ca}}}"
    upstream = "model_refresh: 1h"
    first_config = plane([f"https://127.0.0.1:{port}"], listen=listen_tls(), worker=trust, upstream=upstream)
    async with inside(first_config) as first:
        second_config = plane([first.url], worker=trust, upstream=upstream, listen=listen_tls())
        listen = second_config.listen.model_copy(update={"port": port})
        async with inside(second_config.model_copy(update={"listen": listen})) as second:
            for gateway in (first, second):
                response = await ask(gateway)
                assert response.status == 508
                assert "come through this gateway before" in str(response.error["message"])
            await eventually(lambda: first.active == second.active == 0)


async def test_a_chain_of_two_gateways_with_tls(worker: RawWorker) -> None:
    trust = f", tls: {{ca: {authority().ca}}}"
    async with (
        inside(plane([worker.url], listen=listen_tls())) as inner,
        inside(plane([inner.url], listen=listen_tls(), worker=trust)) as outer,
    ):
        for _ in range(3):
            assert (await ask(outer)).body == b"ok"
    vias = [line for line in worker.requests[0][0].split(b"\r\n") if line.startswith(b"via: ")]
    assert len(vias) == 1
    assert vias[0].count(b"1.1 prefixgate-") == 2
