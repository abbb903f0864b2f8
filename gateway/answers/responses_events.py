"""A finished response as the events that OpenAI would have streamed. Pure.

An item is told as begun, with nothing in it yet, then in pieces, then as it is. Items of tools that ran at the server
have states of their own on the way (`_STATES`); those that have none here are told as begun and as done, which every
client understands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.answers.base import Json, dump, json_pieces, objects, string, token_pieces
from gateway.answers.sse import event_bytes

_STATES: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "web_search_call": (("web_search_call.in_progress", "web_search_call.searching"), ("web_search_call.completed",)),
    "file_search_call": (
        ("file_search_call.in_progress", "file_search_call.searching"),
        ("file_search_call.completed",),
    ),
    "image_generation_call": (
        ("image_generation_call.in_progress", "image_generation_call.generating"),
        ("image_generation_call.completed",),
    ),
    "code_interpreter_call": (
        ("code_interpreter_call.in_progress",),
        ("code_interpreter_call.interpreting", "code_interpreter_call.completed"),
    ),
    "mcp_call": (("mcp_call.in_progress",), ("mcp_call.completed",)),
    "mcp_list_tools": (("mcp_list_tools.in_progress",), ("mcp_list_tools.completed",)),
}
"""Type of an item → the events before its text, if it has one, and behind."""

_TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "function_call": ("arguments", "function_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
    "mcp_call": ("arguments", "mcp_call_arguments"),
    "code_interpreter_call": ("code", "code_interpreter_call_code"),
}
"""Type of an item → the member with its text, and what the events are called that tell it."""

_PARTS: Final[Mapping[str, tuple[str, str]]] = {
    "output_text": ("text", "output_text"),
    "refusal": ("refusal", "refusal"),
    "reasoning_text": ("text", "reasoning_text"),
}
"""Type of a part of an item's content → the same."""

_DONE: Final = ("completed", "incomplete")
_RESULTS: Final = ("result", "results", "outputs", "output", "tools", "encrypted_content")
"""Members of items that are not there before they are done."""


class ResponseWriter:
    """Writes the events of one response, each with its number."""

    def __init__(self, response: Json) -> None:
        self._response = response
        self._events: list[bytes] = []

    def written(self) -> list[bytes]:
        """All events."""
        response = self._response
        begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
        if "completed_at" in begun:
            begun["completed_at"] = None
        # The response is long (tools, instructions): made JSON once, written twice.
        whole = dump(begun)
        for kind in ("response.created", "response.in_progress"):
            self._write(b'{"type":"%b","sequence_number":' % kind.encode(), b',"response":%b}' % whole, kind)
        for index, item in enumerate(response["output"]):
            self._item(index, item)
        self._event(f"response.{response['status']}", {"response": response})
        return self._events

    def _event(self, kind: str, fields: Mapping[str, Any]) -> None:
        self._write(b'{"type":"%b","sequence_number":' % kind.encode(), b"," + dump(fields)[1:], kind)

    def _write(self, before: bytes, behind: bytes, kind: str) -> None:
        data = before + str(len(self._events)).encode() + behind
        self._events.append(event_bytes(kind.encode(), data))

    def _deltas(self, kind: str, place: Mapping[str, Any], text: str, behind: bytes = b"}") -> None:
        """Deltas of one text; `place` says which."""
        name = kind.encode()
        start = b'event: %b\ndata: {"type":"%b","sequence_number":' % (name, name)
        middle = b"," + dump(place)[1:-1] + b',"delta":'
        end = behind + b"\n\n"
        number = len(self._events)
        for piece in json_pieces(text):
            self._events.append(b"%b%d%b%b%b" % (start, number, middle, piece, end))
            number += 1

    def _item(self, index: int, item: Json) -> None:
        kind = item["type"]
        place = {"item_id": _item_id(item, index), "output_index": index}
        self._event("response.output_item.added", {"output_index": index, "item": _begun(item)})
        before, behind = _STATES.get(kind, ((), ()))
        for state in before:
            self._event(f"response.{state}", place)
        if kind in _TEXTS:
            self._call(place, item, *_TEXTS[kind])
        if kind == "reasoning":
            self._summary(place, item)
        if kind in ("message", "reasoning"):
            for number, part in enumerate(objects(item.get("content") or [], "the content of an item")):
                self._part({**place, "content_index": number}, part)
        if item.get("status", "completed") == "completed" or kind not in _STATES:
            for state in behind:
                self._event(f"response.{state}", place)
        self._event("response.output_item.done", {"output_index": index, "item": item})

    def _call(self, place: Json, item: Json, member: str, kind: str) -> None:
        text = item.get(member)
        if type(text) is not str:
            return
        self._deltas(f"response.{kind}.delta", place, text)
        named = {"name": item["name"]} if kind == "function_call_arguments" and "name" in item else {}
        self._event(f"response.{kind}.done", {**place, **named, member: text})

    def _summary(self, place: Json, item: Json) -> None:
        for number, part in enumerate(objects(item.get("summary") or [], "a summary")):
            at = {**place, "summary_index": number}
            text = string(part.get("text")) or ""
            self._event("response.reasoning_summary_part.added", {**at, "part": {**part, "text": ""}})
            self._deltas("response.reasoning_summary_text.delta", at, text)
            self._event("response.reasoning_summary_text.done", {**at, "text": text})
            self._event("response.reasoning_summary_part.done", {**at, "part": part})

    def _part(self, place: Json, part: Json) -> None:
        kind = part.get("type")
        member, name = _PARTS.get(kind, ("", "")) if type(kind) is str else ("", "")
        text = part.get(member)
        if type(text) is not str:
            self._event("response.content_part.added", {**place, "part": part})
            self._event("response.content_part.done", {**place, "part": part})
            return
        begun = {key: [] if type(value) is list else value for key, value in part.items()} | {member: ""}
        self._event("response.content_part.added", {**place, "part": begun})
        if kind == "output_text":
            self._text(place, part)
        else:
            self._deltas(f"response.{name}.delta", place, text)
            self._event(f"response.{name}.done", {**place, member: text})
        self._event("response.content_part.done", {**place, "part": part})

    def _text(self, place: Json, part: Json) -> None:
        text = part["text"]
        entries = objects(part.get("logprobs") or [], "log probabilities")
        if entries:
            start = 0
            for piece, length in token_pieces(text, [string(entry.get("token")) or "" for entry in entries]):
                told = {**place, "delta": piece, "logprobs": entries[start : start + length]}
                start += length
                self._event("response.output_text.delta", told)
        else:
            self._deltas("response.output_text.delta", place, text, b',"logprobs":[]}')
        for number, annotation in enumerate(objects(part.get("annotations") or [], "annotations")):
            told = {**place, "annotation_index": number, "annotation": annotation}
            self._event("response.output_text.annotation.added", told)
        self._event("response.output_text.done", {**place, "text": text, "logprobs": entries})


def _item_id(item: Json, index: int) -> str:
    """Some servers give no ids to some items; the events must have one."""
    return string(item.get("id")) or string(item.get("call_id")) or f"item_{index}"


def _begun(item: Json) -> Json:
    """An item before there is anything in it."""
    begun = {name: value for name, value in item.items() if name not in _RESULTS}
    if item.get("status") in _DONE:
        begun["status"] = "in_progress"
    if item["type"] in _TEXTS and type(item.get(_TEXTS[item["type"]][0])) is str:
        begun[_TEXTS[item["type"]][0]] = ""
    for name in ("content", "summary"):
        if type(item.get(name)) is list:
            begun[name] = []
    return begun
