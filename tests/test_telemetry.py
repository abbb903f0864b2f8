"""Traces that come in go on, and one span for each request reaches a collector, whatever that collector does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Iterable

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from pydantic import SecretStr

from gateway.config import Telemetry
from gateway.dialects.base import Usage
from gateway.request_record import Outcome
from gateway.telemetry.span_export import SpanExport
from gateway.telemetry.trace_context import TraceContext, parse_traceparent, trace_of
from tests.gateway_fixtures import eventually
from tests.record_fixtures import W0, attempt, record

TRACE, PARENT = b"4bf92f3577b34da6a3ce929d0e0e4736", b"00f067aa0ba902b7"
CLIENTS = b"00-%b-%b-01" % (TRACE, PARENT)


def ids(seed: int = 1) -> random.Random:
    return random.Random(seed)


# --- traceparent -------------------------------------------------------------------------------------------


def test_the_clients_trace_goes_on_with_our_span_as_parent() -> None:
    trace = trace_of(CLIENTS, ids().randbytes, 0.0)
    assert (trace.trace_id, trace.parent_id, trace.sampled) == (TRACE, PARENT, True)
    assert trace.span_id != PARENT
    assert trace.traceparent == b"00-%b-%b-01" % (TRACE, trace.span_id)


def test_a_client_that_does_not_sample_is_not_sampled() -> None:
    trace = trace_of(b"00-%b-%b-00" % (TRACE, PARENT), ids().randbytes, 1.0)
    assert not trace.sampled
    assert trace.traceparent == b"00-%b-%b-00" % (TRACE, trace.span_id)


def test_of_the_flags_only_those_that_are_known_go_on() -> None:
    assert trace_of(b"00-%b-%b-ff" % (TRACE, PARENT), ids().randbytes, 1.0).traceparent[-2:] == b"03"
    assert trace_of(b"00-%b-%b-fe" % (TRACE, PARENT), ids().randbytes, 1.0).traceparent[-2:] == b"02"


def test_a_later_version_is_read_as_far_as_it_is_known_and_goes_on_as_ours() -> None:
    for more in (b"", b"-", b"-what-may-come"):
        trace = trace_of(b"cc-%b-%b-01%b" % (TRACE, PARENT, more), ids().randbytes, 0.0)
        assert trace.parent_id == PARENT
        assert trace.traceparent == b"00-%b-%b-01" % (TRACE, trace.span_id)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"00",
        CLIENTS.upper(),
        CLIENTS + b"-more",
        CLIENTS + b"\n",
        b" " + CLIENTS,
        CLIENTS.replace(b"00-", b"ff-", 1),
        CLIENTS.replace(TRACE, b"0" * 32),
        CLIENTS.replace(PARENT, b"0" * 16),
        CLIENTS.replace(TRACE, TRACE[:-1]),
        CLIENTS.replace(b"-01", b"-1"),
        CLIENTS.replace(b"-01", b"-0g"),
        CLIENTS.replace(b"-", b"_"),
        b"cc-%b-%b-01%b" % (TRACE, PARENT, b"x"),
        b"cc-%b-%b-01-%b" % (TRACE, PARENT, b"x" * 1000),
    ],
)
def test_a_malformed_line_begins_a_new_trace(line: bytes) -> None:
    trace = trace_of(line, ids().randbytes, 1.0)
    assert trace.parent_id is None
    assert trace.sampled
    assert trace.trace_id != TRACE


def test_every_proper_beginning_of_a_line_is_malformed() -> None:
    assert [end for end in range(len(CLIENTS)) if parse_traceparent(CLIENTS[:end])] == []


@given(st.binary(max_size=80))
def test_whatever_comes_what_goes_on_is_well_formed(line: bytes) -> None:
    trace = trace_of(line, ids().randbytes, 0.5)
    assert parse_traceparent(trace.traceparent) == (trace.trace_id, trace.span_id, int(trace.sampled))


def test_ids_are_never_all_zeros_which_would_mean_none() -> None:
    trace = trace_of(None, bytes, 1.0)
    assert parse_traceparent(trace.traceparent) is not None


def test_the_share_that_is_sampled_is_the_share_that_was_asked_for() -> None:
    new_id = ids().randbytes
    sampled = sum(trace_of(None, new_id, 0.25).sampled for _ in range(4000))
    assert 900 < sampled < 1100
    assert not any(trace_of(None, new_id, 0.0).sampled for _ in range(100))
    assert all(trace_of(None, new_id, 1.0).sampled for _ in range(100))


# --- a collector, and what reaches it ----------------------------------------------------------------------


class Collector:
    """An OTLP/HTTP collector."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.requests: list[web.Request] = []
        self.resources: list[dict[str, object]] = []
        self.status = 200
        self.stall = asyncio.Event()
        self.stall.set()
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        told = ExportTraceServiceRequest.FromString(await request.read())
        await self.stall.wait()
        if self.status != 200:
            return web.Response(status=self.status)
        for resource in told.resource_spans:
            self.resources.append(values(resource.resource.attributes))
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf"
        )


def values(attributes: Iterable[KeyValue]) -> dict[str, object]:
    found: dict[str, object] = {}
    for pair in attributes:
        kind = pair.value.WhichOneof("value")
        found[pair.key] = getattr(pair.value, kind) if kind else None
    return found


@contextlib.asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    application = web.Application()
    application.router.add_post("/v1/traces", collector.take)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield collector
    finally:
        collector.stall.set()
        await runner.cleanup()


@contextlib.asynccontextmanager
async def exporting(settings: Telemetry, *, timeout: float = 3.0) -> AsyncIterator[SpanExport]:
    loop = asyncio.get_running_loop()
    export = SpanExport(
        settings, loop_time=lambda: 200.0, wall_ns=lambda: 1_000_000_000_000, timeout=timeout, interval=0.01
    )
    task = loop.create_task(export.run())
    try:
        yield export
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await export.close(0.5)


def traced(sampled: bool = True) -> TraceContext:
    return TraceContext(TRACE, b"1111111111111111", PARENT, sampled, b"")


async def test_a_span_tells_the_whole_request_under_the_conventions_names() -> None:
    async with collecting() as collector:
        settings = Telemetry(endpoint=collector.url, headers={"x-key": SecretStr("k")}, service_name="edge")
        done = record(
            attempts=[attempt(W0, at=100.01, fault="connection refused"), attempt(at=100.02)],
            usage=Usage(130, 11, 90),
            trace=traced(),
        )
        done.response_model = "m-2026"
        done.session = True
        async with exporting(settings) as export:
            export.finished(done)
            await eventually(lambda: export.counts.sent == 1)
        assert collector.requests[0].headers["x-key"] == "k"
        assert collector.resources[0]["service.name"] == "edge"
        (span,) = collector.spans
        assert span.name == "chat m"
        assert span.kind == Span.SPAN_KIND_SERVER
        assert (span.trace_id.hex(), span.span_id.hex()) == (TRACE.decode(), "11" * 8)
        assert span.parent_span_id.hex() == PARENT.decode()
        # The loop's clock stood at 200 s when the wall's stood at 1000 s.
        assert span.start_time_unix_nano == 900 * 10**9
        assert span.end_time_unix_nano == pytest.approx(901.05e9, abs=1e3)
        assert values(span.attributes) == {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "m",
            "gen_ai.response.model": "m-2026",
            "gen_ai.usage.input_tokens": 130,
            "gen_ai.usage.output_tokens": 11,
            "gen_ai.usage.cache_read.input_tokens": 90,
            "http.request.method": "POST",
            "http.response.status_code": 200,
            "url.path": "/v1/chat/completions",
            "prefixgate.request_id": "r-1",
            "prefixgate.dialect": "openai",
            "prefixgate.outcome": "ok",
            "prefixgate.stream": True,
            "prefixgate.session_affinity": True,
            "prefixgate.worker": "w1",
            "prefixgate.attempts": 2,
            "prefixgate.prompt_tokens": 128,
            "prefixgate.predicted_cached_tokens": 96,
            "prefixgate.response_bytes": 4321,
            "prefixgate.time_to_first_byte": pytest.approx(0.05),
        }
        stages = [
            (event.name, round((event.time_unix_nano - span.start_time_unix_nano) / 1e6)) for event in span.events
        ]
        assert stages == [("tokenized", 10), ("routed", 10), ("routed", 20), ("first_byte", 50)]
        assert values(span.events[1].attributes) == {
            "prefixgate.worker": "w0",
            "prefixgate.candidates": 2,
            "prefixgate.predicted_cached_tokens": 0,
            "prefixgate.cost_s": 0.5,
            "prefixgate.fault": "connection refused",
        }


async def test_a_request_that_failed_is_an_error_and_one_that_the_client_left_is_not() -> None:
    async with collecting() as collector:
        async with exporting(Telemetry(endpoint=collector.url)) as export:
            export.finished(record(outcome=Outcome.CUT, error="answer ended early", trace=traced()))
            export.finished(record(outcome=Outcome.CLIENT_GONE, trace=traced()))
            await eventually(lambda: len(collector.spans) == 2)
        codes = [(span.status.code, values(span.attributes)["error.type"]) for span in collector.spans]
        assert codes == [(2, "answer ended early"), (0, "client_gone")]


async def test_what_is_not_sampled_is_not_sent_and_a_whole_burst_is() -> None:
    async with collecting() as collector:
        async with exporting(Telemetry(endpoint=collector.url + "/v1/traces")) as export:
            export.finished(record(trace=traced(sampled=False)))
            export.finished(record(trace=None))
            assert len(export) == 0
            for number in range(500):
                export.finished(record(b"r-%d" % number, trace=traced()))
            await eventually(lambda: len(collector.spans) == 500)
        assert {values(span.attributes)["prefixgate.request_id"] for span in collector.spans} == {
            f"r-{number}" for number in range(500)
        }


async def test_the_queue_is_bounded_and_what_is_beyond_is_counted() -> None:
    export = SpanExport(Telemetry(endpoint="http://127.0.0.1:9", queue=3), loop_time=lambda: 0.0, timeout=0.2)
    for _ in range(5):
        export.finished(record(trace=traced()))
    assert (len(export), export.counts.dropped) == (3, 2)
    await export.close(5.0)
    assert export.counts.dropped + export.counts.failed == 5


async def test_a_collector_that_is_away_costs_a_counter_and_one_line_for_each_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with collecting() as collector, exporting(Telemetry(endpoint=collector.url), timeout=1.0) as export:
        collector.status = 500
        for wanted in (1, 2, 3):
            export.finished(record(trace=traced()))
            await eventually(lambda wanted=wanted: export.counts.failed == wanted)  # type: ignore[misc]  # bound now
        collector.status = 200
        for wanted in (1, 2):
            export.finished(record(trace=traced()))
            await eventually(lambda wanted=wanted: export.counts.sent == wanted)  # type: ignore[misc]  # bound now
    lines = [entry.getMessage() for entry in caplog.records if "span" in entry.getMessage()]
    assert [line.split(" to ")[0] for line in lines] == ["spans cannot be delivered", "spans are delivered"]


async def test_a_collector_that_never_answers_holds_nobody_up() -> None:
    async with collecting() as collector:
        collector.stall.clear()
        async with exporting(Telemetry(endpoint=collector.url, queue=10), timeout=0.2) as export:
            export.finished(record(trace=traced()))
            await eventually(lambda: export.counts.failed == 1)
            for _ in range(20):
                export.finished(record(trace=traced()))
            assert len(export) <= 10


async def test_close_sends_what_still_waits() -> None:
    async with collecting() as collector:
        export = SpanExport(Telemetry(endpoint=collector.url), loop_time=lambda: 200.0)
        export.finished(record(trace=traced()))
        await export.close()
        assert len(collector.spans) == 1
