"""Whose key a worker sees: its own, the client's where it is told so, or none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.http1 import RequestHead, parse_request_head, request_heads
from backends.upstream_request import NO_ACCESS, WorkerAccess, render_request
from tests.data_plane_fixtures import BODY, RawWorker, ask, chunked, fields_of, inside, plane, post
from tests.tls_fixtures import authority, listen_tls, server_pair

CANARY = b"canary-5150"
SHOWN = (
    b"Authorization: Bearer " + CANARY,
    b"X-API-Key: " + CANARY,
    b"api-key: " + CANARY,
    b"Cookie: session=" + CANARY,
    b"Proxy-Authorization: Basic " + CANARY,
)
TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def head(*fields: bytes, line: bytes = b"POST /v1/x?y=1 HTTP/1.1") -> RequestHead:
    return parse_request_head(b"\r\n".join([line, b"Host: h", *fields, b"", b""]), None)[0]


# The head


def test_credentials_are_apart() -> None:
    got = head(b"A: 1", *SHOWN, b"B: 2", b"Authorization-X: 3")
    assert got.fields == b"\r\nA: 1\r\nB: 2\r\nAuthorization-X: 3"
    assert got.credentials == (
        b"\r\nauthorization: Bearer %b\r\nx-api-key: %b\r\napi-key: %b\r\ncookie: session=%b" % ((CANARY,) * 4)
    )
    assert head(b"A: 1").credentials == b""


def test_credentials_that_connection_names_end_here() -> None:
    got = head(*SHOWN, b"Connection: Authorization, x-api-key , close, API-KEY, cookie, traceparent", b"Traceparent: x")
    assert (got.credentials, got.fields, got.traceparent) == (b"", b"", None)


def test_a_trace_is_apart() -> None:
    assert head(b"TraceParent: " + TRACE, b"tracestate: a=b").traceparent == TRACE
    assert head(b"TraceParent: " + TRACE, b"tracestate: a=b").fields == b"\r\ntracestate: a=b"
    assert head().traceparent is None
    assert head(b"traceparent: " + TRACE, b"traceparent: " + TRACE).traceparent is None, "which one?"


def test_heads_with_many_keys_do_not_pile_up() -> None:
    """Each client's head is another one; one that is known gives its own key and no other's."""
    reader = request_heads()
    for _ in range(2):
        for number in range(2_000):
            raw = b"POST / HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %d\r\nContent-Length: 2\r\n\r\n" % number
            assert reader.read(raw, None)[0].credentials == b"\r\nauthorization: Bearer %d" % number
    assert len(reader._with_length) <= 512


# The request to the worker


def render(request: RequestHead, body: bytes = b"{}", **options: bytes | None) -> bytes:
    return render_request(request, body, host=b"w:1", request_id=b"id", via=b"1.1 me", **options)  # type: ignore[arg-type]  # as the test gives them


def test_a_whole_request() -> None:
    client = head(b"A: 1", b"traceparent: " + TRACE, b"Via: 1.0 a", b"Via: 1.1 b", b"X-Request-ID: other")
    assert render(client, credentials=b"\r\nauthorization: Bearer w", forwarded=b"\r\nx-forwarded-for: 1.2.3.4") == (
        b"POST /v1/x?y=1 HTTP/1.1\r\nhost: w:1\r\nA: 1\r\nauthorization: Bearer w\r\nx-forwarded-for: 1.2.3.4"
        b"\r\ntraceparent: "
        + TRACE
        + b"\r\nx-request-id: id\r\nvia: 1.0 a, 1.1 b, 1.1 me\r\ncontent-length: 2\r\n\r\n{}"
    )
    ours = render(client, traceparent=b"00-ours")
    assert ours.count(b"traceparent") == 1
    assert b"\r\ntraceparent: 00-ours\r\n" in ours
    assert b"\r\ntraceparent: 00-ours\r\n" in render(head(), traceparent=b"00-ours")
    assert b"traceparent" not in render(head())


def test_a_request_without_a_body() -> None:
    for method in (b"GET", b"DELETE"):
        request = head(line=method + b" /v1/files HTTP/1.1")
        assert render(request, b"") == (
            method + b" /v1/files HTTP/1.1\r\nhost: w:1\r\nx-request-id: id\r\nvia: 1.1 me\r\n\r\n"
        )
        assert b"content-length: 2\r\n\r\n{}" in render(request)
    assert b"\r\ncontent-length: 0\r\n\r\n" in render(head(), b"")


_NAMES = st.sampled_from(
    ["A", "Authorization", "x-api-key", "API-Key", "cookie", "Via", "Traceparent", "X-Forwarded-For", "X-Real-IP", "Te"]
)
_VALUES = st.from_regex(r"[!-9;-~]([ -9;-~]{0,12}[!-9;-~])?", fullmatch=True)


@given(st.lists(st.tuples(_NAMES, _VALUES), max_size=8), st.booleans(), st.booleans())
def test_what_goes_out_reads_back(fields: list[tuple[str, str]], forward: bool, own: bool) -> None:
    """A rendered request is a request; it holds the client's credentials only where it should."""
    request = head(*(f"{name}: {value}".encode() for name, value in fields))
    access = WorkerAccess.of("w" if own else None, forward_client=forward)
    raw = render(request, credentials=access.lines(request))
    again, _ = parse_request_head(raw[:-2], None)
    assert again.fields == request.fields
    assert again.traceparent == request.traceparent
    assert again.forwarded is None
    expected = b"\r\nauthorization: Bearer w" if own else request.credentials if forward else b""
    assert again.credentials == expected
    assert again.via == (b"1.1 me" if request.via is None else request.via + b", 1.1 me")


def test_no_access_is_the_default() -> None:
    assert NO_ACCESS.lines(head(*SHOWN)) == b""


# Through the gateway


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("", {}),
        (", api_key: workers-own", {"authorization": "Bearer workers-own"}),
        (", api_key: workers-own, forward_client_key: true", {"authorization": "Bearer workers-own"}),
        (
            ", forward_client_key: true",
            {
                "authorization": "Bearer canary-5150",
                "x-api-key": "canary-5150",
                "api-key": "canary-5150",
                "cookie": "session=canary-5150",
            },
        ),
    ],
)
@pytest.mark.parametrize("tls", [False, True])
async def test_what_a_worker_sees(settings: str, expected: dict[str, str], tls: bool) -> None:
    worker = RawWorker(tls=authority().server_context(server_pair()) if tls else None)
    if tls:
        settings += f", tls: {{ca: {authority().ca}}}"
    async with (
        worker.running(),
        inside(plane([worker.url], worker=settings, listen=listen_tls() if tls else "")) as gateway,
    ):
        for raw in (post(BODY, *SHOWN), post(BODY, *SHOWN), chunked([BODY], *SHOWN)):
            assert (await ask(gateway, raw)).status == 200
        assert (await ask(gateway, post(BODY))).status == 200
    names = {"authorization", "x-api-key", "api-key", "cookie", "proxy-authorization"}
    got = [{k: v for k, v in fields_of(head[:-4]).items() if k in names} for head, _ in worker.requests]
    own = expected if "workers-own" in str(expected) else {}
    assert got == [expected, expected, expected, own]


async def test_each_worker_gets_its_own_key() -> None:
    async with RawWorker().running() as one, RawWorker().running() as two:
        config = plane([one.url, two.url], extra="routing: {policy: round_robin}")
        keyed = [
            worker.model_copy(update={"api_key": type(config.workers[0]).model_validate(
                {"url": worker.url, "api_key": f"key-{n}"}).api_key})
            for n, worker in enumerate(config.workers)
        ]  # fmt: skip
        async with inside(config.model_copy(update={"workers": tuple(keyed)})) as gateway:
            for _ in range(4):
                await ask(gateway, post(BODY, *SHOWN))
    for n, worker in enumerate((one, two)):
        assert {fields_of(head[:-4])["authorization"] for head, _ in worker.requests} == {f"Bearer key-{n}"}
        assert all(CANARY not in head for head, _ in worker.requests)
