"""The embedder that asks an endpoint: over real sockets, with honest answers and all others."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.embedding import Embedder, EmbeddingError, EmbeddingRefusedError
from cache.embedding_answers import most_bytes, read_answer, request_body
from cache.http_embedding import HttpEmbedder
from tests.embedder_contract import EmbedderContract
from tests.tls_fixtures import Authority

DIM = 8


def vector(text: str) -> list[float]:
    """Some numbers for a text, not of length 1."""
    return (3 * np.random.default_rng(list(text.encode()) or 0).normal(size=DIM).astype(np.float32)).tolist()  # type: ignore[no-any-return]  # floats


def encoded(numbers: list[float]) -> str:
    return base64.b64encode(np.array(numbers, "<f4").tobytes()).decode()


def honest(asked: dict[str, Any], *, ignores_format: bool = False) -> dict[str, Any]:
    as_text = asked["encoding_format"] == "base64" and not ignores_format
    data = [
        {"object": "embedding", "index": at, "embedding": encoded(vector(text)) if as_text else vector(text)}
        for at, text in enumerate(asked["input"])
    ]
    return {
        "object": "list",
        "data": data[::-1],
        "model": asked["model"],
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    }


class Endpoint:
    """A server in a thread of its own; a test decides its answers."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.heads: list[dict[str, str]] = []
        self.peers = set[object]()
        self.answer: Callable[[dict[str, Any]], web.StreamResponse] = lambda asked: web.json_response(honest(asked))
        self.url = ""
        self.calls = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        assert request.path == "/v1/embeddings"
        self.calls += 1
        self.peers.add(request.transport and request.transport.get_extra_info("peername"))
        self.heads.append({name.lower(): value for name, value in request.headers.items()})
        asked = json.loads(await request.read())
        self.asked.append(asked)
        return self.answer(asked)


@contextlib.contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Endpoint]:
    endpoint = Endpoint()
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/{path:.*}", endpoint.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        endpoint.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}/v1"
        started.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert started.wait(10)
        yield endpoint
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving() as it:
        yield it


@contextlib.contextmanager
def embedder_of(url: str, **settings: Any) -> Iterator[HttpEmbedder]:
    it = HttpEmbedder(url, "m", DIM, **{"timeout_s": 5.0, **settings})
    try:
        yield it
    finally:
        it.close()


class TestContract(EmbedderContract):
    @pytest.fixture(params=["base64", "float"])
    def embedder(self, endpoint: Endpoint, request: pytest.FixtureRequest) -> Iterator[Embedder]:
        with embedder_of(endpoint.url, base64_=request.param == "base64") as it:
            yield it


def test_what_is_asked(endpoint: Endpoint) -> None:
    with embedder_of(endpoint.url + "/", api_key="s3cret", send_dimensions=True) as it:
        it.embed(["one", "two"])
        assert "s3cret" not in it.name
    with embedder_of(endpoint.url, base64_=False) as it:
        it.embed(["three"])
    assert endpoint.asked == [
        {"model": "m", "input": ["one", "two"], "encoding_format": "base64", "dimensions": DIM},
        {"model": "m", "input": ["three"], "encoding_format": "float"},
    ]
    assert [head.get("authorization") for head in endpoint.heads] == ["Bearer s3cret", None]


def test_numbers_are_read_where_base64_was_asked_for(endpoint: Endpoint) -> None:
    endpoint.answer = lambda asked: web.json_response(honest(asked, ignores_format=True))
    with embedder_of(endpoint.url) as it:
        row = it.embed(["fox"])[0]
    expected = np.array(vector("fox"))
    assert np.abs(row - expected / np.linalg.norm(expected)).max() < 1e-6


def test_many_texts_go_in_several_requests(endpoint: Endpoint) -> None:
    texts = [f"text {number}" for number in range(150)]
    with embedder_of(endpoint.url) as it:
        rows = it.embed(texts)
        assert (rows[149] == it.embed(["text 149"])[0]).all()
    assert [len(asked["input"]) for asked in endpoint.asked] == [64, 64, 22, 1]


def test_one_connection_serves_all_calls_one_after_the_other(endpoint: Endpoint) -> None:
    with embedder_of(endpoint.url) as it:
        for number in range(5):
            it.embed([str(number)])
    assert len(endpoint.peers) == 1


def test_a_connection_that_was_closed_meanwhile_is_opened_again(endpoint: Endpoint) -> None:
    def answer(asked: dict[str, Any]) -> web.StreamResponse:
        response = web.json_response(honest(asked))
        response.force_close()
        return response

    endpoint.answer = answer
    with embedder_of(endpoint.url) as it:
        it.embed(["a"])
        it.embed(["b"])
    assert endpoint.calls == 2


def test_names_tell_models_apart() -> None:
    url = "http://localhost:1/v1"
    some = [
        HttpEmbedder(url, "m", 8),
        HttpEmbedder(url, "n", 8),
        HttpEmbedder(url, "m", 9),
        HttpEmbedder(url + "/x", "m", 8),
    ]
    assert len({each.name for each in some}) == 4
    assert HttpEmbedder(url + "/", "m", 8, api_key="k").name == some[0].name


@pytest.mark.parametrize("url", ["ftp://x/v1", "x", "http:///v1", "http://me:secret@x/v1", "http://x/v1?key=secret"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="endpoint for embeddings") as told:
        HttpEmbedder(url, "m", 8)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refusal_blames_the_texts(endpoint: Endpoint, status: int) -> None:
    endpoint.answer = lambda _: web.Response(status=status, text="the text was: fox")
    with embedder_of(endpoint.url) as it, pytest.raises(EmbeddingRefusedError, match=f"status {status}") as told:
        it.embed(["fox"])
    assert "fox" not in str(told.value)


@pytest.mark.parametrize("status", [201, 302, 401, 404, 429, 500, 503])
def test_any_other_status_blames_the_endpoint(endpoint: Endpoint, status: int) -> None:
    endpoint.answer = lambda _: web.Response(status=status, text="fox", headers={"location": "http://127.0.0.1:1/"})
    with embedder_of(endpoint.url) as it:
        with pytest.raises(EmbeddingError, match=f"^status {status}$") as told:
            it.embed(["fox"])
        assert not isinstance(told.value, EmbeddingRefusedError)
        endpoint.answer = lambda asked: web.json_response(honest(asked))
        assert it.embed(["fox"]).shape == (1, DIM)


NAN = encoded([float("nan")] * DIM)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b"[" * 60_000, "not JSON"),
        (b"[]", "not 1 vectors"),
        (b"{}", "not 1 vectors"),
        (b'{"data": []}', "not 1 vectors"),
        (b'{"data": [1]}', "indices"),
        (b'{"data": [{"index": 1, "embedding": []}]}', "indices"),
        (b'{"data": [{"index": true, "embedding": []}]}', "indices"),
        (b'{"data": [{"embedding": []}]}', "indices"),
        (b'{"data": [{"index": 0, "embedding": [1, 2]}]}', "not 8 numbers"),
        (b'{"data": [{"index": 0, "embedding": null}]}', "not 8 numbers"),
        (b'{"data": [{"index": 0, "embedding": [1, 2, 3, 4, 5, 6, 7, "8"]}]}', "not numbers alone"),
        (b'{"data": [{"index": 0, "embedding": [1, 2, 3, 4, 5, 6, 7, true]}]}', "not numbers alone"),
        (b'{"data": [{"index": 0, "embedding": [1, 2, 3, 4, 5, 6, 7, 1e99]}]}', "not finite"),
        (b'{"data": [{"index": 0, "embedding": [0, 0, 0, 0, 0, 0, 0, 0]}]}', "no length"),
        (b'{"data": [{"index": 0, "embedding": [1, 2, 3, 4, 5, 6, 7, NaN]}]}', "not JSON"),
        (b'{"data": [{"index": 0, "embedding": "AAAA"}]}', "not 8 numbers in base64"),
        (b'{"data": [{"index": 0, "embedding": "' + b"!" * 44 + b'"}]}', "not base64"),
        (b'{"data": [{"index": 0, "embedding": "' + b"A" * 44 + b'"}]}', "base64|not 8"),
        (b'{"data": [{"index": 0, "embedding": "' + NAN.encode() + b'"}]}', "not finite"),
        (b" " * 200_000, "longer than any can be"),
    ],
)  # fmt: skip
def test_garbage_gives_no_vectors(endpoint: Endpoint, answer: bytes, told: str) -> None:
    endpoint.answer = lambda _: web.Response(body=answer, content_type="application/json")
    with embedder_of(endpoint.url) as it:
        with pytest.raises(EmbeddingError, match=told):
            it.embed(["fox"])
        endpoint.answer = lambda asked: web.json_response(honest(asked))
        assert it.embed(["fox"]).shape == (1, DIM)


def test_indices_may_not_come_twice() -> None:
    data = [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]
    with pytest.raises(EmbeddingError, match="indices"):
        read_answer(json.dumps({"data": data}).encode(), n=2, dim=1)


@settings(max_examples=50)
@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), max_size=9), st.booleans())
def test_no_honest_answer_is_too_long_or_misread(rows: list[list[float]], as_text: bool) -> None:
    rows = [row if any(abs(number) > 1e-3 for number in row) else [1.0, 0.0, 0.0] for row in rows]
    data = [{"index": at, "embedding": encoded(row) if as_text else row} for at, row in enumerate(rows)]
    body = json.dumps({"data": data}, indent=1).encode()
    assert len(body) < most_bytes(len(rows), 3)
    found = read_answer(body, n=len(rows), dim=3)
    for row, ours in zip(rows, found, strict=True):
        assert np.abs(np.array(row) / np.linalg.norm(row) - ours).max() < 1e-5


@settings(max_examples=30)
@given(st.text())
def test_any_text_is_asked_for_as_it_is(text: str) -> None:
    assert json.loads(request_body("m", [text], dimensions=None, base64_=True))["input"] == [text]


# --- peers that are no HTTP servers ------------------------------------------------------------------------


@contextlib.contextmanager
def raw_server(handle: Callable[[socket.socket], None]) -> Iterator[str]:
    """Each connection is given to `handle`, in turn."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def run() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, contextlib.suppress(OSError):
                        handle(connection)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def read_request(connection: socket.socket) -> None:
    got = b""
    while not got.endswith(b"}"):
        got += connection.recv(1 << 16)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with embedder_of(f"http://127.0.0.1:{port}/v1") as it, pytest.raises(EmbeddingError, match="Connection refused"):
        it.embed(["fox"])


def test_a_host_that_does_not_exist() -> None:
    with embedder_of("http://nowhere.invalid/v1") as it, pytest.raises(EmbeddingError, match=r"failed|in time"):
        it.embed(["fox"])


def test_a_reset_connection() -> None:
    def reset(connection: socket.socket) -> None:
        connection.recv(10)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with raw_server(reset) as url, embedder_of(url) as it, pytest.raises(EmbeddingError, match="the connection failed"):
        it.embed(["fox " * 1000])


BODY = json.dumps(honest({"encoding_format": "float", "input": ["fox"], "model": "m"})).encode()
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"", "not HTTP|failed"),
        (b"garbage\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000 + b"\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, "not HTTP"),
        (WHOLE[:-1], "was cut"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 100_000, "longer than any can be"),
    ],
    ids=["nothing", "garbage", "headers", "long line", "cut", "chunk", "endless"],
)
def test_answers_that_are_not_http(answer: bytes, told: str) -> None:
    def handle(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1 << 16)

    with raw_server(handle) as url, embedder_of(url) as it, pytest.raises(EmbeddingError, match=told):
        it.embed(["fox"])


def test_an_answer_byte_by_byte() -> None:
    def handle(connection: socket.socket) -> None:
        read_request(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(WHOLE)):
            connection.sendall(WHOLE[at : at + 1])

    with raw_server(handle) as url, embedder_of(url) as it:
        for _ in range(2):  # the second time on a connection that the server has closed
            assert it.embed(["fox"]).shape == (1, DIM)


@pytest.mark.parametrize("trickle", [b"", b"H", b"HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\n"])
def test_whoever_is_slow_gets_no_more_time_for_a_trickle(trickle: bytes) -> None:
    over = threading.Event()

    def handle(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(trickle)
        while not over.wait(0.05):
            connection.sendall(b" ")

    with raw_server(handle) as url, embedder_of(url, timeout_s=0.3) as it:
        begun = time.monotonic()
        with pytest.raises(EmbeddingError, match="no answer in time"):
            it.embed(["fox"])
        assert time.monotonic() - begun < 5  # and not for ever: bytes go on coming
        over.set()


def test_over_tls_with_the_certificate_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with serving(authority.server_context(authority.issue("endpoint"))) as endpoint:
        with embedder_of(endpoint.url, tls=authority.client_context()) as it:
            assert (it.embed(["fox"]) == it.embed(["fox"])).all()
            assert len(endpoint.peers) == 1
        with embedder_of(endpoint.url) as it, pytest.raises(EmbeddingError, match="the connection failed"):
            it.embed(["fox"])
