"""One request in, one response out: the client's connection on one side, at most one worker's on the other.

An exchange begins when a whole request has been read and ends exactly once, in `_finish`. The head of an answer waits
for the first byte of its body; until then the pipeline may send the request to another worker. From then on bytes are
written on as they arrive, of a stream in whole events, so that an error event can end it wherever the worker fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from backends.errors import UpstreamFault
from backends.http1 import render_response
from gateway.api_error import ApiError
from gateway.dialects.base import NO_USAGE
from gateway.dialects.openai import OPENAI
from gateway.request_record import Outcome, RequestRecord
from gateway.stream_watch import USAGE_MARK, StreamWatch
from policies.tenant import DEFAULT_POLICY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from backends.fleet_worker import Reservation, Worker
    from backends.http1 import RequestHead, ResponseHead
    from backends.upstream import UpstreamConnection
    from backends.upstream_pool import UpstreamPool
    from gateway.admission import Turn
    from gateway.answer_replay import Replay
    from gateway.background_client import BackgroundClient
    from gateway.cached_call import CachedCall
    from gateway.calls import Call
    from gateway.client_connection import ClientConnection
    from gateway.dialects.base import Dialect
    from gateway.model_rewrite import Splice
    from gateway.prompts import PromptView
    from gateway.tenancy import Tenant, Ticket
    from policies.retry_budget import RetryBudget
    from policies.tenant import TenantPolicy
    from policies.types import BlockHash

_FIRST_ERROR_STATUS: Final = 400
_FIRST_SERVER_ERROR: Final = 500
_OK: Final = 200
_BEGINNING_BYTES: Final = 16_384
"""Of an answer that later requests may refer to: where its id is looked for."""
_TAIL_BYTES: Final = 4096
"""Of a body in one piece: where the worker tells its usage."""


class Pipeline(Protocol):
    """What an exchange tells the pipeline; each call is synchronous."""

    def unwelcome(self, head: RequestHead) -> bool:
        """Is a request certain to be refused, whatever its body?"""

    def begin(self, exchange: Exchange) -> None:
        """A whole request has been read."""

    def would_retry(self, exchange: Exchange, status: int) -> bool:
        """Is a worker's answer of that status to be thrown away for another worker's?"""

    def first_byte(self, exchange: Exchange) -> None:
        """The first byte of the answer's body has come."""

    def learn_id(self, exchange: Exchange, beginning: bytes) -> bool:
        """Is the answer's id in its `beginning`? Then it is remembered."""

    def fault(self, exchange: Exchange, fault: UpstreamFault, detail: str) -> None:
        """The attempt failed before the first byte: send it elsewhere, or answer with an error."""

    def broken(self, exchange: Exchange, fault: UpstreamFault, detail: str) -> None:
        """The worker failed after the first byte."""

    def finished(self, exchange: Exchange) -> None:
        """The exchange is over, however it ended."""


class Exchange:
    """One request and its answer; the sink of whichever worker's connection serves it."""

    __slots__ = (
        "attempts", "beginning", "body", "cached_blocks", "caching", "call", "chunked", "client", "counts_events",
        "cut_short", "deadline", "dialect", "due", "finished", "follows", "head", "is_object", "keep_alive", "key",
        "n_events", "own_fields", "pending", "policy", "pool", "predicted", "progress", "prompt", "record", "recording",
        "repeatable", "request_id", "reservation", "retrying", "reused", "salt", "salting", "seen_bytes",
        "session", "streaming", "tail", "teaches", "tenant", "ticket", "tried", "turn", "until_close", "upstream",
        "watch", "worker", "write",
    )  # fmt: skip

    def __init__(  # noqa: PLR0915 - a line for each field
        self, client: ClientConnection | BackgroundClient, head: RequestHead, body: bytes, request_id: bytes
    ) -> None:
        now = client.server.loop.time()
        self.client: ClientConnection | BackgroundClient = client
        self.head = head
        self.body = body
        self.request_id = request_id
        self.record = RequestRecord(request_id, head.method, head.path, now)
        self.write = client.transport.write
        self.keep_alive = head.keep_alive and not client.server.draining
        self.due: float | None = None  # when its first token is, where admission has looked
        self.deadline = now + client.server.request_timeout
        self.attempts = 0
        self.retrying: RetryBudget | None = None  # where it holds a place
        self.predicted: Sequence[BlockHash] = ()  # what the index was told the worker would hold because of it
        self.cached_blocks = 0
        self.finished = False
        self.pending = b""  # the answer's head, until the first byte of its body
        self.streaming = False  # True once a byte of a worker's answer has gone to the client
        self.reused = False  # True where the attempt that failed was on a connection that had served before
        self.chunked = False  # how the answer's body is framed towards the client
        self.until_close = False
        self.cut_short = False
        self.progress = False  # set by every read, cleared by the sweep that watches for stalls
        self.seen_bytes = 0  # of the answer, when the sweep last looked
        self.watch: StreamWatch | None = None
        self.tail = b""
        self.is_object = False  # True where the body of the answer must be a JSON object
        self.beginning: bytes | None = None  # of a body whose id is still looked for
        self.dialect: Dialect = OPENAI  # until the route is known
        self.call: Call | None = None
        self.session: bytes | None = None  # what keeps it together with others
        self.key: int | None = None  # of the same, for policies that go by it
        self.salt = ""
        self.salting: Splice | None = None  # what makes of the body that of a worker which takes salts
        self.tenant: Tenant | None = None  # None where there are none, or it is not known yet
        self.policy: TenantPolicy = DEFAULT_POLICY
        self.ticket: Ticket | None = None  # where it counts against a tenant's rates
        self.turn: Turn | None = None  # where it waits, or waited, for its turn
        self.own_fields = b""  # header lines of the gateway's own, each led by CRLF
        self.counts_events = False  # True where tokens must be counted that the worker may not report
        self.n_events = 0  # of a stream
        self.repeatable = True  # False where a second worker may not be asked once one has received it
        self.teaches = False  # True where its first byte tells how long its prefill took
        self.follows = False  # True where only the worker of an earlier answer can give this one
        self.prompt: PromptView | None = None
        self.tried: list[Worker] = []
        self.worker: Worker | None = None
        self.reservation: Reservation | None = None
        self.pool: UpstreamPool | None = None
        self.upstream: UpstreamConnection | Replay | None = None
        self.caching: CachedCall | None = None  # where its answer may be kept, or another's be its own
        self.recording: Callable[[bytes], None] | None = None  # is given the body of the answer as it goes on

    # -- what the pipeline does with it

    @property
    def failed(self) -> bool:
        """True once it is clear that the worker has not done what it was asked."""
        return self.finished and (self.record.status >= _FIRST_ERROR_STATUS or not self.record.first_byte_at)

    def wait(self, timeout: float) -> None:
        """Something else than a worker is waited for, and must come within `timeout` seconds."""
        self.client.watch(timeout)

    def send(self, pool: UpstreamPool, request: bytes, *, fresh: bool = False) -> None:
        """Send `request` to a worker; the answer comes back through the sink methods below. With `fresh` no idle
        connection is used.
        """
        self.pool = pool
        self.client.watch(self.client.server.first_byte_timeout)
        pool.send(request, self, fresh=fresh)

    def respond(self, status: int, body: bytes, *, fields: bytes = b"") -> None:
        """Answer from here, with a JSON body."""
        if self.finished:
            return
        record = self.record
        record.status = status
        record.response_bytes = len(body)
        if status >= _FIRST_ERROR_STATUS:
            record.outcome = Outcome.CLIENT_ERROR if status < _FIRST_SERVER_ERROR else Outcome.FAILED
        fields += self.own_fields
        answer = render_response(status, body, self.request_id, keep_alive=self.keep_alive, fields=fields)
        if self.head.method == b"HEAD":  # a body would be read as the next answer (RFC 9110 §9.3.2)
            answer = answer[: len(answer) - len(body)]
        self.write(answer)
        self._finish()

    def refuse(self, error: ApiError) -> None:
        """Answer with an error of our own, unless there is something better."""
        if error.status >= _FIRST_SERVER_ERROR and self.caching is not None and self.caching.fall_back(self):
            return
        self.record.error = self.record.error or error.code or ""
        self.respond(error.status, self.dialect.error_body(error), fields=error.fields)

    def give_up(self, fault: UpstreamFault, detail: str = "") -> None:
        """Whatever the worker does, it comes too late: treat it as failed."""
        if not self.finished:
            self._drop_upstream()
            self.response_fault(fault, detail)

    # -- the client's side

    def client_gone(self) -> None:
        """The client closed its connection: whatever works for it stops now, unless others wait for the same."""
        if not self.finished and not (self.caching is not None and self.caching.adopt(self)):
            self.cut_short = True
            self.record.outcome = Outcome.CLIENT_GONE
            self._drop_upstream()
            self._finish()

    def stalled(self) -> None:
        """A deadline has passed."""
        self.give_up(UpstreamFault.IDLE_TIMEOUT if self.streaming else UpstreamFault.FIRST_BYTE_TIMEOUT)

    def pause(self) -> None:
        """The client reads more slowly than the worker writes."""
        if self.caching is not None and self.caching.shares:
            self.caching.set_pace()
        elif self.upstream is not None:
            self.upstream.pause()

    def resume(self) -> None:
        """The client has caught up."""
        if self.caching is not None and self.caching.shares:
            self.caching.set_pace()
        elif self.upstream is not None:
            self.upstream.resume()

    # -- ResponseSink: the worker's side

    def connected(self, connection: UpstreamConnection | Replay) -> None:
        """See `ResponseSink`."""
        self.upstream = connection
        if self.client.paused:
            self.pause()  # an earlier answer still waits to be read

    def response_head(self, head: ResponseHead, length: int | None, body: bytes) -> None:
        """Make the head ready, with the fields that belong to this hop; it goes out with the first byte behind it."""
        status = head.status
        pipeline = self.client.server.pipeline
        if status >= _FIRST_SERVER_ERROR and (self._has_fallback() or pipeline.would_retry(self, status)):
            self._drop_upstream()
            pipeline.fault(self, UpstreamFault.SERVER_ERROR, str(status))
            return
        self.record.status = status
        self.progress = True
        call = self.call
        if status == _OK and call is not None and call.generates:
            if head.event_stream and call.streams:
                self.watch = StreamWatch(self.dialect)
            else:
                self.is_object = head.plain_json
        if self.caching is not None:
            self.caching.streams = self.watch is not None
        if self.recording is not None and (status != _OK or (self.watch is None and not head.plain_json)):
            self.recording = None
        self.beginning = b"" if status == _OK and self.dialect.has_ids else None
        framing = self._framing(head, length)
        self.pending = b"HTTP/1.1 %d %b%b\r\nx-request-id: %b%b%b%b\r\n\r\n" % (
            status, head.reason, head.fields, self.request_id, self._worker_field(), self.own_fields, framing,
        )  # fmt: skip
        if body:
            self.response_data(body)

    def _has_fallback(self) -> bool:
        return self.caching is not None and self.caching.fallback is not None

    def _framing(self, head: ResponseHead, length: int | None) -> bytes:
        """How the client learns where the body ends."""
        self.chunked = self.until_close = False
        framing = b""
        # Of a stream that is watched the length is not known: an error event may end it.
        if head.chunked or self.watch is not None:
            if self.head.http11:
                self.chunked = True
                framing = b"\r\ntransfer-encoding: chunked"
            else:
                self.until_close = True
        elif length is not None and head.status != 204:
            framing = b"\r\ncontent-length: %d" % length
        else:
            self.until_close = not head.bodiless
        return framing if self.keep_alive and not self.until_close else framing + b"\r\nconnection: close"

    def response_data(self, data: bytes) -> None:
        """Write on more of the body."""
        self.progress = True
        watch = self.watch
        if watch is not None:
            if watch.passes(data) is not None:
                if USAGE_MARK in data:
                    watch.note_usage(data)
            else:
                data = watch.take(data)
                if watch.malformed:
                    self._end_of_stream(data, UpstreamFault.MALFORMED)
                    return
                if not data:
                    return  # the beginning of an event
            if self.counts_events:
                self.n_events += data.count(b"\ndata:") + data.startswith(b"data:")
        else:
            self.tail = data if len(data) >= _TAIL_BYTES else (self.tail + data)[-_TAIL_BYTES:]
        if self.recording is not None:
            self.recording(data)
        if not self.streaming or self.beginning is not None:
            self._pass_on(data)
            return
        # The same as there, for nearly every chunk there is.
        n_bytes = len(data)
        self.record.response_bytes += n_bytes
        self.write(b"%x\r\n%b\r\n" % (n_bytes, data) if self.chunked else data)

    def _pass_on(self, data: bytes) -> None:
        self.record.response_bytes += len(data)
        if self.beginning is not None:
            self._look_for_id(data)
        if self.chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if not self.streaming:
            self._first_byte()
            data = self.pending + data
            self.pending = b""
        self.write(data)

    def _look_for_id(self, data: bytes) -> None:
        """An id may be anywhere in an object, and be cut by the end of a read."""
        beginning = (self.beginning or b"") + data
        told = self.client.server.pipeline.learn_id(self, beginning)
        self.beginning = None if told or len(beginning) > _BEGINNING_BYTES else beginning

    def response_end(self) -> None:
        """See `ResponseSink`."""
        self.upstream = None
        watch = self.watch
        if watch is not None and not watch.complete:
            self._end_of_stream(b"", UpstreamFault.TRUNCATED)
            return
        if self.is_object and not self.tail.rstrip().endswith(b"}"):
            self._half_an_object()
            return
        if not self.streaming:
            self._first_byte()  # an answer without a body
        ending = b"0\r\n\r\n" if self.chunked else b""
        if self.pending or ending:
            self.write(self.pending + ending)
            self.pending = b""
        self._account()
        self._finish()

    def response_fault(self, fault: UpstreamFault, detail: str) -> None:
        """See `ResponseSink`."""
        self.reused = fault is UpstreamFault.RESET and self.upstream is not None and self.upstream.uses > 1
        self.upstream = None
        if not self.streaming:
            # Only a head has come: it is as good as nothing, since the client has not seen it.
            self._nothing_came(UpstreamFault.RESET if fault is UpstreamFault.TRUNCATED else fault, detail)
            return
        if fault is UpstreamFault.RESET:
            fault = UpstreamFault.TRUNCATED
        if self.watch is not None and not self.watch.off:
            self._end_of_stream(b"", fault, detail)
        else:
            self._cut(fault, detail)

    def _nothing_came(self, fault: UpstreamFault, detail: str) -> None:
        """The attempt ends before the client has seen a byte of it."""
        self.pending = b""
        self.watch = None
        self.is_object = False
        self.tail = b""
        self.record.status = 0
        if self.caching is not None:
            self.caching.again(self)
        self.client.server.pipeline.fault(self, fault, detail)

    def _cut(self, fault: UpstreamFault, detail: str) -> None:
        """Part of the answer is out. The missing end of its framing, or a reset where only the end of the stream
        would tell, is how the client learns that there is no more.
        """
        self.cut_short = True
        self._broken(fault, detail)
        self._finish()

    def _half_an_object(self) -> None:
        """A body has come whole as HTTP goes, and is no whole JSON object."""
        if not self.streaming:
            self._nothing_came(UpstreamFault.MALFORMED, "an empty body")
        elif self.chunked or self.until_close:
            self._cut(UpstreamFault.TRUNCATED, "half a JSON object")
        else:  # all of it is out, and all that is left is not to take it for an answer
            self._broken(UpstreamFault.MALFORMED, "half a JSON object")
            self._finish()

    def _end_of_stream(self, last: bytes, fault: UpstreamFault, detail: str = "") -> None:
        """End a stream that has gone wrong with an error event behind its `last` good events."""
        self._drop_upstream()
        if last:
            if self.recording is not None:
                self.recording(last)
            self._pass_on(last)
        if self.watch is not None and self.watch.complete:  # what broke off came after its end
            self.response_end()
            return
        if not self.streaming:
            self._nothing_came(fault, detail)
            return
        message = f"The answer broke off: {fault.value}."
        self._pass_on(self.dialect.error_event(ApiError(fault.status, message, code="worker_failed")))
        if self.chunked:
            self.write(b"0\r\n\r\n")
        self._broken(fault, detail)
        self._finish()

    def _broken(self, fault: UpstreamFault, detail: str) -> None:
        self.record.outcome = Outcome.CUT
        self.record.error = fault.value
        self.client.server.pipeline.broken(self, fault, detail)

    def _first_byte(self) -> None:
        self.streaming = True
        self.keep_alive = self.keep_alive and not self.until_close
        server = self.client.server
        server.pipeline.first_byte(self)
        self.client.watch(server.response_idle_timeout)
        self.client.drop_body()
        self.body = b""
        self.call = None
        self.prompt = None

    def _account(self) -> None:
        """Note how a complete answer ended, and what the worker said that it took."""
        record, watch = self.record, self.watch
        if record.status >= _FIRST_ERROR_STATUS:
            record.outcome = Outcome.CLIENT_ERROR if record.status < _FIRST_SERVER_ERROR else Outcome.WORKER_ERROR
        elif watch is not None:
            if self.worker is not None:  # else it comes from the cache
                record.usage = watch.usage()
            if watch.failed:
                record.outcome = Outcome.WORKER_ERROR
                record.error = "error event"
        elif record.status == _OK and self.worker is not None:
            record.usage = self.dialect.usage(self.tail[-_TAIL_BYTES:]) or NO_USAGE

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
