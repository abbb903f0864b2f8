"""Server-sent events in any split, and what of them is booked."""

from __future__ import annotations

from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.replay.records import MAX_GAPS, Gaps, RequestRecord, StreamError, error_message, read_event
from gateway.replay.sse import SseDecoder, SseError

STREAM = (
    b"\xef\xbb\xbf: a comment\r\nevent: x\r\ndata: one\r\n\r\n"
    b"data:two\ndata: lines\nid: 5\n\n\n"
    b"data\rdata:  three\r\r"
    b"retry: 7\n\n"
    b"data: [DONE]\n\ndata: never ended"
)
EVENTS = [b"one", b"two\nlines", b"\n three", b"[DONE]"]


def record() -> RequestRecord:
    return RequestRecord(
        index=0, session=None, scheduled=1.0, input_tokens=10, output_tokens=3, limit_tokens=0, sent=1.0
    )


def chunk(**choice: object) -> bytes:
    return orjson.dumps({"choices": [{"index": 0, "finish_reason": None} | choice]})


def test_events_in_one_piece() -> None:
    assert SseDecoder().feed(STREAM) == EVENTS


def test_events_one_byte_at_a_time() -> None:
    decoder = SseDecoder()
    assert [event for byte in STREAM for event in decoder.feed(bytes([byte]))] == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_in_any_split(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    decoder = SseDecoder()
    pieces = [STREAM[start:stop] for start, stop in pairwise(edges)]
    assert [event for piece in pieces for event in decoder.feed(piece)] == EVENTS


def test_an_endless_event_is_refused() -> None:
    with pytest.raises(SseError):
        SseDecoder(max_event_bytes=100).feed(b"data: " + b"x" * 100)
    with pytest.raises(SseError):
        SseDecoder(max_event_bytes=100).feed(b"data: xxxxxxxxx\n" * 20)


def test_tokens_are_events_with_text() -> None:
    row = record()
    assert not read_event(row, chunk(delta={"role": "assistant", "content": ""}), 1.5)
    assert row.first_token is None
    read_event(row, chunk(delta={"reasoning_content": "hm"}), 2.0)
    read_event(row, chunk(delta={"content": "a"}), 2.25)
    read_event(row, chunk(delta={"tool_calls": [{"index": 0}]}), 2.75)
    read_event(row, chunk(delta={}, finish_reason="stop"), 3.0)
    assert read_event(row, b"[DONE]", 4.0)
    assert (row.ttft, row.latency, row.token_events) == (1.0, 1.75, 3)
    assert (row.gaps.count, row.gaps.total, row.gaps.longest, list(row.gaps.kept)) == (
        2,
        0.75,
        0.5,
        [0.25, 0.5],
    )


def test_an_answer_without_text_ends_at_its_finish_reason() -> None:
    row = record()
    read_event(row, chunk(text="", finish_reason="length"), 2.0)
    assert (row.ttft, row.token_events) == (1.0, 1)


def test_usage_is_kept() -> None:
    row = record()
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
    read_event(row, orjson.dumps({"choices": [], "usage": usage}), 2.0)
    assert (row.prompt_tokens, row.completion_tokens, row.cached_tokens) == (12, 3, 8)
    read_event(row, orjson.dumps({"choices": [], "usage": {"prompt_tokens": "x"}}), 2.0)
    assert row.prompt_tokens is None


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"{", "malformed_event"),
        (b"[]", "malformed_event"),
        (b'{"choices": [5]}', "malformed_event"),
        (b'{"choices": 5}', "malformed_event"),
        (b'{"error": {"message": "engine died"}}', "error_event"),
    ],
)
def test_events_that_mean_failure(data: bytes, kind: str) -> None:
    with pytest.raises(StreamError) as caught:
        read_event(record(), data, 2.0)
    assert caught.value.kind == kind


def test_error_message_from_every_shape() -> None:
    assert error_message({"error": {"message": "no\n  model"}}) == "no model"
    assert error_message({"error": "busy"}) == "busy"
    assert error_message({"message": "gone", "object": "error"}) == "gone"
    assert error_message("<html>" + "x" * 500) == "<html>" + "x" * 194


def test_gaps_are_bounded() -> None:
    gaps = Gaps()
    for _ in range(MAX_GAPS + 10):
        gaps.add(0.5)
    assert len(gaps.kept) == MAX_GAPS
    assert (gaps.count, gaps.mean) == (MAX_GAPS + 10, 0.5)
