"""Spans on their way to a collector by OTLP/HTTP: an observer that remembers, a task that builds and sends.

A request pays for one append. The spans are built on the loop a few at a time, and encoded and sent by a thread under
a deadline. A collector that is away costs the spans, which are counted, and one log line when it goes and one when it
is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExportResult

from gateway import __version__
from gateway.telemetry.spans import span_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from gateway.config import Telemetry
    from gateway.request_record import RequestRecord

log = logging.getLogger(__name__)

_TRACES_PATH: Final = "/v1/traces"
_BATCH: Final = 64
"""Encoding them takes the interpreter from the loop for about four milliseconds."""
_BUILT_AT_ONCE: Final = 8
_EXPORTERS_LOG: Final = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


@dataclass(slots=True)
class SpanCounts:
    """Counters of the export; they only grow."""

    sent: int = 0
    dropped: int = 0
    """Had no room to wait in."""
    failed: int = 0
    """Were refused by the collector, or could not reach it."""


class SpanExport:
    """Queues finished requests and delivers their spans. `run` it in a task, and `close` it at the end."""

    def __init__(
        self,
        settings: Telemetry,
        *,
        loop_time: Callable[[], float],
        wall_ns: Callable[[], int] = time.time_ns,
        timeout: float = 10.0,
        interval: float = 1.0,
    ) -> None:
        """`settings.endpoint` must be set. A batch has failed after `timeout` seconds; one is sent every `interval`
        seconds, or one after the other while more than a batch waits.
        """
        if settings.endpoint is None:
            raise ValueError("telemetry.endpoint is not set")
        url = settings.endpoint if settings.endpoint.endswith(_TRACES_PATH) else settings.endpoint + _TRACES_PATH
        self.counts = SpanCounts()
        self._queue: deque[RequestRecord] = deque()
        self._limit = settings.queue
        self._loop_time = loop_time
        self._wall_ns = wall_ns
        self._timeout = timeout
        self._interval = interval
        self._address = urlsplit(url).netloc.rpartition("@")[2]
        self._delivering: bool | None = None
        self._busy: asyncio.Future[bool] | None = None
        # Its own lines would come once for each batch; here they come once for each change.
        logging.getLogger(_EXPORTERS_LOG).setLevel(logging.CRITICAL + 1)
        self._exporter = OTLPSpanExporter(
            endpoint=url,
            headers={name: value.get_secret_value() for name, value in settings.headers.items()},
            timeout=timeout,
        )
        self._resource = Resource.create(
            {
                "service.name": settings.service_name,
                "service.version": __version__,
                "service.instance.id": str(uuid.uuid4()),
            }
        )

    def __len__(self) -> int:
        """Requests whose spans wait to be sent."""
        return len(self._queue)

    def finished(self, record: RequestRecord) -> None:
        """Remember the request, where its trace is recorded and there is room."""
        trace = record.trace
        if trace is None or not trace.sampled:
            return
        if len(self._queue) >= self._limit:
            self.counts.dropped += 1
            return
        self._queue.append(record)

    async def run(self) -> None:
        """Deliver what comes, until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            await self._deliver_batch()
            while len(self._queue) >= _BATCH:
                await self._deliver_batch()

    async def close(self, grace: float = 3.0) -> None:
        """Send what still waits, for at most `grace` seconds; the rest is dropped. After `run` has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while self._queue and self._delivering is not False:
                    await self._deliver_batch()
        self.counts.dropped += len(self._queue)
        self._queue.clear()
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the exporter's own

    async def _deliver_batch(self) -> None:
        batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
        if not batch:
            return
        try:
            delivered = await self._send(await self._build(batch))
        except asyncio.CancelledError:
            self.counts.failed += len(batch)
            raise
        except Exception:
            log.exception("spans could not be built")
            delivered = False
        if delivered:
            self.counts.sent += len(batch)
        else:
            self.counts.failed += len(batch)
        self._tell(delivering=delivered)

    async def _build(self, batch: Sequence[RequestRecord]) -> list[ReadableSpan]:
        """With a turn for others every few spans."""
        epoch_ns = self._wall_ns() - round(self._loop_time() * 1e9)
        spans: list[ReadableSpan] = []
        for at, record in enumerate(batch):
            if at % _BUILT_AT_ONCE == 0:
                await asyncio.sleep(0)
            if record.trace is not None:
                spans.append(span_of(record, record.trace, self._resource, epoch_ns))
        return spans

    async def _send(self, spans: Sequence[ReadableSpan]) -> bool:
        """In a thread of its own, which cannot keep the program from ending; never two at a time."""
        if self._busy is not None and not self._busy.done():
            await asyncio.sleep(self._interval)
            return False
        loop = asyncio.get_running_loop()
        answer = self._busy = loop.create_future()

        def settle(delivered: bool) -> None:
            if not answer.done():
                answer.set_result(delivered)

        def export() -> None:
            delivered = self._exporter.export(spans) is SpanExportResult.SUCCESS
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits for it any more
                loop.call_soon_threadsafe(settle, delivered)

        threading.Thread(target=export, name="span-export", daemon=True).start()
        # The exporter keeps to its deadline between two reads of an answer; this holds for the whole.
        done, _ = await asyncio.wait([answer], timeout=self._timeout + self._interval)
        return bool(done) and answer.result()

    def _tell(self, *, delivering: bool) -> None:
        if delivering is self._delivering:
            return
        if not delivering:
            log.warning("spans cannot be delivered to %s; until they can they are dropped and counted", self._address)
        elif self._delivering is False:
            log.info("spans are delivered to %s again", self._address)
        self._delivering = delivering
