"""The data plane under a glass: raw clients, workers whose every byte a test decides, and a running gateway's parts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from unittest import mock

from backends.fleet_state import FleetState
from backends.upstream_pool import UpstreamPool
from gateway.app import serving
from gateway.config import Config
from gateway.http_server import HttpServer
from gateway.pipeline import RequestPipeline
from tests.gateway_fixtures import config_for
from tests.ports import free_port
from tests.tls_fixtures import authority

CHAT = b"/v1/chat/completions"
BODY = b'{"model": "m", "messages": []}'
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
WITHIN = 1.0
"""Seconds in which a worker must notice that the client has left, as the product promises."""


@dataclass
class Inside:
    """A running gateway: its URL, and its parts to look at."""

    url: str
    server: HttpServer
    tls: ssl.SSLContext | None = None
    """What clients use by default where it serves TLS."""

    @property
    def fleet(self) -> FleetState:
        pipeline = self.server.pipeline
        assert isinstance(pipeline, RequestPipeline)
        return pipeline.fleet

    @property
    def pools(self) -> list[UpstreamPool]:
        pipeline = self.server.pipeline
        assert isinstance(pipeline, RequestPipeline)
        return [target.pool for target in pipeline._targets.values()]

    @property
    def upstreams(self) -> int:
        """Open connections to all workers, idle ones included."""
        return sum(pool.open_connections for pool in self.pools)

    @property
    def active(self) -> int:
        """Requests booked on any worker."""
        return sum(worker.active for worker in self.fleet.workers)


@contextlib.asynccontextmanager
async def inside(config: Config) -> AsyncIterator[Inside]:
    """A gateway as the program composes it, with a view of its server."""
    made: list[HttpServer] = []

    class Watched(HttpServer):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[arg-type]  # handed on as they came
            made.append(self)

    with mock.patch("gateway.program.HttpServer", Watched):
        async with serving(config) as port:
            tls = None if config.listen.tls is None else authority().client_context()
            gateway = Inside(f"{'http' if tls is None else 'https'}://127.0.0.1:{port}", made[0], tls)
            yield gateway
            gateway.fleet.check_integrity()


def plane(
    urls: Sequence[str],
    *,
    limits: str = "",
    upstream: str = "",
    extra: str = "",
    listen: str = "",
    worker: str = "",
) -> Config:
    """A configuration in which every worker serves the model `m`; `limits` and `upstream` are YAML flow mappings,
    `listen` and `worker` what their own flow mappings have besides.
    """
    limits = f"drain_timeout: 0, {limits}" if limits else "drain_timeout: 0"
    sections = f"limits: {{{limits}}}\n" + (f"upstream: {{{upstream}}}\n" if upstream else "") + extra
    return config_for(urls, sections, workers_extra=[", models: [m]" + worker] * len(urls), listen=listen)


# Workers


@dataclass
class Turn:
    """One request as a worker got it, and the connection to answer on."""

    head: bytes
    body: bytes
    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def until_closed(self) -> None:
        """Wait until the gateway closes this connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65_536):
                pass

    async def allowed(self, may: asyncio.Semaphore) -> bool:
        """Wait until it may be answered; False where the gateway closes this connection first."""
        gone = asyncio.create_task(self.until_closed())
        allowed = asyncio.create_task(may.acquire())
        await asyncio.wait([gone, allowed], return_when=asyncio.FIRST_COMPLETED)
        for task in (gone, allowed):
            task.cancel()
        return allowed.done()

    def reset(self) -> None:
        """Close with a reset."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        """Close after everything is written."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


Answer = Callable[[Turn], Awaitable[None]]


async def say_ok(turn: Turn) -> None:
    turn.write(OK)


async def hold(turn: Turn) -> None:
    """Never answer."""
    await turn.until_closed()


def says(*pieces: bytes, close: bool = False, pause: float = 0.0) -> Answer:
    """Answer every request with these bytes, each piece in a write of its own."""

    async def answer(turn: Turn) -> None:
        for piece in pieces:
            turn.write(piece)
            await turn.writer.drain()
            await asyncio.sleep(pause)
        if close:
            await turn.close()

    return answer


@dataclass
class RawWorker:
    """Answers `/v1/models` like an engine that has none, and everything else by `answer`; keeps what it was sent."""

    answer: Answer = say_ok
    requests: list[tuple[bytes, bytes]] = field(default_factory=list)
    connections: int = 0
    """Connections on which a request other than the probe's has come."""
    open: int = 0
    """Those of them that are open."""
    port: int = 0
    tls: ssl.SSLContext | None = None
    handshakes: list[bool] = field(default_factory=list)
    """Of every connection with TLS: was it resumed?"""

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def running(self, *, rcvbuf: int | None = None) -> AsyncIterator[RawWorker]:
        tasks: set[asyncio.Task[None]] = set()

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                    await self._serve(reader, writer)
            finally:
                writer.close()
                tasks.discard(task)

        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if rcvbuf is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        listener.bind(("127.0.0.1", self.port or free_port()))
        server = await asyncio.start_server(accepted, sock=listener, limit=1 << 26, ssl=self.tls)
        self.port = listener.getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        counted = False
        if self.tls is not None:
            self.handshakes.append(bool(writer.get_extra_info("ssl_object").session_reused))
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                    continue
                if not counted:
                    counted = True
                    self.connections += 1
                    self.open += 1
                length = int(fields_of(head)["content-length"])
                body = await reader.readexactly(length) if length <= 1 << 26 else b""
                self.requests.append((head, body))
                await self.answer(Turn(head, body, len(self.requests), reader, writer))
                if writer.is_closing():
                    return
        finally:
            self.open -= counted


def refusing_url() -> str:
    """The URL of a worker that is not there."""
    return f"http://127.0.0.1:{free_port()}"


class Blackhole:
    """A worker that at first refuses connections, so that the probe is soon done with it, and from `open` on neither
    accepts nor refuses them: a listener whose backlog is full."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._listener = stack.enter_context(socket.socket())
        self._listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def open(self) -> None:
        self._listener.listen(0)
        for _ in range(4):
            filler = self._stack.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(self._listener.getsockname())


@contextlib.contextmanager
def blackhole() -> Iterator[Blackhole]:
    """A worker that does not answer to connections."""
    with contextlib.ExitStack() as stack:
        yield Blackhole(stack)


# Clients


def fields_of(head: bytes) -> dict[str, str]:
    """The fields of a head by lower-case name; those that come again are joined."""
    fields: dict[str, str] = {}
    for line in head.decode("latin-1").split("\r\n")[1:]:
        if line:
            name, _, value = line.partition(":")
            name = name.lower()
            fields[name] = f"{fields[name]}, {value.strip()}" if name in fields else value.strip()
    return fields


@dataclass
class Response:
    """One response as a client read it."""

    status: int
    fields: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, str | None]:
        """The OpenAI error object; asserts that it is one."""
        assert self.fields["content-type"] == "application/json"
        answer = json.loads(self.body)
        assert set(answer) == {"error"}
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert answer["error"]["message"]
        assert answer["error"]["type"] == ("invalid_request_error" if self.status < 500 else "server_error")
        error: dict[str, str | None] = answer["error"]
        return error


class Client:
    """A raw connection to a gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def post(self, body: bytes = BODY, *fields: bytes, path: bytes = CHAT) -> None:
        """Write one request."""
        self.write(post(body, *fields, path=path))

    async def response(self, *, timeout: float = 10.0) -> Response:
        """Read one response. Raises IncompleteReadError where it is truncated and ConnectionError on a reset."""
        async with asyncio.timeout(timeout):
            return await self._response()

    async def _response(self) -> Response:
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 "), head
        status = int(head[9:12])
        fields = fields_of(head[:-4])
        body = b""
        if fields.get("transfer-encoding") == "chunked":
            chunks = []
            assert "content-length" not in fields
            while True:
                size = int((await self.reader.readuntil(b"\r\n")).partition(b";")[0], 16)
                if not size:
                    while await self.reader.readuntil(b"\r\n") != b"\r\n":
                        pass  # a trailer
                    break
                chunk = await self.reader.readexactly(size + 2)
                assert chunk.endswith(b"\r\n")
                chunks.append(chunk[:-2])
            body = b"".join(chunks)
        elif "content-length" in fields and status != 304:
            body = await self.reader.readexactly(int(fields["content-length"]))
        elif status >= 200 and status not in (204, 304):
            assert fields["connection"] == "close"
            body = await self.reader.read()
        return Response(status, fields, body)

    async def rest(self, *, timeout: float = 10.0) -> bytes:
        """Everything until the gateway closes."""
        async with asyncio.timeout(timeout):
            return await self.reader.read()

    def reset(self) -> None:
        """Leave with a reset."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@contextlib.asynccontextmanager
async def client_of(
    gateway: Inside, *, rcvbuf: int | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Client]:
    """A connection to a gateway. With a small `rcvbuf` its kernel takes little that the test does not read."""
    host, port = gateway.url.rpartition("/")[2].split(":")
    tls = tls or gateway.tls
    sock = socket.socket()
    if rcvbuf is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    except OSError:
        sock.close()
        raise
    reader, writer = await asyncio.open_connection(
        sock=sock, limit=1 << 16, ssl=tls, server_hostname=None if tls is None else host
    )
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


def post(body: bytes = BODY, *fields: bytes, path: bytes = CHAT, version: bytes = b"1.1") -> bytes:
    """One request with a Content-Length."""
    lines = [
        b"POST %b HTTP/%b" % (path, version),
        b"Host: gateway",
        *fields,
        b"Content-Length: %d" % len(body),
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(pieces: Sequence[bytes], *fields: bytes, trailer: bytes = b"", path: bytes = CHAT) -> bytes:
    """One request with a chunked body."""
    lines = [b"POST %b HTTP/1.1" % path, b"Host: gateway", *fields, b"Transfer-Encoding: chunked"]
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body + b"0\r\n" + trailer + b"\r\n"


async def ask(gateway: Inside, raw: bytes | None = None) -> Response:
    """One request on a connection of its own."""
    async with client_of(gateway) as client:
        client.write(post() if raw is None else raw)
        return await client.response()
