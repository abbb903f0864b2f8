"""Heads in both directions: what is refused, what ends at this hop, and what goes on unchanged."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.http1 import (
    _LONGEST,
    _REMEMBERED,
    HeadReader,
    HttpError,
    RequestHead,
    ResponseHead,
    parse_request_head,
    parse_response_head,
    render_response,
    request_heads,
    response_heads,
)

HOP_BY_HOP = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
]
# Fields that are end-to-end but written anew here: the body's framing, this hop's peer, and the trail.
OWN = ("content-length", "host", "expect", "via", "x-request-id")


class Body:
    """Listens to a chunked body."""

    def __init__(self) -> None:
        self.data = b""
        self.complete = False

    def on_body(self, data: bytes) -> None:
        self.data += data

    def on_message_complete(self) -> None:
        self.complete = True


def request(*fields: bytes, line: bytes = b"POST /v1/x HTTP/1.1", host: bool = True) -> RequestHead:
    return parse_request_head(b"\r\n".join([line, *([b"Host: h"] if host else []), *fields, b"", b""]), Body())[0]


def response(*fields: bytes, line: bytes = b"HTTP/1.1 200 OK") -> ResponseHead:
    return parse_response_head(b"\r\n".join([line, *fields, b"", b""]), Body())[0]


def refused(*fields: bytes, line: bytes = b"POST /v1/x HTTP/1.1", host: bool = True) -> int:
    with pytest.raises(HttpError) as caught:
        request(*fields, line=line, host=host)
    return caught.value.status


# What ends at this hop, and what goes on


@pytest.mark.parametrize("name", [name for name in HOP_BY_HOP if name not in ("connection", "transfer-encoding")])
def test_hop_by_hop_fields_end_here(name: str) -> None:
    for spelled in (name, name.upper(), name.title()):
        field = spelled.encode() + b": something"
        assert request(b"A: 1", field, b"B: 2").fields == b"\r\nA: 1\r\nB: 2"
        assert response(b"A: 1", field, b"B: 2").fields == b"\r\nA: 1\r\nB: 2"


def test_fields_named_by_connection_end_here() -> None:
    fields = (
        b"X-Hop: 1",
        b"Keep: 2",
        b"connection: x-hop, Close ,x-other",
        b"X-OTHER: 3",
        b"X-Hop-Not: 4",
        b"x-hop:5",
    )
    assert request(*fields).fields == b"\r\nKeep: 2\r\nX-Hop-Not: 4"
    assert response(*fields).fields == b"\r\nKeep: 2\r\nX-Hop-Not: 4"


def test_a_connection_field_may_name_nothing_or_nonsense() -> None:
    assert request(b"Connection:", b"A: 1").fields == b"\r\nA: 1"
    assert request(b"Connection: ,, .*, (", b"A: 1", b"B: 2").fields == b"\r\nA: 1\r\nB: 2"


def test_names_that_merely_begin_like_hop_by_hop_fields_stay() -> None:
    fields = (
        b"Te-X: 1",
        b"Upgrade-Insecure-Requests: 1",
        b"Connection-Id: 1",
        b"Hosts: 1",
        b"Content-Length-Old: 9",
    )
    assert request(*fields).fields == b"".join(b"\r\n" + field for field in fields)


def test_fields_keep_their_spelling_order_and_repeats() -> None:
    fields = (
        b"Set-Cookie: a=1",
        b"X-Z: last",
        b"set-cookie:b=2",
        b"ACCEPT:  text /  x ",
        b"Empty:",
        b"Latin: \xe9",
    )
    assert request(*fields).fields == b"".join(b"\r\n" + field for field in fields)
    assert response(*fields).fields == b"".join(b"\r\n" + field for field in fields)


_NAMES = st.from_regex(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,20}", fullmatch=True).filter(
    lambda name: name.lower() not in HOP_BY_HOP + list(OWN)
)
_VALUES = st.from_regex(rb"([!-~\x80-\xff]([ \t!-~\x80-\xff]{0,30}[!-~\x80-\xff])?)?", fullmatch=True)
_LINES = st.tuples(_NAMES, _VALUES).map(lambda pair: pair[0].encode() + b": " + pair[1])
_HOP_LINES = st.sampled_from([name for name in HOP_BY_HOP if name not in ("connection", "transfer-encoding")]).map(
    lambda name: name.encode() + b": x"
)


@given(
    st.lists(
        st.one_of(_LINES.map(lambda line: (line, True)), _HOP_LINES.map(lambda line: (line, False))),
        max_size=12,
    )
)
def test_any_end_to_end_fields_arrive_unchanged_and_in_order_and_no_others(
    lines: list[tuple[bytes, bool]],
) -> None:
    expected = b"".join(b"\r\n" + line for line, stays in lines if stays)
    assert request(*(line for line, _ in lines)).fields == expected
    assert response(*(line for line, _ in lines)).fields == expected


@given(st.lists(_LINES, min_size=1, max_size=8), st.data())
def test_any_field_that_connection_names_ends_here(lines: list[bytes], data: st.DataObject) -> None:
    names = [line.split(b":")[0].lower() for line in lines]
    named = set(data.draw(st.lists(st.sampled_from(names))))
    expected = b"".join(b"\r\n" + line for line, name in zip(lines, names, strict=True) if name not in named)
    connection = b"Connection: " + b", ".join(sorted(named)).upper()
    assert request(*lines, connection).fields == expected


# What is read


def test_the_request_id_is_kept_where_it_is_one() -> None:
    assert request(b"X-Request-Id: abc-123").request_id == b"abc-123"
    assert request(b"x-request-id:  !~  ").request_id == b"!~"
    assert request().request_id is None
    for bad in (b"", b"a b", b"x" * 129, b"caf\xe9"):
        assert request(b"X-Request-Id: " + bad).request_id is None
    assert request(b"X-Request-Id: a", b"X-Request-Id: b").request_id is None
    assert request(b"X-Request-Id: a").fields == b""


def test_via_fields_are_joined() -> None:
    assert request().via is None
    assert request(b"Via: 1.1 a", b"A: 1", b"via: 1.0 b, 1.1 c").via == b"1.1 a, 1.0 b, 1.1 c"


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/v1/models", b"/v1/models", b""),
        (b"/v1/models?a=b&c=%20?/", b"/v1/models", b"?a=b&c=%20?/"),
        (b"/v1/models?", b"/v1/models", b"?"),
        (b"http://other:80/v1/models?q", b"/v1/models", b"?q"),
        (b"HTTPS://other/v1/models", b"/v1/models", b""),
        (b"//v1/models", b"//v1/models", b""),
        (b"/a/../v1", b"/a/../v1", b""),
    ],
)
def test_targets(target: bytes, path: bytes, query: bytes) -> None:
    head = request(line=b"GET %b HTTP/1.1" % target)
    assert (head.path, head.query) == (path, query)


@pytest.mark.parametrize("target", [b"*", b"http://host", b"http://host?q", b"/a#b", b"host:443", b"ftp://h/x", b"v1"])
def test_targets_that_are_refused(target: bytes) -> None:
    assert refused(line=b"GET %b HTTP/1.1" % target) == 400


@pytest.mark.parametrize(
    ("fields", "line", "keep"),
    [
        ([], b"1.1", True),
        ([b"Connection: keep-alive"], b"1.1", True),
        ([b"Connection: close"], b"1.1", False),
        ([b"Connection: CLOSE"], b"1.1", False),
        ([b"Connection: keep-alive, close"], b"1.1", False),
        ([b"Connection: x", b"Connection: close"], b"1.1", False),
        ([b"Connection: close", b"Connection: keep-alive"], b"1.1", False),
        ([], b"1.0", False),
        ([b"Connection: keep-alive"], b"1.0", False),  # not offered to HTTP/1.0 here
    ],
)
@pytest.mark.parametrize("framing", [[], [b"Content-Length: 0"], [b"Content-Length: 7"]])
def test_whether_a_clients_connection_is_kept(
    fields: list[bytes], line: bytes, keep: bool, framing: list[bytes]
) -> None:
    assert request(*fields, *framing, line=b"POST /x HTTP/" + line).keep_alive is keep


@pytest.mark.parametrize("length", [b"0", b"7"])
def test_whether_a_workers_connection_is_kept(length: bytes) -> None:
    framing = b"Content-Length: " + length
    assert response(framing).keep_alive
    assert not response(framing, b"Connection: close").keep_alive
    assert not response(framing, line=b"HTTP/1.0 200 OK").keep_alive
    assert response(framing, b"Connection: Keep-Alive", line=b"HTTP/1.0 200 OK").keep_alive


def test_expectations() -> None:
    assert request(b"Expect: 100-Continue").expects_continue
    assert not request().expects_continue
    assert not request(b"Expect: 100-continue", line=b"POST /x HTTP/1.0").expects_continue
    assert refused(b"Expect: 200-ok") == 417
    assert refused(b"Expect: 100-continue", b"Expect: more") == 417
    assert refused(b"Expect:") == 417


def test_responses() -> None:
    head = response(b"Transfer-Encoding: chunked", line=b"HTTP/1.1 418 I'm a  teapot \xe9")
    assert (head.status, head.reason, head.chunked, head.bodiless) == (
        418,
        b"I'm a  teapot \xe9",
        True,
        False,
    )
    assert response(line=b"HTTP/1.1 200").reason == b""
    assert response(line=b"HTTP/1.1 599 ").reason == b""
    for status in (100, 103, 204, 304):
        head = response(line=b"HTTP/1.1 %d x" % status)
        assert head.bodiless
        assert not head.chunked


def test_an_answer_of_our_own() -> None:
    raw = render_response(404, b'{"a":1}', b"id-1", keep_alive=False, fields=b"\r\nallow: GET")
    head, body = raw.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 404 Not Found\r\ndate: ")
    for field in (
        b"content-type: application/json",
        b"content-length: 7",
        b"x-request-id: id-1",
        b"connection: close",
        b"allow: GET",
    ):
        assert b"\r\n" + field in head
    assert body == b'{"a":1}'
    assert b"connection" not in render_response(200, b"", b"i", keep_alive=True)


# What is refused

CHUNKED = b"Transfer-Encoding: chunked"
MALFORMED_FIELDS: list[tuple[bytes, ...]] = [
    (b"Content-Length: 5", CHUNKED),
    (CHUNKED, b"Content-Length: 5"),
    (CHUNKED, b"Content-Length: 99999999999999999999"),
    (b"Content-Length: 5", b"Content-Length: 5"),
    (b"Content-Length: 5", b"Content-Length: 6"),
    (b"Content-Length: 5", b"X: y", b"content-length: 5"),
    (b"Content-Length: 5, 5",),
    (b"Content-Length: 5 5",),
    (b"Content-Length: +5",),
    (b"Content-Length: -5",),
    (b"Content-Length: -0",),
    (b"Content-Length: 0x5",),
    (b"Content-Length: 5_0",),
    (b"Content-Length: 5.0",),
    (b"Content-Length: 5e1",),
    (b"Content-Length: \xd9\xa5",),
    (b"Content-Length: a",),
    (b"Content-Length:",),
    (b"Content-Length: ",),
    (b'Content-Length: "5"',),
    (b"Content-Length: 5;",),
    (b"Content-Length: 99999999999999999999999",),
    (b"Content-Length: 18446744073709551616",),
    (b"Content-Length: 18446744073709551621",),
    (b"Content-Length: 1000000000000000000",),
    (b"Content-Length: 0000000000000000000000005",),
    (b"Content-Length: " + b"0" * 5_000 + b"5",),
    (b"Content-Length : 5",),
    (b"Content-Length\t: 5",),
    (b" Content-Length: 5",),
    (b"Content-Length:\r\n 5",),
    (b"Content-Length: \x0b5",),
    (b"Transfer-Encoding : chunked",),
    (b"Transfer-Encoding\x0b: chunked",),
    (b"Transfer-Encoding:\r\n chunked",),
    (b"Transfer-Encoding: \x0bchunked",),
    (b"Transfer-Encoding: xchunked",),
    (b"Transfer-Encoding: chunkedx",),
    (b'Transfer-Encoding: "chunked"',),
    (b"Transfer-Encoding: chunked, identity",),
    (b"Transfer-Encoding: chunked, chunked",),
    (CHUNKED, CHUNKED),
    (b"X: a\nB: c",),
    (b"X: a\rB: c",),
    (b"X: a\n",),
    (b"X: a\r",),
    (b"X: \na",),
    (b"X:\ra",),
    (b"X\r: a",),
    (b"X\n: a",),
    (b"X: a\r\n b",),
    (b"X: a\r\n\tb",),
    (b"X: a\x00b",),
    (b"X\x00: a",),
    (b"X: a\x01",),
    (b"X: a\x7f",),
    (b"X : a",),
    (b"X",),
    (b": a",),
    (b"X y: a",),
    (b"X(: a",),
    (b"X\xff: a",),
    (b"Host: other",),
]


@pytest.mark.parametrize("fields", MALFORMED_FIELDS, ids=repr)
def test_malformed_fields(fields: tuple[bytes, ...]) -> None:
    assert refused(*fields) == 400
    assert refused(b"A: 1", *fields, b"Z: 1") == 400
    reader = request_heads()
    reader.read(b"POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n", Body())
    with pytest.raises(HttpError):
        reader.read(b"\r\n".join([b"POST /v1/x HTTP/1.1", b"Host: h", *fields, b"", b""]), Body())


@pytest.mark.parametrize(
    "line",
    [
        b"POST /x HTTP/1.1 ",
        b"POST  /x HTTP/1.1",
        b"POST /x  HTTP/1.1",
        b" POST /x HTTP/1.1",
        b"POST\t/x HTTP/1.1",
        b"POST /x\tHTTP/1.1",
        b"POST /x y HTTP/1.1",
        b"POST /x http/1.1",
        b"POST /x HTTP/1.",
        b"POST /x HTTP/11",
        b"POST /x HTTP/1.1x",
        b"POST /x HTTP/1.2",
        b"POST /x HTTP/3.0",
        b"POST /x HTTP /1.1",
        b"post /x HTTP/1.1",
        b"FOO /x HTTP/1.1",
        b"/x HTTP/1.1",
        b"POST HTTP/1.1",
        b"POST /\x00 HTTP/1.1",
        b"POST /\xff HTTP/1.1",
        b"POST /\x7f HTTP/1.1",
        b"POST /x\n HTTP/1.1",
        b"POST /x\r HTTP/1.1",
        b"POST /x HTTP/1.1\n",
        b"POST /x HTTP/1.1\r",
        b"DESCRIBE /x RTSP/1.0",
        b"SOURCE /x ICE/1.0",
        b"CONNECT h:443 HTTP/1.1",
        b"HTTP/1.1 200 OK",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_malformed_request_lines(line: bytes) -> None:
    assert refused(line=line) == 400


@pytest.mark.parametrize("line", [b"GET /x", b"GET /x HTTP/0.9", b"GET /x HTTP/2.0", b"PRI * HTTP/2.0"])
def test_other_versions(line: bytes) -> None:
    assert refused(line=line, host=line.endswith(b"9")) == 505


def test_hosts() -> None:
    assert refused(host=False) == 400
    assert refused(b"Host: h") == 400
    assert refused(b"Host: h", line=b"GET /x HTTP/1.0") == 400
    assert request(line=b"GET /x HTTP/1.0", host=False).http11 is False


def test_transfer_codings() -> None:
    assert request(b"Transfer-Encoding: Chunked ").chunked
    assert refused(b"Transfer-Encoding: gzip, chunked") == 501
    assert refused(b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked") == 501
    assert refused(CHUNKED, line=b"POST /x HTTP/1.0") == 400


def test_an_offer_to_switch_protocols_is_ignored() -> None:
    head = request(b"Upgrade: h2c", b"Connection: Upgrade, HTTP2-Settings", b"HTTP2-Settings: AAMAAABk", b"A: 1")
    assert head.fields == b"\r\nA: 1"
    assert head.keep_alive
    raw = b"POST /x HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = Body()
    head, parser = parse_request_head(raw, body)
    assert head.chunked
    parser.feed_data(b"3\r\nabc\r\n0\r\n\r\n")
    assert body.data == b"abc"


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 00000000000000000005\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\nB: c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\rB: c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: \x00\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX : a\r\n\r\n",
        b"HTTP/1.1 200 O\x00K\r\n\r\n",
        b"HTTP/1.1 200 O\nK: x\r\n\r\n",
        b"HTTP/1.1 200 O\rK: x\r\n\r\n",
        b"HTTP/1.1 200 O\x7fK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 000 OK\r\n\r\n",
        b"HTTP/1.1 099 OK\r\n\r\n",
        b"HTTP/1.1  200 OK\r\n\r\n",
        b"HTTP/1.1 200OK\r\n\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/0.9 200 OK\r\n\r\n",
        b"RTSP/1.0 200 OK\r\n\r\n",
        b"\r\nHTTP/1.1 200 OK\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
    ids=repr,
)
def test_malformed_answers(raw: bytes) -> None:
    with pytest.raises(HttpError) as caught:
        parse_response_head(raw, Body())
    assert caught.value.status == 502


# The memory of heads


def with_length(length: bytes, *, space: bytes = b"") -> bytes:
    return b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: " + length + space + b"\r\nA: 1\r\n\r\n"


def test_a_head_that_differs_in_its_lengths_digits_is_known() -> None:
    calls = []

    def parse(raw: bytes, listener: object) -> tuple[RequestHead, object]:
        calls.append(raw)
        return parse_request_head(raw, listener)

    reader = HeadReader(parse, Body)  # type: ignore[arg-type]  # the parser's own type is narrower
    first, length, parser = reader.read(with_length(b"5"), Body())
    assert (length, parser) == (5, None)
    for digits in (b"0", b"17", b"000000000000000017", b"999999999999999999"):
        again, length, parser = reader.read(with_length(digits), Body())
        assert again is first
        assert (length, parser) == (int(digits), None)
    assert len(calls) == 1


def test_white_space_behind_a_length_does_not_hide_it() -> None:
    reader = request_heads()
    for space in (b" ", b"\t", b" \t "):
        assert reader.read(with_length(b"5", space=space), Body())[1] == 5


def test_what_is_malformed_stays_so_after_a_head_like_it_is_known() -> None:
    reader = request_heads()
    reader.read(with_length(b"5"), Body())
    for digits in (
        b"",
        b"-5",
        b"5 5",
        b"5,5",
        b"5\r\nContent-Length: 5",
        b"5\n",
        b"5\r",
        b"5\x00",
        b"9" * 19,
        b"9" * 9_000,
    ):
        with pytest.raises(HttpError):
            reader.read(with_length(digits), Body())
    assert reader.read(with_length(b"6"), Body())[1] == 6


def test_a_chunked_body_has_a_parser_of_its_own_each_time() -> None:
    reader = request_heads()
    raw = b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    bodies = Body(), Body()
    parsers = [reader.read(raw, body)[2] for body in bodies]
    for parser, text in zip(parsers, (b"abc", b"xyz"), strict=True):
        assert parser is not None
        parser.feed_data(b"3\r\n" + text + b"\r\n0\r\n\r\n")
    assert [body.data for body in bodies] == [b"abc", b"xyz"]
    assert all(body.complete for body in bodies)


def test_the_memory_is_bounded() -> None:
    reader = request_heads()
    for i in range(_REMEMBERED * 2 + 10):
        reader.read(b"POST /%d HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n" % i, Body())
        assert len(reader._with_length) <= _REMEMBERED
    reader = request_heads()
    reader.read(b"POST /x HTTP/1.1\r\nHost: h\r\nX: " + b"x" * _LONGEST + b"\r\nContent-Length: 5\r\n\r\n", Body())
    assert not reader._with_length


def test_nothing_malformed_is_remembered() -> None:
    reader = request_heads()
    for raw in (with_length(b"5").replace(b"Host: h\r\n", b""), with_length(b"5").replace(b"A:", b"A :")):
        for _ in range(2):
            with pytest.raises(HttpError):
                reader.read(raw, Body())
    assert not reader._with_length


@given(st.lists(_LINES, max_size=5), st.integers(0, 5), st.integers(0, 10**18 - 1), st.integers(0, 10**18 - 1))
def test_a_remembered_head_equals_a_parsed_one(lines: list[bytes], at: int, one: int, two: int) -> None:
    reader = request_heads()

    def raw(length: int) -> bytes:
        fields = lines.copy()
        fields.insert(at, b"Content-Length: %d" % length)
        return b"\r\n".join([b"POST /x HTTP/1.1", b"Host: h", *fields, b"", b""])

    reader.read(raw(one), Body())
    assert reader.read(raw(two), Body())[:2] == request_heads().read(raw(two), Body())[:2]
    assert reader.read(raw(two), Body())[1] == two


def test_a_length_without_digits_is_not_taken_for_a_head_that_is_known() -> None:
    """A known head is remembered without its digits: a head that really has none is malformed all the same."""
    reader = request_heads()
    reader.read(with_length(b"5"), Body())
    with pytest.raises(HttpError) as caught:
        reader.read(with_length(b""), Body())
    assert caught.value.status == 400


def test_a_known_chunked_head_comes_with_a_parser_of_its_own() -> None:
    raw = b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    reader = request_heads()
    for _ in range(3):
        body = Body()
        head, length, parser = reader.read(raw, body)
        assert head.chunked
        assert length is None
        assert parser is not None
        parser.feed_data(b"3\r\nabc\r\n0\r\n\r\n")
        assert (body.data, body.complete) == (b"abc", True)


def test_a_known_stream_head_comes_with_a_parser_of_its_own() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    reader = response_heads()
    heads = []
    for _ in range(3):
        body = Body()
        head, _, parser = reader.read(raw, body)
        heads.append(head)
        assert parser is not None
        parser.feed_data(b"3\r\nabc\r\n0\r\n\r\n")
        assert body.complete
    assert heads[0] is heads[1] is heads[2]


def test_a_connection_field_that_names_thousands_costs_one_pass() -> None:
    named = [b"x-%x" % n for n in range(4_000)]
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        head = request(b"Connection: " + b",".join(named), b"X-1: gone", b"A: 1", b"x-f00: gone")
    finally:
        sys.setprofile(None)
    assert head.fields == b"\r\nA: 1"
    assert calls < 10 * len(named)


@pytest.mark.parametrize(
    ("coding", "watched"),
    [(b"identity", True), (b"Identity ", True), (b"gzip", False), (b"identity, gzip", False), (b"identityx", False)],
)
def test_an_event_stream_is_one_unless_it_is_compressed(coding: bytes, watched: bool) -> None:
    fields = b"Content-Type: text/event-stream"
    assert response(fields, b"Content-Encoding: " + coding).event_stream is watched
    assert response(fields, b"Content-Encoding:" + coding).event_stream is watched
