"""W3C `traceparent`: read what a client sent, and say what goes on to the worker. Pure.

Source of the format: https://www.w3.org/TR/trace-context/ (version 00, and how to read later ones).
"""

from __future__ import annotations

import re
from binascii import hexlify
from collections.abc import Callable
from typing import Final, NamedTuple

_PARSE: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?").fullmatch
_NO_TRACE: Final = b"0" * 32
_NO_SPAN: Final = b"0" * 16
_KNOWN_FLAGS: Final = 0x03
"""Sampled, and "the trace id is random": the ones that are passed on. All others must be sent as 0."""
_SAMPLED: Final = 0x01
_LONGEST: Final = 512
_ID_RANGE: Final = 2**64


class TraceContext(NamedTuple):
    """Where one request stands in its trace. The ids are lower-case hexadecimal digits."""

    trace_id: bytes
    span_id: bytes
    """Of the gateway's own span, which becomes the worker's parent."""
    parent_id: bytes | None
    """The client's span; None where the trace begins here."""
    sampled: bool
    """Is a span to be recorded?"""
    traceparent: bytes
    """To send to the worker, in place of the client's. `tracestate` goes with it only where `parent_id` is set."""


def trace_of(traceparent: bytes | None, new_id: Callable[[int], bytes], sample: float) -> TraceContext:
    """Go on with the client's trace, or begin one where there is none or it is malformed.

    `new_id(n)` gives n random bytes. A trace that begins here is sampled with probability `sample`, decided by its own
    id, so that every gateway that sees the id decides alike; one that came in keeps its flag.
    """
    span_id = hexlify(new_id(8))
    if span_id == _NO_SPAN:  # it means "none"
        span_id = b"0000000000000001"
    known = parse_traceparent(traceparent) if traceparent is not None else None
    if known is not None:
        trace_id, parent_id, flags = known
        line = b"00-%b-%b-%02x" % (trace_id, span_id, flags)
        return TraceContext(trace_id, span_id, parent_id, bool(flags & _SAMPLED), line)
    trace_id = hexlify(new_id(16))
    if trace_id == _NO_TRACE:
        trace_id = b"00000000000000000000000000000001"
    if int(trace_id[16:], 16) < sample * _ID_RANGE:
        return TraceContext(trace_id, span_id, None, True, b"00-%b-%b-01" % (trace_id, span_id))
    return TraceContext(trace_id, span_id, None, False, b"00-%b-%b-00" % (trace_id, span_id))


def parse_traceparent(line: bytes) -> tuple[bytes, bytes, int] | None:
    """Trace id, parent id and the flags known here; None where the line must be treated as if it were not there."""
    match = _PARSE(line) if len(line) <= _LONGEST else None
    if match is None:
        return None
    version, trace_id, parent_id, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more is not None):
        return None
    if trace_id == _NO_TRACE or parent_id == _NO_SPAN:
        return None
    return trace_id, parent_id, int(flags, 16) & _KNOWN_FLAGS
