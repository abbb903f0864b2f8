"""OpenAI's responses: a stream's last event holds the whole body; a body as the events that would have built it. Pure.

Source: OpenAI's API reference, "Streaming events" of responses, and the checks of its Python client, which holds every
item against what was told of it before.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from gateway.answers.base import (
    AnswerError,
    Facts,
    FailedAnswerError,
    Json,
    count,
    load_object,
    objects,
    string,
    unary_object,
)
from gateway.answers.responses_events import ResponseWriter
from gateway.answers.sse import DONE, events_of
from gateway.dialects.base import Usage

_ENDS: Final = ("response.completed", "response.incomplete")
_FAILURES: Final = ("response.failed", "error")
_STATUSES: Final = ("completed", "incomplete")
_ITEM_CALLS: Final = ("_call", "mcp_approval_request")


def assembled(stream: bytes) -> Json:
    """The body of the same answer.

    Raises:
        AnswerError: The stream has not ended as it should, or its pieces are not those of the response it ends with.
    """
    told = _told(stream)
    if not told or told[-1]["type"] not in _ENDS:
        raise AnswerError("the stream does not end with a response that is done")
    end = told.pop()
    response = end.get("response")
    if type(response) is not dict:
        raise AnswerError("the last event holds no response")
    _check_order(told, end)
    items = _items(told)
    if response.get("output") is None:
        response["output"] = [items[index] for index in sorted(items)]  # as the client does with such a server's
    response = _checked(response)
    if len(items) > len(response["output"]):
        raise AnswerError("the response lacks items that were told before")
    for (item, part), text in _texts(told).items():
        if _text_at(response["output"], item, part) != text:
            raise AnswerError("a text is not the sum of its deltas")
    return response


def _check_order(told: list[Json], end: Json) -> None:
    """Are these events of one response, and all of them? Servers that do not count on are taken at their word."""
    for event in told:
        if event["type"] in _ENDS:
            raise AnswerError("events behind the end of the stream")
        begun = event.get("response")
        if type(begun) is dict and begun.get("id") != end["response"].get("id"):
            raise AnswerError("events of two responses in one stream")
    numbers = [count(event, "sequence_number") or 0 for event in (*told, end)]
    if "sequence_number" in end:
        steps = {later - number for number, later in pairwise(numbers)}
        if min(steps, default=1) > 0 and steps != {1}:
            raise AnswerError("events are missing")


def _items(told: list[Json]) -> dict[int, Json]:
    """The items that were told as done, by their places in the output."""
    done = [event for event in told if event["type"] == "response.output_item.done"]
    items = objects([event.get("item") for event in done], "the items")
    return {_number(event, "output_index"): item for event, item in zip(done, items, strict=True)}


def _texts(told: list[Json]) -> dict[tuple[int, int], str]:
    """What was told of texts in deltas, by the places of item and part."""
    found: dict[tuple[int, int], list[str]] = {}
    for event in told:
        if event["type"] == "response.output_text.delta":
            delta = event.get("delta")
            if type(delta) is not str:
                raise AnswerError("a delta that is no text")
            found.setdefault((_number(event, "output_index"), _number(event, "content_index")), []).append(delta)
    return {place: "".join(deltas) for place, deltas in found.items()}


def read(body: bytes) -> Json:
    """A body as an object.

    Raises:
        AnswerError: It is not one whole answer: the response has failed, or is still to come.
    """
    return _checked(unary_object(body))


def events(response: Json) -> list[bytes]:
    """The events of what `read` or `assembled` returned."""
    return ResponseWriter(response).written()


def facts(response: Json) -> Facts:
    """What is known of what `read` or `assembled` returned."""
    output = response["output"]
    details = response.get("incomplete_details")
    reason = details.get("reason") if type(details) is dict else None
    parts = [part for item in output if item.get("type") == "message" for part in objects(item["content"], "a message")]
    cut = response["status"] == "incomplete"
    return Facts(
        whole=True,
        answer_id=string(response.get("id")),
        model=string(response.get("model")),
        finish_reasons=(string(reason) or "incomplete" if cut else "completed",),
        truncated=cut and reason != "content_filter",
        filtered=reason == "content_filter",
        refused=any(part.get("type") == "refusal" for part in parts),
        tool_calls=any((string(item.get("type")) or "").endswith(_ITEM_CALLS) for item in output),
        text="".join(part["text"] for part in parts if part.get("type") == "output_text"),
        usage=_usage(response.get("usage")),
    )


def _told(stream: bytes) -> list[Json]:
    told = []
    for name, data in events_of(stream):
        if data == DONE:
            continue  # some servers end every stream alike
        event = load_object(data)
        kind = event.get("type")
        if kind in _FAILURES or name == b"error" or (kind is None and event.get("error") is not None):
            raise FailedAnswerError("the worker told an error")
        if type(kind) is not str:
            raise AnswerError("an event without a type")
        told.append(event)
    return told


def _checked(response: Json) -> Json:
    status = response.get("status")
    if status == "failed" or response.get("error") is not None:
        raise FailedAnswerError("the worker told an error")
    if status not in _STATUSES:
        raise AnswerError("the response is not done")
    if not string(response.get("id")):
        raise AnswerError("a response without an id")
    for item in objects(response.get("output"), "the output"):
        if type(item.get("type")) is not str:
            raise AnswerError("an item without a type")
        if item["type"] == "message":
            for part in objects(item.get("content"), "a message"):
                if part.get("type") == "output_text" and type(part.get("text")) is not str:
                    raise AnswerError("a text that is no string")
    return response


def _text_at(output: list[Json], item: int, part: int) -> object:
    content: Any = output[item].get("content") if item < len(output) else None
    if type(content) is not list or part >= len(content):
        return None
    return content[part].get("text") if type(content[part]) is dict else None


def _number(event: Json, name: str) -> int:
    value = event.get(name)
    if type(value) is not int or value < 0:
        raise AnswerError("an event without a proper place")
    return value


def _usage(usage: object) -> Usage:
    details = usage.get("input_tokens_details") if type(usage) is dict else None
    return Usage(count(usage, "input_tokens"), count(usage, "output_tokens"), count(details, "cached_tokens"))
