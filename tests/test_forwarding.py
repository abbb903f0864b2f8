"""Whose word on a request's origin is believed, and what of it goes on."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.http1 import HttpError, RequestHead, parse_request_head, request_heads
from backends.upstream_request import render_request
from gateway.forwarding import Forwarding
from tests.data_plane_fixtures import BODY, RawWorker, ask, fields_of, inside, plane, post

TRUSTED = Forwarding(["10.0.0.0/8", "192.168.7.7", "fd00::/8"])
PROXY = "10.1.2.3"


def head(*fields: bytes) -> RequestHead:
    return parse_request_head(b"\r\n".join([b"POST /v1/x HTTP/1.1", b"Host: h", *fields, b"", b""]), None)[0]


def told(*fields: bytes, peer: str = PROXY) -> bytes:
    return TRUSTED.fields(peer, head(*fields))


FOR = b"X-Forwarded-For: 203.0.113.9"


@pytest.mark.parametrize(
    ("peer", "trusted"),
    [
        ("10.255.255.255", True),
        ("11.0.0.0", False),
        ("192.168.7.7", True),
        ("192.168.7.8", False),
        ("::ffff:10.0.0.1", True),
        ("::ffff:11.0.0.1", False),
        ("fd00::1", True),
        ("fd00::1%eth0", True),
        ("fe80::1", False),
        ("", False),
        ("a name", False),
    ],
)
def test_who_is_trusted(peer: str, trusted: bool) -> None:
    assert TRUSTED.trusts(peer) is trusted
    assert bool(told(FOR, peer=peer)) is trusted
    assert TRUSTED.client_address(peer, head(FOR)) == ("203.0.113.9" if trusted else peer)
    assert not Forwarding().trusts(peer)
    assert Forwarding().fields(peer, head(FOR)) == b""


def test_a_proxy_adds_itself() -> None:
    assert told(FOR) == b"\r\nx-forwarded-for: 203.0.113.9, 10.1.2.3"
    assert told(FOR, peer="::ffff:10.1.2.3") == b"\r\nx-forwarded-for: 203.0.113.9, 10.1.2.3"
    several = (b"x-forwarded-for: 203.0.113.9,198.51.100.1", b"X-Forwarded-For: 10.9.9.9")
    assert told(*several) == b"\r\nx-forwarded-for: 203.0.113.9, 198.51.100.1, 10.9.9.9, 10.1.2.3"
    assert told(FOR, b"X-Forwarded-Proto: HTTPS", b"X-Forwarded-Host: api.example.com:8443") == (
        b"\r\nx-forwarded-for: 203.0.113.9, 10.1.2.3"
        b"\r\nx-forwarded-proto: https\r\nx-forwarded-host: api.example.com:8443"
    )
    assert told() == b""
    assert told(b"X-Forwarded-Proto: http") == b"\r\nx-forwarded-proto: http"


@pytest.mark.parametrize(
    ("value", "hops"),
    [
        (b"203.0.113.9:4711", "203.0.113.9"),
        (b"[2001:db8::1]:443", "2001:db8::1"),
        (b"2001:DB8::1", "2001:db8::1"),
        (b"::ffff:203.0.113.9", "203.0.113.9"),
        (b" 203.0.113.9 ,\t198.51.100.1 ", "203.0.113.9, 198.51.100.1"),
    ],
)
def test_forms_of_addresses(value: bytes, hops: str) -> None:
    assert told(b"X-Forwarded-For: " + value) == f"\r\nx-forwarded-for: {hops}, {PROXY}".encode()


@pytest.mark.parametrize(
    "value",
    [
        b"", b",", b"unknown", b"_hidden", b"203.0.113.9,", b"203.0.113.256", b"203.0.113", b"1", b"203.0.113.09",
        b"203.0.113.9; evil", b"203.0.113.9 198.51.100.1", b"[::1", b"::1]", b"fe80::1%eth0", b"127.1", b"0x7f000001",
        b"<script>", b"\xff", b"203.0.113.9:x", b", ".join([b"203.0.113.9"] * 33),
    ],
)  # fmt: skip
def test_malformed_addresses_are_dropped(value: bytes) -> None:
    assert told(b"X-Forwarded-For: " + value) == b""
    assert TRUSTED.client_address(PROXY, head(b"X-Forwarded-For: " + value)) == PROXY


@pytest.mark.parametrize("value", [b"", b"https, http", b"ftp", b"https ;", b"\xe9"])
def test_malformed_protocols_are_dropped(value: bytes) -> None:
    assert told(b"X-Forwarded-Proto: " + value, FOR) == told(FOR)


@pytest.mark.parametrize("value", [b"", b"a b", b"a, b", b"a/b", b"user@a", b"[::1", b"a:b", b"a:123456", b"\xe9"])
def test_malformed_hosts_are_dropped(value: bytes) -> None:
    assert told(b"X-Forwarded-Host: " + value, FOR) == told(FOR)


def test_the_client_is_the_last_hop_that_nobody_vouches_for() -> None:
    def client(value: bytes, peer: str = PROXY) -> str:
        return TRUSTED.client_address(peer, head(b"X-Forwarded-For: " + value))

    assert client(b"203.0.113.9") == "203.0.113.9"
    assert client(b"1.1.1.1, 203.0.113.9, 10.4.4.4") == "203.0.113.9", "what a client writes itself stands further left"
    assert client(b"10.5.5.5, 10.4.4.4") == "10.5.5.5"
    assert client(b"203.0.113.9", peer="203.0.113.77") == "203.0.113.77"
    assert TRUSTED.client_address(PROXY, head()) == PROXY


@given(st.binary(max_size=60).map(lambda value: value.replace(b"\r", b"").replace(b"\n", b"").replace(b"\0", b"")))
def test_whatever_is_told_makes_no_line_of_its_own(value: bytes) -> None:
    values = [value, b"203.0.113.9, " + value, value + b", 203.0.113.9"]
    for each in values:
        try:
            request = head(b"X-Forwarded-For: " + each, b"X-Forwarded-Proto: " + each, b"X-Forwarded-Host: " + each)
        except Exception:  # noqa: BLE001 - heads that are refused are not this test's
            continue
        lines = TRUSTED.fields(PROXY, request)
        assert all(line.partition(b":")[0].startswith(b"x-forwarded-") for line in lines.split(b"\r\n")[1:])
        assert lines.count(b"\n") == lines.count(b"\r") <= 3
        TRUSTED.client_address(PROXY, request)


# Through the gateway

ALL = (
    FOR,
    b"X-Forwarded-Proto: https",
    b"X-Forwarded-Host: api.example.com",
    b"X-Forwarded-Port: 443",
    b"X-Forwarded-Client-Cert: Subject=admin",
    b"x-real-ip: 203.0.113.9",
    b"Forwarded: for=203.0.113.9;proto=https",
    b"X-Forward: stays",
)


@pytest.fixture
async def worker() -> AsyncIterator[RawWorker]:
    async with RawWorker().running() as worker:
        yield worker


@pytest.mark.parametrize(
    ("listen", "expected"),
    [
        ("", {}),
        (", trusted_proxies: [10.0.0.0/8]", {}),
        (
            ", trusted_proxies: [127.0.0.0/8]",
            {
                "x-forwarded-for": "203.0.113.9, 127.0.0.1",
                "x-forwarded-proto": "https",
                "x-forwarded-host": "api.example.com",
            },
        ),
    ],
)
async def test_what_reaches_the_worker(worker: RawWorker, listen: str, expected: dict[str, str]) -> None:
    async with inside(plane([worker.url], listen=listen)) as gateway:
        for fields in (ALL, (*ALL, b"Content-Encoding: identity"), ()):
            assert (await ask(gateway, post(BODY, *fields))).status == 200
        hidden = (*ALL, b"Connection: x-forwarded-for, x-forwarded-proto, x-forwarded-host")
        await ask(gateway, post(BODY, *hidden))
    own = {"host", "content-length", "via", "x-request-id", "x-forward", "content-encoding"}
    got = [{k: v for k, v in fields_of(head[:-4]).items() if k not in own} for head, _ in worker.requests]
    assert got == [expected, expected, {}, {}]


_MUTATED_HEADS = (
    b"POST /v1/x?y HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nConnection: a, close\r\nA: b\r\nCookie: k\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nVia: 1.1 z\r\nX-Request-Id: q\r\n\r\n",
)
_SCRAPS = (
    b"\r\n", b"\r", b"\n", b"\x00", b" ", b"\t", b":", b"\x0b", b",", b"Content-Length: 7\r\n", b"content-length:",
    b"Transfer-Encoding: chunked\r\n", b"Host: y\r\n", b"Connection: content-length, host, via\r\n", b"\r\n ",
)  # fmt: skip


class _Listener:
    """What llhttp makes of a request, as a worker that uses it would."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self.body = b""
        self.begun = self.ended = 0

    def on_message_begin(self) -> None:
        self.begun += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        self.names.append(name.lower())

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.ended += 1


def test_no_mutated_head_becomes_two_requests_to_a_worker() -> None:
    random_ = random.Random(5)
    reader = request_heads()
    taken = 0
    for _ in range(4_000):
        raw = bytearray(random_.choice(_MUTATED_HEADS))
        for _ in range(random_.randrange(1, 4)):
            at = random_.randrange(len(raw))
            if random_.random() < 0.7:
                raw[at:at] = random_.choice(_SCRAPS)
            else:
                raw[at] = random_.randrange(256)
        try:
            head, _, _ = reader.read(bytes(raw[: raw.find(b"\r\n\r\n") + 4]), _Listener())
        except HttpError:
            continue
        taken += 1
        sent = render_request(head, b"body", host=b"w:1", request_id=b"r", via=b"1.1 g")
        seen = _Listener()
        httptools.HttpRequestParser(seen).feed_data(sent)
        assert (seen.begun, seen.ended, seen.body) == (1, 1, b"body"), sent
        for name in (b"host", b"content-length", b"via", b"x-request-id"):
            assert seen.names.count(name) == 1, sent
        assert not {b"transfer-encoding", b"connection", b"upgrade", b"cookie"} & set(seen.names), sent
    assert taken > 100
