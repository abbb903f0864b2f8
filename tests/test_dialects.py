"""What each dialect makes of an error, and what it reads from an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.api_error import ApiError
from gateway.dialects.anthropic import ANTHROPIC
from gateway.dialects.base import NO_USAGE, Dialect, Usage
from gateway.dialects.openai import OPENAI
from gateway.dialects.responses import RESPONSES

DIALECTS = (OPENAI, RESPONSES, ANTHROPIC)
ERRORS = (
    ApiError(400, 'say "no"\n', param="model", code="invalid_type"),
    ApiError(503, "nobody", code="no_worker"),
    ApiError(502, "cut"),
)


def data_of(event: bytes) -> Any:
    """The payload of one event, which must be the whole of it."""
    lines = event.decode().split("\n")
    assert lines[-2:] == ["", ""]
    assert len([line for line in lines if line.startswith("data: ")]) == 1
    return json.loads(lines[-3].removeprefix("data: "))


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: str(error.status))
def test_an_error_event_begins_with_a_mark_of_an_error(dialect: Dialect, error: ApiError) -> None:
    event = dialect.error_event(error)
    lines = event.splitlines(keepends=True)
    assert any(line.startswith(dialect.error_marks) for line in lines)
    assert not any(line.startswith(dialect.end_marks) for line in lines)
    assert lines[-2].startswith(b"data: {")
    assert dialect.usage(event) is None


def test_openai_errors_have_four_fields() -> None:
    for dialect in (OPENAI, RESPONSES):
        assert json.loads(dialect.error_body(ERRORS[0])) == {
            "error": {
                "message": 'say "no"\n',
                "type": "invalid_request_error",
                "param": "model",
                "code": "invalid_type",
            }
        }
        assert json.loads(dialect.error_body(ERRORS[1]))["error"]["type"] == "server_error"


def test_a_responses_error_event_has_its_fields_where_either_reader_looks() -> None:
    event = RESPONSES.error_event(ERRORS[1])
    assert event.startswith(b"event: error\n")
    assert data_of(event) == {
        "type": "error",
        "sequence_number": 0,
        "code": "no_worker",
        "message": "nobody",
        "param": None,
        "error": {"type": "server_error", "code": "no_worker", "message": "nobody", "param": None},
    }
    assert data_of(RESPONSES.error_event(ERRORS[2]))["code"] == "server_error"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (408, "timeout_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (431, "invalid_request_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_anthropic_errors_are_named_by_their_status(status: int, kind: str) -> None:
    wanted = {"type": "error", "error": {"type": kind, "message": "why"}}
    assert json.loads(ANTHROPIC.error_body(ApiError(status, "why", param="p", code="c"))) == wanted
    event = ANTHROPIC.error_event(ApiError(status, "why"))
    assert event.startswith(b"event: error\n")
    assert data_of(event) == wanted


ENDS: list[tuple[Dialect, bytes, bool]] = [
    (OPENAI, b"data: [DONE]", True),
    (RESPONSES, b"event: response.completed", True),
    (RESPONSES, b"event:response.incomplete", True),
    (RESPONSES, b'data: {"type":"response.completed","sequence_number":9', True),
    (RESPONSES, b'data: {"type": "response.completed"', True),
    (RESPONSES, b"event: response.content_part.done", False),
    (RESPONSES, b'data: {"type":"response.output_text.delta","delta":"event: response.completed"', False),
    (ANTHROPIC, b"event: message_stop", True),
    (ANTHROPIC, b"event: message_delta", False),
    (ANTHROPIC, b"event: content_block_stop", False),
]


@pytest.mark.parametrize(("dialect", "line", "ends"), ENDS)
def test_the_end_of_a_stream(dialect: Dialect, line: bytes, ends: bool) -> None:
    assert line.startswith(dialect.end_marks) is ends
    assert not line.startswith(dialect.error_marks)


@pytest.mark.parametrize(
    ("dialect", "line"),
    [
        (OPENAI, b'data: {"error":{"message":"x"}}'),
        (RESPONSES, b"event: response.failed"),
        (RESPONSES, b"event: error"),
        (RESPONSES, b'data: {"type":"error","code":"x"}'),
        (RESPONSES, b'data: {"error":{"message":"x"}}'),
        (ANTHROPIC, b"event: error"),
    ],
)
def test_the_failure_of_a_stream(dialect: Dialect, line: bytes) -> None:
    assert line.startswith(dialect.error_marks)
    assert not line.startswith(dialect.end_marks)


def test_usage_of_chat_completions() -> None:
    told = b'"usage":{"prompt_tokens":9,"completion_tokens": 2,"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
    assert OPENAI.usage(told) == Usage(9, 2, 4)
    assert OPENAI.usage(b'"usage":null') is None


def test_usage_of_responses() -> None:
    told = (
        b'"usage":{"input_tokens":50,"input_tokens_details":{"cached_tokens":32,"cache_write_tokens":0},'
        b'"output_tokens":7,"output_tokens_details":{"reasoning_tokens":3},"total_tokens":57}}}\n\n'
    )
    assert RESPONSES.usage(told) == Usage(50, 7, 32)
    assert RESPONSES.usage(b'{"usage" : {"input_tokens" : 5, "output_tokens" : 1}}') == Usage(5, 1, None)
    assert RESPONSES.usage(b'"usage":null') is None


def test_usage_of_messages_counts_cached_tokens_among_the_prompt() -> None:
    told = b'"usage":{"input_tokens":10,"cache_creation_input_tokens":5,"cache_read_input_tokens":32,"output_tokens":7}'
    assert ANTHROPIC.usage(told) == Usage(47, 7, 32)
    assert ANTHROPIC.usage(b'"usage":{"input_tokens":10,"output_tokens":7}') == Usage(10, 7, None)
    assert ANTHROPIC.usage(b'"usage":{"input_tokens":10,"cache_read_input_tokens":null}') == Usage(10, None, None)
    assert ANTHROPIC.usage(b'"usage":null') is None


def test_usage_told_in_parts_adds_up() -> None:
    start = ANTHROPIC.usage(b'"usage":{"input_tokens":10,"cache_read_input_tokens":32,"output_tokens":1}')
    end = ANTHROPIC.usage(b'"usage":{"output_tokens":7}')
    assert start is not None
    assert end == Usage(None, 7, None)
    assert NO_USAGE.updated(start).updated(end) == Usage(42, 7, 32)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_text_that_speaks_of_usage_is_not_usage(dialect: Dialect) -> None:
    text = json.dumps({"delta": '"prompt_tokens": 5, "input_tokens": 6, "output_tokens": 7, "usage"'}).encode()
    assert dialect.usage(text) is None


@pytest.mark.parametrize(
    "piece",
    [
        b'{"id":"resp_0aF-_9","object":"response"',
        b'{\n  "id": "resp_0aF-_9",\n  "object": "response"',
        b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_0aF-_9",',
        b'{"previous_response_id":"resp_x","output":[{"id":"msg_1"}],"id":"resp_0aF-_9"',
    ],
)
def test_the_id_of_a_response_is_found_as_soon_as_it_is_whole(piece: bytes) -> None:
    end = piece.index(b'9"') + 2
    for length in range(len(piece) + 1):
        assert RESPONSES.answer_id(piece[:length]) == ("resp_0aF-_9" if length >= end else None)
    assert OPENAI.answer_id(piece) is None
    assert ANTHROPIC.answer_id(piece) is None


def test_what_is_no_id_of_a_response() -> None:
    for piece in (b'{"id":"chatcmpl-1"', b'{"id":"resp_"', b'{"id":"resp_' + b"a" * 1000 + b'"', b'"xid":"resp_1"'):
        assert RESPONSES.answer_id(piece) is None
