"""Workers found by DNS, from a real name server on a free port: they come, go, weigh, and stay while it fails."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import cast

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest

from backends.discovery.base import Discovery, Found, in_order
from backends.discovery.dns import DnsDiscovery
from backends.discovery.dns_answers import Change, LastKnown, Service, best_services, from_addresses, from_services
from tests.gateway_fixtures import eventually

NAME = "workers.test."


class NameServer(asyncio.DatagramProtocol):
    """Answers over UDP and TCP from `records`: (name, type) → texts of record data."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.ttl = 300
        self.silent = False
        self.garbage = False
        self.rcode = dns.rcode.NOERROR
        self.failing_types: set[str] = set()
        self.truncate = False
        self.questions: list[tuple[str, str]] = []
        self.over_tcp = 0
        self.port = 0
        self.transport: asyncio.DatagramTransport | None = None

    def answer(self, data: bytes, *, tcp: bool = False) -> bytes | None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        kind = dns.rdatatype.to_text(question.rdtype)
        key = (question.name.to_text(), kind)
        self.questions.append(key)
        if self.silent:
            return None
        if self.garbage:
            return b"\xff\x00 this is no answer"
        reply = dns.message.make_response(query)
        if kind in self.failing_types:
            reply.set_rcode(dns.rcode.SERVFAIL)
        elif self.rcode != dns.rcode.NOERROR:
            reply.set_rcode(self.rcode)
        elif self.truncate and not tcp:
            reply.flags |= dns.flags.TC
        elif texts := self.records.get(key):
            reply.answer.append(dns.rrset.from_text(question.name, self.ttl, "IN", kind, *texts))
        elif not any(name == key[0] for name, _ in self.records):
            reply.set_rcode(dns.rcode.NXDOMAIN)
        return reply.to_wire()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        reply = self.answer(data)
        assert self.transport is not None
        if reply is not None:
            self.transport.sendto(reply, addr)

    async def serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            reply = self.answer(await reader.readexactly(length), tcp=True)
            self.over_tcp += 1
            if reply is not None:
                writer.write(struct.pack("!H", len(reply)) + reply)
                await writer.drain()
        writer.close()

    async def _bind(self, loop: asyncio.AbstractEventLoop) -> tuple[asyncio.Server, asyncio.BaseTransport]:
        """A port that is free for both."""
        while True:
            server = await asyncio.start_server(self.serve_tcp, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            try:
                transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", self.port))
            except OSError:
                server.close()
            else:
                return server, transport

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[NameServer]:
        loop = asyncio.get_running_loop()
        server, transport = await self._bind(loop)
        try:
            yield self
        finally:
            transport.close()
            server.close()


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    async with NameServer().running() as server:
        yield server


class Following:
    """Keeps every set that a source yields."""

    def __init__(self, source: Discovery) -> None:
        self.sets: list[frozenset[Found]] = []
        self._news = asyncio.Event()
        self._source = source

    async def run(self) -> None:
        async for found in self._source.watch():
            self.sets.append(found)
            self._news.set()

    async def next(self, n: int) -> list[str]:
        """Names of the nth set, once it has come."""
        async with asyncio.timeout(5):
            while len(self.sets) < n:
                self._news.clear()
                await self._news.wait()
        return [each.name for each in in_order(self.sets[n - 1])]


@contextlib.asynccontextmanager
async def following(server: NameServer, name: str = NAME, **settings: object) -> AsyncIterator[Following]:
    options: dict[str, object] = {"interval": 0.02, "timeout": 0.2, "grace": 0.3, "port": 8000, **settings}
    source = DnsDiscovery(name, nameserver="127.0.0.1", nameserver_port=server.port, **options)  # type: ignore[arg-type]  # by name
    follower = Following(source)
    task = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def asked(server: NameServer, more: int = 6) -> None:
    """Wait until the server has had so many more questions."""
    target = len(server.questions) + more
    await eventually(lambda: len(server.questions) >= target)


async def test_workers_come_and_go(server: NameServer) -> None:
    server.records[NAME, "A"] = ["10.0.0.2", "10.0.0.1"]
    async with following(server) as follower:
        assert await follower.next(1) == ["10.0.0.1:8000", "10.0.0.2:8000"]
        await asked(server)
        assert len(follower.sets) == 1, "the same set is not told twice"
        server.records[NAME, "A"] = ["10.0.0.1", "10.0.0.3"]
        server.records[NAME, "AAAA"] = ["fd00::5"]
        assert await follower.next(2) == ["10.0.0.1:8000", "10.0.0.3:8000", "[fd00::5]:8000"]
        assert {each.host for each in follower.sets[1]} == {"10.0.0.1", "10.0.0.3", "fd00::5"}
        assert {each.weight for each in follower.sets[1]} == {1.0}


async def test_only_ipv6(server: NameServer) -> None:
    server.records[NAME, "AAAA"] = ["fd00::1"]
    async with following(server) as follower:
        assert await follower.next(1) == ["[fd00::1]:8000"]


async def test_services_have_weights_priorities_and_addresses(server: NameServer) -> None:
    server.records = {
        (NAME, "SRV"): ["10 30 8001 a.test.", "10 10 8002 b.test.", "20 5 8003 spare.test."],
        ("a.test.", "A"): ["10.0.0.1"],
        ("b.test.", "AAAA"): ["fd00::2"],
        ("spare.test.", "A"): ["10.0.0.3"],
    }
    async with following(server, record="SRV") as follower:
        assert await follower.next(1) == ["a.test:8001", "b.test:8002"]
        assert follower.sets[0] == {
            Found("10.0.0.1", 8001, 1.5, "a.test:8001"),
            Found("fd00::2", 8002, 0.5, "b.test:8002"),
        }
        server.records[NAME, "SRV"] = ["20 5 8003 spare.test."]
        assert await follower.next(2) == ["spare.test:8003"]
        server.records["spare.test.", "A"] = ["10.0.0.4"]
        assert await follower.next(3) == ["spare.test:8003"]
        assert next(iter(follower.sets[2])).host == "10.0.0.4"


async def test_a_target_without_an_address_is_left_out(server: NameServer) -> None:
    server.records = {(NAME, "SRV"): ["0 1 80 a.test.", "0 1 80 gone.test."], ("a.test.", "A"): ["10.0.0.1"]}
    async with following(server, record="SRV") as follower:
        assert await follower.next(1) == ["a.test:80"]


async def test_a_short_ttl_shortens_the_interval_and_zero_does_not_spin(server: NameServer) -> None:
    server.records[NAME, "A"] = ["10.0.0.1"]
    server.ttl = 0
    async with following(server, interval=3600.0, shortest=0.02) as follower:
        await follower.next(1)
        server.records[NAME, "A"] = ["10.0.0.2"]
        assert await follower.next(2) == ["10.0.0.2:8000"]
        server.ttl = 300
        server.records[NAME, "A"] = ["10.0.0.3"]
        assert await follower.next(3) == ["10.0.0.3:8000"]
        seen = len(server.questions)
        server.records[NAME, "A"] = ["10.0.0.4"]
        await asyncio.sleep(0.2)
        assert len(server.questions) == seen, "these records last"


@pytest.mark.parametrize("fault", ["silent", "garbage", "refused", "failing"])
async def test_a_server_in_trouble_changes_nothing(
    server: NameServer, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "backends.discovery")
    server.records[NAME, "A"] = ["10.0.0.1"]
    async with following(server, grace=0.0) as follower:
        await follower.next(1)
        server.silent = fault == "silent"
        server.garbage = fault == "garbage"
        server.rcode = {"refused": dns.rcode.REFUSED, "failing": dns.rcode.SERVFAIL}.get(fault, dns.rcode.NOERROR)
        await eventually(lambda: "lookup failed" in caplog.text, timeout=10)
        await asked(server, 8)
        assert len(follower.sets) == 1
        server.silent = server.garbage = False
        server.rcode = dns.rcode.NOERROR
        server.records[NAME, "A"] = ["10.0.0.2"]
        assert await follower.next(2) == ["10.0.0.2:8000"]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2, "said once, and once that it is over"
    assert lines[0].startswith("workers.test.: lookup failed, the 1 workers known stay: ")
    assert lines[1] == "workers.test. is found again: 1 workers"


async def test_the_kind_of_address_that_fails_keeps_its_last_ones(server: NameServer) -> None:
    server.records = {(NAME, "A"): ["10.0.0.1"], (NAME, "AAAA"): ["fd00::1"]}
    async with following(server) as follower:
        await follower.next(1)
        server.failing_types = {"AAAA"}
        server.records[NAME, "A"] = ["10.0.0.2"]
        assert await follower.next(2) == ["10.0.0.2:8000", "[fd00::1]:8000"]


@pytest.mark.parametrize("name_exists", [True, False])
async def test_no_records_are_believed_after_a_while(
    server: NameServer, name_exists: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "backends.discovery")
    server.records[NAME, "A"] = ["10.0.0.1"]
    async with following(server, grace=1.0) as follower:
        await follower.next(1)
        server.records = {(NAME, "TXT"): ["x"]} if name_exists else {}
        await asked(server, 4)
        assert len(follower.sets) == 1, "not at once"
        assert await follower.next(2) == []
        server.records = {(NAME, "A"): ["10.0.0.1"]}
        assert await follower.next(3) == ["10.0.0.1:8000"]
    assert [record.getMessage() for record in caplog.records] == [
        "workers.test. has no records; the 1 workers known stay for a while",
        "workers.test. still has no records: its workers are gone",
        "workers.test. is found again: 1 workers",
    ]


async def test_a_name_that_never_was_gives_an_empty_set(server: NameServer) -> None:
    async with following(server) as follower:
        assert await follower.next(1) == []


async def test_a_long_answer_comes_over_tcp(server: NameServer) -> None:
    server.truncate = True
    server.records[NAME, "A"] = [f"10.0.{i // 250}.{i % 250}" for i in range(500)]
    async with following(server, timeout=2.0) as follower:
        assert len(await follower.next(1)) == 500
    assert server.over_tcp >= 2


async def test_an_address_needs_no_server() -> None:
    async with NameServer().running() as server, following(server, "10.1.2.3") as follower:
        assert await follower.next(1) == ["10.1.2.3:8000"]
        assert server.questions == []


# --- what answers mean -------------------------------------------------------------------------------------


def test_addresses() -> None:
    assert from_addresses(["10.0.0.1", "fd00::1", "10.0.0.1"], 80) == {
        Found("10.0.0.1", 80, 1.0, "10.0.0.1:80"),
        Found("fd00::1", 80, 1.0, "[fd00::1]:80"),
    }


@pytest.mark.parametrize(
    ("weights", "expected"),
    [([100], [1.0]), ([50, 50], [1.0, 1.0]), ([0, 0], [1.0, 1.0]), ([2, 1], [1.333, 0.667]), ([0, 10], [0.01, 2.0])],
)
def test_weights_count_beside_their_mean(weights: list[int], expected: list[float]) -> None:
    found = from_services([Service(0, weight, 80, f"w{i}") for i, weight in enumerate(weights)])
    assert [each.weight for each in in_order(found)] == expected


def test_only_the_best_priority_and_what_is_offered() -> None:
    services = [Service(2, 1, 80, "b"), Service(1, 1, 80, "a"), Service(1, 1, 80, "a"), Service(0, 0, 0, "")]
    assert best_services(services) == [Service(1, 1, 80, "a")]
    assert best_services([Service(0, 0, 0, "")]) == []
    assert from_services([]) == frozenset()
    assert from_services(services, {"b": "10.0.0.1"}) == frozenset()


def test_what_is_believed() -> None:
    known = LastKnown(10.0)
    one = from_addresses(["10.0.0.1"], 80)
    assert known.answered(one, 0.0) is Change.NONE
    assert (known.failed(), known.failed(), known.found) == (Change.FAILED, Change.NONE, one)
    assert (known.answered(one, 1.0), known.found) == (Change.RECOVERED, one)
    assert (known.answered(frozenset(), 2.0), known.found) == (Change.EMPTY, one)
    assert known.failed() is Change.FAILED
    assert (known.answered(frozenset(), 11.9), known.found) == (Change.EMPTY, one)
    assert (known.answered(frozenset(), 12.0), known.found) == (Change.GIVEN_UP, frozenset())
    assert known.answered(frozenset(), 13.0) is Change.NONE
    assert (known.answered(one, 14.0), known.found) == (Change.RECOVERED, one)
    assert LastKnown(0.0).answered(frozenset(), 0.0) is Change.EMPTY
