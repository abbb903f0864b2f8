"""Random answers in both forms, whole, cut off and mutated."""

from __future__ import annotations

import json
import math
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.answers import disassemble, facts
from gateway.answers.base import MOST_PIECES, text_pieces, token_pieces
from gateway.dialects.anthropic import ANTHROPIC
from gateway.dialects.base import Dialect
from gateway.dialects.openai import OPENAI
from gateway.dialects.responses import RESPONSES
from gateway.replay.sse import SseDecoder
from gateway.routes import Kind
from gateway.stream_watch import StreamWatch
from tests.answer_fixtures import ANY_ANSWER, BODIES, TEXTS, as_json, assembled

DIALECTS: dict[Kind, Dialect] = {
    Kind.CHAT: OPENAI,
    Kind.COMPLETION: OPENAI,
    Kind.RESPONSES: RESPONSES,
    Kind.MESSAGES: ANTHROPIC,
}
slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
quick = settings(max_examples=40, deadline=None, database=None, suppress_health_check=slow)
PIECES = st.binary(max_size=6) | st.sampled_from(
    [b"", b"\n", b"\n\n", b"\r", b"null", b"[]", b"{}", b'"x"', b"1", b"-1", b",", b"\0"]
)
pair = pytest.mark.parametrize("kind", list(BODIES), ids=lambda kind: kind.value)


def stream_of(kind: Kind, body: dict[str, Any], *, usage: bool = True) -> bytes:
    return b"".join(disassemble(kind, as_json(body), usage=usage))


@quick
@given(ANY_ANSWER)
def test_a_body_made_a_stream_and_a_body_again_is_the_same(drawn: tuple[Kind, dict[str, Any]]) -> None:
    kind, body = drawn
    assert json.loads(assembled(kind, stream_of(kind, body))) == body
    told = facts(kind, as_json(body), streamed=False)
    assert told.whole
    assert told == facts(kind, stream_of(kind, body), streamed=True)


@quick
@given(ANY_ANSWER, st.integers(1, 64))
def test_the_stream_passes_the_gateways_own_parsers_in_any_split(drawn: tuple[Kind, dict[str, Any]], size: int) -> None:
    kind, body = drawn
    events = disassemble(kind, as_json(body))
    stream = b"".join(events)
    watch, decoder, passed, data = StreamWatch(DIALECTS[kind]), SseDecoder(), b"", []
    for start in range(0, len(stream), size):
        passed += watch.take(stream[start : start + size])
        data += decoder.feed(stream[start : start + size])
    assert passed == stream
    assert watch.ended
    assert not watch.failed
    assert [each.partition(b"data: ")[2].removesuffix(b"\n\n") for each in events] == data


@quick
@given(ANY_ANSWER, st.data())
def test_a_stream_cut_off_anywhere_is_no_answer(drawn: tuple[Kind, dict[str, Any]], data: st.DataObject) -> None:
    kind, body = drawn
    stream = stream_of(kind, body)
    cut = stream[: data.draw(st.integers(0, len(stream) - 1))]
    assert not facts(kind, cut, streamed=True).whole


@pair
def test_cuts_at_and_around_every_event(kind: Kind) -> None:
    events = disassemble(kind, as_json(BODIES[kind]), usage=True)
    stream = b"".join(events)
    ends = {sum(map(len, events[:place])) + near for place in range(1, len(events)) for near in (-2, -1, 0, 1)}
    for end in ends | set(range(0, len(stream), 17)) | set(range(len(stream) - 40, len(stream))):
        assert not facts(kind, stream[:end], streamed=True).whole, end
    body = as_json(BODIES[kind])
    for end in range(0, len(body), 3):
        assert not facts(kind, body[:end], streamed=False).whole, end


@quick
@given(st.sampled_from(list(BODIES)), st.data())
def test_mutated_recordings_are_answers_or_errors_and_nothing_else(kind: Kind, data: st.DataObject) -> None:
    streamed = data.draw(st.booleans())
    recorded = bytearray(stream_of(kind, BODIES[kind]) if streamed else as_json(BODIES[kind]))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(recorded)))
        end = min(len(recorded), start + data.draw(st.integers(0, 40)))
        recorded[start:end] = data.draw(PIECES)
    told = facts(kind, bytes(recorded), streamed=streamed)
    if not told.whole:
        return
    if streamed:
        body = assembled(kind, bytes(recorded))
        assert facts(kind, body, streamed=False).whole
    else:
        body = bytes(recorded)
    assert facts(kind, b"".join(disassemble(kind, body)), streamed=True).whole


VALUES: list[Any] = [None, True, -1, "", "x", [], {}, [None], [{}], [{"index": "0"}]]


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        return found + [each for key in value for each in _places(value[key], (*path, key))]
    if isinstance(value, list):
        return found + [each for at in range(min(3, len(value))) for each in _places(value[at], (*path, at))]
    return found


@pair
def test_any_member_of_any_other_type(kind: Kind) -> None:
    """Each member of a body, and of each event, in turn as something else: an answer or an error, never a crash."""
    whole = 0
    original = BODIES[kind]
    for path in _places(original):
        for value in VALUES:
            body = _with(original, path, value)
            whole += _both_forms(kind, body)
    assert whole > 50  # many members are nobody's business
    events = disassemble(kind, as_json(original), usage=True)
    seen = set()
    for number, event in enumerate(events):
        name, _, data = event.partition(b"data: ")
        shape = data[:120] if kind in (Kind.CHAT, Kind.COMPLETION) else name
        if data == b"[DONE]\n\n" or shape in seen:
            continue
        seen.add(shape)
        fields = json.loads(data)
        for path in _places(fields):
            for value in (None, "x", [None], {}):
                changed = name + b"data: " + as_json(_with(fields, path, value)) + b"\n\n"
                stream = b"".join([*events[:number], changed, *events[number + 1 :]])
                if facts(kind, stream, streamed=True).whole:
                    assert facts(kind, assembled(kind, stream), streamed=False).whole


def _with(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _with(value[path[0]], path[1:], other)
    return copy


def _both_forms(kind: Kind, body: Any) -> bool:
    raw = as_json(body)
    if not facts(kind, raw, streamed=False).whole:
        return False
    assert facts(kind, b"".join(disassemble(kind, raw, usage=True)), streamed=True).whole
    return True


TOKENS = st.sampled_from(["ha", "", '"', "\\", "語", '","', '"},{"'])
SAID = st.one_of(
    TOKENS.map(lambda text: {"delta": {"content": text}}),
    TOKENS.map(lambda text: {"delta": {"content": text}, "logprobs": None, "finish_reason": None}),
    TOKENS.map(lambda text: {"delta": {"content": text, "x": None}, "stop_reason": 1}),
    TOKENS.map(lambda text: {"delta": {"content": text, "reasoning": "hm"}}),
    TOKENS.map(lambda text: {"delta": {"content": text}, "token_ids": [5]}),
    TOKENS.map(lambda text: {"delta": {"content": text}, "logprobs": {"content": [{"token": "ha"}]}}),
    TOKENS.map(lambda text: {"delta": {"content": text}, "filter": "f"}),
    st.just({"delta": {"content": 5}}),
    st.just({"delta": {"content": None}}),
)


@quick
@given(st.lists(st.tuples(SAID, st.integers(1, 6)), max_size=6), st.integers(0, 1))
def test_runs_of_chunks_say_what_their_chunks_say(said: list[tuple[dict[str, Any], int]], other: int) -> None:
    """Chunks with white space in them are read one by one."""
    choices = [{"index": 0, **each} for each, times in said for _ in range(times)]
    choices += [{"index": each, "delta": {}, "finish_reason": "stop"} for each in range(other + 1)]
    chunks = [{"id": "c", "created": 1, "model": "m", "choices": [choice], "usage": None} for choice in choices]
    tight = b"".join(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks) + b"data: [DONE]\n\n"
    wide = b"".join(b"data: %b\n\n" % as_json(chunk) for chunk in chunks) + b"data: [DONE]\n\n"
    assert facts(Kind.CHAT, tight, streamed=True) == facts(Kind.CHAT, wide, streamed=True)
    if facts(Kind.CHAT, tight, streamed=True).whole:
        assert assembled(Kind.CHAT, tight) == assembled(Kind.CHAT, wide)


@given(TEXTS)
def test_pieces_are_the_text(text: str) -> None:
    for times in (1, 50):
        pieces = text_pieces(text * times)
        assert "".join(pieces) == text * times
        assert all(pieces)
        assert len(pieces) <= MOST_PIECES


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=300))
def test_every_token_comes_with_one_piece(text: str, tokens: list[str]) -> None:
    for whole in (text, "".join(tokens)):
        pieces = token_pieces(whole, tokens)
        assert "".join(piece for piece, _ in pieces) == whole
        assert sum(length for _, length in pieces) == len(tokens)
        assert len(pieces) <= max(MOST_PIECES, math.ceil(len(tokens) / 4))
