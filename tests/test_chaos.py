"""Workers die, hang, come and go under load: nobody is told anything untrue, and nothing is left over."""

from __future__ import annotations

import json

import pytest

from tests.bench.chaos import chaos
from tests.bench.chaos_clients import SPEECHES, Clients, events_of
from tests.gateway_fixtures import model_text


async def test_no_request_fails_that_could_go_elsewhere_and_nothing_is_left_over() -> None:
    report = await chaos(model_text(), events=40, clients=8, pause=0.06, seed=7, prompts=10)
    assert report.told.wrong == []
    assert report.left_over == []
    assert report.events.total() >= 40
    assert report.told.outcomes["whole"] > 0


def _stream(*events: dict[str, object] | str) -> bytes:
    return b"".join(
        b"data: " + (event if isinstance(event, str) else json.dumps(event)).encode() + b"\n\n" for event in events
    )


def _words(text: str) -> dict[str, object]:
    return {"choices": [{"delta": {"content": text}}]}


@pytest.mark.parametrize(
    ("data", "verdict"),
    [
        (_stream(_words("one "), _words("two"), "[DONE]"), True),
        (_stream(_words("one "), {"error": {"message": "x"}}), False),
        (_stream(_words("one "), "[DONE]"), "looks complete"),
        (_stream(_words("one "), _words("two"), {"error": {}}, "[DONE]"), "looks complete"),
        (_stream(_words("one ")), "neither"),
        (_stream(_words("three"), {"error": {}}), "neither"),
        (_stream({"error": {}}), "before the first byte"),
    ],
)
def test_the_clients_tell_whole_answers_from_others(data: bytes, verdict: bool | str) -> None:
    if isinstance(verdict, str):
        with pytest.raises(AssertionError, match=verdict):
            Clients.streamed(SPEECHES[0], data, "one two")
    else:
        assert Clients.streamed(SPEECHES[0], data, "one two") is verdict


def test_half_an_event_is_no_event() -> None:
    with pytest.raises(ValueError, match="within an event"):
        events_of(b"data: {}\n\ndata: {")
