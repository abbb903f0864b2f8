"""The request as it goes to a worker: the client's own but for what ends at this hop. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from backends.http1 import RequestHead

_BODILESS: Final = frozenset((b"GET", b"HEAD", b"DELETE", b"OPTIONS"))


@dataclass(frozen=True, slots=True)
class WorkerAccess:
    """Which credentials a worker is shown: `own` ones, else, only where it is told so, those of the client."""

    own: bytes = b""
    """Header lines, each led by CRLF."""
    forward_client: bool = False

    @classmethod
    def of(cls, api_key: str | None, *, forward_client: bool = False) -> WorkerAccess:
        """`api_key` goes out as a bearer token, in place of whatever the client shows."""
        own = b"" if api_key is None else b"\r\nauthorization: Bearer " + api_key.encode()
        return cls(own, forward_client)

    def lines(self, head: RequestHead) -> bytes:
        """The credentials for a request, as header lines each led by CRLF."""
        return self.own or (head.credentials if self.forward_client else b"")


NO_ACCESS: Final = WorkerAccess()


def render_request(
    head: RequestHead,
    body: bytes,
    *,
    host: bytes,
    request_id: bytes,
    via: bytes,
    credentials: bytes = b"",
    forwarded: bytes = b"",
    traceparent: bytes | None = None,
) -> bytes:
    """One whole request to a worker.

    `via` is this gateway's own entry, such as `1.1 name`, which goes behind those of the hops before (RFC 9110 §7.6.3);
    `credentials` and `forwarded` are header lines, each led by CRLF; `traceparent` replaces the client's.
    """
    if head.via is not None:
        via = b"%b, %b" % (head.via, via)
    if traceparent is None:
        traceparent = head.traceparent
    if traceparent is not None:
        forwarded = b"%b\r\ntraceparent: %b" % (forwarded, traceparent)
    if not body and head.method in _BODILESS:
        return b"%b %b%b HTTP/1.1\r\nhost: %b%b%b%b\r\nx-request-id: %b\r\nvia: %b\r\n\r\n" % (
            head.method, head.path, head.query, host, head.fields, credentials, forwarded, request_id, via,
        )  # fmt: skip
    return b"%b %b%b HTTP/1.1\r\nhost: %b%b%b%b\r\nx-request-id: %b\r\nvia: %b\r\ncontent-length: %d\r\n\r\n%b" % (
        head.method, head.path, head.query, host, head.fields, credentials, forwarded, request_id, via, len(body), body,
    )  # fmt: skip
