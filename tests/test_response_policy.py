"""Which requests are answered from the cache, and which answers are kept for it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.response_policy import ROUTES, AnswerFacts, Refusal, refuse_answer, refuse_request

GREEDY: dict[str, Any] = {"temperature": 0}
UNSTORED: dict[str, Any] = {"temperature": 0, "store": False}
REFERENCE = {"type": "item_reference", "id": "m"}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
INLINE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

LINKED = {"temperature": 0, "store": False, "input": [{"content": [{"image_url": "http://e"}]}]}


def said(*parts: object) -> dict[str, Any]:
    return {"temperature": 0, "messages": [{"role": "user", "content": list(parts)}]}


def said_before(audio: object) -> dict[str, Any]:
    return {"temperature": 0, "messages": [{"role": "assistant", "content": "Hello", "audio": audio}]}


@pytest.mark.parametrize(
    ("route", "fields", "by_itself", "if_asked"),
    [
        ("chat", {"temperature": 0}, None, None),
        ("chat", {"temperature": 0.0}, None, None),
        ("chat", {"temperature": -0.0}, None, None),
        ("chat", {}, Refusal.SAMPLED, None),
        ("chat", {"temperature": None}, Refusal.SAMPLED, None),
        ("chat", {"temperature": False}, Refusal.SAMPLED, None),
        ("chat", {"temperature": "0"}, Refusal.SAMPLED, None),
        ("chat", {"temperature": 1e-9}, Refusal.SAMPLED, None),
        ("chat", {"seed": 7}, Refusal.SAMPLED, None),
        ("chat", {"seed": 7, "temperature": 1}, Refusal.SAMPLED, None),
        ("chat", {"seed": 7, "temperature": 0}, None, None),
        ("completion", {"prompt": "x", "temperature": 0}, None, None),
        ("messages", {"temperature": 0}, None, None),
        ("messages", {}, Refusal.SAMPLED, None),
        ("embedding", {"input": "x"}, None, None),
        ("embedding", {"input": "x", "temperature": 1}, None, None),
        ("tokens", GREEDY, Refusal.ROUTE, Refusal.ROUTE),
        ("stored", GREEDY, Refusal.ROUTE, Refusal.ROUTE),
        ("chat", {"n": 2}, Refusal.CHOICES, Refusal.CHOICES),
        ("chat", {"n": 2, "temperature": 0}, None, None),
        ("chat", {"n": 1}, Refusal.SAMPLED, None),
        ("completion", {"best_of": 3}, Refusal.CHOICES, Refusal.CHOICES),
        ("chat", {"n": "2"}, Refusal.CHOICES, Refusal.CHOICES),
        ("responses", {**GREEDY, "store": False}, None, None),
        ("responses", GREEDY, Refusal.STATEFUL, None),
        ("responses", {**GREEDY, "store": True}, Refusal.STATEFUL, Refusal.STATEFUL),
        ("responses", {**GREEDY, "store": False, "previous_response_id": "r"}, Refusal.STATEFUL, Refusal.STATEFUL),
        ("responses", {**GREEDY, "store": False, "background": True}, Refusal.STATEFUL, Refusal.STATEFUL),
        ("responses", {**GREEDY, "store": False, "conversation": {"id": "c"}}, Refusal.STATEFUL, Refusal.STATEFUL),
        ("responses", {**UNSTORED, "input": [REFERENCE]}, Refusal.STATEFUL, Refusal.STATEFUL),
        ("responses", {**UNSTORED, "prompt": {"id": "p"}}, Refusal.OUTSIDE, None),
        ("completion", {**GREEDY, "prompt": "Hello"}, None, None),
        ("chat", said_before({"id": "a"}), Refusal.STATEFUL, Refusal.STATEFUL),
        ("chat", said_before(None), None, None),
        ("chat", {**GREEDY, "store": True}, Refusal.STATEFUL, Refusal.STATEFUL),
        ("chat", {**GREEDY, "store": False}, None, None),
        ("chat", {**GREEDY, "tools": [{"type": "function"}]}, None, None),
        ("messages", {**GREEDY, "tools": [{"name": "f"}, {"type": "custom"}]}, None, None),
        ("messages", {**GREEDY, "tools": [{"name": "f"}, {"type": "web_search_20250305"}]}, Refusal.OUTSIDE, None),
        ("chat", {**GREEDY, "web_search_options": {}}, Refusal.OUTSIDE, None),
        ("messages", {**GREEDY, "mcp_servers": [{}]}, Refusal.OUTSIDE, None),
        ("chat", said(INLINE), None, None),
        ("chat", said({"type": "text", "text": "see https://example.org"}), None, None),
        ("chat", said(INLINE, IMAGE), Refusal.OUTSIDE, None),
        ("chat", said({"type": "file", "file": {"file_id": "f"}}), Refusal.OUTSIDE, None),
        ("chat", said({"type": "file", "file": {"file_data": "data:AAAA"}}), None, None),
        ("messages", said({"type": "image", "source": {"type": "url", "url": "https://e.org"}}), Refusal.OUTSIDE, None),
        ("messages", said({"type": "image", "source": {"type": "base64", "data": "AAAA"}}), None, None),
        ("messages", said({"type": "tool_result", "content": [{"source": {"type": "file"}}]}), Refusal.OUTSIDE, None),
        ("messages", said({"type": "tool_use", "input": {"url": "https://e.org"}}), None, None),
        ("responses", LINKED, Refusal.OUTSIDE, None),
        ("responses", {**GREEDY, "store": False, "input": [{"content": [{"file_id": "f"}]}]}, Refusal.OUTSIDE, None),
    ],
)  # fmt: skip
def test_requests(route: str, fields: dict[str, Any], by_itself: Refusal | None, if_asked: Refusal | None) -> None:
    assert refuse_request(route, fields) is by_itself
    assert refuse_request(route, fields, asked=True) is if_asked


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["content", "source", "type", "url", "file", "image_url", "file_id"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([*sorted(ROUTES), "other"]),
    st.dictionaries(
        st.sampled_from(["temperature", "n", "store", "tools", "messages", "input", "system", "seed", "best_of"]),
        ANYTHING,
    ),
)
def test_no_request_does_harm_and_asking_never_takes_anything_away(route: str, fields: dict[str, Any]) -> None:
    by_itself, if_asked = refuse_request(route, fields), refuse_request(route, fields, asked=True)
    assert by_itself is not None or if_asked is None
    if by_itself is None and route != "embedding":
        assert fields["temperature"] == 0


def facts(**changed: Any) -> AnswerFacts:
    return AnswerFacts(**{"status": 200, "ended": True, "finish_reasons": ["stop"], "n_bytes": 100, **changed})


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({}, None),
        *(({"finish_reasons": [one]}, None) for one in ("stop", "tool_calls", "end_turn", "tool_use", "completed")),
        ({"finish_reasons": ["stop", "tool_calls"]}, None),
        *(({"status": status}, Refusal.ERROR) for status in (201, 204, 206, 400, 404, 429, 500, 503)),
        ({"failed": True}, Refusal.ERROR),
        ({"ended": False}, Refusal.UNENDED),
        ({"finish_reasons": []}, Refusal.UNENDED),
        ({"finish_reasons": [None]}, Refusal.UNENDED),
        ({"finish_reasons": ["stop", None]}, Refusal.UNENDED),
        ({"n_bytes": 0}, Refusal.UNENDED),
        *(({"finish_reasons": [one]}, Refusal.TRUNCATED) for one in ("length", "max_tokens", "max_output_tokens")),
        ({"finish_reasons": ["stop", "length"]}, Refusal.TRUNCATED),
        ({"finish_reasons": ["pause_turn"]}, Refusal.TRUNCATED),
        ({"finish_reasons": ["whatever comes next"]}, Refusal.TRUNCATED),
        ({"finish_reasons": ["incomplete", "content_filter"]}, Refusal.FILTERED),
        ({"finish_reasons": ["content_filter"]}, Refusal.FILTERED),
        ({"finish_reasons": ["refusal", "length"]}, Refusal.FILTERED),
        ({"n_bytes": 1_000}, None),
        ({"n_bytes": 1_001}, Refusal.SIZE),
    ],
)  # fmt: skip
def test_answers(changed: dict[str, Any], refusal: Refusal | None) -> None:
    assert refuse_answer("chat", facts(**changed), most_bytes=1_000) is refusal


def test_embeddings_do_not_say_why_they_end() -> None:
    assert refuse_answer("embedding", facts(finish_reasons=[]), most_bytes=1_000) is None
    assert refuse_answer("embedding", facts(finish_reasons=[], ended=False), most_bytes=1_000) is Refusal.UNENDED
