"""One request in, one response out: the client's connection on one side, at most one worker's on the other.

An exchange begins when a whole request has been read and ends exactly once, in `_finish`. Until the first byte of an
answer has come the pipeline may send it to another worker; from then on bytes are written on as they arrive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from backends.errors import UpstreamFault
from backends.http1 import render_response
from gateway.dialects.openai import OPENAI

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.fleet_state import Reservation, Worker
    from backends.http1 import RequestHead, ResponseHead
    from backends.upstream import UpstreamConnection
    from backends.upstream_pool import UpstreamPool
    from gateway.api_error import ApiError
    from gateway.calls import Call
    from gateway.client_connection import ClientConnection
    from gateway.dialects.base import Dialect
    from gateway.prompts import PromptView
    from policies.types import BlockHash


class Pipeline(Protocol):
    """What an exchange tells the pipeline; each call is synchronous."""

    def begin(self, exchange: Exchange) -> None:
        """A whole request has been read."""

    def first_byte(self, exchange: Exchange) -> None:
        """The first byte of the answer's body has come."""

    def fault(self, exchange: Exchange, fault: UpstreamFault, detail: str) -> None:
        """The attempt failed before the first byte: send it elsewhere, or answer with an error."""

    def finished(self, exchange: Exchange) -> None:
        """The exchange is over, however it ended."""


class Exchange:
    """One request and its answer; the sink of whichever worker's connection serves it."""

    __slots__ = (
        "arrived", "attempts", "body", "cached_blocks", "cached_tokens", "call", "client", "cut_short", "dialect",
        "finished", "first_byte_at", "head", "keep_alive", "pool", "predicted", "progress", "prompt", "prompt_tokens",
        "request_id", "reservation", "response_bytes", "reused", "status", "streaming", "tried", "unchunk", "until_close",
        "upstream", "worker", "write",
    )  # fmt: skip

    def __init__(self, client: ClientConnection, head: RequestHead, body: bytes, request_id: bytes) -> None:
        self.client = client
        self.head = head
        self.body = body
        self.request_id = request_id
        self.write = client.transport.write
        self.keep_alive = head.keep_alive and not client.server.draining
        self.unchunk = not head.http11
        self.arrived = client.server.loop.time()
        self.first_byte_at = 0.0
        self.status = 0
        self.response_bytes = 0
        self.attempts = 0
        self.predicted: Sequence[BlockHash] = ()  # what the index was told the worker would hold because of it
        self.prompt_tokens = 0
        self.cached_blocks = 0
        self.cached_tokens = 0
        self.finished = False
        self.streaming = False  # True once a byte of a worker's answer has gone to the client
        self.reused = False  # True where the attempt that failed was on a connection that had served before
        self.until_close = False
        self.cut_short = False
        self.progress = False  # set by every read, cleared by the sweep that watches for stalls
        self.dialect: Dialect = OPENAI  # until the route is known
        self.call: Call | None = None
        self.prompt: PromptView | None = None
        self.tried: list[Worker] = []
        self.worker: Worker | None = None
        self.reservation: Reservation | None = None
        self.pool: UpstreamPool | None = None
        self.upstream: UpstreamConnection | None = None

    # -- what the pipeline does with it

    @property
    def failed(self) -> bool:
        """True once it is clear that the worker has not done what it was asked."""
        return self.finished and (self.status >= 400 or not self.first_byte_at)

    def wait(self, timeout: float) -> None:
        """Something else than a worker is waited for, and must come within `timeout` seconds."""
        self.client.watch(timeout)

    def send(self, pool: UpstreamPool, request: bytes, *, fresh: bool = False) -> None:
        """Send `request` to a worker; the answer comes back through the sink methods below."""
        self.attempts += not fresh  # a second try on the same worker is not another attempt
        self.pool = pool
        self.client.watch(self.client.server.first_byte_timeout)
        pool.send(request, self, fresh=fresh)

    def respond(self, status: int, body: bytes, *, fields: bytes = b"") -> None:
        """Answer from here, with a JSON body."""
        if self.finished:
            return
        self.status = status
        self.response_bytes = len(body)
        answer = render_response(status, body, self.request_id, keep_alive=self.keep_alive, fields=fields)
        if self.head.method == b"HEAD":  # a body would be read as the next answer (RFC 9110 §9.3.2)
            answer = answer[: len(answer) - len(body)]
        self.write(answer)
        self._finish()

    def refuse(self, error: ApiError) -> None:
        """Answer with an error of our own."""
        self.respond(error.status, self.dialect.error_body(error), fields=error.fields)

    # -- the client's side

    def client_gone(self) -> None:
        """The client closed its connection: whatever works for it stops now."""
        if not self.finished:
            self.cut_short = True
            self._drop_upstream()
            self._finish()

    def stalled(self) -> None:
        """A deadline has passed."""
        if self.finished:
            return
        self._drop_upstream()
        fault = UpstreamFault.IDLE_TIMEOUT if self.streaming else UpstreamFault.FIRST_BYTE_TIMEOUT
        self.response_fault(fault, "")

    def pause(self) -> None:
        """The client reads more slowly than the worker writes."""
        if self.upstream is not None:
            self.upstream.pause()

    def resume(self) -> None:
        """The client has caught up."""
        if self.upstream is not None:
            self.upstream.resume()

    # -- ResponseSink: the worker's side

    def connected(self, connection: UpstreamConnection) -> None:
        """See `ResponseSink`."""
        self.upstream = connection
        if self.client.paused:
            connection.pause()  # an earlier answer still waits to be read

    def response_head(self, head: ResponseHead, length: int | None, body: bytes) -> None:
        """Write the head, with the fields that belong to this hop, and what came with it."""
        self.status = head.status
        self.streaming = True
        self.progress = True
        if body:
            self._first_byte()
        if head.chunked:
            if self.unchunk:
                self.until_close = True
                framing = b""
            else:
                framing = b"\r\ntransfer-encoding: chunked"
        elif length is not None and head.status != 204:
            framing = b"\r\ncontent-length: %d" % length
        else:
            framing = b""
            self.until_close = not head.bodiless
        if self.until_close:
            self.keep_alive = False
        if not self.keep_alive:
            framing += b"\r\nconnection: close"
        self.response_bytes += len(body)
        self.write(
            b"HTTP/1.1 %d %b%b\r\nx-request-id: %b%b%b\r\n\r\n%b"
            % (head.status, head.reason, head.fields, self.request_id, self._worker_field(), framing, body)
        )

    def response_data(self, data: bytes) -> None:
        """Write on more of the body."""
        if not self.first_byte_at:
            # Engines send the head of a stream when they accept it, and the first token long after.
            self._first_byte()
        self.progress = True
        self.response_bytes += len(data)
        self.write(data)

    def response_end(self) -> None:
        """See `ResponseSink`."""
        if not self.first_byte_at:
            self._first_byte()  # an answer without a body
        self.upstream = None
        self._finish()

    def response_fault(self, fault: UpstreamFault, detail: str) -> None:
        """See `ResponseSink`."""
        self.reused = self.upstream is not None and self.upstream.uses > 1
        self.upstream = None
        if self.streaming:
            # Part of the answer is out. The missing end of its framing, or a reset where only the end of the
            # stream would tell, is how the client learns that there is no more.
            self.cut_short = True
            self._finish()
        else:
            self.client.server.pipeline.fault(self, fault, detail)

    def _first_byte(self) -> None:
        server = self.client.server
        server.pipeline.first_byte(self)
        self.client.watch(server.response_idle_timeout)
        self.client.drop_body()
        self.body = b""
        self.call = None
        self.prompt = None

    def _worker_field(self) -> bytes:
        name = self.client.server.worker_header
        return b"" if not name or self.worker is None else b"\r\n%b: %b" % (name, self.worker.id.encode())

    # -- the end

    def _drop_upstream(self) -> None:
        if self.upstream is not None:
            self.upstream.abort()
            self.upstream = None
        elif self.pool is not None:
            self.pool.cancel(self)

    def _finish(self) -> None:
        if self.finished:
            return
        self.finished = True
        self.client.server.pipeline.finished(self)
        self.client.exchange_over(self)
