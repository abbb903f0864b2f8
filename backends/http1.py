"""HTTP/1.1 heads, both directions: strict to read, and ready to forward (RFC 9110 §7.6, RFC 9112).

llhttp (through httptools) judges whether a head is well formed; it refuses bare CR or LF, repeated and malformed
lengths, and both framings at once. What is left to do here is to take out the fields that end at this hop and to
tell how the body is framed. One regular expression does both in a single pass over bytes that are already known
to be valid, which on a head of 15 fields costs half of what a callback per field does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, Generic, TypeVar

import httptools

from policies.kv_policy import KV_POLICY_FIELD

CRLF2: Final = b"\r\n\r\n"

_HOP_FIELDS: Final = (
    rb"con(?:nection|tent-length)|keep-alive|proxy-(?:connection|authenticate|authorization)|te|"
    rb"tra(?:iler|nsfer-encoding)|upgrade|http2-settings|x-request-id|" + re.escape(KV_POLICY_FIELD.encode())
)
_CREDENTIALS: Final = (b"authorization", b"x-api-key", b"api-key", b"cookie")
# End-to-end fields that do not simply go on: whose they are, where they came from, and what they belong to.
_APART_FIELDS: Final = rb"authorization|api-key|cookie|forwarded|traceparent|x-(?:api-key|real-ip|forwarded-[a-z-]+)"
# Splitting by a pattern with two groups yields text, name, value, text, name, value, ..., text. What names begin with
# is looked at first: it spares most fields the alternatives.
_REQUEST_SPLIT: Final = re.compile(
    rb"\r\n(?=[acefhkptuvACEFHKPTUV]|[xX]-[afprAFPR])(?i:(host|expect|via|"
    + _APART_FIELDS + rb"|" + _HOP_FIELDS + rb")):[ \t]*([^\r]*)"
).split  # fmt: skip
_RESPONSE_SPLIT: Final = re.compile(rb"\r\n(?i:(" + _HOP_FIELDS + rb")):[ \t]*([^\r]*)").split
_APART: Final = re.compile(_APART_FIELDS).fullmatch
_PLAIN_CONNECTION: Final = frozenset((b"keep-alive", b"close", b"Keep-Alive", b"Close", b""))
_NO_FIELDS: Final = frozenset((b"keep-alive", b"close", b""))
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] [1-9][0-9]{2}(?: [\t -~\x80-\xff]*)?").fullmatch
_REQUEST_ID: Final = re.compile(rb"[!-~]{1,128}").fullmatch
_TARGET: Final = re.compile(rb"(?i:https?://[^/?#]*)?(/[^?#]*)((?:\?[^#]*)?)").fullmatch


_EVENT_STREAM: Final = re.compile(rb"\r\n(?i:content-type):[ \t]*(?i:text/event-stream)").search
_JSON: Final = re.compile(rb"\r\n(?i:content-type):[ \t]*(?i:application/json)").search
_ENCODED: Final = re.compile(rb"\r\n(?i:content-encoding):[ \t]*+(?!(?i:identity)[ \t]*+\r\n)").search
_CONTENT_LENGTH: Final = re.compile(rb"\r\n(?i:content-length):[ \t]*([0-9]{1,18})[ \t]*\r\n").search
_LENGTH: Final = re.compile(rb"[0-9]{1,18}").fullmatch
_REMEMBERED: Final = 512
_LONGEST: Final = 4096
_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}


HttpParser = httptools.HttpRequestParser | httptools.HttpResponseParser
Head = TypeVar("Head", bound="RequestHead | ResponseHead")


class HttpError(Exception):
    """A head that this hop cannot take. `status` is what a client is told, `message` says what was expected."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class ForwardedFields:
    """What a client says of hops before it, unchecked; repeated fields are joined by commas."""

    addresses: bytes | None
    """`X-Forwarded-For`."""
    proto: bytes | None
    host: bytes | None


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A client's request head but for the length of its body. `fields` are the end-to-end lines, each led by CRLF,
    without those that are given apart.
    """

    method: bytes
    path: bytes
    query: bytes
    http11: bool
    keep_alive: bool
    chunked: bool
    expects_continue: bool
    request_id: bytes | None
    via: bytes | None
    credentials: bytes
    """`Authorization`, `X-API-Key`, `API-Key` and `Cookie`, as lines each led by CRLF."""
    forwarded: ForwardedFields | None
    """None where it has none of the three. `Forwarded`, `X-Real-IP` and other `X-Forwarded-` fields end here."""
    traceparent: bytes | None
    """None also where there are several: which of them is meant cannot be told."""
    fields: bytes


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """A worker's response head but for the length of its body."""

    status: int
    reason: bytes
    keep_alive: bool
    chunked: bool
    bodiless: bool
    """True for a status that has no body, whatever the fields say."""
    event_stream: bool
    """True for a body of server-sent events that is not compressed."""
    plain_json: bool
    """True for a body of JSON that is not compressed."""
    fields: bytes


def _without_named(fields: bytes, names: set[bytes]) -> bytes:
    """Take out the fields of these lower-case names. One pass: a head may name as many as it has room for."""
    lines = fields.split(b"\r\n")
    return b"\r\n".join([line for line in lines if line.partition(b":")[0].lower() not in names])


class HeadReader(Generic[Head]):
    """Reads heads, and remembers them: a peer repeats its head to the letter but for the digits of Content-Length.

    A head that differs from a known one in these digits alone is as valid as the known one, so that it costs one
    search and one lookup instead of two passes. Bounded by `_REMEMBERED` heads of `_LONGEST` bytes.
    """

    def __init__(
        self,
        parse: Callable[[bytes, object], tuple[Head, HttpParser]],
        chunked_parser: Callable[[object], HttpParser],
    ) -> None:
        """`chunked_parser` makes the parser for a chunked body behind a head that is known."""
        self._parse = parse
        self._chunked_parser = chunked_parser
        # Apart, because one head without the digits of its length must never be taken for another that has none.
        self._with_length: dict[bytes, Head] = {}
        self._without_length: dict[bytes, Head] = {}

    def read(self, raw: bytes, listener: object) -> tuple[Head, int | None, HttpParser | None]:
        """The head, its Content-Length if it has one, and for a chunked body the parser that takes it to its end,
        which calls `listener` (`on_body`, `on_message_begin`, `on_message_complete`). Raises HttpError.
        """
        found = _CONTENT_LENGTH(raw)
        if found is None:
            return self._read_without_length(raw, listener)
        start, end = found.span(1)
        key = raw[:start] + raw[end:]
        head = self._with_length.get(key)
        if head is None:
            head, _ = self._parse(raw, listener)
            _remember(self._with_length, key, head)
        return head, int(raw[start:end]), None

    def _read_without_length(self, raw: bytes, listener: object) -> tuple[Head, int | None, HttpParser | None]:
        head = self._without_length.get(raw)
        if head is None:
            head, parser = self._parse(raw, listener)
            _remember(self._without_length, raw, head)
            return head, None, parser
        return head, None, self._chunked_parser(listener) if head.chunked else None


def _remember(known: dict[bytes, Head], key: bytes, head: Head) -> None:
    if len(key) <= _LONGEST:
        if len(known) >= _REMEMBERED:
            known.clear()
        known[key] = head


def request_heads() -> HeadReader[RequestHead]:
    """A reader of requests' heads."""
    return HeadReader(parse_request_head, _chunked_request)


def response_heads() -> HeadReader[ResponseHead]:
    """A reader of responses' heads."""
    return HeadReader(parse_response_head, _chunked_response)


def _chunked_request(listener: object) -> HttpParser:
    parser = httptools.HttpRequestParser(listener)
    parser.feed_data(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
    return parser


def _chunked_response(listener: object) -> HttpParser:
    parser = httptools.HttpResponseParser(listener)
    parser.feed_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    return parser


def parse_request_head(raw: bytes, listener: object) -> tuple[RequestHead, HttpParser]:
    """Read one request head that ends with an empty line.

    Raises:
        HttpError: 400 where it is malformed or ambiguous, 501 for a transfer coding other than chunked, 505 for
            a version other than 1.0 and 1.1, 417 for an expectation other than 100-continue.
    """
    parser = httptools.HttpRequestParser(listener)
    offers_upgrade = False
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        offers_upgrade = True  # which may be ignored (RFC 9110 §7.8)
    except httptools.HttpParserError as error:
        raise HttpError(400, f"malformed HTTP request: {error}") from None
    version = parser.get_http_version()
    if version not in ("1.1", "1.0"):
        raise HttpError(505, f"HTTP version {version} is not served here; use HTTP/1.1")
    http11 = version == "1.1"
    line, parts, named = _taken_apart(_REQUEST_SPLIT(raw[:-4]))
    words = line.split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/"):
        raise HttpError(400, "malformed request line: expected a method, a target and HTTP/1.1, one space between")
    target = _TARGET(words[1])
    if target is None:
        raise HttpError(400, "malformed request target: expected a path such as /v1/chat/completions")
    hosts = len(named.get(b"host", ()))
    if hosts != 1 and (http11 or hosts):
        raise HttpError(400, f"expected exactly one Host field, got {hosts}")
    _check_length(named, 400)
    chunked = _is_chunked_request(named, http11=http11)
    method = parser.get_method()
    if offers_upgrade and chunked:
        # httptools takes what follows for the other protocol and would pass over the body.
        body_parser: HttpParser = _chunked_request(listener)
    else:
        body_parser = parser
    expectations = named.get(b"expect", [])
    if any(expectation.lower() != b"100-continue" for expectation in expectations):
        raise HttpError(417, "the only expectation served here is 100-continue")
    request_ids = named.get(b"x-request-id", [])
    fields = _end_to_end(parts, named)
    traces = named.get(b"traceparent", ())
    head = RequestHead(
        method=method,
        path=target[1],
        query=target[2],
        http11=http11,
        keep_alive=http11 and not _says(named, b"close"),
        chunked=chunked,
        expects_continue=http11 and bool(expectations),
        request_id=request_ids[0] if len(request_ids) == 1 and _REQUEST_ID(request_ids[0]) else None,
        via=_joined(named, b"via"),
        credentials=_credentials(named),
        forwarded=_forwarded(named),
        traceparent=traces[0] if len(traces) == 1 else None,
        fields=fields,
    )
    return head, body_parser


def _joined(named: dict[bytes, list[bytes]], name: bytes) -> bytes | None:
    values = named.get(name)
    return None if values is None else b", ".join(values)


def _credentials(named: dict[bytes, list[bytes]]) -> bytes:
    lines = b""
    for name in _CREDENTIALS:
        for value in named.get(name, ()):
            lines += b"\r\n%b: %b" % (name, value)
    return lines


def _forwarded(named: dict[bytes, list[bytes]]) -> ForwardedFields | None:
    addresses = _joined(named, b"x-forwarded-for")
    proto = _joined(named, b"x-forwarded-proto")
    host = _joined(named, b"x-forwarded-host")
    if addresses is None and proto is None and host is None:
        return None
    return ForwardedFields(addresses, proto, host)


def parse_response_head(raw: bytes, listener: object) -> tuple[ResponseHead, HttpParser]:
    """Read one response head that ends with an empty line.

    Raises:
        HttpError: 502 where the head is malformed or its framing ambiguous.
    """
    parser = httptools.HttpResponseParser(listener)
    try:
        parser.feed_data(raw)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
        raise HttpError(502, f"malformed HTTP response: {error}") from None
    line, parts, named = _taken_apart(_RESPONSE_SPLIT(raw[:-4]))
    _check_length(named, 502)
    codings = named.get(b"transfer-encoding")
    if codings is not None and [coding.lower() for coding in codings] != [b"chunked"]:
        raise HttpError(502, "the worker answered with a transfer coding other than chunked")
    if not _STATUS_LINE(line):
        raise HttpError(502, "malformed status line: expected HTTP/1.1, a status of three digits, and a reason")
    status = parser.get_status_code()
    bodiless = status < 200 or status in (204, 304)
    head = ResponseHead(
        status=status,
        reason=line[13:],
        keep_alive=not _says(named, b"close") and (line.startswith(b"HTTP/1.1") or _says(named, b"keep-alive")),
        chunked=codings is not None and not bodiless,
        bodiless=bodiless,
        event_stream=_EVENT_STREAM(raw) is not None and _ENCODED(raw) is None,
        plain_json=_JSON(raw) is not None and _ENCODED(raw) is None,
        fields=_end_to_end(parts, named),
    )
    return head, parser


def _says(named: dict[bytes, list[bytes]], wanted: bytes) -> bool:
    """Whether a `Connection` field has this option. llhttp cannot be asked: it forgets with the message's end, which
    for a head without a body has come already.
    """
    return any(
        option.strip().lower() == wanted for value in named.get(b"connection", ()) for option in value.split(b",")
    )


def _check_length(named: dict[bytes, list[bytes]], status: int) -> None:
    """What llhttp takes for a length `HeadReader` must find too, or else a body would be read as the next message."""
    for value in named.get(b"content-length", ()):
        if not _LENGTH(value):
            raise HttpError(status, "malformed Content-Length: expected at most 18 digits")


def _taken_apart(parts: list[bytes]) -> tuple[bytes, list[bytes], dict[bytes, list[bytes]]]:
    """The first line; the parts without it; and the values of the fields that were split off, by lower-case name."""
    line, separator, first_fields = parts[0].partition(b"\r\n")
    parts[0] = separator + first_fields
    named: dict[bytes, list[bytes]] = {}
    for name, value in zip(parts[1::3], parts[2::3], strict=True):
        named.setdefault(name.lower(), []).append(value.rstrip())
    return line, parts, named


def _is_chunked_request(named: dict[bytes, list[bytes]], *, http11: bool) -> bool:
    codings = named.get(b"transfer-encoding")
    if codings is None:
        return False
    if not http11:
        raise HttpError(400, "Transfer-Encoding is not defined in HTTP/1.0")
    if [coding.lower() for coding in codings] != [b"chunked"]:
        raise HttpError(501, "the only transfer coding served here is chunked")
    return True


def _end_to_end(parts: list[bytes], named: dict[bytes, list[bytes]]) -> bytes:
    """The fields that go on to the next hop: not those which a `Connection` field names either (RFC 9110 §7.6.1)."""
    fields = b"".join(parts[::3])
    names: set[bytes] = set()
    for options in named.get(b"connection", ()):
        if options not in _PLAIN_CONNECTION:
            names.update(option.strip() for option in options.lower().split(b","))
    names -= _NO_FIELDS
    if names:
        fields = _without_named(fields, names)
        for name in filter(_APART, names):
            named.pop(name, None)
    return fields


def render_response(status: int, body: bytes, request_id: bytes, *, keep_alive: bool, fields: bytes = b"") -> bytes:
    """A whole response with a JSON body. `fields` are further header lines, each one led by CRLF."""
    if not keep_alive:
        fields += b"\r\nconnection: close"
    return (
        b"HTTP/1.1 %d %b\r\ndate: %b\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\nx-request-id: %b%b\r\n\r\n%b"
        % (status, _REASONS.get(status, b""), formatdate(usegmt=True).encode(), len(body), request_id, fields, body)
    )
