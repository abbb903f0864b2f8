"""Only whole events are passed on, and how the stream ended is known."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.base import NO_USAGE, Usage
from gateway.dialects.openai import OPENAI
from gateway.stream_watch import MOST_HELD, StreamWatch

CHUNK = b'data: {"choices":[{"delta":{"content":"a\\n\\nb data: [DONE]"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":5}}}\n\n'  # noqa: E501 - one event
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"no"}}\n\n'
COMMENT = b": ping\n\n"
BROKEN = b'data: {"choices": [{"delta":\n\n'


def watched(*pieces: bytes) -> tuple[bytes, StreamWatch]:
    watch = StreamWatch(OPENAI)
    passed = b""
    for piece in pieces:
        passed += watch.take(piece)
        if watch.malformed:
            break
    return passed, watch


@pytest.mark.parametrize(
    ("stream", "passed", "ended", "failed", "malformed"),
    [
        (CHUNK * 3 + DONE, CHUNK * 3 + DONE, True, False, False),
        (CHUNK * 2, CHUNK * 2, False, False, False),
        (CHUNK + CHUNK[:20], CHUNK, False, False, False),
        (CHUNK + DONE[:-1], CHUNK, False, False, False),
        (CHUNK + ERROR + DONE, CHUNK + ERROR + DONE, True, True, False),
        (CHUNK + BROKEN + CHUNK + DONE, CHUNK, False, False, True),
        (CHUNK + b"data: hello\n\n" + DONE, CHUNK, False, False, True),
        (COMMENT + CHUNK + b"id: 3\nretry: 10\n\n" + DONE, COMMENT + CHUNK + b"id: 3\nretry: 10\n\n" + DONE, True, False, False),  # noqa: E501 - a row
        (CHUNK.replace(b"\n\n", b"\r\n\r\n") + DONE.replace(b"\n", b"\r\n"), CHUNK.replace(b"\n\n", b"\r\n\r\n") + DONE.replace(b"\n", b"\r\n"), True, False, False),  # noqa: E501 - a row
        (b'data: {"a":\ndata: 1}\n\n' + DONE, b'data: {"a":\ndata: 1}\n\n' + DONE, True, False, False),
        (b"", b"", False, False, False),
    ],
)  # fmt: skip
def test_what_is_passed_on(stream: bytes, passed: bytes, ended: bool, failed: bool, malformed: bool) -> None:
    for pieces in ([stream], [stream[i : i + 1] for i in range(len(stream))]):
        got, watch = watched(*pieces)
        assert (watch.ended, watch.failed, watch.malformed) == (ended, failed, malformed)
        assert got == passed


def test_what_comes_after_a_malformed_event_is_the_callers_to_stop() -> None:
    watch = StreamWatch(OPENAI)
    assert watch.take(CHUNK + BROKEN + CHUNK) == CHUNK
    assert watch.malformed


@given(st.lists(st.sampled_from([CHUNK, COMMENT, USAGE]), max_size=8), st.data())
def test_any_cut_gives_the_same(events: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(events) + DONE
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    watch = StreamWatch(OPENAI)
    passed = b""
    for piece in pieces:
        passed += watch.take(piece)
        assert stream.startswith(passed)
        assert passed == b"" or passed.endswith(b"\n\n"), "only whole events"
    assert passed == stream
    assert watch.complete
    assert watch.usage() == (Usage(7, 2, 5) if USAGE in events else NO_USAGE)


def test_an_endless_event_is_not_held_for_ever() -> None:
    watch = StreamWatch(OPENAI)
    piece = b"data: {" + b" " * (1 << 18)
    passed = sum(len(watch.take(piece)) for _ in range(8))
    assert passed >= 8 * len(piece) - MOST_HELD
    assert watch.off
    assert watch.complete


def test_text_that_looks_like_an_end_is_none() -> None:
    got, watch = watched(CHUNK)
    assert got == CHUNK
    assert not watch.ended


def test_a_long_event_is_looked_at_when_it_is_whole() -> None:
    watch = StreamWatch(OPENAI)
    event = b'data: {"text": "' + b"x" * 100_000 + b'"}\n\n'
    pieces = [event[at : at + 100] for at in range(0, len(event), 100)]
    with mock.patch.object(StreamWatch, "_look", autospec=True, side_effect=StreamWatch._look) as look:
        passed = b"".join(watch.take(piece) for piece in pieces)
    assert passed == event
    assert look.call_count <= 2
    assert not watch.off
