"""Log lines: one a message whatever is in it, fields that are fields, and neither prompts nor keys."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.base import Usage
from gateway.logs import JsonFormatter, TextFormatter, one_line
from gateway.request_record import Outcome
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.trace_context import TraceContext
from tests.record_fixtures import record

FORMATTERS = [TextFormatter, JsonFormatter]


@contextmanager
def written(formatter: logging.Formatter) -> Iterator[io.StringIO]:
    """What loggers below `gateway` write through a formatter."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    logger = logging.getLogger("gateway")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield out
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def message(text: str) -> logging.LogRecord:
    return logging.LogRecord("gateway.x", logging.INFO, __file__, 1, "%s", (text,), None)


@pytest.mark.parametrize("formatter", FORMATTERS)
@given(text=st.text() | st.text(alphabet="\r\n\x1b\x9b\x00\x85\u2028\u202e\ud800ab"))
def test_nothing_in_a_message_ends_its_line_or_steers_a_terminal(formatter: type[logging.Formatter], text: str) -> None:
    line = formatter().format(message(text))
    assert len(line.splitlines()) == 1
    assert line == one_line(line)
    line.encode()


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_a_json_line_gives_the_message_back(text: str) -> None:
    assert json.loads(JsonFormatter().format(message(text)))["message"] == text


def fail() -> None:
    raise ValueError("bad\n12:00:00 INFO    all is well\x1b[2J")


@pytest.mark.parametrize("formatter", FORMATTERS)
def test_a_traceback_cannot_pass_for_a_line_of_its_own(formatter: type[logging.Formatter]) -> None:
    with written(formatter()) as out:
        try:
            fail()
        except ValueError:
            logging.getLogger("gateway.x").exception("failed")
    first, *more = out.getvalue().splitlines()
    assert "failed" in first
    assert "\x1b" not in out.getvalue()
    assert all(line.startswith("    | ") for line in more)
    assert "all is well" in out.getvalue()
    assert bool(more) is (formatter is TextFormatter)


def finished(formatter: logging.Formatter, **changes: object) -> str:
    trace = TraceContext(b"4bf92f3577b34da6a3ce929d0e0e4736", b"1" * 16, None, True, b"")
    done = record(usage=Usage(130, 11, 90), trace=trace)
    for name, change in changes.items():
        setattr(done, name, change)
    with written(formatter) as out:
        AccessLog().finished(done)
    return out.getvalue()


def test_an_access_line_in_json_has_its_fields_as_fields() -> None:
    line = json.loads(finished(JsonFormatter()))
    del line["time"]
    assert line == {
        "level": "info",
        "logger": "gateway.access",
        "message": line["message"],
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "outcome": "ok",
        "tenant": None,
        "class": None,
        "queued_s": None,
        "cache": None,
        "cache_refusal": None,
        "worker": "w1",
        "attempts": 1,
        "model": "m",
        "tokens": 128,
        "cached": 96,
        "completion_tokens": 11,
        "reported_cached": 90,
        "ttft_ms": 50.0,
        "ms": 1050.0,
        "bytes": 4321,
        "request_id": "r-1",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "error": None,
    }


def test_an_access_line_for_people_leaves_out_what_is_not_known() -> None:
    line = finished(TextFormatter(), outcome=Outcome.FAILED, status=502, error="connection refused", trace=None)
    assert line[9:].rstrip() == (
        "INFO    POST /v1/chat/completions 502 outcome=failed worker=w1 attempts=1 model=m tokens=128 cached=96"
        " completion_tokens=11 reported_cached=90 ttft_ms=50.0 ms=1050.0 bytes=4321 request_id=r-1"
        ' error="connection refused"'
    )


@pytest.mark.parametrize("formatter", FORMATTERS)
def test_what_a_client_sends_cannot_break_an_access_line(formatter: type[logging.Formatter]) -> None:
    line = finished(
        formatter(), path=b"/v1/\xff\r\n12:00:00 forged", request_id=b"\x1b[2J" * 500, model="m\nforged\u2028"
    )
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    assert len(line) < 2500
